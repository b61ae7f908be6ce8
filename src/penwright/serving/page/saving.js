/** Saving a picture: the same request is sent again, for a page or an image file. */

import { make } from "./views/dom.js";
import { ask } from "./api.js";

const FORMATS = [
  ["html", "Page (.html)"],
  ["svg", "Picture (.svg)"],
  ["png", "Picture (.png)"],
];

/** Download bytes as a file. */
export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Create a button that opens a menu of choices [[value, text]]. Calls `choose` with the value. */
export function menu(title, choices, choose, attributes = {}) {
  const item = ([value, text]) =>
    make("button", { type: "button", role: "menuitem", click: () => (list.hidePopover(), choose(value)) }, text);
  const list = make("div", { popover: "auto", role: "menu", "aria-label": title }, choices.map(item));
  const button = make("button", { type: "button", "aria-haspopup": "menu", ...attributes }, title);
  button.addEventListener("click", () => {
    const { left, right, bottom } = button.getBoundingClientRect();
    list.style.setProperty("top", `${bottom + 4}px`);
    if (left > innerWidth / 2) list.style.setProperty("right", `${document.body.clientWidth - right}px`);
    else list.style.setProperty("left", `${left}px`);
    list.togglePopover();
    list.querySelector("button")?.focus();
  });
  list.addEventListener("keydown", ({ key }) => {
    const items = [...list.children];
    const step = { ArrowDown: 1, ArrowUp: items.length - 1 }[key];
    if (step) items[(items.indexOf(document.activeElement) + step) % items.length].focus();
  });
  return make("div", { class: "menu" }, button, list);
}

/**
 * Create a menu that saves the answer to a request. `question()` returns {path, body, name}; the server must support
 * `?format=html`, `svg` and `png` at this path.
 */
export function saveMenu(question, fail) {
  return menu("Save", FORMATS, async (format) => {
    const { path, body, name } = question();
    try {
      const response = await ask(`${path}?format=${format}`, body);
      download(`${name}.${format}`, await response.blob());
    } catch (error) {
      fail(error);
    }
  });
}
