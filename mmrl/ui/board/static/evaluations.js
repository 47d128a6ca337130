// The chart of evaluations, whose numbers come with the plan of all charts, and one by one while a run goes on.
import { Series } from "./series.js";

// The chart, as `/api/curves` describes others, after its series were put into the store; null where there are no evaluations.
// evals: run -> rows {step, task, split, metric, value, low, high}.
export function evaluations(evals, store) {
  const rows = [...evals.values()].flat();
  if (!rows.length) return null;
  const ways = new Set(rows.map(({ split, metric }) => `${split}\n${metric}`));
  const name = ({ task, split, metric }) => (ways.size > 1 ? `${task} ${metric} (${split})` : task);
  const names = [...new Set(rows.map(name))];
  for (const [run, own] of evals) {
    for (const one of names) {
      const some = own.filter((row) => name(row) === one);
      if (some.length) store.put(run, key(one), series(run, some, store));
    }
  }
  return {
    id: "evaluation",
    title: "Evaluation",
    hint: "Held-out items. Band and whiskers are the 95% interval: overlapping ones are no progress yet.",
    keys: names.map(key),
    names,
    unit: rows.every(({ metric }) => metric === "accuracy") ? "%" : "",
    held: true,
    dots: true,
    tall: true,
  };
}

const key = (name) => `evaluation ${name}`;

// Of a step that was evaluated twice the later row counts.
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
