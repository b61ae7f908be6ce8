/** The source pane: a text area over a copy of its text, in which words can be marked. */

import { make } from "../../views/dom.js";

/**
 * Create the pane. Calls `changed(text)` after each change, and `pointed(place)` with the index of the word under the
 * pointer or the caret, or -1. `lang` is the code of the language, or null.
 */
export function makeSource({ changed, pointed, opened, label, lang }) {
  const copy = make("div", { class: "copy", dir: "auto", lang, "aria-hidden": "true" });
  const field = make("textarea", { dir: "auto", lang, spellcheck: "false", "aria-label": label, rows: 2 });
  field.placeholder = "Write, paste or drop a text here";
  const root = make("div", { class: "pane source" }, make("div", { class: "over" }, copy, field));
  let places = [];
  let spans = [];

  function draw() {
    const text = field.value;
    const parts = [];
    let from = 0;
    spans = places.map(({ start, end }) => {
      const span = make("span", {}, text.slice(start, end));
      parts.push(text.slice(from, start), span);
      from = end;
      return span;
    });
    copy.replaceChildren(...parts, `${text.slice(from)}\n`);
  }
  const at = (offset) => places.findIndex(({ start, end }) => start <= offset && offset <= end);
  function underPointer(event) {
    const found = document.caretPositionFromPoint?.(event.clientX, event.clientY);
    return found && found.offsetNode === field ? at(found.offset) : -1;
  }
  field.addEventListener("input", () => {
    places = [];
    draw();
    changed(field.value);
  });
  field.addEventListener("pointermove", (event) => pointed(underPointer(event), false));
  field.addEventListener("pointerleave", () => pointed(-1, false));
  field.addEventListener("keyup", (event) => event.key.startsWith("Arrow") && pointed(at(field.selectionStart), true));
  root.addEventListener("dragover", (event) => event.preventDefault());
  root.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    opened(event.dataTransfer.files[0]);
  });
  return {
    root,
    field,
    /** Set another text without calling `changed`. */
    set(text) {
      field.value = text;
      places = [];
      draw();
    },
    /** Set the positions of the words, as placesOf returns them. */
    place(found) {
      places = found;
      draw();
    },
    /** Mark words by their attention weights; `terms` holds the indices of the glossary terms. */
    mark(strengths, terms = new Set()) {
      spans.forEach((span, number) => {
        span.style.setProperty("--look", `${Math.round(100 * (strengths.get(number) || 0))}%`);
        span.classList.toggle("term", terms.has(number));
      });
    },
    numberOf: (sentence, word) => places.findIndex((each) => each.sentence === sentence && each.word === word),
    placeOf: (number) => places[number],
  };
}
