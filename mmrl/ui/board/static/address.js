// The state of the page's controls, kept in its address so that a link shows the same view.
import { settled } from "./dom.js";

const fields = new URLSearchParams(location.search);
const path = (query) => location.pathname + (String(query) && `?${query}`);
// Browsers limit changes of the address to about ten per second.
const show = settled(() => history.replaceState(history.state, "", path(fields)), 150);

export const get = (name) => fields.get(name);
export const all = (name) => fields.getAll(name);

// Set a field; an empty value removes it, an array sets it several times.
export function put(name, value) {
  set(fields, name, value);
  show();
}

// The number in a field if it lies between the bounds, else `otherwise`.
export function number(name, low, high, otherwise) {
  const value = parseFloat(fields.get(name));
  return value >= low && value <= high ? value : otherwise;
}

// This address with a field changed.
export function link(name, value) {
  const other = new URLSearchParams(fields);
  set(other, name, value);
  return path(other);
}

function set(query, name, value) {
  query.delete(name);
  if (Array.isArray(value)) value.forEach((item) => query.append(name, item));
  else if (value !== null && value !== undefined && value !== "") query.set(name, value);
}
