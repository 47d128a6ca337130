// The card of controls above the curves.
import * as address from "./address.js";
import { json } from "./ask.js";
import { el } from "./dom.js";
import { grouped } from "./numbers.js";
import { sample } from "./palette.js";

export class Controls {
  // page: the page of curves, whose setters the controls call.
  constructor(page) {
    this.page = page;
    this.steps = new Map(); // run -> steps that have rollouts
    const weights = { type: "range", min: 0, max: 0.99, step: 0.01, value: page.smoothing };
    const smoothing = el("input", { ...weights, "aria-label": "Smoothing" });
    const weight = el("output", {}, page.smoothing.toFixed(2));
    smoothing.addEventListener("input", () => {
      weight.textContent = Number(smoothing.value).toFixed(2);
      page.setSmoothing(Number(smoothing.value));
    });
    const find = el("input", { type: "search", placeholder: "Find a chart", "aria-label": "Find a chart", value: page.words });
    find.addEventListener("input", () => page.find(find.value));
    const x = choice("x axis", "x", { step: "steps", time: "wall time" }, page.axis, (axis) => page.setAxis(axis));
    const scales = { linear: "linear", log: "logarithmic" };
    const y = choice("y axis", "y", scales, page.log ? "log" : "linear", (scale) => page.setLog(scale === "log"));
    const look = el("div", { class: "bar-of-tools" }, find, el("label", {}, "Smoothing", smoothing, weight), x, y);

    this.slider = el("input", { type: "range", min: 0, "aria-label": "Step" });
    this.slider.addEventListener("input", () => page.setStep(Number(this.slider.value)));
    this.number = el("input", { type: "number", min: 0, "aria-label": "Step as a number", placeholder: "any" });
    this.number.addEventListener("change", () => page.setStep(this.number.value === "" ? null : Number(this.number.value)));
    this.whole = el("button", { type: "button", onclick: () => page.zoom(null) }, "Whole run");
    this.links = el("span", { class: "links" });
    const slider = el("label", { class: "grow" }, "Step", this.slider);
    const step = el("div", { class: "bar-of-tools" }, slider, this.number, this.whole, this.links);

    this.entries = page.runs.length > 1 ? page.runs.map((run, i) => this.#run(run, i)) : [];
    const runs = this.entries.length ? [el("ul", { class: "legend chosen-runs" }, ...this.entries.map(({ item }) => item))] : [];
    this.card = el("div", { class: "card panel-of-controls" }, ...runs, look, step);
    this.#overlay(look);
    this.show();
  }

  // The controls of one of several runs: show or hide it, remove it.
  #run(run, i) {
    const about = el("small"), name = el("span", {}, run.name);
    const toggle = el("button", { type: "button", onclick: () => this.page.toggle(run.name) }, sample(i, i), name, about);
    const others = this.page.runs.filter((other) => other !== run);
    const leave = () => (location.href = address.link("run", others.map(({ name }) => name)));
    const named = { class: "remove", "aria-label": `remove ${run.name}` };
    const remove = el("button", { type: "button", ...named, onclick: leave }, "remove");
    return { run, about, toggle, item: el("li", {}, toggle, remove) };
  }

  // Move the server's form that adds a run here; it acts without its button and keeps the state of the other controls.
  #overlay(place) {
    const form = document.querySelector("form.overlay");
    if (!form) return;
    form.querySelector("button").hidden = true;
    const names = this.page.runs.map(({ name }) => name);
    form.addEventListener("change", (event) => (location.href = address.link("run", [...names, event.target.value])));
    place.append(form);
  }

  // Update the controls: runs, selected step and visible part.
  show() {
    const { step, zoomed, last } = this.page;
    this.whole.hidden = !zoomed;
    this.slider.max = this.number.max = last;
    this.slider.value = step ?? last;
    this.slider.setAttribute("aria-valuetext", step === null ? "none selected" : `step ${step}`);
    if (document.activeElement !== this.number) this.number.value = step ?? "";
    for (const { run, about, toggle } of this.entries) {
      about.textContent = `${run.state}, step ${grouped(run.steps)}`;
      toggle.setAttribute("aria-pressed", String(run.shown));
    }
    const links = this.#rollouts();
    const targets = links.map(({ href }) => href).join(" ") || "none";
    if (targets === this.targets) return;
    this.targets = targets;
    const hint = links.length ? "Rollouts: " : "Click a curve to select a step and see its rollouts.";
    this.links.replaceChildren(el("span", { class: "hint" }, hint), ...links);
    if (links.length) this.#learn();
  }

  // Links to each run's rollouts nearest to the selected step.
  #rollouts() {
    const { step, runs } = this.page;
    if (step === null) return [];
    return runs.filter(({ shown }) => shown).map(({ name }) => {
      const near = nearest(this.steps.get(name) ?? [], step);
      const word = `${runs.length > 1 ? `${name}, ` : ""}step ${grouped(near)}`;
      return el("a", { href: `/rollouts?${new URLSearchParams({ run: name, step: near })}` }, word);
    });
  }

  // Fetch the steps with rollouts, once a step is selected.
  async #learn() {
    const unknown = this.page.runs.filter(({ name }) => !this.steps.has(name));
    for (const { name } of unknown) this.steps.set(name, []);
    for (const { name } of unknown) {
      const { steps } = await json("/api/steps", { run: name }).catch(() => ({ steps: [] }));
      this.steps.set(name, steps);
      this.show();
    }
  }
}

// A row of radio buttons.
function choice(title, name, options, chosen, choose) {
  const buttons = Object.entries(options).map(([value, word]) => {
    const button = el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) });
    return el("label", {}, button, el("span", {}, word));
  });
  return el("fieldset", { class: "choice" }, el("legend", {}, title), ...buttons);
}

function nearest(steps, step) {
  return steps.reduce((best, next) => (Math.abs(next - step) < Math.abs(best - step) ? next : best), steps[0] ?? step);
}
