/** The details of one sentence: warnings, terms, other translations, word alignment and beam search. */

import { draw as drawAlignment } from "../../views/alignment.js";
import { number, percent } from "../../views/axes.js";
import { draw as drawBeam } from "../../views/beam.js";
import { make } from "../../views/dom.js";
import { askJson } from "../../api.js";

const STATES = {
  found: ["✓", "found", "the model chose this term by itself"],
  forced: ["⤷", "forced", "the search was forced to include this term"],
  inserted: ["+", "inserted", "inserted after the search: check the position"],
  missed: ["✗", "missed", "missing from the translation"],
};
const WEAKEST = 0.08; // minimum weight of a link to draw

/** Create chips for the terms of a sentence. */
function chips(terms) {
  const chip = ({ source, target, state, protected: kept }) => {
    const [sign, name, why] = STATES[state];
    const words = kept ? source : `${source} → ${target || "?"}`;
    return make(
      "li",
      { class: `chip ${state}`, title: why },
      make("span", { "aria-hidden": "true" }, `${sign} `),
      make("bdi", {}, words),
      make("span", { class: "hint" }, ` ${name}${kept ? ", stays unchanged" : ""}`),
    );
  };
  return terms.length ? make("ul", { class: "chips", "aria-label": "Terms" }, terms.map(chip)) : null;
}

/** The score by which the translations are ordered. */
const scoreOf = ({ score, log_prob: total }) =>
  `score ${number(score)}: a log-probability of ${number(total)} nats, divided by a power of the length`;

/** Convert links to the format of views/alignment.js. */
const strong = (links) =>
  links
    .filter(({ weight }) => weight >= WEAKEST)
    .map(({ source, target, weight }) => ({ source, target, strength: weight }));

/**
 * Create the details. `body(number)` returns the request about a sentence, `links(number)` its word alignment. Calls
 * `choose(number, way)` for another translation, and `move(step)` for another sentence.
 */
export function makeDetails({ body, links, choose, move, inspect, lang, fail, signal }) {
  const root = make("section", { class: "details", "aria-label": "Selected sentence", hidden: true });
  let handles = [];

  function fold(title, fill) {
    const place = make("div", {});
    const details = make("details", {}, make("summary", {}, title), place);
    details.addEventListener("toggle", () => details.open && !place.children.length && fill(place));
    return details;
  }
  function ways(place, { result, way }) {
    const row = (each, at) =>
      make(
        "li",
        {},
        make(
          "button",
          { type: "button", class: "way", dir: "auto", "aria-pressed": String(at === way), click: () => choose(place, at) },
          each.words.length ? each.text : "∅",
        ),
        make("span", { class: "hint", lang: "en", title: scoreOf(each) }, `${percent(Math.exp(each.score))} sure`),
      );
    return make("ol", { class: "ways", lang }, result.ways.map(row));
  }
  async function tree(place, number) {
    place.append(make("p", { class: "hint" }, "…"));
    try {
      const { nodes } = await askJson("translating/tree", body(number), { signal });
      place.replaceChildren();
      if (nodes.length) handles.push(drawBeam(place, { nodes }));
      else place.append(make("p", { class: "hint" }, "There was no search: the whole sentence stays unchanged."));
    } catch (error) {
      place.replaceChildren();
      fail(error);
    }
  }
  async function alignment(place, number, { result, way }) {
    place.append(make("p", { class: "hint" }, "…"));
    try {
      const found = await links(number);
      const texts = (words) => words.map(({ text }) => text);
      const note = `Weights of ${found.alignedBy}. Attention shows what a head attends to, not why.`;
      const [source, target] = [result.source, result.ways[way].words].map(texts);
      place.replaceChildren();
      handles.push(drawAlignment(place, { source, target, links: strong(found.links), note }));
    } catch (error) {
      place.replaceChildren();
      fail(error);
    }
  }
  return {
    root,
    hide() {
      root.hidden = true;
    },
    /** Show a sentence {text, prefix, result, way}; `count` is the number of sentences. */
    show(number, sentence, count) {
      const open = [...root.querySelectorAll("details")].map((each) => each.open);
      handles.splice(0).forEach((handle) => handle.destroy());
      const { result, way, prefix } = sentence;
      const step = (by, name, sign) =>
        make("button", { type: "button", class: "plain", "aria-label": name, click: () => move(by) }, sign);
      const steps = count > 1 ? [step(-1, "Previous sentence", "‹"), step(1, "Next sentence", "›")] : [];
      const title = count > 1 ? `Sentence ${number + 1} of ${count}` : "This sentence";
      const began = prefix && make("p", { class: "hint" }, "You chose this beginning: ", make("bdi", {}, prefix));
      const look = make("button", { type: "button", class: "push", click: () => inspect(number) }, "Inspect");
      const folds = [
        fold("Word alignment", (place) => alignment(place, number, sentence)),
        fold("Beam search", (place) => tree(place, number)),
      ];
      root.replaceChildren(
        make("div", { class: "line" }, make("h2", {}, title), steps, look),
        ...result.warnings.map((text) =>
          make("p", { class: "warning" }, make("span", { "aria-hidden": "true" }, "⚠ "), text),
        ),
        ...[chips(result.ways[way].terms), began, ways(number, sentence)].filter(Boolean),
        ...folds,
      );
      root.hidden = false;
      folds.forEach((each, at) => (each.open = open[at] || false));
    },
  };
}
