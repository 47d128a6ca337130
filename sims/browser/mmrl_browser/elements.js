// What can be seen on a page: boxes, roles, names. skip: a selector of what is no part of it.
([skip, width, height]) => {
  const inputs = {button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio", range: "slider", search: "searchbox", number: "spinbutton"};
  const tags = {A: "link", BUTTON: "button", SELECT: "combobox", TEXTAREA: "textbox", IMG: "image", SVG: "image", CANVAS: "image", OPTION: "option", SUMMARY: "button", H1: "heading", H2: "heading", H3: "heading", H4: "heading", LABEL: "label", VIDEO: "video"};
  const doing = new Set(["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "menuitemcheckbox", "option", "textbox", "searchbox", "combobox", "slider", "spinbutton", "treeitem", "gridcell"]);
  const squeeze = (text) => (text || "").replace(/\s+/g, " ").trim().slice(0, 300);
  const role = (e) => {
    const said = e.getAttribute("role");
    if (said) return said.split(" ")[0];
    const tag = e.tagName.toUpperCase();
    if (tag === "INPUT") return inputs[e.type] || "textbox";
    if (tag === "A" && !e.hasAttribute("href")) return e.onclick ? "link" : "text";
    return tags[tag] || (e.isContentEditable && (!e.parentElement || !e.parentElement.isContentEditable) ? "textbox" : "text");
  };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const named = (e) => {
    const label = e.getAttribute("aria-label");
    if (label) return squeeze(label);
    if (e.labels && e.labels.length) return squeeze(e.labels[0].innerText);
    return squeeze(e.getAttribute("alt") || e.getAttribute("title") || e.getAttribute("placeholder") || (e.type === "submit" || e.type === "button" ? e.value : ""));
  };
  const value = (e) => {
    if (e.tagName === "INPUT" && (e.type === "checkbox" || e.type === "radio")) return e.checked ? "checked" : "";
    if (e.tagName === "SELECT") return squeeze(e.selectedOptions.length ? e.selectedOptions[0].text : "");
    if (e.tagName === "TEXTAREA" || (e.tagName === "INPUT" && !["submit", "button", "reset", "image"].includes(e.type))) return String(e.value).slice(0, 300);
    const state = e.getAttribute("aria-checked") || e.getAttribute("aria-pressed") || e.getAttribute("aria-selected");
    return state === "true" ? "checked" : "";
  };
  // A place on it that nothing covers: its middle, or the nearest of a few others; null where there is none.
  const places = [];
  for (let i = 1; i < 10; i++) for (let j = 1; j < 10; j++) places.push([i / 10, j / 10]);
  places.sort((a, b) => Math.hypot(a[0] - 0.5, a[1] - 0.5) - Math.hypot(b[0] - 0.5, b[1] - 0.5));
  const shows = (e, top) => top && (top === e || e.contains(top) || top.contains(e) || (e.labels && [...e.labels].some((l) => l.contains(top))));
  const seen = (e, x1, y1, x2, y2) => {
    for (const [i, j] of places) {
      const x = x1 + i * (x2 - x1), y = y1 + j * (y2 - y1);
      if (shows(e, document.elementFromPoint(x, y))) return [x, y];
    }
    return null;
  };
  const found = [];
  const visit = (e, within) => {
    if (found.length >= 2000 || (skip && e.matches(skip))) return;
    const style = getComputedStyle(e);
    if (style.display === "none") return;
    const kind = role(e);
    const active = doing.has(kind) || !!e.onclick || (style.cursor === "pointer" && !within) || (e.tabIndex >= 0 && e.hasAttribute("tabindex"));
    const picture = kind === "image";
    const written = own(e);
    if ((active || (!within && (written || picture))) && style.visibility === "visible" && style.opacity !== "0") {
      const r = e.getBoundingClientRect();
      const x1 = Math.max(r.left, 0), y1 = Math.max(r.top, 0), x2 = Math.min(r.right, width), y2 = Math.min(r.bottom, height);
      if (x2 - x1 >= 2 && y2 - y1 >= 2) {
        const spot = seen(e, x1, y1, x2, y2);
        if (spot) {
          const text = squeeze(e.innerText !== undefined ? e.innerText : e.textContent);
          const drawn = picture || !!e.querySelector("svg,img,canvas");
          found.push({box: [x1, y1, x2, y2], role: kind, text: e.tagName === "SELECT" || !text || e.getAttribute("aria-label") ? named(e) || (e.tagName === "SELECT" ? "" : text) : text, value: value(e), icon: drawn && !text, active, spot});
        }
      }
    }
    if (e.tagName !== "SELECT" && e.tagName.toUpperCase() !== "SVG") for (const child of e.children) visit(child, within || active);
  };
  if (document.body) visit(document.body, false);
  return found;
}
