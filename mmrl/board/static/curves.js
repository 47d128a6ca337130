// The page of curves: charts of one run, or of several over each other. The server gives an empty place, the rest is made here:
//   <div id="curves" data-runs='["NAME"]'></div>
// How the controls stand is in the address: run (one or more), smooth, x, y, from, to, step, q, off (runs), show.CHART (keys).
import * as address from "./address.js";
import { json, problem } from "./ask.js";
import { Chart, key } from "./chart.js";
import { el, paced } from "./dom.js";
import { hear } from "./live.js";
import { grouped } from "./numbers.js";
import { colours } from "./palette.js";
import { Series } from "./series.js";
import { Store } from "./store.js";

const LIVE = 250;  // milliseconds between two drawings of what is new
const AGAIN = 1000;  // between two readings of everything
const FRAME = 10;  // that one frame may draw; other charts follow in the next

export function start() {
  const place = document.getElementById("curves");
  if (place) new Curves(place, JSON.parse(place.dataset.runs)).begin();
}

class Curves {
  constructor(place, names) {
    this.place = place;
    this.runs = names.map((name) => ({ name, state: "", steps: 0, planned: 0, stages: [], shown: !address.all("off").includes(name) }));
    this.axis = address.get("x") === "time" ? "time" : "step";
    this.log = address.get("y") === "log";
    this.smoothing = address.number("smooth", 0, 0.99, 0.8);
    this.step = address.number("step", 0, 9e9, null);
    const [from, to] = [address.number("from", 0, 9e15, null), address.number("to", 0, 9e15, null)];
    this.zoomed = from !== null && to > from ? [from, to] : null;
    this.colours = colours();
    this.evals = new Map();  // run -> rows
    this.charts = new Map();  // id -> Chart
    this.known = new Set();  // keys that were asked about
    this.waiting = new Set();  // charts to draw
    this.store = new Store(() => this.#arrived(), (error) => this.#failed(error));
    this.seen = new IntersectionObserver((entries) => this.#see(entries), { rootMargin: "240px 0px" });
    this.sizes = new ResizeObserver((entries) => this.#size(entries));
    this.cards = new WeakMap();  // card or plot -> Chart
  }

  async begin() {
    this.trouble = el("div", {});
    this.sections = el("div", {});
    this.place.append(this.trouble, el("p", { class: "empty", id: "reading" }, "Reading ..."), this.sections);
    const redraw = paced(() => this.draw(), LIVE);
    const again = paced(() => this.#again(), AGAIN);
    hear("steps", (message) => {
      if (message.reload) return again();
      this.store.append(message.run, message.rows);
      const last = message.rows.at(-1)?.step ?? 0;
      this.runs.forEach((run) => run.name === message.run && (run.last = Math.max(run.last ?? 0, last)));
      if (message.rows.some((row) => this.#news(row.metrics))) again();
      redraw();
    });
    hear("eval", ({ run, row }) => {
      this.evals.get(run)?.push({ step: row.step, ...(row.eval ?? row) });
      this.#evaluations();
      redraw();
    });
    hear("state", ({ run, state }) => {
      const known = this.runs.find(({ name }) => name === run);
      if (known && state?.state) known.state = state.state;
      this.#show();
    });
    hear("back", again);
    document.addEventListener("recolour", () => {
      this.colours = colours();
      this.draw();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (this.zoomed) this.zoom(null);
      else this.setStep(null);
    });
    if (await this.#read()) this.place.insertBefore(this.#controls(), this.trouble);
  }

  // -- what there is --------------------------------------------------------------------------------------------------

  async #read() {
    let plan;
    try {
      plan = await json("/api/curves", this.runs.map((run) => ["run", run.name]));
    } catch (error) {
      document.getElementById("reading")?.remove();
      this.trouble.replaceChildren(problem("The curves", error, () => location.reload()));
      return false;
    }
    document.getElementById("reading")?.remove();
    this.trouble.replaceChildren();
    for (const found of plan.runs) Object.assign(this.runs.find((run) => run.name === found.name) ?? {}, found);
    this.evals = new Map(this.runs.map(({ name }) => [name, [...(plan.evals[name] ?? [])]]));
    this.plan = plan.sections;
    this.known.clear();
    plan.sections.forEach(({ charts }) => charts.forEach(({ keys }) => keys.forEach((name) => this.known.add(name))));
    this.#lay();
    this.#show();
    return true;
  }

  // Whether a step has a metric that no chart was planned for; of each it is asked once.
  #news(metrics) {
    const unknown = Object.keys(metrics).filter((name) => !this.known.has(name));
    unknown.forEach((name) => this.known.add(name));
    return unknown.length > 0;
  }

  async #again() {
    this.store.renew();
    await this.#read();
    this.draw();
  }

  // Sections and cards as planned; those that are there stay.
  #lay() {
    const evaluation = this.#evaluations();
    const plan = [...(evaluation ? [{ title: "", charts: [evaluation] }] : []), ...this.plan];
    const sections = plan.map(({ title, charts }) => {
      const cards = charts.map((spec) => this.#chart(spec).card);
      const old = [...this.sections.children].find((section) => section.dataset.title === title);
      const section = old ?? el("section", { "data-title": title }, ...(title ? [el("h2", {}, title)] : []), el("div", { class: "charts" }));
      const list = section.querySelector(".charts");
      if (list.children.length !== cards.length || cards.some((card, i) => card !== list.children[i])) list.replaceChildren(...cards);
      return section;
    });
    if (sections.some((section, i) => section !== this.sections.children[i])) this.sections.replaceChildren(...sections);
    if (!plan.length) this.sections.replaceChildren(el("p", { class: "empty" }, "No step was recorded yet; curves appear with the first."));
    this.#find();
  }

  #chart(spec) {
    const old = this.charts.get(spec.id);
    if (old && JSON.stringify(old.spec) === JSON.stringify(spec)) return old;
    const chart = new Chart(spec, this, address.all(`show.${spec.id}`));
    if (old) chart.visible = old.visible;
    this.charts.set(spec.id, chart);
    this.cards.set(chart.card, chart);
    this.cards.set(chart.plot, chart);
    this.seen.observe(chart.card);
    this.sizes.observe(chart.plot);
    return chart;
  }

  // The chart of evaluations, whose series come from their rows; nothing where there are none.
  #evaluations() {
    const rows = [...this.evals.values()].flat();
    if (!rows.length) return null;
    const ways = new Set(rows.map(({ split, metric }) => `${split}\n${metric}`));
    const name = ({ task, split, metric }) => (ways.size > 1 ? `${task} ${metric} (${split})` : task);
    const names = [...new Set(rows.map(name))];
    for (const [run, own] of this.evals) {
      for (const one of names) {
        const found = own.filter((row) => name(row) === one).sort((a, b) => a.step - b.step);
        const time = found.map(({ step, time }) => time ?? (step ? this.store.place(run, step, "step", "time") : 0));
        const column = (end) => found.map((row) => row[end] ?? row.value);
        const series = { step: found.map(({ step }) => step), time, value: found.map(({ value }) => value), low: column("low"), high: column("high") };
        if (found.length) this.store.put(run, `evaluation ${one}`, new Series(series));
      }
    }
    return {
      id: "evaluation", title: "Evaluation", keys: names.map((one) => `evaluation ${one}`), names,
      hint: "Held-out items. Band and whiskers are the 95% interval: overlapping ones are no progress yet.",
      unit: rows.every(({ metric }) => metric === "accuracy") ? "%" : "", held: true, dots: true, tall: true,
    };
  }

  // -- controls -------------------------------------------------------------------------------------------------------

  #controls() {
    const several = this.runs.length > 1;
    const smoothing = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: this.smoothing, "aria-label": "Smoothing" });
    const weight = el("output", {}, this.smoothing.toFixed(2));
    smoothing.addEventListener("input", () => {
      this.smoothing = Number(smoothing.value);
      weight.textContent = this.smoothing.toFixed(2);
      address.put("smooth", this.smoothing);
      this.draw();
    });
    const find = el("input", { type: "search", placeholder: "Find a chart", "aria-label": "Find a chart", value: address.get("q") ?? "" });
    find.addEventListener("input", () => {
      address.put("q", find.value);
      this.#find();
    });
    this.finding = find;
    this.whole = el("button", { type: "button", onclick: () => this.zoom(null) }, "Whole run");
    const look = el(
      "div", { class: "bar-of-tools" }, find,
      el("label", {}, "Smoothing", smoothing, weight),
      choice("x axis", "x", { step: "steps", time: "wall time" }, this.axis, (value) => this.#setAxis(value)),
      choice("y axis", "y", { linear: "linear", log: "logarithmic" }, this.log ? "log" : "linear", (value) => this.#setScale(value)),
      this.whole,
    );
    this.slider = el("input", { type: "range", min: 0, "aria-label": "Step", oninput: () => this.setStep(Number(this.slider.value)) });
    this.number = el("input", { type: "number", min: 0, "aria-label": "Step as a number", placeholder: "any" });
    this.number.addEventListener("change", () => this.setStep(this.number.value === "" ? null : Number(this.number.value)));
    this.links = el("span", { class: "links" });
    const step = el("div", { class: "bar-of-tools" }, el("label", { class: "grow" }, "Step", this.slider), this.number, this.links);
    this.controls = el("div", { class: "card panel-of-controls" }, look, step);
    const add = document.querySelector("form.overlay");
    if (add) {
      look.append(add);
      add.querySelector("button").hidden = true;
      add.addEventListener("change", (event) => (location.href = this.#with([...this.runs, { name: event.target.value }])));
    }
    if (several) this.controls.prepend(el("ul", { class: "legend chosen-runs" }));
    this.#show();
    return this.controls;
  }

  // Bring the controls up to date with the runs, the step and the part that is shown.
  #show() {
    if (!this.controls) return;
    this.whole.hidden = !this.zoomed;
    const last = Math.max(1, ...this.runs.map(({ steps, last }) => Math.max(steps, last ?? 0)));
    this.slider.max = this.number.max = last;
    this.slider.value = this.step ?? last;
    this.slider.setAttribute("aria-valuetext", this.step === null ? "none chosen" : `step ${this.step}`);
    if (document.activeElement !== this.number) this.number.value = this.step ?? "";
    const one = this.runs.length === 1;
    const links = this.step === null ? [] : this.runs.filter(({ shown }) => shown).map((run) => {
      const near = run.recorded?.length ? nearest(run.recorded, this.step) : this.step;
      const fields = new URLSearchParams({ run: run.name, step: near });
      return el("a", { href: `/rollouts?${fields}` }, one ? `rollouts of step ${grouped(near)}` : `${run.name}, step ${grouped(near)}`);
    });
    const hint = el("span", { class: "hint" }, "Click on a curve to choose a step and see its rollouts.");
    this.links.replaceChildren(...(links.length ? (one ? links : [el("span", { class: "hint" }, "Rollouts: "), ...links]) : [hint]));
    const chosen = this.controls.querySelector(".chosen-runs");
    chosen?.replaceChildren(...this.runs.map((run, i) => {
      const toggle = el("button", { type: "button", "aria-pressed": String(run.shown), onclick: () => this.toggle(run.name) },
        key({ colour: i, dash: i }), el("span", {}, run.name), el("small", {}, `${run.state}, step ${grouped(run.steps)}`));
      return el("li", {}, toggle, el("a", { href: this.#with(this.runs.filter((one) => one !== run)), "aria-label": `remove ${run.name}` }, "remove"));
    }));
  }

  // The address of other runs with the controls as they are.
  #with(runs) {
    const fields = new URLSearchParams(location.search);
    fields.delete("run");
    for (const { name } of runs) fields.append("run", name);
    return `/curves?${fields}`;
  }

  #setAxis(axis) {
    this.axis = axis;
    address.put("x", axis === "step" ? null : axis);
    this.zoom(null);
  }

  #setScale(scale) {
    this.log = scale === "log";
    address.put("y", this.log ? "log" : null);
    this.draw();
  }

  async setStep(step) {
    if (!this.controls) return;
    const last = Number(this.slider.max);
    this.step = step === null ? null : Math.min(Math.max(Math.round(step), 0), last);
    address.put("step", this.step);
    this.#show();
    for (const chart of this.charts.values()) chart.mark();
    if (step === null || this.asking) return;
    this.asking = true;
    for (const run of this.runs) run.recorded = (await json("/api/steps", { run: run.name }).catch(() => ({ steps: [] }))).steps;
    this.asking = false;
    this.#show();
  }

  // Which charts are there by a word in their title or metrics.
  #find() {
    const words = (this.finding?.value ?? address.get("q") ?? "").toLowerCase().split(/\s+/);
    for (const { spec, card } of this.charts.values()) {
      const text = [spec.title, ...spec.keys].join(" ").toLowerCase();
      card.hidden = !words.every((word) => text.includes(word));
    }
    for (const section of this.sections.children) section.hidden = Boolean(section.querySelector(".card")) && !section.querySelector(".card:not([hidden])");
  }

  // -- what charts ask ------------------------------------------------------------------------------------------------

  // Another set of keys is shown in a chart.
  changed(chart) {
    address.put(`show.${chart.spec.id}`, chart.chosen ? [...(chart.shown.size ? chart.shown : [""])] : null);
    this.#queue([chart]);
  }

  toggle(name) {
    const run = this.runs.find((one) => one.name === name);
    run.shown = !run.shown;
    address.put("off", this.runs.filter(({ shown }) => !shown).map((one) => one.name));
    this.#show();
    this.draw();
  }

  // From where to where the x axes go.
  range() {
    if (this.zoomed) return this.zoomed;
    this.extent ??= this.store.extent(this.axis) ?? [0, 1];
    const [low, high] = this.extent;
    return high > low ? [low, high] : [low - 1, high + 1];
  }

  marker() {
    return this.step === null ? null : this.store.place(this.runs[0].name, this.step, "step", this.axis);
  }

  // Where stages begin, of each run; of all where they are the same.
  boundaries() {
    const found = new Map();
    this.runs.forEach((run, i) => run.shown && run.stages.slice(1).forEach(({ kind, algorithm, first }) => {
      const x = this.store.place(run.name, first - 0.5, "step", this.axis);
      const label = algorithm ? `${kind} ${algorithm}` : kind;
      if (x !== null) found.set(`${x} ${label}`, { x, label, run: this.runs.length === 1 || found.has(`${x} ${label}`) ? null : i });
    }));
    return found.values();
  }

  // The cross-hair is at x in a chart, or nowhere.
  moved(chart, x) {
    if (!this.moving) requestAnimationFrame(() => {
      const { chart: from, x: at } = this.moving;
      this.moving = null;
      for (const one of this.charts.values()) if (one.visible) one.cross(at, one === from);
    });
    this.moving = { chart, x };
  }

  mark(x) {
    if (x === null) return;
    const step = this.store.place(this.runs[0].name, x, this.axis, "step");
    if (step !== null) this.setStep(step);
  }

  // Show a part of the x axes, [from, to], or with null all of them.
  zoom(part) {
    if (part) {
      const unit = this.axis === "step" ? 1 : 0.1;
      part = [Math.floor(part[0] / unit) * unit, Math.ceil(part[1] / unit) * unit];
    }
    this.zoomed = part;
    address.put("from", part && +part[0].toFixed(1));
    address.put("to", part && +part[1].toFixed(1));
    this.store.look(null);
    this.#look();
    this.#show();
    this.draw();
  }

  // Have the store read more of what is shown, as soon as it is known which steps these are.
  #look() {
    if (!this.zoomed || this.store.range) return;
    const steps = this.runs.map(({ name }) => this.zoomed.map((x) => this.store.place(name, x, this.axis, "step")));
    if (steps.flat().some((step) => step === null)) return;
    this.store.look(new Map(this.runs.map(({ name }, i) => [name, [Math.floor(steps[i][0]), Math.ceil(steps[i][1])]])));
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  #arrived() {
    this.#look();
    if (this.axis === "time") this.#evaluations();
    this.trouble.replaceChildren();
    this.draw();
  }

