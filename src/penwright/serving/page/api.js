/** Asking the server: answers as JSON, as packed bytes or as events; what goes wrong comes as a message for people. */

import { unpack } from "./views/bytes.js";
import { eventsOf } from "./events.js";

/** What the server would not do, in its own words. `status` is that of HTTP, 0 where there was no answer. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

/** Whether somebody stopped it, which needs no message. */
export const wasStopped = (error) => error.name === "AbortError";

/** The message in the answer of a request that failed, in the shapes that our server and FastAPI give. */
function messageOf(text, status) {
  try {
    const { error, detail } = JSON.parse(text);
    if (Array.isArray(detail)) return detail.map(({ loc, msg }) => `${loc.slice(1).join(".")}: ${msg}`).join("; ");
    const found = (error && (error.message || error)) || detail;
    if (typeof found === "string") return found;
  } catch {
    // not JSON: a proxy's page, perhaps
  }
  return `The server answered with status ${status}.`;
}

let running = 0;

function counting(change) {
  running += change;
  document.documentElement.toggleAttribute("data-busy", running > 0);
}

/** A response that is well, or an ApiError; a body makes it a POST. */
export async function ask(path, body = undefined, { signal = null } = {}) {
  const method = body === undefined ? "GET" : "POST";
  counting(1);
  try {
    const sent =
      body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
    const response = await fetch(path, { method, signal, ...sent });
    if (!response.ok) throw new ApiError(messageOf(await response.text(), response.status), response.status);
    return response;
  } catch (error) {
    if (error instanceof ApiError || wasStopped(error)) throw error;
    throw new ApiError("The server does not answer. Is `penwright serve` still running?", 0);
  } finally {
    counting(-1);
  }
}

/** The answer as JSON. */
export const askJson = async (path, body, options) => (await ask(path, body, options)).json();

/** The answer as views have their data: tables with arrays of bytes (see views/bytes.js). */
export const askPacked = async (path, body, options) => unpack(await (await ask(path, body, options)).arrayBuffer());

/** The events {event, data} of an answer, their data as JSON; aborting the signal, or leaving the loop, stops the work. */
export async function* askEvents(path, body, { signal = null } = {}) {
  const response = await ask(path, body, { signal });
  try {
    for await (const { event, data } of eventsOf(response)) yield { event, data: JSON.parse(data) };
  } catch (error) {
    if (wasStopped(error) || error instanceof SyntaxError) throw error;
    throw new ApiError("The server went away in the middle of its answer.", 0);
  }
}
