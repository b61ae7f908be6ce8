/** A text with tokens coloured by a score of the model. Each token shows its alternatives. */

import { number, percent } from "./axes.js";
import { bars } from "./bars.js";
import { tensor } from "./bytes.js";
import { choices, emit, make, makePanel, view } from "./dom.js";
import { roving } from "./keyboard.js";
import { inText, label, textOf } from "./tokens.js";

/**
 * The strength of a token's colour, from 0 to 1, for each measure, given {logProb, rank, entropy}. For the
 * probability, this is the cube root: early in training, most probabilities are below 0.1, and would look the same.
 */
export const MEASURES = {
  probability: ["probability", ({ logProb }) => 1 - Math.exp(logProb / 3)],
  surprise: ["surprise", ({ logProb }) => Math.min(1, -logProb / 10)],
  rank: ["rank", ({ rank }) => Math.min(1, Math.log10(rank) / 3)],
  entropy: ["entropy", ({ entropy }) => Math.min(1, entropy / 6)],
  none: ["off", () => 0],
};

/**
 * data: {tokens: [{text}], log_probs, ranks (1: the most probable), entropies: [n], alternatives: [n][k] of {text,
 * probability}}. The last n tokens have scores; the tokens before are the prompt. options: {measure}.
 * Emits token-chosen {place} and alternative-chosen {place, number, text}.
 */
export function draw(element, data, options = {}) {
  return view(element, "text", build, data, options);
}

function build(root, data, { measure = "probability" }) {
  const [logProbs, ranks, entropies] = [data.log_probs, data.ranks, data.entropies].map((each) => each && tensor(each));
  const first = data.tokens.length - logProbs.size;
  const panel = makePanel(
    "Point at a token, or use the arrow keys, to see its alternatives. Stronger colour and a thicker line: less expected.",
  );
  const spans = data.tokens.map((token, place) =>
    make("span", { class: "pw-token", role: "button", "data-place": place }, inText(textOf(token))),
  );
  const text = make("div", { class: "pw-passage", dir: "auto", role: "group", "aria-label": "text" }, spans);
  const score = (place) => ({
    logProb: logProbs.number(place - first),
    rank: ranks ? ranks.number(place - first) : NaN,
    entropy: entropies ? entropies.number(place - first) : NaN,
  });

  function colour(name) {
    const strength = MEASURES[name][1];
    for (let place = first; place < spans.length; place++) {
      const share = strength(score(place));
      spans[place].style.setProperty("--share", `${Math.round(100 * share) || 0}%`);
      spans[place].style.setProperty("--weight", `${name === "none" ? 0 : Math.round(4 * share) || 0}px`);
    }
  }
  function show(place) {
    spans[state.place]?.classList.remove("pw-current");
    state.place = place;
    spans[place].classList.add("pw-current");
    const token = label(textOf(data.tokens[place]), 60);
    if (place < first) {
      panel.replaceChildren(make("p", {}, make("bdi", { class: "pw-quoted" }, token), " was not predicted, so it has no score."));
      return;
    }
    const { logProb, rank, entropy } = score(place);
    const facts = [
      `${percent(Math.exp(logProb))}, ${number(-logProb)} nats`,
      rank && `rank ${number(rank)}`,
      Number.isFinite(entropy) && `entropy ${number(entropy)} nats`,
    ];
    const alternatives = (data.alternatives && data.alternatives[place - first]) || [];
    const row = (other, at) => ({
      name: label(other.text),
      values: [other.probability],
      choose: () => emit(root, "alternative-chosen", { place, number: at, text: other.text }),
    });
    panel.replaceChildren(
      make("p", {}, make("bdi", { class: "pw-quoted" }, token), ` ${facts.filter(Boolean).join(" · ")}`),
      ...(alternatives.length ? [bars("alternatives", ["probability"], alternatives.map(row))] : []),
    );
  }
  const state = { place: -1 };
  const found = (event) => event.target.closest(".pw-token");
  const placeOf = (node) => Number(node.dataset.place);
  text.addEventListener(
    "pointerover",
    (event) => found(event) && placeOf(found(event)) !== state.place && show(placeOf(found(event))),
  );
  text.addEventListener("focusin", (event) => found(event) && show(placeOf(found(event))));
  const choose = (event) => found(event) && emit(root, "token-chosen", { place: placeOf(found(event)) });
  text.addEventListener("click", choose);
  text.addEventListener("keydown", (event) => {
    const alternatives = panel.querySelectorAll(".pw-choose");
    if (event.key === "Enter" || event.key === " ") choose(event);
    else if (/^[0-9]$/.test(event.key)) alternatives[(Number(event.key) + 9) % 10]?.click();
    else return;
    event.preventDefault();
  });
  roving(text, () => spans);
  const offered = Object.entries(MEASURES).filter(
    ([name]) => (name !== "rank" || ranks) && (name !== "entropy" || entropies),
  );
  const bar = make(
    "div",
    { class: "pw-bar" },
    make("span", { class: "pw-title" }, "coloured by"),
    choices(
      "Coloured by",
      offered.map(([name, [title]]) => [name, title]),
      measure,
      colour,
    ),
  );
  root.append(bar, make("div", { class: "pw-beside" }, text, panel));
  colour(measure);
  return { show };
}
