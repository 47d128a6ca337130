// The page's colours for what is drawn on a canvas, and dash patterns: lines can be told apart without seeing colour.

const DASHES = [[], [8, 4], [2, 3], [9, 3, 2, 3], [14, 5]];

export const COLOURS = 8;
export const dash = (i) => DASHES[i % DASHES.length];

// {c: [...8], ink, soft, line, card} as the theme has them now.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  const c = Array.from({ length: COLOURS }, (_, i) => named(`c${i + 1}`));
  return { c, ink: named("ink"), soft: named("soft"), line: named("line"), card: named("card") };
}

// `#rrggbb` with an opacity from 0 to 1.
export const fade = (hex, opacity) => hex + Math.round(opacity * 255).toString(16).padStart(2, "0");
