// The entry point of every page: <body data-page="runs|curves|rollouts|rollout|alarms|compare|settings|episodes" data-run="NAME">
// with <header class="top"> (brand, tabs, `live`, `keys`, `theme`), <main id="main"> and its <h1 id="title"> with the run's
// badge. The module of a page's name has its special parts.
import "./page.js";
import { problem, text } from "./ask.js";
import { fragment, paced } from "./dom.js";
import { onKey } from "./keys.js";
import { hear, listen } from "./live.js";
import * as player from "./player.js";
import * as rollouts from "./rollouts.js";
import * as runs from "./runs.js";

const { page, run } = document.body.dataset;
const shown = page === "curves" ? new URLSearchParams(location.search).getAll("run") : run ? [run] : [];

onKey(["/"], "search", () => {
  const field = document.querySelector("main input[type=search]");
  if (!field) return false;
  field.focus();
  field.select();
});

if (page === "runs") runs.start();
if (page === "curves") (await import("./curves.js")).start();
if (page === "rollouts") rollouts.start();
if (page === "rollout") rollouts.neighbours();
if (page === "rollouts" || page === "rollout") rollouts.marks();

player.start();
if (page === "episodes") player.together();

// Update the run's state in its badge and the number in its tab of alarms.
hear("state", async ({ run: name, state }) => {
  const badge = document.querySelector("#title .status");
  if (name !== run || !badge) return;
  const count = document.querySelector('a[data-tab="alarms"] b');
  if (count) count.textContent = state.alarms.toLocaleString("en-US");
  if (badge.textContent === state.state) return;
  const fresh = fragment(await text("/part/row", { run })).querySelector(".status");
  if (fresh) badge.replaceWith(fresh);
});

hear("gone", ({ run: name, why }) => {
  document.getElementById("live").textContent = `${name} can't be read: ${why}`;
});

// A page of alarms is read again as they come.
const again = paced(async () => {
  const main = document.getElementById("main");
  try {
    main.replaceChildren(...fragment(await text(location.pathname, location.search)).querySelector("#main").childNodes);
  } catch (error) {
    main.prepend(problem("The alarms", error, again));
  }
}, 1000);
if (page === "alarms") {
  hear("errors", again);
  hear("back", again);
}

listen(shown);
