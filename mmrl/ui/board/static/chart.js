// A chart as a card, drawn by uPlot. It creates its own markup:
//   <figure class="card chart-card"><figcaption><h3>, <output> the value, <p> the hint</figcaption>
//   <div class="plot" tabindex="0" role="img">, <ul class="legend"> for several lines, <p class="note"></figure>
import uPlot from "./uplot/uPlot.esm.js";
import { el } from "./dom.js";
import { BANDS, areas, lines, options, stages, whiskers } from "./drawing.js";
import { duration, grouped, number } from "./numbers.js";
import { COLOURS, sample } from "./palette.js";
import { above, ends, powers, range, total } from "./series.js";

const HEIGHT = 184, TALL = 220;
const NARROWEST = 40;
const SHOWN = 8; // maximal lines of one run that are shown at first
const SUM = "+"; // pseudo key: the sum of all keys
const DOUBLE = 220; // milliseconds to wait for the second click of a double click

// spec: a chart of `/api/curves`; `held`: its series are already in the store, `dots`: its points have dots and whiskers, `tall`:
// it is higher and as wide as the page. chosen: the keys to show instead of the default. page: the page of curves, see curves.js.
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

  // The keys shown by default. For several runs it is one key, or the sum of stacked keys.
  get first() {
    const { keys, stacked } = this.spec;
    if (this.several) return [stacked && keys.length > 1 ? SUM : keys[0]];
    return stacked ? keys : keys.slice(0, SHOWN);
  }

  // The keys of an address that exist here. One run may show no key at all; several runs show exactly one.
  #known(chosen) {
    const { keys, stacked } = this.spec;
    const known = chosen.filter((key) => keys.includes(key) || (key === SUM && stacked && this.several));
    if (this.several) return known.length ? known.slice(0, 1) : this.first;
    return chosen.length ? known : this.first;
  }

  // The shown keys for the address; null for the default, [""] for none.
  get chosen() {
    const { first, shown } = this;
    if (shown.size === first.length && first.every((key) => shown.has(key))) return null;
    return shown.size ? [...shown] : [""];
  }

  // The menu of metrics for several runs, which show one metric at a time.
  #choice() {
    const { keys, names, title, stacked } = this.spec;
    if (!this.several || keys.length < 2) return [];
    const options = keys.map((key, i) => el("option", { value: key, selected: this.shown.has(key) }, names[i]));
    if (stacked) options.unshift(el("option", { value: SUM, selected: this.shown.has(SUM) }, "sum of all"));
    const choose = (event) => this.#show([event.target.value]);
    return [el("select", { "aria-label": `Which curve of ${title}`, onchange: choose }, ...options)];
  }

  #show(keys) {
    this.shown = new Set(keys);
    this.page.changed(this);
  }

  // {run, keys, name, colour, dash, shown} of each line: one per run, or one per key of a single run.
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

  // Add an entry to the legend; returns the element of its value.
  #entry({ run, keys, name, colour, dash }) {
    const value = el("b");
    const without = () => this.spec.keys.filter((key) => this.shown.has(key) !== (key === keys[0]));
    const toggle = () => (this.several ? this.page.toggle(run) : this.#show(without()));
    const button = el("button", { type: "button", onclick: toggle }, sample(colour, dash), el("span", {}, name), value);
    this.legend.append(el("li", {}, button));
    return value;
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  // Request missing data.
  want() {
    if (this.spec.held) return;
    for (const { run, keys, shown } of this.lines) if (shown) this.page.store.want(run, keys);
  }

  // Draw the loaded data.
  draw() {
    if (this.width < NARROWEST) return;
    const all = this.lines.map((line, at) => ({ ...line, at }));
    const wanted = all.filter(({ shown }) => shown);
    this.legend.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(all[i].shown)));
    const known = wanted.map((line) => ({ ...line, series: this.#series(line) })).filter(({ series }) => series);
    this.found = known.map((line) => ({ ...line, ...this.#curve(line.series) })).filter(({ y }) => y.some((value) => value !== null));
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

  // The points of a series on the page's axes; `left` is the number of points that a logarithmic axis cannot show.
  #curve(series) {
    const curve = series.curve(this.page.axis);
    if (!this.log) return curve;
    const only = (values) => values && values.filter((_, i) => curve.y[i] === null || curve.y[i] > 0);
    const y = only(curve.y), least = ends(y)[0] / 10;
    const low = curve.low && only(curve.low).map((value) => (value === null ? null : Math.max(value, least)));
    return { x: only(curve.x), y, low, high: only(curve.high), left: curve.y.length - y.length };
  }

  get log() {
    return this.page.log && !this.areas;
  }

  // Pass the lines to uPlot; only the data if everything else is unchanged.
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

  // Hook: uPlot has drawn the lines.
  #drawn(u) {
    const { axis, colours } = this.page;
    stages(u, this.page.boundaries(), axis, colours);
    if (this.spec.dots) whiskers(u, this.found, colours);
    this.mark();
  }

  // Clean up after the chart was removed from the page.
  leave() {
    this.#clear("");
  }

  // The range of the y axis for the visible part of the lines.
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
    if (left) this.notes.push(`${left} ${left === 1 ? "point" : "points"} at or below 0, not on a logarithmic axis`);
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

  // Show the notes, and describe the chart for screen readers: each line's last, lowest and highest value.
  #describe() {
    const { spec, found } = this;
    const texts = found.map(({ name, y, series }) => {
      const [last, low, high] = [series.latest, ...ends(y)].map((value) => number(value, spec.unit));
      return `${found.length > 1 ? `${name} ` : ""}last ${last}, lowest ${low}, highest ${high}`;
    });
    this.plot.setAttribute("aria-label", `${spec.title}: ${texts.join("; ") || "no number yet"}`);
    put(this.note, this.notes.join("; "));
    this.note.hidden = !this.notes.length;
  }

  // -- interaction ----------------------------------------------------------------------------------------------------

  // A click selects a step, a double click shows the whole run.
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

  // Move the cross-hair to x, or hide it if x is null. isSource: whether the pointer is over this chart, which has moved it.
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

  // The x of the point nearest to the cross-hair.
  #nearest() {
    return this.u.data[0][this.u.cursor.idx ?? -1] ?? null;
  }

  // Show the values at the cross-hair, or the latest ones without it.
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

  // Move the marker to the page's selected step.
  mark() {
    const { u, line } = this;
    if (!u) return;
    const x = this.page.marker();
    line.hidden = x === null || x < u.scales.x.min || x > u.scales.x.max;
    if (!line.hidden) line.style.transform = `translateX(${u.valToPos(x, "x")}px)`;
  }

  // Arrow keys move the cross-hair from point to point, Enter selects its step.
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

// Set a text only if it differs, because every change triggers a layout.
function put(place, text) {
  if (place.textContent !== text) place.textContent = text;
}
