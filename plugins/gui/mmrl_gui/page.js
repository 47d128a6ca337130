// What clicks do on a drawn page: switches flip, tabs and menus open, dialogs close, rows go. What has no effect of its own says its
// name, so that it can be told from the screen what was clicked.
const first = (query) => document.querySelector(query);
const all = (query, within) => [...(within || document).querySelectorAll(query)];
const flip = (e, state) => e.setAttribute(state, String(e.getAttribute(state) !== "true"));

function only(e, state, group) {
  all(`[${state}]`, group).forEach((other) => other.setAttribute(state, "false"));
  e.setAttribute(state, "true");
}

function called(e) {
  const word = (e.innerText || "").trim();
  const container = e.closest(".card,.row,.post,.row-line");
  const label = container && container.querySelector(".l");
  return e.getAttribute("aria-label") || (label && label !== e ? `${word}: ${label.innerText}` : word);
}

function toast(text) {
  const shown = document.createElement("div");
  shown.className = "toast";
  shown.textContent = text;
  document.body.append(shown);
}

// Whether an element is seen whole: not cut off by what it stands in, and its words not by much.
function isWhole(e) {
  const own = e.getBoundingClientRect();
  let width = own.width, height = own.height;
  for (let around = e.parentElement; around; around = around.parentElement) {
    if (around !== document.body && getComputedStyle(around).overflow === "visible") continue;
    const box = around.getBoundingClientRect();
    width = Math.min(width, Math.min(own.right, box.right) - Math.max(own.left, box.left));
    height = Math.min(height, Math.min(own.bottom, box.bottom) - Math.max(own.top, box.top));
  }
  const words = e.matches(".cut") ? e : e.querySelector(".cut");
  const share = words && words.scrollWidth ? words.clientWidth / words.scrollWidth : 1;
  return width > own.width - 1 && height > own.height - 1 && share > 0.75;
}

// What is cut off has no role, so that it is in no list of what can be clicked, until it is scrolled to.
function look() {
  for (const e of all("[data-thing]")) {
    if (e.dataset.role === undefined) e.dataset.role = e.getAttribute("role") || "";
    const seen = isWhole(e);
    e.style.cursor = seen ? "" : "default";
    if (!seen) e.setAttribute("role", "none");
    else if (e.dataset.role) e.setAttribute("role", e.dataset.role);
    else e.removeAttribute("role");
  }
}

function turn(e, data) {
  const group = e.closest("[role=tablist],nav"), heading = first("[data-heading]");
  if (data.role === "tab") {
    only(e, "aria-selected", group);
    if (data.shows) all("[data-panel]").forEach((panel) => { panel.hidden = panel.dataset.panel !== data.shows; });
    return;
  }
  all("[aria-current]", group).forEach((other) => other.removeAttribute("aria-current"));
  e.setAttribute("aria-current", "page");
  if (heading) heading.textContent = called(e);
}

function slide(e, x) {
  const box = e.getBoundingClientRect();
  e.style.setProperty("--at", `${Math.round((100 * (x - box.left)) / box.width)}%`);
}

function send(field) {
  if (!field.value) return;
  const bubble = document.createElement("div");
  bubble.className = "bub me";
  bubble.textContent = field.value;
  first(".talk").append(bubble);
  field.value = "";
}

function choose(e, data) {
  first(data.sets).firstElementChild.textContent = e.innerText;
  e.closest(".menu").hidden = true;
}

function press(e, data, x) {
  if (data.role === "switch" || data.role === "checkbox") flip(e, "aria-checked");
  else if (data.role === "radio") only(e, "aria-checked", e.closest("[role=radiogroup]"));
  else if (data.role === "slider") slide(e, x);
  else if (e.hasAttribute("aria-pressed")) data.one ? only(e, "aria-pressed", e.parentNode) : flip(e, "aria-pressed");
  else if (data.role === "tab" || data.page !== undefined) turn(e, data);
  else if (data.opens) first(data.opens).hidden = !first(data.opens).hidden;
  else if (data.sets) choose(e, data);
  else if (data.says) send(first(data.says));
  else if (!e.matches("input")) {
    const name = called(e);
    if (data.closes !== undefined) e.closest(".veil").hidden = true;
    if (data.removes !== undefined) e.closest(".row,.card,.post,.row-line").remove();
    toast(name);
  }
}

document.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("click", (event) => {
  const e = event.target.closest("[data-thing]");
  if (!event.target.closest(".menu,[data-opens]")) all(".menu").forEach((menu) => { menu.hidden = true; });
  all(".toast").forEach((old) => old.remove());
  if (e && e.tagName === "A") event.preventDefault();
  if (e) press(e, e.dataset, event.clientX);
  look();
});
// Scrolled at once: a browser's own scrolling takes time, and a picture taken meanwhile would be another one each time.
document.addEventListener("wheel", (event) => {
  event.preventDefault();
  const around = all("*").filter((e) => e.contains(event.target) && e.scrollHeight > e.clientHeight + 1);
  const scrolled = around.reverse().find((e) => getComputedStyle(e).overflowY === "auto");
  if (scrolled) scrolled.scrollTop += event.deltaY;
  look();
}, {passive: false});
look();
