/** Alternatives to a word of a translation. Choosing one translates the rest again. */

import { bars } from "../../views/bars.js";
import { make } from "../../views/dom.js";
import { askJson } from "../../api.js";

/** Create the popup. `body(place)` returns the request; `chosen(place, prefix)` receives the new prefix. */
export function makeOthers({ body, chosen, fail, signal }) {
  const root = make("div", { class: "other-words", popover: "auto", role: "dialog", "aria-label": "Alternatives" });
  let opener = null;
  let asking = null;
  root.addEventListener("toggle", ({ newState }) => {
    if (newState === "open") return;
    asking?.abort();
    if (opener?.isConnected && (document.activeElement === document.body || root.contains(document.activeElement)))
      opener.focus();
  });
  root.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const all = [...root.querySelectorAll("button")];
    if (!step || !all.length) return;
    event.preventDefault();
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
  });

  function put(near) {
    const { left, bottom } = near.getBoundingClientRect();
    root.style.setProperty("left", `${Math.max(8, Math.min(left, document.body.clientWidth - root.offsetWidth - 8))}px`);
    const below = bottom + 6 + root.offsetHeight < innerHeight;
    const top = below ? bottom + 6 : Math.max(8, near.getBoundingClientRect().top - root.offsetHeight - 6);
    root.style.setProperty("top", `${top}px`);
  }
  function list(place, words) {
    const rows = words.map(({ word, text, probability, prefix }) => ({
      name: word,
      values: [probability],
      choose: () => (root.hidePopover(), chosen(place, prefix)),
      title: text,
    }));
    const table = bars("word", ["probability"], rows);
    table.querySelectorAll("tbody tr").forEach((row, at) => row.setAttribute("title", rows[at].title));
    return words.length ? table : make("p", { class: "hint" }, "The translation can only end here.");
  }
  return {
    root,
    async open(place, near) {
      opener = near;
      asking?.abort();
      asking = new AbortController();
      root.replaceChildren(make("p", { class: "hint" }, "…"));
      root.showPopover();
      put(near);
      try {
        const stopped = AbortSignal.any([signal, asking.signal]);
        const { words } = await askJson("translating/words", body(place), { signal: stopped });
        root.replaceChildren(list(place, words));
        put(near);
        root.querySelector("button")?.focus();
      } catch (error) {
        root.hidePopover();
        fail(error);
      }
    },
  };
}
