/** Requests that replace each other: each aborts the previous one, and leaving the screen aborts all. */

/** @param {AbortSignal} signal aborted when the screen is left */
export function newest(signal) {
  let timer = 0;
  let current = new AbortController();
  return {
    /** Call `ask` after a pause, unless this is called again first. */
    later(ask, milliseconds) {
      clearTimeout(timer);
      timer = setTimeout(ask, milliseconds);
    },
    /** Abort the previous request and return the signal of the next one. */
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
