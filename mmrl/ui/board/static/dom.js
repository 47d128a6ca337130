// Elements from code: text goes in as text, never as markup. Only what the server has rendered and escaped comes as HTML.

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

// A part of a page as the server wrote it.
export function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// Calls `run` some milliseconds after the last of many calls.
export function settled(run, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), milliseconds);
  };
}

// Calls `run` at once, and then at most once in so many milliseconds; the last call is never lost.
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

// Whether somebody is writing here, so that letters are no shortcuts.
export function isWriting(node) {
  if (!(node instanceof Element)) return false;
  return Boolean(
    node.closest("input:not([type=checkbox]):not([type=radio]):not([type=range]), select, textarea, [contenteditable]"),
  );
}
