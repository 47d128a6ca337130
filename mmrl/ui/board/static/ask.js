// Requests to the server. An error is one line of text, which is shown in place of the content.
import { el, fragment } from "./dom.js";

// fields: URLSearchParams, or names and values.
export async function text(path, fields, signal) {
  const query = new URLSearchParams(fields).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path, { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the board does not respond; is `mmrl board` still running?");
  }
  const body = await response.text();
  if (!response.ok) throw new Error(line(body) || `the board responded with status ${response.status}`);
  return body;
}

export async function json(path, fields, signal) {
  const body = await text(path, fields, signal);
  try {
    return JSON.parse(body);
  } catch {
    throw new Error("the response is not JSON");
  }
}

// The error line of a response, which is JSON, HTML or plain text.
function line(body) {
  let text = body;
  if (body.startsWith("{")) text = JSON.parse(body).error;
  if (body.startsWith("<")) text = fragment(body).textContent;
  return text.trim().split("\n")[0].slice(0, 300);
}

// An error message in place of content that could not be loaded. what: subject of the message. again: called by "Try again".
export function problem(what, error, again) {
  const button = again ? [" ", el("button", { type: "button", onclick: again }, "Try again")] : [];
  return el("p", { class: "problem", role: "alert" }, `${what} could not be loaded: ${error.message}`, ...button);
}
