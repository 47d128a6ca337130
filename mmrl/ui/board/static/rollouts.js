// The page of rollouts:
//   <form id="filters" action="/rollouts"> with the fields run, step, task, status, source, low, high, q, sort and a button
//   <div id="steps"><button id="earlier">, <input type="range" id="step" data-steps-url="/api/steps?run=A">, <button id="later">,
//     <output id="step-shown"></div>
//   and the HTML of `/part/groups?...`: <p id="found"> the number of rollouts, <div id="groups"> with cards
//     <article class="group">, <a id="more" href="/rollouts?...&after=PLACE"> if there is a next page
// A page of one rollout has <a rel="prev"> and <a rel="next">. `o` toggles the class "unmarked" of <body>.
import { json, problem, text } from "./ask.js";
import { el, fragment, settled } from "./dom.js";
import { onKey } from "./keys.js";
import { hear } from "./live.js";
import * as player from "./player.js";

const TYPING = 250; // milliseconds after the last typed letter before a search
const SLIDING = 120; // the same after the last move of the slider

export function start() {
  const form = document.getElementById("filters"), found = document.getElementById("found");
  if (!form || !found) return;
  const place = el("div", { class: "listed" });
  found.before(place);
  while (place.nextSibling) place.append(place.nextSibling);
  const listed = new Listed(form, place);
  const steps = new Steps(form, listed);
  news(form, place, steps, listed);
  moves();
}

// The groups that match the form; the next page is loaded when its end comes near.
class Listed {
  constructor(form, place) {
    Object.assign(this, { form, place });
    this.stop = new AbortController();
    const seen = (entries) => entries.some(({ isIntersecting }) => isIntersecting) && this.more();
    this.near = new IntersectionObserver(seen, { rootMargin: "1500px 0px" });
    form.querySelector("button").hidden = true;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.renew();
    });
    const renew = settled(() => this.renew(), TYPING);
    form.addEventListener("input", renew);
    place.addEventListener("click", (event) => {
      if (!event.target.closest("#more")) return;
      event.preventDefault();
      this.more();
    });
    this.#watch();
  }

  async renew() {
    this.stop.abort();
    this.stop = new AbortController();
    const query = new URLSearchParams([...new FormData(this.form)].filter(([, value]) => value !== ""));
    history.replaceState(history.state, "", `?${query}`);
    this.place.setAttribute("aria-busy", "true");
    try {
      this.place.replaceChildren(fragment(await text("/part/groups", query, this.stop.signal)));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.place.replaceChildren(problem("The rollouts", error, () => this.renew()));
    }
    this.place.removeAttribute("aria-busy");
    this.#watch();
  }

  async more() {
    const link = document.getElementById("more");
    if (!link || link.getAttribute("aria-busy")) return;
    link.setAttribute("aria-busy", "true");
    try {
      const next = fragment(await text("/part/groups", new URL(link.href).searchParams, this.stop.signal));
      document.getElementById("groups").append(...next.querySelectorAll("#groups > *"));
      link.replaceWith(...next.querySelectorAll("#more"));
    } catch (error) {
      if (error.name === "AbortError") return;
      const line = problem("The next rollouts", error, () => {
        line.replaceWith(link);
        link.removeAttribute("aria-busy");
        this.more();
      });
      link.replaceWith(line);
    }
    this.#watch();
  }

  #watch() {
    player.start(this.place);
    this.near.disconnect();
    const link = document.getElementById("more");
    if (link) this.near.observe(link);
  }
}

