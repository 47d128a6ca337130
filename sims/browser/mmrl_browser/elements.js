// What can be seen on a page: boxes, roles, names. skip: a selector of what is no part of it.
([skip, width, height]) => {
  const inputs = {button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio", range: "slider", search: "searchbox", number: "spinbutton"};
  const tags = {A: "link", BUTTON: "button", SELECT: "combobox", TEXTAREA: "textbox", IMG: "image", SVG: "image", CANVAS: "image", OPTION: "option", SUMMARY: "button", H1: "heading", H2: "heading", H3: "heading", H4: "heading", LABEL: "label", VIDEO: "video"};
  // A form hides what its fields are named after: `children`, `getAttribute` and the like are asked of the prototypes.
  const getter = (proto, name) => { const get = Object.getOwnPropertyDescriptor(proto, name).get; return (e) => get.call(e); };
  const method = (name) => (e, ...given) => Element.prototype[name].apply(e, given);
  const childNodes = getter(Node.prototype, "childNodes"), children = getter(Element.prototype, "children"), tagName = getter(Element.prototype, "tagName"), innerText = (e) => (e instanceof HTMLElement ? getter(HTMLElement.prototype, "innerText")(e) : getter(Node.prototype, "textContent")(e));
  const shadowRoot = getter(Element.prototype, "shadowRoot");
  const parentElement = getter(Node.prototype, "parentElement"), contains = (e, other) => Node.prototype.contains.call(e, other);
  const attribute = method("getAttribute"), has = method("hasAttribute"), matches = method("matches"), query = method("querySelector"), rect = method("getBoundingClientRect");
  const doing = new Set(["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "menuitemcheckbox", "option", "textbox", "searchbox", "combobox", "slider", "spinbutton", "treeitem", "gridcell"]);
  const squeeze = (text) => (text || "").replace(/\s+/g, " ").trim().slice(0, 300);
  const role = (e) => {
    const said = attribute(e, "role");
    if (said) return said.split(" ")[0].slice(0, 40);
    const tag = tagName(e).toUpperCase();
    if (tag === "INPUT") return inputs[e.type] || "textbox";
    if (tag === "A" && !has(e, "href")) return e.onclick ? "link" : "text";
    return tags[tag] || (e.isContentEditable && (!parentElement(e) || !parentElement(e).isContentEditable) ? "textbox" : "text");
  };
  const own = (e) => [...childNodes(e)].some((n) => n.nodeType === 3 && n.data.trim());
  const named = (e) => {
    const label = attribute(e, "aria-label");
    if (label) return squeeze(label);
    if (e.labels && e.labels.length) return squeeze(innerText(e.labels[0]));
    return squeeze(attribute(e, "alt") || attribute(e, "title") || attribute(e, "placeholder") || (e.type === "submit" || e.type === "button" ? e.value : ""));
  };
  const value = (e) => {
    if (tagName(e) === "INPUT" && (e.type === "checkbox" || e.type === "radio")) return e.checked ? "checked" : "";
    if (tagName(e) === "SELECT") return squeeze(e.selectedOptions.length ? e.selectedOptions[0].text : "");
    if (tagName(e) === "TEXTAREA" || (tagName(e) === "INPUT" && !["submit", "button", "reset", "image"].includes(e.type))) return String(e.value).slice(0, 300);
    const state = attribute(e, "aria-checked") || attribute(e, "aria-pressed") || attribute(e, "aria-selected");
    return state === "true" ? "checked" : "";
  };
  // A place on it that nothing covers: its middle, or the nearest of a few others; null where there is none.
  const places = [];
  for (let i = 1; i < 10; i++) for (let j = 1; j < 10; j++) places.push([i / 10, j / 10]);
  places.sort((a, b) => Math.hypot(a[0] - 0.5, a[1] - 0.5) - Math.hypot(b[0] - 0.5, b[1] - 0.5));
  const root = (e) => Node.prototype.getRootNode.call(e);
  const shows = (e, top) => top && (top === e || contains(e, top) || contains(top, e) || (e.labels && [...e.labels].some((l) => contains(l, top))));
  // view: where the document of an element is on the screen, and what of it is seen; `frames` are those that it is in.
  const seen = (e, view, x1, y1, x2, y2) => {
    for (const [i, j] of places) {
      const x = x1 + i * (x2 - x1), y = y1 + j * (y2 - y1);
      const uncovered = view.frames.every(([frame, at]) => root(frame).elementFromPoint(x - at.left, y - at.top) === frame);
      if (uncovered && shows(e, root(e).elementFromPoint(x - view.left, y - view.top))) return [x, y];
    }
    return null;
  };
  const inside = (frame, view) => { // of a frame's document
    const r = rect(frame), left = view.left + r.left + frame.clientLeft, top = view.top + r.top + frame.clientTop;
    const edges = {x1: Math.max(view.x1, left), y1: Math.max(view.y1, top), x2: Math.min(view.x2, left + frame.clientWidth), y2: Math.min(view.y2, top + frame.clientHeight)};
    return {left, top, ...edges, frames: [...view.frames, [frame, view]]};
  };
  const found = [];
  const visit = (e, within, view) => {
    if (found.length >= 2000 || (skip && matches(e, skip))) return;
    const style = getComputedStyle(e);
    if (style.display === "none") return;
    const kind = role(e);
    const active = doing.has(kind) || !!e.onclick || (style.cursor === "pointer" && !within) || (e.tabIndex >= 0 && has(e, "tabindex"));
    const picture = kind === "image";
    const written = own(e);
    if ((active || (!within && (written || picture))) && style.visibility === "visible" && style.opacity !== "0") {
      const r = rect(e);
      const x1 = Math.max(view.left + r.left, view.x1), x2 = Math.min(view.left + r.right, view.x2);
      const y1 = Math.max(view.top + r.top, view.y1), y2 = Math.min(view.top + r.bottom, view.y2);
      if (x2 - x1 >= 2 && y2 - y1 >= 2) {
        const spot = seen(e, view, x1, y1, x2, y2);
        if (spot) {
          const text = squeeze(innerText(e));
          const drawn = picture || !!query(e, "svg,img,canvas");
          found.push({box: [x1, y1, x2, y2], role: kind, text: tagName(e) === "SELECT" || !text || attribute(e, "aria-label") ? named(e) || (tagName(e) === "SELECT" ? "" : text) : text, value: value(e), icon: drawn && !text, interactive: active, click_point: spot});
        }
      }
    }
    if (tagName(e) === "SELECT" || tagName(e).toUpperCase() === "SVG") return;
    const shadow = shadowRoot(e); // an open one
    for (const child of [...children(e), ...(shadow ? shadow.children : [])]) visit(child, within || active, view);
    const framed = tagName(e) === "IFRAME" ? e.contentDocument : null; // of the same site
    if (framed && framed.body) visit(framed.body, false, inside(e, view));
  };
  if (document.body) visit(document.body, false, {left: 0, top: 0, x1: 0, y1: 0, x2: width, y2: height, frames: []});
  return found;
}
