// One chart as a card, drawn by uPlot. It makes its own markup:
//   <figure class="card chart-card"><figcaption><h3>, <output> the value, <p> the hint</figcaption>
//   <div class="plot" tabindex="0" role="img">, <ul class="legend"> of several lines, <p class="note"></figure>
import uPlot from "./uplot/uPlot.esm.js";
import { el } from "./dom.js";
import { BANDS, areas, lines, options, stages, whiskers } from "./drawing.js";
import { duration, grouped, number } from "./numbers.js";
import { COLOURS, sample } from "./palette.js";
import { above, ends, powers, range, total } from "./series.js";

const HEIGHT = 184, TALL = 220;
const NARROWEST = 40;
const SHOWN = 8; // lines at first, of one run
const SUM = "+"; // in place of a key: all of them together
const DOUBLE = 220; // milliseconds in which a second click may follow

// spec: a chart of `/api/curves`; with `held` its series are in the store already, with `dots` its points have dots and whiskers,
// with `tall` it is higher and as wide as the page. chosen: keys that are shown in place of the first.
// page: what all charts have in common, see curves.js.
export class Chart {
  constructor(spec, page, chosen) {
    Object.assign(this, { spec, page });
    this.several = page.runs.length > 1;
    this.areas = spec.stacked && !this.several;
    this.shown = new Set(this.#known(chosen));
    this.width = 0;
    this.visible = false;
    this.found = [];
    this.output = el("output", {});
    this.plot = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": spec.title });
    this.legend = el("ul", { class: "legend" });
    this.note = el("p", { class: "note", hidden: true });
    this.plot.addEventListener("keydown", (event) => this.#key(event));
    const caption = el("figcaption", {}, el("h3", {}, spec.title), this.output, el("p", {}, spec.hint), ...this.#choice());
    this.card = el("figure", { class: `card chart-card${spec.tall ? " tall" : ""}` }, caption, this.plot, this.legend, this.note);
    this.values = this.lines.length > 1 ? this.lines.map((line) => this.#entry(line)) : [this.output];
  }

  // The keys that are shown where nothing else was chosen. Of several runs it is one, or the sum of those that are stacked.
  get first() {
    const { keys, stacked } = this.spec;
    if (this.several) return [stacked && keys.length > 1 ? SUM : keys[0]];
    return stacked ? keys : keys.slice(0, SHOWN);
  }

  // Of the keys in an address those that can be shown here. None is as good as any for one run, but not for several.
  #known(chosen) {
    const { keys, stacked } = this.spec;
    const known = chosen.filter((key) => keys.includes(key) || (key === SUM && stacked && this.several));
    if (this.several) return known.length ? known.slice(0, 1) : this.first;
    return chosen.length ? known : this.first;
  }

  // What is shown in place of the first, for the address; [""] where that is nothing, null where it is the first.
  get chosen() {
    const { first, shown } = this;
    if (shown.size === first.length && first.every((key) => shown.has(key))) return null;
    return shown.size ? [...shown] : [""];
  }

  // Of several runs one metric is shown at a time.
  #choice() {
    const { keys, names, title, stacked } = this.spec;
    if (!this.several || keys.length < 2) return [];
    const options = keys.map((key, i) => el("option", { value: key, selected: this.shown.has(key) }, names[i]));
    if (stacked) options.unshift(el("option", { value: SUM, selected: this.shown.has(SUM) }, "all together"));
    const choose = (event) => this.#show([event.target.value]);
    return [el("select", { "aria-label": `Which curve of ${title}`, onchange: choose }, ...options)];
  }

  #show(keys) {
    this.shown = new Set(keys);
    this.page.changed(this);
  }

  // {run, keys, name, colour, dash, shown}: one for each run, or for each key of the only run.
  get lines() {
    const { shown, spec } = this;
    const { runs } = this.page;
    if (this.several) {
      const keys = shown.has(SUM) ? spec.keys : [...shown];
      return runs.map((run, i) => ({ run: run.name, keys, name: run.name, colour: i % COLOURS, dash: i, shown: run.shown }));
    }
    return spec.keys.map((key, i) => {
      const [colour, dash] = [i % COLOURS, Math.floor(i / COLOURS)];
      return { run: runs[0].name, keys: [key], name: spec.names[i], colour, dash, shown: shown.has(key) };
    });
  }

  // A line in the legend; returns the place of its value.
  #entry({ run, keys, name, colour, dash }) {
    const value = el("b");
    const without = () => this.spec.keys.filter((key) => this.shown.has(key) !== (key === keys[0]));
    const toggle = () => (this.several ? this.page.toggle(run) : this.#show(without()));
    const button = el("button", { type: "button", onclick: toggle }, sample(colour, dash), el("span", {}, name), value);
    this.legend.append(el("li", {}, button));
    return value;
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  // Ask for what is to be drawn and isn't known.
  want() {
    if (this.spec.held) return;
    for (const { run, keys, shown } of this.lines) if (shown) this.page.store.want(run, keys);
  }

  // Draw what is known.
  draw() {
    if (this.width < NARROWEST) return;
    const all = this.lines.map((line, at) => ({ ...line, at }));
    const wanted = all.filter(({ shown }) => shown);
    this.legend.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(all[i].shown)));
    const known = wanted.map((line) => ({ ...line, series: this.#series(line) })).filter(({ series }) => series);
    this.found = known.map((line) => ({ ...line, ...this.#curve(line.series) })).filter(({ x }) => x.length);
    this.notes = [];
    if (this.found.length) this.#put();
    else this.#clear(known.length === wanted.length ? "no number yet" : "");
    this.#describe();
    this.#tell();
  }

  #series({ run, keys }) {
    const all = keys.map((key) => this.page.store.get(run, key)).filter(Boolean);
    return all.length > 1 ? total(all) : all[0];
  }

  // The points of a series on the page's axes; `left` says how many a logarithmic one has no place for.
  #curve(series) {
    const curve = series.curve(this.page.axis);
    if (!this.log) return curve;
    const only = (values) => values && values.filter((_, i) => curve.y[i] > 0);
    const y = only(curve.y), least = Math.min(...y) / 10;
    const low = curve.low && only(curve.low).map((value) => Math.max(value, least));
    return { x: only(curve.x), y, low, high: only(curve.high), left: curve.y.length - y.length };
  }

  get log() {
    return this.page.log && !this.areas;
  }

  // Into uPlot: only the numbers, where the rest is as before.
  #put() {
    const { page, spec, found, width, log } = this;
    const { colours, axis } = page;
    const smoothing = spec.dots ? 0 : page.smoothing;
    this.drawn = this.areas ? areas(found, { colours }) : lines(found, { colours, smoothing, dots: spec.dots });
    const { data, series, bands, main } = this.drawn;
    this.y = this.#range();
    const height = spec.tall ? TALL : HEIGHT;
    const same = JSON.stringify([series, bands, axis, log, colours.ink]);
    if (this.u && same === this.same) {
      if (this.u.width !== width) this.u.setSize({ width, height });
      this.u.setData(data);
      return;
    }
    this.#clear("");
    this.same = same;
    const hooks = {
      draw: [(u) => this.#drawn(u)],
      setCursor: [(u) => this.#pointed(u)],
      setSelect: [(u) => this.#selected(u)],
    };
    const [x, y] = [() => page.range(), () => this.y];
    const given = { width, height, series, bands, main, axis, log, unit: spec.unit, colours, x, y, points: !this.areas, hooks };
    this.u = new uPlot(options(given), data, this.plot);
    this.label = this.u.over.appendChild(el("div", { class: "at", hidden: true }));
    this.line = this.u.over.appendChild(el("div", { class: "marker", hidden: true }));
    this.#clicks(this.u.over);
  }

  // uPlot has drawn the lines.
  #drawn(u) {
    const { axis, colours } = this.page;
    stages(u, this.page.boundaries(), axis, colours);
    if (this.spec.dots) whiskers(u, this.found, colours);
    this.mark();
  }

  // It is not on the page any more.
  leave() {
    this.#clear("");
  }

  // Of the y axis: around what is drawn in the part of the x axis that is shown.
  #range() {
    const { spec, found, drawn } = this;
    const part = (xs, column) => {
      const [from, to] = this.page.range();
      return column.slice(Math.max(0, above(xs, from) - 1), above(xs, to) + 1);
    };
    if (this.areas) return range(part(drawn.data[0], drawn.data[1]), { zero: true });
    const columns = ({ y, low, high }) => (low && found.length <= BANDS ? [y, low, high] : [y]);
    const values = found.flatMap((line) => columns(line).flatMap((column) => part(line.x, column)));
    const left = found.reduce((sum, line) => sum + (line.left ?? 0), 0);
    if (left) this.notes.push(`${left} ${left === 1 ? "point" : "points"} of 0 or below, off a logarithmic axis`);
    if (this.log) return powers(values);
    const [low, high] = range(values, spec), [least, most] = ends(values);
    if (most > high || least < low) this.notes.push(`reaches ${number(most > high ? most : least, spec.unit)}, off the chart`);
    return [low, high];
  }

  #clear(word) {
    this.u?.destroy();
    this.u = this.same = null;
    this.plot.replaceChildren(...(word ? [el("p", { class: "empty" }, word)] : []));
  }

  // The notes; and what is read out: of each line the last, smallest and largest value.
  #describe() {
    const { spec, found } = this;
    const told = found.map(({ name, y, series }) => {
      const [last, low, high] = [series.latest, ...ends(y)].map((value) => number(value, spec.unit));
      return `${found.length > 1 ? `${name} ` : ""}last ${last}, lowest ${low}, highest ${high}`;
    });
    this.plot.setAttribute("aria-label", `${spec.title}: ${told.join("; ") || "no number yet"}`);
    put(this.note, this.notes.join("; "));
    this.note.hidden = !this.notes.length;
  }

  // -- looking --------------------------------------------------------------------------------------------------------

  // One click chooses a step, two show the whole run.
  #clicks(over) {
    const { page } = this;
    let down = 0, waiting = 0;
    over.addEventListener("mousedown", (event) => (down = event.clientX));
    over.addEventListener("click", (event) => {
      clearTimeout(waiting);
      const x = this.#nearest();
      if (event.detail === 1 && Math.abs(event.clientX - down) < 4) waiting = setTimeout(() => page.mark(x), DOUBLE);
    });
    over.addEventListener("dblclick", () => page.zoom(null));
  }

  #pointed(u) {
    if (!this.led) this.page.moved(this, u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null);
  }

