// One metric of one run as points, and the arithmetic of charts, independent of the page.

export const MOST = 2000;
// Maximal points of a growing series; beyond, pairs of neighbours are merged.

export class Series {
  // Data as in `/api/series`: if a point combines several rows, `value` is their mean, `low` and `high` are the extremes.
  // A value is null where there is none, and NaN where there is one that is no number, which is a gap in the line. last: the run's last step, which may lie after the last point. sketched: whether rows are missing.
  constructor({ step = [], time = [], value = [], low = null, high = null, gaps = [] } = {}, last = 0, sketched = false) {
    Object.assign(this, { step, time, value, low, high, sketched });
    for (const i of gaps) value[i] = NaN;
    const n = step.length;
    this.last = Math.max(last, n ? step[n - 1] : 0);
    this.rows = low && n > 1 ? Math.max(1, Math.round((step[n - 1] - step[0]) / (n - 1))) : 1; // rows per point
    this.open = this.rows; // rows in the last point
    this.filled = 1; // rows in the last point that have a value
    this.newest = null; // last appended value
  }

  // Whether the server has more detail of a part of it.
  get reduced() {
    return this.low !== null || this.sketched;
  }

  // Append a row, unless its step is not after the last one. value: null for one that is no number.
  append(step, time, value) {
    if (step <= this.last) return;
    this.last = step;
    this.newest = value ?? this.newest;
    if (this.open < this.rows) this.#join(step, time, value);
    else this.#push(step, time, value ?? NaN);
    if (this.step.length > MOST) this.#halve();
  }

  #push(step, time, value) {
    this.step.push(step);
    this.time.push(time);
    this.value.push(value);
    if (this.low) {
      this.low.push(value);
      this.high.push(value);
    }
    this.open = 1;
    this.filled = Number.isFinite(value) ? 1 : 0;
  }

  #join(step, time, value) {
    const end = this.step.length - 1;
    this.step[end] = step;
    this.time[end] = time;
    this.open += 1;
    if (value === null) return;
    const { value: mean, low, high } = this;
    mean[end] = this.filled ? mean[end] + (value - mean[end]) / (this.filled + 1) : value;
    low[end] = this.filled ? Math.min(low[end], value) : value;
    high[end] = this.filled ? Math.max(high[end], value) : value;
    this.filled += 1;
  }

  #halve() {
    const { step, time, value } = this;
    const low = this.low ?? value, high = this.high ?? value;
    const found = { step: [], time: [], value: [], low: [], high: [] };
    const either = (join, a, b) => (!Number.isFinite(a) ? (b ?? a) : !Number.isFinite(b) ? a : join(a, b));
    for (let i = 0; i < step.length; i += 2) {
      const j = Math.min(i + 1, step.length - 1);
      found.step.push(step[j]);
      found.time.push(time[j]);
      found.value.push(either((a, b) => (a + b) / 2, value[i], value[j]));
      found.low.push(either(Math.min, low[i], low[j]));
      found.high.push(either(Math.max, high[i], high[j]));
    }
    Object.assign(this, found);
    this.rows *= 2;
    this.open = this.rows;
  }

  // The points with a value over the axis "step" or "time": {x, y, low, high}; null for one that is no number.
  curve(axis) {
    const at = this[axis];
    const found = { x: [], y: [], low: this.low && [], high: this.low && [] };
    const known = (value) => (Number.isFinite(value) ? value : null);
    for (let i = 0; i < at.length; i++) {
      if (this.value[i] === null || at[i] === null) continue;
      found.x.push(at[i]);
      found.y.push(known(this.value[i]));
      if (this.low) {
        found.low.push(known(this.low[i]));
        found.high.push(known(this.high[i]));
      }
    }
    return found;
  }

  // The last measured value; null without one. The server's last point is a single row.
  get latest() {
    if (this.newest !== null) return this.newest;
    for (let i = this.value.length - 1; i >= 0; i--) if (Number.isFinite(this.value[i])) return this.value[i];
    return null;
  }

  // Convert a place on the axis `from` to one on the axis `to`, by linear interpolation between points; null without points.
  place(x, from, to) {
    const xs = this[from], ys = this[to];
    if (!xs.length) return null;
    const i = above(xs, x);
    if (i === 0) return ys[0];
    if (i === xs.length) return ys[i - 1];
    const share = xs[i] === xs[i - 1] ? 0 : (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
    return ys[i - 1] + (ys[i] - ys[i - 1]) * share;
  }
}

// Number of values at or below x, in an ascending array.
export function above(xs, x) {
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The sum of several series at every step of any of them.
export function total(series) {
  const rows = new Map();
  for (const { step, time, value } of series) {
    for (let i = 0; i < step.length; i++) {
      const row = rows.get(step[i]) ?? [time[i], null];
      if (Number.isFinite(value[i])) row[1] = (row[1] ?? 0) + value[i];
      rows.set(step[i], row);
    }
  }
  const step = [...rows.keys()].sort((a, b) => a - b);
  return new Series({ step, time: step.map((s) => rows.get(s)[0]), value: step.map((s) => rows.get(s)[1]) });
}

// The exponential moving average with bias correction: each mean is divided by the sum of its weights. Null stays null.
export function smooth(values, weight) {
  let mean = 0, seen = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    seen = weight * seen + (1 - weight);
    return mean / seen;
  });
}

// Cumulative sums of columns, for stacked areas. A gap counts as 0.
export function stacked(columns) {
  const tops = [];
  for (const column of columns) {
    const below = tops.at(-1);
    tops.push(column.map((value, i) => (value ?? 0) + (below ? below[i] : 0)));
  }
  return tops;
}

// [low, high] of the y axis, as in mmrl/ui/report/svg.py. zero: include 0. spiky: cover only the middle 98% if outliers would
// flatten the rest. It has 5% of room on both sides, except beyond 0 or 1 if all values stay on one side of it.
export function range(values, { zero = false, spiky = false } = {}) {
  values = values.filter((value) => value !== null);
  if (!values.length) return [0, 1];
  let [low, high] = ends(values);
  if (spiky && values.length >= 50) {
    const ordered = Float64Array.from(values).sort();
    const rare = Math.max(Math.floor(ordered.length / 100), 1);
    const first = ordered[rare], last = ordered[ordered.length - 1 - rare];
    if (first < last && (last - first) * 4 < high - low) {
      low = Math.max(low, first - (last - first) / 4);
      high = Math.min(high, last + (last - first) / 4);
    }
  }
  if (zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const flat = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
  const room = flat ? Math.abs(high) / 10 || 0.1 : (high - low) * 0.05;
  const floor = low >= 0 ? 0 : -Infinity;
  const ceiling = high > 0.5 && high <= 1 ? 1 : high === 0 && low < 0 ? 0 : Infinity;
  return [Math.max(low - room, floor), Math.min(high + room, ceiling)];
}

// [low, high] of a logarithmic axis for the values above 0, rounded to one digit; null without such values.
export function powers(values) {
  const positive = values.filter((value) => value > 0);
  if (!positive.length) return null;
  const [low, high] = ends(positive);
  const digit = (round, value) => {
    const power = 10 ** Math.floor(Math.log10(value));
    return Number((round(value / power) * power).toPrecision(1));
  };
  const [from, to] = [digit(Math.floor, low), digit(Math.ceil, high)];
  return from < to ? [from, to] : [from / 2, to * 2];
}

// [lowest, highest] value.
export function ends(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}
