// What is asked of the server. A refusal is its one line; a page is never left blank, the line stands where the answer would.
import { el, fragment } from "./dom.js";

// fields: URLSearchParams, or names and values.
export async function text(path, fields, signal) {
  const query = new URLSearchParams(fields).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the board doesn't answer; is `mmrl board` still running?");
  }
  const body = await response.text();
  if (!response.ok) throw new Error(line(body) || `the board answered ${response.status}`);
  return body;
}

export async function json(path, fields, signal) {
  const body = await text(path, fields, signal);
  try {
    return JSON.parse(body);
  } catch {
    throw new Error("the answer is no JSON");
  }
}

// The server's one line: in JSON, in HTML or as it is.
function line(body) {
  let said = body;
  if (body.startsWith("{")) said = JSON.parse(body).error;
  if (body.startsWith("<")) said = fragment(body).textContent;
  return said.trim().split("\n")[0].slice(0, 300);
}

// The line to put in place of what could not be read. again: what to do when somebody tries once more.
export function problem(what, error, again) {
  const button = again ? [" ", el("button", { type: "button", onclick: again }, "Try again")] : [];
  return el("p", { class: "problem", role: "alert" }, `${what} could not be read: ${error.message}`, ...button);
}
