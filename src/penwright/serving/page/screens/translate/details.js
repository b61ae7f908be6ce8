/** What is known of one sentence: warnings, terms, other translations, where its words look, how it was found. */

import { draw as drawAlignment } from "../../views/alignment.js";
import { number } from "../../views/axes.js";
import { draw as drawBeam } from "../../views/beam.js";
import { make } from "../../views/dom.js";
import { askJson } from "../../api.js";

const STATES = {
  found: ["✓", "found", "the model wrote it by itself"],
  forced: ["⤷", "forced", "search was led to it"],
  inserted: ["+", "put in", "put in after translating: look at its place"],
  missed: ["✗", "missed", "it is not there"],
};
const WEAKEST = 0.08; // of a link that is drawn

/** Chips of the terms of a sentence. */
function chips(terms) {
  const chip = ({ source, target, state, protected: kept }) => {
    const [sign, name, why] = STATES[state];
    const words = kept ? source : `${source} → ${target || "?"}`;
    return make(
      "li",
      { class: `chip ${state}`, title: why },
      make("span", { "aria-hidden": "true" }, `${sign} `),
      make("bdi", {}, words),
      make("span", { class: "hint" }, ` ${name}${kept ? ", stays as it is" : ""}`),
    );
  };
  return terms.length ? make("ul", { class: "chips", "aria-label": "Terms" }, terms.map(chip)) : null;
}

/** Links as views/alignment.js takes them. */
const strong = (links) =>
  links
    .filter(({ weight }) => weight >= WEAKEST)
    .map(({ source, target, weight }) => ({ source, target, strength: weight }));

/**
 * `body(number)` is the question about a sentence; `links(number)` where its words look; `choose(number, way)`;
 * `move(step)` to another sentence.
 */
export function makeDetails({ body, links, choose, move, inspect, lang, fail, signal }) {
  const root = make("section", { class: "details", "aria-label": "The chosen sentence", hidden: true });
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
        make("span", { class: "hint", lang: "en" }, `${number(each.log_prob)} nats`),
      );
    return make("ol", { class: "ways", lang }, result.ways.map(row));
  }
  async function tree(place, number) {
    place.append(make("p", { class: "hint" }, "…"));
    try {
      const { nodes } = await askJson("translating/tree", body(number), { signal });
      place.replaceChildren();
      if (nodes.length) handles.push(drawBeam(place, { nodes }));
      else place.append(make("p", { class: "hint" }, "Nothing was searched: all of it stays as it is."));
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
      const note = `Weights of ${found.alignedBy}. Attention shows where a head looks, not why.`;
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
    /** Show a sentence {text, prefix, result, way}; `count` is how many there are. */
    show(number, sentence, count) {
      const open = [...root.querySelectorAll("details")].map((each) => each.open);
      handles.splice(0).forEach((handle) => handle.destroy());
      const { result, way, prefix } = sentence;
      const step = (by, name, sign) =>
        make("button", { type: "button", class: "plain", "aria-label": name, click: () => move(by) }, sign);
      const steps = count > 1 ? [step(-1, "The sentence before", "‹"), step(1, "The next sentence", "›")] : [];
      const title = count > 1 ? `Sentence ${number + 1} of ${count}` : "This sentence";
      const began = prefix && make("p", { class: "hint" }, "It begins as you chose: ", make("bdi", {}, prefix));
      const look = make("button", { type: "button", class: "push", click: () => inspect(number) }, "Inspect");
      const folds = [
        fold("Where its words look", (place) => alignment(place, number, sentence)),
        fold("How it was found: the beams", (place) => tree(place, number)),
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
