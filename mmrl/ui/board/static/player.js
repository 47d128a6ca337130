// A player of videos: pause, step, speed. The server renders an animated image with the address of its frames; without scripts
// the image plays by itself:
//   <figure class="player" data-src="/media/frame?run=A&path=..." data-frames="40" data-ms="100">
//     <img src="..." loading="lazy" alt="..."></figure>
// data-ms: durations of the frames in milliseconds with commas between, or one for all. Frame K, from 0, is at data-src + &n=K.
import { el, isWriting } from "./dom.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4];
const AHEAD = 6; // frames that are fetched in advance
const EACH = 100; // default milliseconds per frame
const players = new WeakMap(); // figure -> Player

export function start(root = document) {
  for (const figure of root.querySelectorAll("figure.player")) if (!players.has(figure)) players.set(figure, new Player(figure));
}

// Add a button below the page's title that plays all videos in view, if the page has several.
export function together() {
  const all = [...document.querySelectorAll("figure.player")].map((figure) => players.get(figure));
  if (all.length < 2) return;
  const button = el("button", { type: "button" }, "Play all in view");
  button.addEventListener("click", () => {
    const start = !all.some(({ playing }) => playing);
    for (const player of all) player.play(start && player.inView);
    button.textContent = start ? "Pause all" : "Play all in view";
  });
  document.getElementById("title").after(el("p", { class: "bar-of-tools" }, button));
}

class Player {
  constructor(figure) {
    this.figure = figure;
    this.image = figure.querySelector("img");
    this.frames = Math.max(1, Number(figure.dataset.frames));
    const times = figure.dataset.ms.split(",").map(Number);
    this.time = (k) => times[Math.min(k, times.length - 1)] || EACH;
    this.loaded = new Map(); // index -> promise of an image
    this.at = 0;
    this.playing = false;
    this.plays = 0; // number of starts
    this.speed = 1;
    this.button = el("button", { type: "button", onclick: () => this.play(!this.playing) });
    this.slider = el("input", { type: "range", min: 0, max: this.frames - 1, value: 0, "aria-label": "Frame" });
    this.slider.addEventListener("input", () => this.#to(Number(this.slider.value)));
    const speeds = SPEEDS.map((n) => el("option", { value: n, selected: n === 1 }, `${n}\u00d7`));
    const speed = el("select", { "aria-label": "Speed" }, ...speeds);
    speed.addEventListener("change", () => (this.speed = Number(speed.value)));
    this.place = el("output", {});
    figure.append(el("div", { class: "play" }, this.button, this.slider, this.place, speed));
    figure.tabIndex = 0;
    figure.setAttribute("role", "group");
    figure.setAttribute("aria-label", `Video: ${this.image.alt}`);
    figure.addEventListener("keydown", (event) => this.#key(event));
    new IntersectionObserver(([{ isIntersecting }]) => this.#seen(isIntersecting)).observe(figure);
    this.#tell();
  }

  // Show the first frame when the video comes into view; pause it out of view.
  #seen(inView) {
    this.inView = inView;
    if (inView && !this.begun) this.#to(0);
    if (!inView) this.play(false);
  }

  // A promise of frame k as a decoded image.
  #frame(k) {
    if (!this.loaded.has(k)) {
      const image = new Image();
      image.src = `${this.figure.dataset.src}&n=${k}`;
      this.loaded.set(k, image.decode().then(() => image));
      image.onerror = () => this.loaded.delete(k); // so that it can be requested again
    }
    return this.loaded.get(k);
  }

  async #to(k) {
    this.at = (k + this.frames) % this.frames;
    this.begun = true;
    this.#tell();
    const wanted = this.at;
    try {
      const { src } = await this.#frame(wanted);
      if (wanted === this.at) this.image.src = src;
      this.figure.querySelector(".problem")?.remove();
      return true;
    } catch {
      if (!this.figure.querySelector(".problem")) {
        this.figure.append(el("p", { class: "problem", role: "alert" }, `Frame ${wanted + 1} could not be loaded.`));
      }
      this.play(false);
      return false;
    }
  }

  async play(start) {
    if (this.playing === start) return;
    this.playing = start;
    this.#tell();
    const mine = ++this.plays;
    let due = performance.now();
    while (this.playing && mine === this.plays && this.figure.isConnected) {
      for (let k = 1; k <= AHEAD; k++) this.#frame((this.at + k) % this.frames).catch(() => {});
      due = Math.max(due + this.time(this.at) / this.speed, performance.now());
      await new Promise((done) => setTimeout(done, due - performance.now()));
      if (!this.playing || mine !== this.plays || !(await this.#to(this.at + 1))) break;
    }
  }

  #tell() {
    this.button.textContent = this.playing ? "\u275a\u275a" : "\u25b6\ufe0e";
    this.button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    this.slider.value = this.at;
    this.slider.setAttribute("aria-valuetext", `frame ${this.at + 1} of ${this.frames}`);
    this.place.textContent = `${this.at + 1}/${this.frames}`;
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || isWriting(event.target)) return;
    if (event.key === " " && event.target === this.figure) this.play(!this.playing);
    else if (event.key === "," || event.key === ".") {
      this.play(false);
      this.#to(this.at + (event.key === "," ? -1 : 1));
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
