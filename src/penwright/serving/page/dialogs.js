/** Dialogs: one at a time, closed by Escape, by their button or by a click outside. */

import { make, table } from "./views/dom.js";

const EVERYWHERE = [
  ["Alt + Shift + 1 … 6", "go to a screen"],
  ["Tab", "next control; arrow keys move inside lists, grids, texts and pictures"],
  ["Escape", "stop, go back, close"],
  ["?", "show this list"],
];

/** Open a dialog with this content and return its element; close() closes it. */
export function openDialog(title, ...content) {
  const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  const heading = make("header", {}, make("h2", { id: "dialog-title" }, title), close);
  const dialog = make("dialog", { "aria-labelledby": "dialog-title" }, heading, ...content);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Ask for confirmation and resolve to true if a person agrees. The button that changes nothing has the focus. */
export function confirmed(title, text, { yes, no = "Cancel" }) {
  const refuse = make("button", { type: "button", autofocus: true }, no);
  const agree = make("button", { type: "button", class: "main" }, yes);
  const dialog = openDialog(title, make("p", {}, text), make("div", { class: "line answers" }, refuse, agree));
  return new Promise((resolve) => {
    refuse.addEventListener("click", () => dialog.close());
    agree.addEventListener("click", () => (resolve(true), dialog.close()));
    dialog.addEventListener("close", () => resolve(false));
  });
}

/** Show the keys of the screen and the keys that work everywhere. */
export function openShortcuts(screen, module) {
  const rows = (keys) => keys.map(([key, what]) => [make("kbd", {}, key), what]);
  const own = (module && module.keys) || [];
  const parts = [own.length && table([screen.title, ""], rows(own)), table(["Everywhere", ""], rows(EVERYWHERE))];
  openDialog("Keyboard shortcuts", ...parts.filter(Boolean));
}
