/** What may come next: asked for when the text has rested, or a rule of drawing has changed. */

import { askJson } from "../../api.js";

/** `question()` gives the body of the request; `found(answer)` is called with its answer. */
export function makePreview({ question, found, fail, signal }) {
  const state = { timer: 0, asked: null };
  async function ask() {
    state.asked?.abort();
    state.asked = new AbortController();
    try {
      found(await askJson("next", question(), { signal: AbortSignal.any([signal, state.asked.signal]) }));
    } catch (error) {
      fail(error);
    }
  }
  return {
    /** In so many milliseconds, unless it is called again before. */
    later(pause) {
      clearTimeout(state.timer);
      state.timer = setTimeout(ask, pause);
    },
    stop: () => clearTimeout(state.timer),
  };
}
