/** Requests to the server: answers as JSON, packed bytes or events. Failures become errors with a readable message. */

import { unpack } from "./views/bytes.js";
import { eventsOf } from "./events.js";

/** An error with the server's message. `status` is the HTTP status, or 0 if there was no answer. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

/** Whether a request was aborted, which needs no message. */
export const wasStopped = (error) => error.name === "AbortError";

/** Return the message of an error response, in the formats of our server and of FastAPI. */
function messageOf(text, status) {
  try {
    const { error, detail } = JSON.parse(text);
    if (Array.isArray(detail)) return detail.map(({ loc, msg }) => `${loc.slice(1).join(".")}: ${msg}`).join("; ");
    const found = (error && (error.message || error)) || detail;
    if (typeof found === "string") return found;
  } catch {
    // not JSON; perhaps the page of a proxy
  }
  return `The server answered with status ${status}.`;
}

let running = 0;

function counting(change) {
  running += change;
  document.documentElement.toggleAttribute("data-busy", running > 0);
}

/** Send a request and return its response, or throw an ApiError. A body makes it a POST. */
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
    throw new ApiError("The server does not answer. Is `penwright` still running?", 0);
  } finally {
    counting(-1);
  }
}

/** Return the answer, parsed as JSON. */
export const askJson = async (path, body, options) => (await ask(path, body, options)).json();

/** Return the answer as data for views: tables with arrays of bytes (see views/bytes.js). */
export const askPacked = async (path, body, options) => unpack(await (await ask(path, body, options)).arrayBuffer());

/** Yield the events {event, data} of an answer, with parsed data. Aborting or leaving the loop stops the work. */
export async function* askEvents(path, body, { signal = null } = {}) {
  const response = await ask(path, body, { signal });
  try {
    for await (const { event, data } of eventsOf(response)) yield { event, data: JSON.parse(data) };
  } catch (error) {
    if (wasStopped(error) || error instanceof SyntaxError) throw error;
    throw new ApiError("The connection to the server was lost before the answer was complete.", 0);
  }
}
