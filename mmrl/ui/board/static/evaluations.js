// The chart of evaluations; its values come with the plan of all charts and by live events.
import { Series } from "./series.js";

// Put the series of evaluations into the store and return their chart, in the format of `/api/curves`; null without evaluations.
// evals: run -> rows {step, task, split, metric, value, low, high}. shares: metrics that are shares.
export function evaluations(evals, store, shares) {
  const rows = [...evals.values()].flat();
  if (!rows.length) return null;
  const lineOf = ({ task, split, metric }) => JSON.stringify([task, split, shares.includes(metric) || metric]);
  const last = new Map(rows.map((row) => [lineOf(row), row])); // its name: older runs call success accuracy
  const ways = new Set([...last.values()].map(({ split, metric }) => `${split}\n${metric}`));
  const name = (row) => {
    const { task, split, metric } = last.get(lineOf(row));
    return ways.size > 1 ? `${task} ${metric} (${split})` : task;
  };
  const names = [...new Set(rows.map(name))];
  for (const [run, ofRun] of evals) {
    for (const line of names) {
      const points = ofRun.filter((row) => name(row) === line);
      if (points.length) store.put(run, key(line), series(run, points, store));
    }
  }
  return {
    id: "evaluation",
    title: "Evaluation",
    hint: "Held-out prompts. Bands and whiskers are 95% intervals; overlapping ones do not show progress.",
    keys: names.map(key),
    names,
    unit: rows.every(({ metric }) => shares.includes(metric)) ? "%" : "",
    held: true,
    dots: true,
    tall: true,
  };
}

const key = (name) => `evaluation ${name}`;

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
