/** Streamed generation: once per frame, all tokens that arrived since the last frame are passed on. */

import { askEvents } from "../../api.js";
import { makeCollector, tokenOf } from "./text.js";

/**
 * Generate tokens after a prompt. `begun` are tokens at its end whose characters are incomplete. Calls
 * `arrived(parts, count)` with new parts of the text. Returns the number of tokens when the model has finished; throws
 * an AbortError when the signal stops it.
 */
export async function stream(body, { begun, signal, arrived }) {
  const collect = makeCollector(begun);
  const state = { queue: [], frame: 0, count: 0 };
  function handOn() {
    cancelAnimationFrame(state.frame);
    state.frame = 0;
    arrived(state.queue.splice(0), state.count);
  }
  try {
    for await (const { event, data } of askEvents("write", body, { signal })) {
      if (event === "error") throw new Error(data.message);
      if (event !== "token") continue;
      state.count++;
      const part = collect(tokenOf(data), data.shown);
      if (part) state.queue.push(part);
      state.frame ||= requestAnimationFrame(handOn);
    }
  } finally {
    handOn();
  }
  return state.count;
}