  // Put the cross-hair at x, or away where x is null. isSource: the pointer is here, so it is there already.
  cross(x, isSource) {
    const { u, label } = this;
    if (!u) return;
    if (!isSource) {
      const left = x === null ? -1 : u.valToPos(x, "x");
      this.led = true;
      u.setCursor({ left: left > u.over.clientWidth ? -1 : left, top: 0 });
      this.led = false;
    }
    this.#tell();
    label.hidden = !isSource || x === null;
    if (label.hidden) return;
    const near = this.#nearest() ?? x;
    label.textContent = this.page.axis === "step" ? `step ${grouped(near)}` : duration(near);
    label.classList.toggle("left", u.cursor.left > u.over.clientWidth / 2);
    label.style.transform = `translateX(${u.cursor.left}px)`;
  }

  // The point next to the cross-hair on the x axis.
  #nearest() {
    return this.u.data[0][this.u.cursor.idx ?? -1] ?? null;
  }

  // The values at the cross-hair, else the latest ones.
  #tell() {
    const { u, drawn } = this;
    const at = u?.cursor.left >= 0 ? u.cursor.idxs : null;
    const texts = this.values.map(() => "");
    this.found.forEach((line, n) => {
      let value = line.series.latest;
      if (at && this.areas) value = drawn.own[n][at[0]];
      else if (at) value = u.data[drawn.main + n][at[drawn.main + n]];
      texts[line.at] = number(value ?? null, this.spec.unit);
    });
    this.values.forEach((value, i) => put(value, texts[i]));
  }

  #selected(u) {
    const { left, width } = u.select;
    if (!width) return;
    const part = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.page.zoom(part);
  }

  // Put the marker where the page has it.
  mark() {
    const { u, line } = this;
    if (!u) return;
    const x = this.page.marker();
    line.hidden = x === null || x < u.scales.x.min || x > u.scales.x.max;
    if (!line.hidden) line.style.transform = `translateX(${u.valToPos(x, "x")}px)`;
  }

  // Arrows move the cross-hair from point to point, Enter chooses its step.
  #key(event) {
    const { u } = this;
    if (!u || event.ctrlKey || event.altKey || event.metaKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      const last = u.data[0].length - 1;
      const i = u.cursor.left >= 0 && u.cursor.idx !== null ? u.cursor.idx + by : by > 0 ? 0 : last;
      u.setCursor({ left: u.valToPos(u.data[0][Math.min(Math.max(i, 0), last)], "x"), top: 0 });
    } else if (event.key === "Enter") this.page.mark(this.#nearest());
    else return;
    event.preventDefault();
  }
}

// The page is laid out anew where a text changes, so only where it does.
function put(place, text) {
  if (place.textContent !== text) place.textContent = text;
}
