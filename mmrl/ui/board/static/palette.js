// The page's colours for canvases, and dash patterns, which distinguish lines without colour.
import { el, svg } from "./dom.js";

const DASHES = [[], [8, 4], [2, 3], [9, 3, 2, 3], [14, 5]];

export const COLOURS = 8;
export const dash = (i) => DASHES[i % DASHES.length];

// The current theme's colours: {c: [...8], ink, soft, line, card}.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  const c = Array.from({ length: COLOURS }, (_, i) => named(`c${i + 1}`));
  return { c, ink: named("ink"), soft: named("soft"), line: named("line"), card: named("card") };
}

// `#rrggbb` with an opacity from 0 to 1.
export const fade = (hex, opacity) => hex + Math.round(opacity * 255).toString(16).padStart(2, "0");

// A sample of a line for a legend. colour, pattern: indexes from 0.
export function sample(colour, pattern) {
  const css = `s${(colour % COLOURS) + 1}`;
  if (!dash(pattern).length) return el("i", { class: `key ${css}` });
  const stroke = svg("line", { x1: 0, x2: 22, y1: 5, y2: 5, "stroke-dasharray": dash(pattern).join(" ") });
  return svg("svg", { class: `dashes ${css}`, viewBox: "0 0 22 10", width: 22, height: 10, "aria-hidden": "true" }, stroke);
}
