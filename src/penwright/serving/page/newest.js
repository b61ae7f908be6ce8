/** Questions of which only the newest counts: each ends the one before it, and the end of the screen ends them all. */

/** @param {AbortSignal} signal of the screen */
export function newest(signal) {
  let timer = 0;
  let current = new AbortController();
  return {
    /** Ask after a pause, unless this is called again before. */
    later(ask, milliseconds) {
      clearTimeout(timer);
      timer = setTimeout(ask, milliseconds);
    },
    /** The signal of a question that is asked now. */
    begin() {
      this.end();
      current = new AbortController();
      return AbortSignal.any([signal, current.signal]);
    },
    end() {
      clearTimeout(timer);
      current.abort();
    },
  };
}
