// The series of the runs on a page: requested in batches when a chart comes into view, and extended by live events.
import { json } from "./ask.js";
import { Series } from "./series.js";

const POINTS = 800;
const AT_ONCE = 40; // keys per request
const RECENT = 1000; // live rows kept for requests that are still open
const TOGETHER = 200; // milliseconds to wait for further responses, so that a chart is drawn once

export class Store {
  // arrived(keys): called when these metrics can be drawn. failed(error): called when a request fails.
  constructor(arrived, failed) {
    Object.assign(this, { arrived, failed });
    this.whole = new Map(); // run -> key -> Series from the first step to the last
    this.detail = new Map(); // the same for `range` only, with more points
    this.range = null; // run -> [first step, last step]
    this.asked = new Set();
    this.wanted = []; // [whether for the range, run, key] of the next request
    this.recent = new Map(); // run -> recent live rows
    this.clocks = new Map(); // run -> the series that maps its steps to times
    this.stop = new AbortController();
    this.open = 0; // number of open requests
    this.come = new Set(); // received keys that `arrived` was not called with yet
  }

  // The most detailed series of a metric; undefined if none is loaded.
  get(run, key) {
    return this.detail.get(run)?.get(key) ?? this.whole.get(run)?.get(key);
  }

  // Add a series that is not requested from the server, such as that of evaluations.
  put(run, key, series) {
    held(this.whole, run).set(key, series);
  }

  // Request these metrics if they are not loaded: the whole run first, then the range if the whole has too few points for it.
  want(run, keys) {
    for (const key of keys) {
      this.#want(false, run, key);
      if (this.range && this.whole.get(run)?.get(key)?.reduced) this.#want(true, run, key);
    }
  }

  #want(inRange, run, key) {
    const name = `${inRange} ${run}\n${key}`;
    if (this.asked.has(name)) return;
    this.asked.add(name);
    if (!this.wanted.length) queueMicrotask(() => this.#ask());
    this.wanted.push([inRange, run, key]);
  }

  #ask() {
    const requests = new Map();
    for (const [inRange, run, key] of this.wanted) {
      held(requests, `${inRange} ${run}`, () => ({ range: inRange ? this.range.get(run) : null, run, keys: [] })).keys.push(key);
    }
    this.wanted = [];
    for (const { range, run, keys } of requests.values()) {
      for (let i = 0; i < keys.length; i += AT_ONCE) this.#fetch(run, keys.slice(i, i + AT_ONCE), range);
    }
  }

  async #fetch(run, keys, range) {
    const [from, to] = range ?? [0, 9e9];
    const fields = [["run", run], ...keys.map((key) => ["key", key]), ["from", from], ["to", to], ["points", POINTS]];
    let answer = null;
    this.open += 1;
    try {
      answer = await json("/api/series", fields, this.stop.signal);
    } catch (error) {
      if (error.name !== "AbortError") {
        for (const key of keys) this.asked.delete(`${range !== null} ${run}\n${key}`);
        this.failed(error);
      }
    }
    this.open -= 1;
    if (answer) this.#take(run, keys, range, answer);
    if (!this.open) this.#tell();
    else this.waiting ??= setTimeout(() => this.#tell(), TOGETHER);
  }

  #take(run, keys, range, answer) {
    this.clocks.delete(run);
    if (range && this.range?.get(run) !== range) return; // the page has left this range
    for (const key of keys) {
      const series = new Series(answer.series[key], range ? 0 : answer.last, !answer.whole);
      for (const row of this.recent.get(run) ?? []) grow(series, key, row, range);
      held(range ? this.detail : this.whole, run).set(key, series);
      this.come.add(key);
    }
  }

  #tell() {
    clearTimeout(this.waiting);
    this.waiting = null;
    if (this.come.size) this.arrived(this.come);
    this.come = new Set();
  }

  // Add rows of steps from live events.
  append(run, rows) {
    this.recent.set(run, [...(this.recent.get(run) ?? []), ...rows].slice(-RECENT));
    for (const [key, series] of this.whole.get(run) ?? []) for (const row of rows) grow(series, key, row, null);
    for (const [key, series] of this.detail.get(run) ?? []) for (const row of rows) grow(series, key, row, this.range.get(run));
  }

  // Select a range to load with more points: run -> [first step, last step]; null for the whole run.
  look(range) {
    this.range = range;
    this.detail.clear();
    this.wanted = this.wanted.filter(([inRange]) => !inRange);
    for (const name of this.asked) if (name.startsWith("true")) this.asked.delete(name);
  }

  // Request everything again when charts want it; old series stay until then.
  renew() {
    this.stop.abort();
    this.stop = new AbortController();
    this.asked.clear();
    this.recent.clear();
  }

  // Convert a place on the axis "step" to one on the axis "time", or vice versa; null if no series is loaded.
  place(run, x, from, to) {
    return from === to ? x : (this.#clock(run)?.place(x, from, to) ?? null);
  }

  #clock(run) {
    if (!this.clocks.has(run)) {
      const known = [...(this.whole.get(run)?.values() ?? [])].filter(({ time }) => time.every((seconds) => seconds !== null));
      this.clocks.set(run, known.sort((a, b) => b.time.length - a.time.length)[0]);
    }
    return this.clocks.get(run);
  }

  // [lowest, highest] place of all series on an axis; null if none is loaded.
  extent(axis) {
    let low = Infinity, high = -Infinity;
    for (const kept of this.whole.values()) {
      for (const series of kept.values()) {
        const first = series[axis][0] ?? null, last = series[axis].at(-1) ?? null;
        if (first !== null && first < low) low = first;
        if (last !== null && last > high) high = last;
      }
    }
    return low > high ? null : [low, high];
  }
}

function grow(series, key, row, range) {
  if (key in row.metrics && !(range && row.step > range[1])) series.append(row.step, row.time, finite(row.metrics[key]));
}

const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

function held(map, name, make = () => new Map()) {
  if (!map.has(name)) map.set(name, make());
  return map.get(name);
}
