// The list of runs:
//   <form id="choose" action="/curves"> with <input type="search" id="find">, <button id="overlay" data-least="1">,
//     <button id="compare" formaction="/compare" data-exactly="2">
//   <table id="runs"> with <th data-sort="KEY"><button type="button" class="sort">, and rows as `/part/row?run=NAME` gives them:
//     <tr data-run="NAME"><td><input type="checkbox" name="run" value="NAME">, <td data-field="KEY" data-value="to sort by">
import { problem, text } from "./ask.js";
import { el, fragment, paced } from "./dom.js";
import { hear } from "./live.js";

const MANY = 12;
const PAUSE = 200; // milliseconds between two requests

export function start() {
  const form = document.getElementById("choose"), table = document.getElementById("runs");
  if (!form || !table) return;
  const body = table.tBodies[0];
  const find = document.getElementById("find");
  const buttons = form.querySelectorAll("[data-least], [data-exactly]");
  const heads = [...table.tHead.rows[0].cells];
  const trouble = el("div", {}), none = el("p", { class: "hint", role: "status", hidden: true }, "No matching runs.");
  table.closest(".card").after(none);
  form.prepend(trouble);
  let sorted = [heads.findIndex(({ dataset }) => dataset.sort === "started"), -1]; // as the server sorts

  const chosen = () => [...body.querySelectorAll("input[name=run]:checked")].map(({ value }) => value);

  function show() {
    const words = find.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    none.hidden = !body.rows.length || [...body.rows].some(({ hidden }) => !hidden);
    if (body.rows.length) document.getElementById("none")?.remove();
    const n = chosen().length;
    for (const button of buttons)
      button.disabled = button.dataset.exactly ? n !== Number(button.dataset.exactly) : n < Number(button.dataset.least);
  }

  // Sort numerically if a column has only numbers, else as text; empty values come last.
  function order() {
    const [column, sign] = sorted;
    const value = (row) => row.cells[column].dataset.value;
    const rows = [...body.rows];
    const numeric = rows.every((row) => !Number.isNaN(Number(value(row))));
    const ordered = [...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (!x || !y) return x ? -1 : y ? 1 : 0;
      return sign * (numeric ? x - y : x.localeCompare(y, "en", { numeric: true }));
    });
    if (ordered.some((row, i) => row !== rows[i])) keeping(() => body.append(...ordered));
  }

  const headed = () =>
    heads.forEach((head, i) => {
      if (i === sorted[0]) head.setAttribute("aria-sort", sorted[1] > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });

  // Change the table and restore the focus to the same control of the same run.
  function keeping(change) {
    const focus = document.activeElement;
    const run = body.contains(focus) ? focus.closest("tr").dataset.run : null;
    const at = run === null ? -1 : [...focus.closest("tr").querySelectorAll("a, button, input")].indexOf(focus);
    change();
    if (run !== null) row(run)?.querySelectorAll("a, button, input")[at]?.focus({ preventScroll: true });
  }

  const row = (run) => [...body.rows].find(({ dataset }) => dataset.run === run);

  heads.forEach((head, column) =>
    head.querySelector("button")?.addEventListener("click", () => {
      sorted = [column, sorted[0] === column ? -sorted[1] : 1];
      headed();
      order();
    }),
  );

  // Fetch the rows that have changed; all rows if those are many or unknown.
  const changed = new Set();
  let whole = false, reading = false;
  const soon = paced(async () => {
    if (reading) return soon();
    const some = [...changed], all = whole || some.length > MANY;
    reading = true;
    try {
      const pages = all ? [await text("/")] : await Promise.all(some.map((run) => text("/part/row", { run })));
      const fresh = pages.flatMap((page) => [...fragment(page).querySelectorAll("tr[data-run]")]);
      for (const run of some) changed.delete(run);
      whole = false;
      keeping(() => {
        const there = new Set(fresh.map(({ dataset }) => dataset.run));
        if (all) for (const old of [...body.rows]) if (!there.has(old.dataset.run)) old.remove();
        fresh.forEach(put);
      });
      trouble.replaceChildren();
      order();
      show();
    } catch (error) {
      trouble.replaceChildren(problem("The runs", error, soon));
    }
    reading = false;
  }, PAUSE);

  // Replace a run's row, keeping its selection.
  function put(fresh) {
    const old = row(fresh.dataset.run);
    fresh.querySelector("input[name=run]").checked = old?.querySelector("input[name=run]").checked ?? false;
    if (old) old.replaceWith(fresh);
    else body.prepend(fresh);
  }

  find.addEventListener("input", show);
  form.addEventListener("change", show);
  addEventListener("pageshow", show); // the back button restores the selection
  hear("state", ({ run }) => {
    changed.add(run);
    soon();
  });
  hear("removed", ({ run }) => {
    row(run)?.remove();
    show();
  });
  hear("back", () => {
    whole = true;
    soon();
  });
  headed();
  show();
}
