// The charts of evaluations; their values come with the plan of all charts and by live events.
import { Series } from "./series.js";

const OUTCOMES = 24; // charts at most besides that of the metric
const HINT = "Held-out prompts, with 95% intervals.";
const LONG = "Held-out prompts. Bands and whiskers are 95% intervals; overlapping ones do not show progress.";

// Put the series of evaluations into the store and return their charts, in the format of `/api/curves`: that of the metric, and one
// for each outcome with intervals; none without evaluations.
// evals: run -> rows {step, task, split, metric, value, low, high, extra, intervals}. shares: metrics that are shares.
export function evaluations(evals, store, shares) {
  const rows = [...evals.values()].flat();
  if (!rows.length) return [];
  const unit = rows.every(({ metric }) => shares.includes(metric)) ? "%" : "";
  const first = { id: "evaluation", title: "Evaluation", hint: LONG, unit, tall: true };
  const others = outcomes(rows).map((key) => {
    const words = key.replace(/^episode\//, "").replaceAll("_", " ");
    const ofKey = key.startsWith("episode/") ? (words.startsWith("success") ? "%" : "") : unit;
    const about = { id: `evaluation-${key.replaceAll("/", "-")}`, title: `Evaluation: ${words}`, hint: HINT, unit: ofKey };
    return chart(about, new Map([...evals].map(([run, ofRun]) => [run, ofOutcome(ofRun, key)])), store, shares);
  });
  return [chart(first, evals, store, shares), ...others];
}

// A line for each task, or for each of its ways to be evaluated.
function chart(about, evals, store, shares) {
  const rows = [...evals.values()].flat();
  const lineOf = ({ task, split, metric }) => JSON.stringify([task, split, shares.includes(metric) || metric]);
  const last = new Map(rows.map((row) => [lineOf(row), row])); // its name: older runs call success accuracy
  const ways = new Set([...last.values()].map(({ split, metric }) => `${split}\n${metric}`));
  const name = (row) => {
    const { task, split, metric } = last.get(lineOf(row));
    return ways.size > 1 ? `${task} ${metric} (${split})` : task;
  };
  const names = [...new Set(rows.map(name))];
  const key = (line) => `${about.id} ${line}`;
  for (const [run, ofRun] of evals) {
    for (const line of names) {
      const points = ofRun.filter((row) => name(row) === line);
      if (points.length) store.put(run, key(line), series(run, points, store));
    }
  }
  return { ...about, keys: names.map(key), names, held: true, dots: true };
}

// The keys of outcomes with an interval somewhere that aren't the metric itself everywhere.
function outcomes(rows) {
  const known = rows.flatMap((row) => Object.keys(row.intervals ?? {}).filter((key) => bounds(row, key)));
  return [...new Set(known)].filter((key) => rows.some((row) => isOther(row, key))).slice(0, OUTCOMES);
}

const isOther = ({ extra, value }, key) => typeof extra?.[key] === "number" && extra[key] !== value;

// The rows with an outcome, as if it were their metric.
function ofOutcome(rows, key) {
  const having = rows.filter(({ extra }) => typeof extra?.[key] === "number");
  return having.map((row) => ({ ...row, value: row.extra[key], low: null, high: null, ...bounds(row, key) }));
}

// {low, high} of an outcome; null if they are unknown.
function bounds({ extra, intervals }, key) {
  const [low, high] = Array.isArray(intervals?.[key]) ? intervals[key] : [];
  return [low, high, extra?.[key]].every((end) => typeof end === "number") ? { low, high } : null;
}

// If a step was evaluated twice, the later row is used.
function series(run, rows, store) {
  const last = [...new Map(rows.map((row) => [row.step, row])).values()].sort((a, b) => a.step - b.step);
  const end = (name) => last.map((row) => row[name] ?? row.value);
  return new Series({
    step: last.map(({ step }) => step),
    time: last.map(({ step }) => (step ? store.place(run, step, "step", "time") : 0)),
    value: last.map(({ value }) => value),
    low: end("low"),
    high: end("high"),
  });
}
