/** State in the address, so that a view can be shared and survives a reload. */

const LATER = 200; // milliseconds: browsers limit how often the address may change

/**
 * Return the screen and the values in an address: #/write?model=novel&text=Once.
 * @param {string} hash
 * @returns {{screen: string, values: Record<string, string>}}
 */
export function parse(hash) {
  const [path, query = ""] = split(hash.replace(/^#\/?/, ""), "?");
  return { screen: path, values: Object.fromEntries(new URLSearchParams(query)) };
}

/** Return the address of a screen with these values, without the empty ones. */
export function address(screen, values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${screen}${query && `?${query}`}`;
}

function split(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

/**
 * Create the store of all screens' states. The current screen's state is in the address. Calls `arrive(screen, values)`
 * when a person opens an address: by a link, by Back, or by typing it.
 */
export function makeStore(arrive) {
  /** @type {Map<string, Record<string, string>>} */
  const known = new Map();
  const state = { screen: "", timer: 0, flushed: -LATER };

  function flush() {
    clearTimeout(state.timer);
    state.timer = 0;
    state.flushed = performance.now();
    if (!state.screen || parse(location.hash).screen !== state.screen) return; // Back was pressed; its event comes next
    const here = address(state.screen, known.get(state.screen));
    if (here !== location.hash) history.replaceState(null, "", here);
  }
  /** Write the address now, but at most once per LATER milliseconds. */
  function soon() {
    if (state.timer) return;
    const wait = state.flushed + LATER - performance.now();
    if (wait <= 0) flush();
    else state.timer = setTimeout(flush, wait);
  }
  function come() {
    clearTimeout(state.timer);
    state.timer = 0;
    const { screen, values } = parse(location.hash);
    state.screen = screen;
    known.set(screen, values);
    arrive(screen, values);
  }
  addEventListener("hashchange", come);
  addEventListener("pagehide", flush);
  return {
    start: come,
    /** Open a screen in the state in which it was left, changed by some values. */
    go(screen, values = {}) {
      if (state.screen) flush();
      const next = address(screen, { ...known.get(screen), ...values });
      if (next === location.hash) come();
      else location.hash = next;
    },
    /** Return the state of a screen: `get` a value by name, `set` values. All values are stored as text. */
    of(screen) {
      return {
        get: (name, otherwise = "") => (known.get(screen) || {})[name] ?? otherwise,
        number: (name, otherwise) => numberOf((known.get(screen) || {})[name], otherwise),
        set(values) {
          known.set(screen, { ...known.get(screen), ...values });
          if (screen === state.screen) soon();
        },
      };
    },
  };
}

function numberOf(text, otherwise) {
  const value = Number(text);
  return text === undefined || text === null || text === "" || !Number.isFinite(value) ? otherwise : value;
}
