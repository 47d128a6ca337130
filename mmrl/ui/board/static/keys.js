// Keyboard shortcuts. They are off while text is typed, and together with ctrl, alt or meta. Each page adds its own; `?` and
// <button type="button" id="keys"> list them all. A page's tabs are <a href="..." data-tab="curves">.
import { el, isWriting } from "./dom.js";

const known = new Map();
const GO = { r: "runs", c: "curves", l: "rollouts", a: "alarms", e: "episodes", s: "settings", m: "compare" };
const SOON = 1500; // milliseconds after `g` within which the second key must follow
let going = 0;

// Register a shortcut. names: values of event.key. word: its description. press(event) returns false if it ignores the key.
export function onKey(names, word, press) {
  for (const name of names) known.set(name, { names, word, press });
}

const tab = (name) => document.querySelector(name === "runs" ? "header.top a.brand" : `header.top a[data-tab="${name}"]`);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented || isWriting(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.timeStamp < going) {
    going = 0;
    const link = tab(GO[event.key]);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (event.key === "g") going = event.timeStamp + SOON;
  else if (event.key === "?") tell();
  else if (known.has(event.key) && known.get(event.key).press(event) !== false) event.preventDefault();
});

document.getElementById("keys").addEventListener("click", tell);

const shown = { " ": "space", ArrowLeft: "\u2190", ArrowRight: "\u2192", ArrowUp: "\u2191", ArrowDown: "\u2193" };

function tell() {
  const rows = [...new Set(known.values())].map(({ names, word }) => [names.map((name) => shown[name] ?? name), word]);
  for (const [name, page] of Object.entries(GO)) if (tab(page)) rows.push([[`g ${name}`], page]);
  rows.push([["?"], "this list"]);
  const list = rows.flatMap(([names, word]) => [
    el("dt", {}, ...names.flatMap((name, i) => [...(i ? [" "] : []), el("kbd", {}, name)])),
    el("dd", {}, word),
  ]);
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const title = "Keyboard shortcuts";
  const dialog = el("dialog", { class: "card keys", "aria-label": title }, el("h2", {}, title), el("dl", {}, ...list), close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
