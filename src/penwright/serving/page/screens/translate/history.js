/** Earlier translations, kept in this browser only until they are cleared. */

import { make } from "../../views/dom.js";

const KEY = "penwright-translations";
const MOST = 40;
const LONGEST = 4000; // maximum number of characters of a text to store

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}
function write(entries) {
  try {
    localStorage.setItem(KEY, JSON.stringify(entries));
  } catch {
    // storage is disabled or full: no history then
  }
}

/** Create the history. Calls `again({model, source})` to translate an entry again. */
export function makeHistory(again) {
  const list = make("ul", {});
  const clear = make("button", { type: "button", click: () => (write([]), draw()) }, "Clear");
  const note = make("p", { class: "hint" }, "Kept in this browser only.");
  const title = make("summary", {}, "History");
  const root = make("details", { class: "history" }, title, note, list, clear);

  function draw() {
    const entries = read();
    root.hidden = entries.length === 0;
    const item = (entry) =>
      make(
        "li",
        {},
        make("button", { type: "button", dir: "auto", click: () => again(entry) }, entry.source.slice(0, 90)),
        make("bdi", { class: "hint" }, entry.target.slice(0, 90)),
      );
    list.replaceChildren(...entries.map(item));
  }
  draw();
  return {
    root,
    /** Add a translation. If its text extends the last entry, or begins it, it replaces that entry. */
    add(model, source, target) {
      if (!source.trim() || source.length > LONGEST) return;
      const entries = read().filter((entry) => entry.source !== source || entry.model !== model);
      const last = entries[0];
      const grew = last && (source.startsWith(last.source.trim()) || last.source.startsWith(source.trim()));
      write([{ model, source, target }, ...(grew ? entries.slice(1) : entries)].slice(0, MOST));
      draw();
    },
  };
}
