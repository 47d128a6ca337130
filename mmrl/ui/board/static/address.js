// What the page's address says: how its controls stand, so that a link shows the same.
import { settled } from "./dom.js";

const fields = new URLSearchParams(location.search);
const path = (query) => location.pathname + (String(query) && `?${query}`);
// Browsers let an address change some ten times a second at most.
const show = settled(() => history.replaceState(history.state, "", path(fields)), 150);

export const get = (name) => fields.get(name);
export const all = (name) => fields.getAll(name);

// value: nothing removes the field; of an array each is one.
export function put(name, value) {
  set(fields, name, value);
  show();
}

// A number between bounds, or `otherwise`.
export function number(name, low, high, otherwise) {
  const value = parseFloat(fields.get(name));
  return value >= low && value <= high ? value : otherwise;
}

// This address with another value of a field.
export function link(name, value) {
  const other = new URLSearchParams(fields);
  set(other, name, value);
  return path(other);
}

function set(query, name, value) {
  query.delete(name);
  if (Array.isArray(value)) value.forEach((one) => query.append(name, one));
  else if (value !== null && value !== undefined && value !== "") query.set(name, value);
}
