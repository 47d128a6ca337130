// What the page's address says: how its controls stand, so that a link shows the same.
import { settled } from "./dom.js";

const fields = new URLSearchParams(location.search);
const show = settled(() => {  // browsers let an address change some ten times a second at most
  const query = fields.toString();
  history.replaceState(history.state, "", query ? `?${query}` : location.pathname);
}, 150);

export const get = (name) => fields.get(name);
export const all = (name) => fields.getAll(name);

// value: nothing removes the field; of an array each is one.
export function put(name, value) {
  fields.delete(name);
  if (Array.isArray(value)) value.forEach((one) => fields.append(name, one));
  else if (value !== null && value !== undefined && value !== "") fields.set(name, value);
  show();
}

// A number between bounds, or `otherwise`.
export function number(name, low, high, otherwise) {
  const value = parseFloat(fields.get(name));
  return value >= low && value <= high ? value : otherwise;
}
