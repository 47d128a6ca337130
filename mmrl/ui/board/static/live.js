// Live updates by server-sent events. A hidden page disconnects, because browsers limit the connections to a server, and reloads
// its data when it is shown again. <span id="live" role="status"> shows when the connection is lost.

const KINDS = ["steps", "eval", "state", "rollouts", "errors", "removed", "gone"];
const FIRST = 1000, LONGEST = 30000; // milliseconds before a retry after the browser gave up

const heard = new Map();
let source = null, lost = false, pause = FIRST, timer = 0, address = "";

// Register tell(message) for events of a kind; the kind "back" means that the connection is restored or the page shown again.
export function hear(kind, tell) {
  heard.set(kind, [...(heard.get(kind) ?? []), tell]);
}

// Connect. runs: names of the runs to follow; empty for the list of all runs.
export function listen(runs) {
  address = `/api/live?${new URLSearchParams(runs.map((run) => ["run", run]))}`;
  document.addEventListener("visibilitychange", () => (document.hidden ? leave() : open()));
  addEventListener("pagehide", leave); // an open connection keeps the page out of the back/forward cache
  addEventListener("pageshow", (event) => event.persisted && open());
  if (!document.hidden) open();
  else lost = true;
}

function open() {
  clearTimeout(timer);
  if (source) return;
  source = new EventSource(address);
  source.onopen = () => {
    pause = FIRST;
    document.getElementById("live").textContent = "";
    if (lost) tell("back", {});
    lost = false;
  };
  source.onerror = () => {
    lost = true;
    document.getElementById("live").textContent = "not live: reconnecting";
    if (source.readyState !== EventSource.CLOSED) return;
    source = null;
    timer = setTimeout(open, pause);
    pause = Math.min(pause * 2, LONGEST);
  };
  for (const kind of KINDS) source.addEventListener(kind, (event) => tell(kind, JSON.parse(event.data)));
}

function leave() {
  clearTimeout(timer);
  source?.close();
  source = null;
  lost = true;
}

function tell(kind, message) {
  for (const listener of heard.get(kind) ?? []) listener(message);
}