  #failed(error) {
    this.trouble.replaceChildren(problem("Some curves", error, () => this.draw()));
  }

  #see(entries) {
    for (const { target, isIntersecting } of entries) this.cards.get(target).visible = isIntersecting;
    this.#queue(entries.filter(({ isIntersecting }) => isIntersecting).map(({ target }) => this.cards.get(target)));
  }

  #size(entries) {
    for (const { target, contentRect } of entries) this.cards.get(target).width = Math.floor(contentRect.width);
    this.#queue(entries.map(({ target }) => this.cards.get(target)));
  }

  // All charts in view; the others when they come into view.
  draw() {
    this.extent = null;
    this.#show();
    this.#queue(this.charts.values());
  }

  #queue(charts) {
    for (const chart of charts) if (chart.visible) this.waiting.add(chart);
    if (this.frame || !this.waiting.size) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const end = performance.now() + FRAME;
      for (const chart of this.waiting) {
        this.waiting.delete(chart);
        if (chart.visible) chart.draw();
        if (performance.now() > end) break;
      }
      this.#queue([]);
    });
  }
}

// A row of radio buttons.
function choice(title, name, options, chosen, choose) {
  const buttons = Object.entries(options).map(([value, word]) =>
    el("label", {}, el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }), el("span", {}, word)));
  return el("fieldset", { class: "choice" }, el("legend", {}, title), ...buttons);
}

const nearest = (steps, step) => steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best));
