// What is new while the page is open, by server-sent events. A hidden page doesn't listen: browsers allow few connections to one
// server, and what was missed is read again when it is shown. <span id="live" role="status"> says when the connection is lost.

const KINDS = ["steps", "eval", "state", "rollouts", "errors", "removed", "gone"];
const FIRST = 1000, LONGEST = 30000; // milliseconds until it is tried again where the browser gives up

const heard = new Map();
let source = null, lost = false, pause = FIRST, timer = 0, address = "";

// tell(message): of an event of this kind, or of "back": the connection is there again, or the page is shown again.
export function hear(kind, tell) {
  heard.set(kind, [...(heard.get(kind) ?? []), tell]);
}

// runs: names; of none the list of all runs is told.
export function listen(runs) {
  address = `/api/live?${new URLSearchParams(runs.map((run) => ["run", run]))}`;
  document.addEventListener("visibilitychange", () => (document.hidden ? leave() : open()));
  addEventListener("pagehide", leave); // so that the browser may keep the page for "back"
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
  for (const one of heard.get(kind) ?? []) one(message);
}
