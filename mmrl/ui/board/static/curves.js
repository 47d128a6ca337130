// The page of curves: charts of one run, or of several runs overlaid. It fills the element that the server renders:
//   <div id="curves" data-runs='["NAME"]'></div>
// The address keeps the controls' state: run (one or more), smooth, x, y, from, to, step, q, off (runs), show.CHART (keys).
import * as address from "./address.js";
import { json, problem } from "./ask.js";
import { Chart } from "./chart.js";
import { Controls } from "./controls.js";
import { el, isWriting, paced } from "./dom.js";
import { evaluations } from "./evaluations.js";
import { hear } from "./live.js";
import { colours } from "./palette.js";
import { Store } from "./store.js";

const FIRST = "Evaluations"; // section with a hidden heading, since its charts have the same title
const SMOOTHING = 0.8;
const LIVE = 250; // milliseconds between two redraws for live updates
const AGAIN = 1000; // milliseconds between two reloads of everything
const FRAME = 10; // milliseconds of drawing per animation frame; other charts follow in the next

export function start() {
  const place = document.getElementById("curves");
  if (place) new Curves(place, JSON.parse(place.dataset.runs)).begin();
}

class Curves {
  constructor(place, names) {
    this.place = place;
    const off = address.all("off");
    this.runs = names.map((name) => ({ name, state: "", steps: 0, stages: [], shown: !off.includes(name) }));
    this.axis = address.get("x") === "time" ? "time" : "step";
    this.log = address.get("y") === "log";
    this.smoothing = address.number("smooth", 0, 0.99, SMOOTHING);
    this.step = address.number("step", 0, 9e15, null);
    this.words = address.get("q") ?? "";
    const [from, to] = ["from", "to"].map((name) => address.number(name, 0, 9e15, null));
    this.zoomed = from !== null && to > from ? [from, to] : null;
    this.colours = colours();
    this.evals = new Map(); // run -> rows
    this.shares = []; // evaluation metrics that are shares, 0 to 1
    this.charts = new Map(); // id -> Chart
    this.cards = new WeakMap(); // card or plot -> Chart
    this.known = new Set(); // keys of planned charts, and new keys that were already looked up
    this.waiting = new Set(); // charts to draw
    this.store = new Store((keys) => this.#arrived(keys), (error) => this.#failed(error));
    this.seen = new IntersectionObserver((entries) => this.#see(entries), { rootMargin: "240px 0px" });
    this.sizes = new ResizeObserver((entries) => this.#size(entries));
  }

  async begin() {
    this.trouble = el("div", {}, el("p", { class: "empty" }, "Loading ..."));
    this.sections = el("div", {});
    this.left = el("ul", { class: "notes", id: "left-out" });
    this.place.append(this.trouble, this.left, this.sections);
    if (!(await this.#read())) return;
    this.controls = new Controls(this);
    this.place.prepend(this.controls.card);
    this.#live();
    document.addEventListener("recolour", () => {
      this.colours = colours();
      this.draw();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || isWriting(event.target) || document.querySelector("dialog[open]")) return;
      if (this.zoomed) this.zoom(null);
      else this.setStep(null);
    });
  }

  #live() {
    const draw = paced(() => this.draw(), LIVE), again = paced(() => this.#again(), AGAIN);
    const find = (name) => this.runs.find((run) => run.name === name);
    hear("steps", ({ run, rows, reload }) => {
      if (reload) return again();
      this.store.append(run, rows);
      find(run).steps = Math.max(find(run).steps, rows.at(-1).step);
      if (rows.some(({ metrics }) => this.#isNews(metrics))) again();
      draw();
    });
    hear("eval", ({ run, row }) => {
      this.evals.get(run).push({ step: row.step, ...row.eval });
      this.#lay();
      draw();
    });
    hear("state", ({ run, state }) => {
      find(run).state = state.state;
      this.controls.show();
    });
    hear("back", again);
  }

  // -- data -----------------------------------------------------------------------------------------------------------

  // Fetch the plan of charts; returns whether that succeeded.
  async #read() {
    try {
      const plan = await json("/api/curves", this.runs.map(({ name }) => ["run", name]));
      for (const run of this.runs) Object.assign(run, plan.runs.find(({ name }) => name === run.name));
      this.evals = new Map(this.runs.map(({ name }) => [name, plan.evals[name]]));
      this.shares = plan.shares;
      this.plan = plan.sections;
      this.leftOut = plan.left_out;
    } catch (error) {
      this.trouble.replaceChildren(problem("The curves", error, () => location.reload()));
      return false;
    }
    this.trouble.replaceChildren();
    this.left.replaceChildren(...this.leftOut.map((line) => el("li", {}, line)));
    for (const { charts } of this.plan) for (const { keys } of charts) for (const key of keys) this.known.add(key);
    this.#lay();
    return true;
  }

  // Whether a step has a metric without a planned chart; true once for each metric.
  #isNews(metrics) {
    const unknown = Object.keys(metrics).filter((key) => !this.known.has(key));
    for (const key of unknown) this.known.add(key);
    return unknown.length > 0;
  }

  async #again() {
    this.store.renew();
    await this.#read();
    this.draw();
  }

  // Lay out sections and cards as planned; existing ones are reused.
  #lay() {
    const charts = evaluations(this.evals, this.store, this.shares);
    const plan = [...(charts.length ? [{ title: FIRST, charts }] : []), ...this.plan];
    const sections = plan.map(({ title, charts }) => {
      const old = [...this.sections.children].find((section) => section.dataset.title === title);
      const heading = el("h2", { class: title === FIRST ? "unseen" : null }, title);
      const section = old ?? el("section", { "data-title": title }, heading, el("div", { class: "charts" }));
      fill(section.querySelector(".charts"), charts.map((spec) => this.#chart(spec).card));
      return section;
    });
    const none = el("p", { class: "empty" }, "No step is recorded yet; curves appear with the first one.");
    fill(this.sections, sections.length ? sections : [none]);
    this.find(this.words);
  }

  #chart(spec) {
    const old = this.charts.get(spec.id);
    if (old && JSON.stringify(old.spec) === JSON.stringify(spec)) return old;
    if (old) this.#leave(old);
    const chart = new Chart(spec, this, address.all(`show.${spec.id}`));
    this.charts.set(spec.id, chart);
    for (const part of [chart.card, chart.plot]) this.cards.set(part, chart);
    this.seen.observe(chart.card);
    this.sizes.observe(chart.plot);
    return chart;
  }

  #leave(chart) {
    this.waiting.delete(chart);
    this.seen.unobserve(chart.card);
    this.sizes.unobserve(chart.plot);
    chart.leave();
  }

  // -- setters of the controls ----------------------------------------------------------------------------------------

  setSmoothing(weight) {
    this.smoothing = weight;
    address.put("smooth", weight);
    this.draw();
  }

  setAxis(axis) {
    this.axis = axis;
    address.put("x", axis === "step" ? null : axis);
    if (axis === "time") evaluations(this.evals, this.store, this.shares); // the times of evaluations come from the steps
    this.zoom(null);
  }

  setLog(log) {
    this.log = log;
    address.put("y", log ? "log" : null);
    this.draw();
  }

  // Select a step; null for none.
  setStep(step) {
    this.step = step === null ? null : Math.min(Math.max(Math.round(step), 0), this.last);
    address.put("step", this.step);
    this.controls.show();
    for (const chart of this.charts.values()) chart.mark();
  }

  // Show only charts with all these words in their title or metrics.
  find(text) {
    this.words = text;
    address.put("q", text);
    const words = text.toLowerCase().split(/\s+/);
    for (const { spec, card } of this.charts.values()) {
      const said = [spec.title, ...spec.keys].join(" ").toLowerCase();
      card.hidden = !words.every((word) => said.includes(word));
    }
    for (const section of this.sections.querySelectorAll("section")) {
      section.hidden = !section.querySelector(".card:not([hidden])");
    }
  }

  // Show or hide one of several runs.
  toggle(name) {
    const toggled = this.runs.find((run) => run.name === name);
    toggled.shown = !toggled.shown;
    const off = this.runs.filter(({ shown }) => !shown);
    address.put("off", off.map((run) => run.name));
    this.draw();
  }

  // Show the part [from, to] of the x axes; null for the whole run.
  zoom(part) {
    const digits = this.axis === "step" ? 0 : 1;
    this.zoomed = part && part.map((x) => Number(x.toFixed(digits)));
    address.put("from", this.zoomed?.[0]);
    address.put("to", this.zoomed?.[1]);
    this.store.look(null);
    this.#look();
    this.draw();
  }

  // The last step of any run.
  get last() {
    return Math.max(1, ...this.runs.map(({ steps }) => steps));
  }

  // -- interface of the charts ----------------------------------------------------------------------------------------

  // A chart shows another set of keys.
  changed(chart) {
    address.put(`show.${chart.spec.id}`, chart.chosen);
    this.#queue([chart]);
  }

  // [low, high] of the x axes.
  range() {
    this.extent ??= this.zoomed ?? this.store.extent(this.axis) ?? [0, 1];
    const [low, high] = this.extent;
    return high > low ? this.extent : [low - 1, high + 1];
  }

  // Place of the selected step on the x axes; null without one.
  marker() {
    return this.step === null ? null : this.store.place(this.runs[0].name, this.step, "step", this.axis);
  }

  // Starts of stages as {x, label, run}; run is the index of a run, or null for a single run or a start that several share.
  boundaries() {
    const found = new Map();
    this.runs.forEach((run, i) => {
      if (!run.shown) return;
      for (const { kind, algorithm, first } of run.stages.slice(1)) {
        const x = this.store.place(run.name, first - 0.5, "step", this.axis);
        const label = algorithm ? `${kind} ${algorithm}` : kind, name = `${x} ${label}`;
        if (x !== null) found.set(name, { x, label, run: this.runs.length > 1 && !found.has(name) ? i : null });
      }
    });
    return found.values();
  }

  // The cross-hair of a chart has moved to x, or away if x is null; move those of the other charts.
  moved(chart, x) {
    if (!this.moving) {
      requestAnimationFrame(() => {
        const moving = this.moving;
        this.moving = null;
        for (const other of this.charts.values()) if (other.visible) other.cross(moving.x, other === moving.chart);
      });
    }
    this.moving = { chart, x };
  }

  // Select the step at x.
  mark(x) {
    const step = x === null ? null : this.store.place(this.runs[0].name, x, this.axis, "step");
    if (step !== null) this.setStep(step);
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  // Load more points of the shown part, once its steps are known.
  #look() {
    if (!this.zoomed || this.store.range) return;
    const steps = this.runs.map(({ name }) => this.zoomed.map((x) => this.store.place(name, x, this.axis, "step")));
    if (steps.flat().includes(null)) return;
    this.store.look(new Map(this.runs.map(({ name }, i) => [name, [Math.floor(steps[i][0]), Math.ceil(steps[i][1])]])));
  }

  // Draw the charts of these metrics; all charts if the range of the x axes has changed.
  #arrived(keys) {
    this.#look();
    if (this.axis === "time") evaluations(this.evals, this.store, this.shares);
    this.trouble.replaceChildren();
    const before = String(this.extent);
    this.extent = null;
    if (this.axis === "time" || before !== String(this.range())) this.draw();
    else this.#queue([...this.charts.values()].filter(({ spec }) => spec.keys.some((key) => keys.has(key))));
  }

  #failed(error) {
    this.trouble.replaceChildren(problem("Some curves", error, () => this.draw()));
  }