// The slider over steps with rollouts, with buttons to the previous and next one; "Any step" clears the selection.
class Steps {
  constructor(form, listed) {
    Object.assign(this, { listed, steps: [] });
    this.number = form.elements.step;
    const ids = ["step", "step-shown", "earlier", "later"];
    [this.range, this.shown, this.earlier, this.later] = ids.map((id) => document.getElementById(id));
    this.any = el("button", { type: "button", onclick: () => this.set("") }, "Any step");
    this.shown.after(this.any);
    this.range.min = 0;
    const renew = settled(() => listed.renew(), SLIDING);
    this.range.addEventListener("input", () => {
      this.number.value = this.steps[this.range.value];
      this.#show();
      renew();
    });
    this.number.addEventListener("input", () => this.#show());
    this.earlier.addEventListener("click", () => this.#by(-1));
    this.later.addEventListener("click", () => this.#by(1));
    onKey(["["], "previous step", () => this.#by(-1));
    onKey(["]"], "next step", () => this.#by(1));
    this.learn();
  }

  async learn() {
    this.steps = (await json(this.range.dataset.stepsUrl).catch(() => this)).steps;
    this.#show();
  }

  set(step) {
    this.number.value = step;
    this.#show();
    this.listed.renew();
  }

  // Index of the recorded step nearest to the selected one; -1 if none is selected.
  get #at() {
    if (this.number.value === "") return -1;
    const away = this.steps.map((step) => Math.abs(step - this.number.value));
    return away.indexOf(Math.min(...away));
  }

  #by(n) {
    const last = this.steps.length - 1;
    const at = this.#at < 0 ? last + 1 : this.#at;
    if (last >= 0) this.set(this.steps[Math.min(Math.max(at + n, 0), last)]);
  }

  #show() {
    const at = this.#at, last = this.steps.length - 1;
    this.range.max = Math.max(0, last);
    this.range.value = at < 0 ? last : at;
    const label = at < 0 ? "any step" : `step ${this.steps[at].toLocaleString("en-US")}`;
    this.range.setAttribute("aria-valuetext", label);
    this.shown.textContent = label;
    this.any.hidden = at < 0;
    this.range.disabled = last < 0;
    this.earlier.disabled = at === 0 || last < 0;
    this.later.disabled = at < 0 || at === last;
  }
}

// The button "New rollouts of step N", which shows them.
function news(form, place, steps, listed) {
  const line = el("div", { class: "news", role: "status" });
  place.before(line);
  hear("rollouts", ({ run, step }) => {
    if (run !== form.elements.run.value) return;
    steps.learn();
    const show = () => {
      line.replaceChildren();
      scrollTo({ top: 0 });
      if (form.elements.step.value) steps.set(step);
      else listed.renew();
    };
    line.replaceChildren(el("button", { type: "button", onclick: show }, `New rollouts of step ${step.toLocaleString("en-US")}`));
  });
  hear("back", () => steps.learn());
}

// Keys that move from card to card. Arrow keys do so only if a card has the focus; otherwise they scroll.
function moves() {
  const current = () => document.activeElement?.closest("#groups > .group");
  const focused = () => document.querySelector("#groups > .group:focus");
  const move = (by) => {
    const all = [...document.querySelectorAll("#groups > .group")];
    const at = all.indexOf(current());
    const first = all.findIndex((card) => card.getBoundingClientRect().bottom > 80);
    const next = all[at < 0 ? first : Math.min(Math.max(at + by, 0), all.length - 1)];
    if (!next) return false;
    next.tabIndex = -1;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  };
  onKey(["j"], "next group", () => move(1));
  onKey(["k"], "previous group", () => move(-1));
  onKey(["ArrowDown", "ArrowRight"], "next group, if a group has the focus", () => (focused() ? move(1) : false));
  onKey(["ArrowUp", "ArrowLeft"], "previous group, if a group has the focus", () => (focused() ? move(-1) : false));
  onKey(["Enter"], "open a rollout of the group", () => {
    const link = focused()?.querySelector("a[href^='/rollout?']");
    if (!link) return false;
    link.click();
  });
}

// Keys of the page of one rollout.
export function neighbours() {
  const ways = { prev: ["ArrowLeft", "previous rollout"], next: ["ArrowRight", "next rollout"] };
  for (const [rel, [name, word]] of Object.entries(ways)) {
    onKey([name], word, () => {
      const link = document.querySelector(`a[rel="${rel}"]`);
      if (!link) return false;
      link.click();
    });
  }
}

export function marks() {
  onKey(["o"], "show or hide marks on images", () => {
    document.body.classList.toggle("unmarked");
  });
}
