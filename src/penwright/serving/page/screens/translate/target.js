/** The translation pane: words to point at, underlined if the model was unsure. */

import { percent } from "../../views/axes.js";
import { make } from "../../views/dom.js";
import { roving } from "../../views/keyboard.js";
import { gapAfter } from "./document.js";

/** The thickness of the line below a word, in pixels, by the word's probability. */
const THICKNESS = [
  [0.1, 3],
  [0.3, 2.25],
  [0.6, 1.5],
];
const thickness = (p) => (p === null ? 0 : (THICKNESS.find(([below]) => p < below) || [0, 0])[1]);

/** Return a probability as text for the readout. */
export const sureness = (p) => (p === null ? "" : `, ${percent(p)}`);

/** Create the pane. Calls `pointed({sentence, word} or null, aloud)` and, when clicked, `chosen(place, element)`. */
export function makeTarget({ pointed, chosen, lang }) {
  const text = make("div", { class: "words", lang, role: "group", "aria-label": "Translation" });
  const root = make("div", { class: "pane target" }, text);
  let spans = [];
  let frames = []; // elements of the sentences, each with the white space after the sentence
  const keys = roving(text, () => spans);

  function wordSpan(sentence, { text: shown, probability }, word) {
    const span = make("span", { class: "word", role: "button", "aria-haspopup": "dialog" }, shown);
    span.style.setProperty("--thick", `${thickness(probability)}px`);
    span.place = { sentence, word };
    return span;
  }
  function fill(number, way) {
    const frame = frames[number];
    frame.removeAttribute("aria-busy");
    frame.replaceChildren(
      ...way.words.flatMap((word, at) => [word.before, wordSpan(number, word, at)]),
      ...(way.words.length ? [] : [make("span", { class: "word empty" }, "∅")]),
    );
    frame.translation = way.text;
    for (const { siblings, at, gap } of [frames[number - 1], frame].filter(Boolean)) {
      const texts = siblings.frames.map(({ translation }) => translation);
      gap.textContent = gapAfter(siblings.sentences, texts, at);
    }
  }
  const found = (event) => event.target.closest(".word");
  text.addEventListener("pointerover", (event) => found(event)?.place && pointed(found(event).place, false));
  text.addEventListener("pointerleave", () => pointed(null, false));
  text.addEventListener("focusin", (event) => found(event)?.place && pointed(found(event).place, true));
  text.addEventListener("click", (event) => found(event)?.place && chosen(found(event).place, found(event)));
  text.addEventListener("keydown", (event) => {
    if ((event.key !== "Enter" && event.key !== " ") || !found(event)?.place) return;
    event.preventDefault();
    chosen(found(event).place, found(event));
  });
  return {
    root,
    /** Lay out paragraphs with empty frames for their sentences. */
    lay(paragraphs, placeholder) {
      let number = 0;
      frames = [];
      const blocks = paragraphs.map(({ first, sentences }) => {
        const siblings = { sentences, frames: [] };
        const parts = sentences.flatMap(({ before, after }, at) => {
          const frame = make("span", { class: "sentence", "data-sentence": number++, "aria-busy": "true" }, "…");
          Object.assign(frame, { siblings, at, gap: document.createTextNode(after) });
          siblings.frames.push(frame);
          frames.push(frame);
          return [before, frame, frame.gap];
        });
        return make("p", { dir: "auto" }, first, parts);
      });
      text.replaceChildren(...(frames.length ? blocks : [make("p", { class: "hint", lang: "en" }, placeholder)]));
      spans = [];
    },
    /** Show a translation in its frame. */
    fill(number, way) {
      fill(number, way);
      spans = [...text.querySelectorAll(".word:not(.empty)")];
      keys.settle();
    },
    /** Mark a sentence as the chosen one, and its words by their attention weights. */
    mark(sentence, strengths) {
      frames.forEach((frame, number) => frame.classList.toggle("chosen", number === sentence));
      spans.forEach((span) => {
        const strength = span.place.sentence === sentence ? strengths.get(span.place.word) || 0 : 0;
        span.style.setProperty("--look", `${Math.round(100 * strength)}%`);
      });
    },
    spanOf: ({ sentence, word }) => spans.find(({ place }) => place.sentence === sentence && place.word === word),
  };
}