  #see(entries) {
    for (const { target, isIntersecting } of entries) this.cards.get(target).visible = isIntersecting;
    this.#queue(entries.map(({ target }) => this.cards.get(target)));
  }

  #size(entries) {
    for (const { target, contentRect } of entries) this.cards.get(target).width = Math.floor(contentRect.width);
    this.#queue(entries.map(({ target }) => this.cards.get(target)));
  }

  // Draw all charts in view now, the others when they come into view.
  draw() {
    this.extent = null;
    this.controls?.show();
    this.#queue(this.charts.values());
  }

  #queue(charts) {
    for (const chart of charts) if (chart.visible) this.waiting.add(chart);
    if (this.frame || !this.waiting.size) return;
    this.frame = requestAnimationFrame(async () => {
      const end = performance.now() + FRAME;
      for (const chart of this.waiting) chart.want();
      for (const chart of this.waiting) {
        this.waiting.delete(chart);
        chart.draw();
        await null; // uPlot draws in a microtask
        if (performance.now() > end) break;
      }
      this.frame = 0;
      this.#queue([]);
    });
  }
}

// Replace the children of an element, only if they differ.
function fill(place, children) {
  const same = children.length === place.children.length && children.every((child, i) => child === place.children[i]);
  if (!same) place.replaceChildren(...children);
}
