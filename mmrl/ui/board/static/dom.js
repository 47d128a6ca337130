// Creation of elements: text is inserted as text, never as markup; only HTML rendered by the server is parsed.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  give(node, attributes);
  node.append(...children);
  return node;
}

export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  give(node, attributes);
  node.append(...children);
  return node;
}

function give(node, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
}

// A document fragment of HTML rendered by the server.
export function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// Debounce: call `run` some milliseconds after the last of many calls.
export function settled(run, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), milliseconds);
  };
}

// Throttle: call `run` at once, then at most once per interval; the last call is never lost.
export function paced(run, milliseconds) {
  let timer = 0, last = -Infinity;
  return () => {
    if (timer) return;
    timer = setTimeout(
      () => {
        timer = 0;
        last = performance.now();
        run();
      },
      Math.max(0, last + milliseconds - performance.now()),
    );
  };
}

// Whether an element accepts typed text, where keys must not act as shortcuts.
export function isWriting(node) {
  if (!(node instanceof Element)) return false;
  return Boolean(
    node.closest("input:not([type=checkbox]):not([type=radio]):not([type=range]), select, textarea, [contenteditable]"),
  );
}
