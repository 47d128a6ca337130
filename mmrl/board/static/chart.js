// One chart as a card, drawn by uPlot. It makes its own markup:
//   <figure class="card chart-card"><figcaption><h3>, <output> the value, <p> the hint</figcaption>
//   <div class="plot" tabindex="0" role="img">, <ul class="legend"> of several lines, <p class="note"></figure>
import uPlot from "./uplot/uPlot.esm.js";
import { el, svg } from "./dom.js";
import { clock, duration, grouped, number, tick } from "./numbers.js";
import { COLOURS, dash, fade } from "./palette.js";
import { above, ends, powers, range, smooth, stacked, total } from "./series.js";

const HEIGHT = 184, TALL = 220;
const SHOWN = 8;  // lines at first, of one run
const BANDS = 4;  // lines whose bands are drawn
const DOTS = 60;  // points of a line that may have dots and whiskers
const SUM = "";
const DOUBLE = 220;  // milliseconds in which a second click may follow
const STEPS = [1, 2, 5].flatMap((n) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7].map((power) => n * power)).sort((a, b) => a - b);
const TIMES = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000];

// spec: a chart of `/api/curves`; `held`: its series are put into the store, `dots`: its points have dots and whiskers, `tall`.
// page: {runs, store, axis, log, smoothing, range(), marker, boundaries(), colours, moved(chart, x), zoom(from, to), mark(x),
// changed(chart), shown: Set of keys or undefined}
export class Chart {
  constructor(spec, page, shown) {
    Object.assign(this, { spec, page });
    this.several = page.runs.length > 1;
    this.shown = new Set(shown.length ? shown : this.several ? [spec.stacked ? SUM : spec.keys[0]] : this.first());
    this.width = 0;
    this.visible = false;
    this.output = el("output", {});
    this.plot = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": spec.title });
    this.legend = el("ul", { class: "legend" });
    this.note = el("p", { class: "note", hidden: true });
    this.plot.addEventListener("keydown", (event) => this.#key(event));
    this.card = el(
      "figure", { class: spec.tall ? "card chart-card tall" : "card chart-card" },
      el("figcaption", {}, el("h3", {}, spec.title), this.output, el("p", {}, spec.hint), ...this.#choice()),
      this.plot, this.legend, this.note,
    );
    this.#name();
  }

  // The keys that are shown where nothing else was chosen.
  first() {
    return this.spec.stacked ? this.spec.keys : this.spec.keys.slice(0, SHOWN);
  }

  // Whether other keys are shown than at first.
  get chosen() {
    if (this.several) return !this.shown.has(this.spec.stacked ? SUM : this.spec.keys[0]);
    return this.shown.size !== this.first().length || this.first().some((key) => !this.shown.has(key));
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
    const { page: { runs }, spec, shown } = this;
    if (!this.several) {
      return spec.keys.map((key, i) => ({
        run: runs[0].name, keys: [key], name: spec.names[i], colour: i % COLOURS, dash: Math.floor(i / COLOURS), shown: shown.has(key),
      }));
    }
    const keys = shown.has(SUM) ? spec.keys : [...shown];
    return runs.map((run, i) => ({ run: run.name, keys, name: run.name, colour: i % COLOURS, dash: i, shown: run.shown }));
  }

  // The legend and the figure of a single line; its values are written by `#tell`.
  #name() {
    this.values = [];
    this.legend.replaceChildren();
    const { lines } = this;
    if (lines.length === 1) {
      this.values.push(this.output);
      return;
    }
    for (const line of lines) {
      const value = el("b");
      this.values.push(value);
      const toggle = () => this.#toggle(line);
      const button = el("button", { type: "button", "aria-pressed": String(line.shown), onclick: toggle }, key(line), el("span", {}, line.name), value);
      this.legend.append(el("li", {}, button));
    }
  }

  #toggle(line) {
    if (this.several) return this.page.toggle(line.run);
    const keys = this.spec.keys.filter((key) => (key === line.keys[0] ? !line.shown : this.shown.has(key)));
    this.#show(keys);
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  // Draw what is known, and ask for what isn't.
  draw() {
    const { page, spec } = this;
    const lines = this.lines;
    if (this.width < 40) return;
    this.legend.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(lines[i].shown)));
    if (!spec.held) for (const line of lines) if (line.shown) page.store.want(line.run, line.keys);
    const found = lines.flatMap((line, i) => {
      const series = line.shown ? this.#series(line) : null;
      const curve = series && this.#curve(series);
      return curve && curve.x.length ? [{ ...line, i, latest: series.latest, ...curve }] : [];
    });
    this.found = found;
    this.notes = [];
    this.#describe();
    if (!found.length) {
      this.#clear(lines.some((line) => line.shown && !this.#series(line)) ? "" : "no number yet");
    } else {
      const drawing = spec.stacked && !this.several ? this.#areas(found) : this.#curves(found);
      this.#put(drawing);
    }
    this.note.textContent = this.notes.join("; ");
    this.note.hidden = !this.notes.length;
    this.#tell();
    this.mark();
  }

  #series(line) {
    const { store } = this.page;
    const all = line.keys.map((key) => store.get(line.run, key)).filter(Boolean);
    if (line.keys.length === 1) return all[0];
    return all.length ? total(all) : undefined;
  }

  // The points of a series on the page's axes; `left` says how many a logarithmic one has no place for.
  #curve(series) {
    const curve = series.curve(this.page.axis);
    if (!this.logarithmic) return curve;
    const kept = curve.y.map((y) => y > 0);
    const left = kept.filter((keep) => !keep).length;
    if (!left && !curve.low) return curve;
    const only = (values) => values && values.filter((_, i) => kept[i]);
    const [x, y, high] = [only(curve.x), only(curve.y), only(curve.high)];
    const least = y.length ? Math.min(...y) / 10 : 0;
    return { x, y, high, low: curve.low && only(curve.low).map((low) => Math.max(low, least)), left };
  }

  get logarithmic() {
    return this.page.log && !(this.spec.stacked && !this.several);
  }

  // Lines over their raw values or bands. Columns of uPlot: first what is faint, then the lines, so that none is hidden.
  #curves(found) {
    const { page: { colours, smoothing }, spec } = this;
    const raw = smoothing > 0 && !spec.dots;
    const banded = found.length <= BANDS;
    const faint = [], bold = [], series = [{}], bands = [];
    const none = { width: 0, stroke: "transparent", points: { show: false } };
    for (const line of found) {
      const colour = colours.c[line.colour];
      if (banded && line.low) {
        faint.push([line.x, line.high, line.low]);
        bands.push({ series: [series.length, series.length + 1], fill: fade(colour, 0.14) });
        series.push(none, none);
      }
      if (raw) {
        faint.push([line.x, line.y]);
        series.push({ stroke: fade(colour, 0.3), width: 1, points: { show: false } });
      }
    }
    this.main = series.length;
    for (const line of found) {
      const colour = colours.c[line.colour];
      line.drawn = raw ? smooth(line.y, smoothing) : line.y;
      bold.push([line.x, line.drawn]);
      const dots = line.x.length < 3 || (spec.dots && line.x.length <= DOTS);
      series.push({ stroke: colour, width: 2, dash: dash(line.dash), points: { show: dots, size: 8, fill: colour, stroke: colours.card } });
    }
    const data = uPlot.join([...faint, ...bold]);
    return { data, series, bands, y: this.#range(found, banded) };
  }

  #range(found, banded) {
    const { spec } = this;
    const [from, to] = this.page.range();
    const values = [], drawn = [];
    for (const line of found) {
      const first = Math.max(0, above(line.x, from) - 1), last = above(line.x, to) + 1;
      for (const column of [line.y, line.drawn, banded && line.low, banded && line.high]) {
        if (column) for (const value of column.slice(first, last)) if (value !== null) values.push(value);
      }
    }
    const left = found.reduce((sum, line) => sum + (line.left ?? 0), 0);
    if (left) this.notes.push(`${left} ${left === 1 ? "point" : "points"} of 0 or below, off a logarithmic axis`);
    if (this.logarithmic) return powers(values);
    const [low, high] = range(values, spec);
    const [least, most] = ends(values);
    if (most > high || least < low) this.notes.push(`reaches ${number(most > high ? most : least, spec.unit)}, off the chart`);
    return [low, high];
  }

  // Areas on top of each other, the topmost first, so that those below it cover it.
  #areas(found) {
    const { page: { colours } } = this;
    const [xs, ...columns] = uPlot.join(found.map((line) => [line.x, line.y]));
    const tops = stacked(columns).reverse();
    this.own = columns;
    this.main = 1;
    const series = [{}];
    for (const line of [...found].reverse()) {
      const colour = colours.c[line.colour];
      series.push({ fill: colour, stroke: colours.card, width: 0.5, fillTo: () => 0, points: { show: false } });
    }
    const [from, to] = this.page.range();
    const first = Math.max(0, above(xs, from) - 1), last = above(xs, to) + 1;
    return { data: [xs, ...tops], series, bands: [], y: range(tops[0].slice(first, last), { zero: true }) };
  }

  // Into uPlot: only the numbers, where the rest is as before.
  #put({ data, series, bands, y }) {
    const { page, spec } = this;
    this.y = y;
    const height = spec.tall ? TALL : HEIGHT;
    const same = JSON.stringify([series, bands, page.axis, this.logarithmic, page.colours.ink]);
    if (this.u && same === this.same) {
      if (this.u.width !== this.width) this.u.setSize({ width: this.width, height });
      this.u.setData(data);
      return;
    }
    this.#clear("");
    this.same = same;
    this.u = new uPlot(this.#options(series, bands, height), data, this.plot);
    const { over } = this.u;
    this.label = over.appendChild(el("div", { class: "at", hidden: true }));
    this.line = over.appendChild(el("div", { class: "marker", hidden: true }));
    let down = 0, waiting = 0;
    over.addEventListener("mousedown", (event) => (down = event.clientX));
    over.addEventListener("click", (event) => {
      const x = this.#nearest();
      if (Math.abs(event.clientX - down) < 4) waiting = setTimeout(() => page.mark(x), DOUBLE);
      if (event.detail > 1) clearTimeout(waiting);
    });
    over.addEventListener("dblclick", () => {
      clearTimeout(waiting);
      page.zoom(null);
    });
  }

  #options(series, bands, height) {
    const { page, spec } = this;
    const { colours, axis } = page;
    const font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
    const lines = { stroke: colours.soft, font, ticks: { show: false }, gap: 5 };
    const largest = (splits) => Math.max(...splits.map((v) => Math.abs(v ?? 0)));
    const along = axis === "step" ? tick : clock;
    const across = (u, splits) => splits.map((v) => (v === null ? null : tick(v, this.logarithmic ? Math.abs(v) : largest(splits), spec.unit === "%" ? "%" : "")));
    return {
      width: this.width, height, padding: [12, 16, 0, 0],
      legend: { show: false, live: true },
      select: { show: true },
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false, dist: 4, click: () => {} },
        bind: { dblclick: () => null },
        points: { show: (u, i) => (i >= this.main && !(spec.stacked && !this.several) ? el("div") : null), size: 7, width: 0 },
      },
      scales: {
        x: { time: false, range: () => page.range() },
        y: { distr: this.logarithmic ? 3 : 1, range: () => this.y },
      },
      axes: [
        { ...lines, grid: { show: false }, size: 26, space: 56, incrs: axis === "step" ? STEPS : TIMES,
          values: (u, splits) => splits.map((v) => along(v, largest(splits))) },
        { ...lines, grid: { stroke: colours.line, width: 1 }, size: 44, space: 26, values: across },
      ],
      series, bands,
      hooks: {
        draw: [(u) => this.#stages(u), ...(spec.dots ? [(u) => this.#whiskers(u)] : [])],
        setCursor: [(u) => this.#pointed(u)],
        setSelect: [(u) => this.#selected(u)],
      },
    };
  }

  #clear(word) {
    this.u?.destroy();
    this.u = this.same = null;
    this.plot.replaceChildren(...(word ? [el("p", { class: "empty" }, word)] : []));
  }

  // Where stages begin, and what the x axis is.
  #stages(u) {
    const { ctx, bbox } = u;
    const { page } = this;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.font = `${11 * scale}px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif`;
    ctx.fillStyle = page.colours.soft;
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = "left";
    ctx.fillText(page.axis, 0, bbox.top + bbox.height + 15 * scale);
    const ends = [];  // of the labels in each line
    for (const { x, label, run } of page.boundaries()) {
      if (x <= u.scales.x.min || x >= u.scales.x.max) continue;
      const at = u.valToPos(x, "x", true);
      ctx.strokeStyle = run === null ? page.colours.soft : page.colours.c[run % COLOURS];
      ctx.globalAlpha = 0.7;
      ctx.lineWidth = scale;
      ctx.setLineDash([3 * scale, 3 * scale]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      const wide = ctx.measureText(label).width;
      const start = at + wide + 8 * scale > bbox.left + bbox.width ? at - wide - 4 * scale : at + 4 * scale;
      let row = 0;
      while (ends[row] > start) row++;
      ends[row] = start + wide + 4 * scale;
      ctx.fillText(label, start, bbox.top + (8 + 12 * row) * scale);
    }
    ctx.restore();
  }

  // Intervals at the points of an evaluation.
  #whiskers(u) {
    const { ctx } = u;
    const { colours } = this.page;
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    for (const line of this.found) {
      if (!line.low || line.x.length > DOTS || this.found.length > BANDS) continue;
      ctx.strokeStyle = colours.c[line.colour];
      line.x.forEach((x, i) => {
        if (line.low[i] === null || line.high[i] === null || x < u.scales.x.min || x > u.scales.x.max) return;
        const at = u.valToPos(x, "x", true);
        ctx.beginPath();
        for (const end of [line.low[i], line.high[i]]) {
          const y = u.valToPos(end, "y", true);
          ctx.moveTo(at - 3 * devicePixelRatio, y);
          ctx.lineTo(at + 3 * devicePixelRatio, y);
        }
        ctx.moveTo(at, u.valToPos(line.low[i], "y", true));
        ctx.lineTo(at, u.valToPos(line.high[i], "y", true));
        ctx.stroke();
      });
    }
    ctx.restore();
  }

  // -- looking --------------------------------------------------------------------------------------------------------

  #pointed(u) {
    if (this.led) return;
    const { left } = u.cursor;
    const inside = left !== null && left >= 0;
    this.page.moved(this, inside ? u.posToVal(left, "x") : null);
  }

  // The cross-hair at x, or away where x is null; the chart under the pointer has it already.
  cross(x, isSource) {
    const { u } = this;
    if (!u) return;
    if (!isSource) {
      this.led = true;
      const left = x === null ? -10 : u.valToPos(x, "x");
      u.setCursor({ left: left < 0 || left > u.over.clientWidth ? -10 : left, top: 0 });
      this.led = false;
    }
    this.#tell();
    this.label.hidden = !isSource || x === null;
    if (!this.label.hidden) {
      const near = this.#nearest() ?? x;
      this.label.textContent = this.page.axis === "step" ? `step ${grouped(near)}` : duration(near);
      this.label.classList.toggle("left", u.cursor.left > u.over.clientWidth / 2);
      this.label.style.transform = `translateX(${u.cursor.left}px)`;
    }
  }

  // The point next to the cross-hair on the x axis.
  #nearest() {
    const { u } = this;
    return u.cursor.idx === null || u.cursor.idx === undefined ? null : u.data[0][u.cursor.idx];
  }

  // The values at the cross-hair, else the latest ones.
  #tell() {
    const { u, spec } = this;
    const at = u && u.cursor.left >= 0 ? u.cursor.idxs : null;
    for (const value of this.values) value.textContent = "";
    this.found?.forEach((line, n) => {
      let value = line.latest;
      if (at && spec.stacked && !this.several) value = this.own[n][at[0]] ?? null;
      else if (at) value = u.data[this.main + n][at[this.main + n]] ?? null;
      this.values[line.i].textContent = value === null ? "-" : number(value, spec.unit);
    });
  }

  #selected(u) {
    const { left, width } = u.select;
    if (width < 4) return;
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

  #key(event) {
    const { u, page } = this;
    if (!u || event.ctrlKey || event.altKey || event.metaKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      const last = u.data[0].length - 1;
      const i = u.cursor.left >= 0 && u.cursor.idx !== null ? u.cursor.idx + by : by > 0 ? 0 : last;
      const x = u.data[0][Math.min(Math.max(i, 0), last)];
      u.setCursor({ left: u.valToPos(x, "x"), top: 0 });
    } else if (event.key === "Enter") {
      page.mark(this.#nearest());
    } else return;
    event.preventDefault();
  }

  // What is read out: title, then of each line the last, smallest and largest value.
  #describe() {
    const { spec } = this;
    const told = this.found.map(({ name, y, latest }) => {
      const [low, high] = ends(y);
      const [last, least, most] = [latest, low, high].map((value) => number(value, spec.unit));
      return `${this.found.length > 1 ? `${name} ` : ""}last ${last}, lowest ${least}, highest ${most}`;
    });
    this.plot.setAttribute("aria-label", `${spec.title}: ${told.join("; ") || "no number yet"}`);
  }
}

// How a line looks, in its legend.
export function key({ colour, dash: pattern }) {
  const css = `s${(colour % COLOURS) + 1}`;
  if (!pattern) return el("i", { class: `key ${css}` });
  const stroke = svg("line", { x1: 0, x2: 22, y1: 5, y2: 5, "stroke-dasharray": dash(pattern).join(" ") });
  return svg("svg", { class: `dashes ${css}`, viewBox: "0 0 22 10", width: 22, height: 10, "aria-hidden": "true" }, stroke);
}
