/** The controls around the text: the buttons above, the colours and the examples below. */

import { choices, make } from "../../views/dom.js";
import { MEASURES } from "../../views/text.js";
import { download, menu } from "../../saving.js";
import { join } from "./text.js";

const NAMES = ["probability", "surprise", "rank", "entropy", "none"];
const FORMATS = [
  ["txt", "Text (.txt)"],
  ["json", "With all numbers (.json)"],
];

const button = (text, click, attributes = {}) => make("button", { type: "button", click, ...attributes }, text);

/** Create the buttons; `allow` enables and disables them. */
export function makeButtons({ start, stop, undo, redo, score, inspect, parts, name }) {
  const all = {
    start: button("Continue", start, { class: "main", title: "Ctrl + Enter" }),
    stop: button("Stop", stop, { title: "Escape" }),
    undo: button("Undo", undo, { title: "Ctrl + Z" }),
    redo: button("Redo", redo, { title: "Ctrl + Shift + Z" }),
    score: button("Score my text", score, { title: "Colour the whole text by how much it surprises the model" }),
  };
  const save = menu("Save", FORMATS, (format) => {
    const content = format === "txt" ? join(parts()) : JSON.stringify(parts(), null, 1);
    download(`${name}.${format}`, new Blob([content], { type: "text/plain" }));
  });
  const more = make("span", { class: "push line" }, all.score, button("Inspect", inspect), save);
  const root = make("div", { class: "line" }, all.start, all.stop, all.undo, all.redo, more);
  const allow = (can) => Object.entries(can).forEach(([each, yes]) => (all[each].disabled = !yes));
  return { root, allow };
}

/** Create the choice of the measure that colours the text. */
export function makeColours({ state, chosen }) {
  const shown = NAMES.includes(state.get("colour")) ? state.get("colour") : NAMES[0];
  const choose = (name) => {
    state.set({ colour: name === NAMES[0] ? "" : name });
    chosen(name);
  };
  const named = NAMES.map((name) => [name, MEASURES[name][0]]);
  chosen(shown);
  return [make("span", { class: "hint" }, "coloured by"), choices("Coloured by", named, shown, choose)];
}

/** Create buttons with texts to start from. */
export function makeExamples(texts, begin) {
  const example = (text) => button(text.slice(0, 60), () => begin(text), { dir: "auto" });
  return make(
    "div",
    { class: "examples line", hidden: true },
    make("span", { class: "hint" }, "Try"),
    texts.map(example),
  );
}
