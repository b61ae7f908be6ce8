/** The preview of the next token, requested when the text has rested or a setting has changed. */

import { askJson } from "../../api.js";

/** Create a preview. `question()` returns the body of the request; `found(answer)` receives the answer. */
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
    /** Send the request after `pause` milliseconds, unless this is called again first. */
    later(pause) {
      clearTimeout(state.timer);
      state.timer = setTimeout(ask, pause);
    },
    stop: () => clearTimeout(state.timer),
  };
}
