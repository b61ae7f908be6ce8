/** The data of the picture of a model, piece by piece, and the panels beside it. */

import { percent } from "./axes.js";
import { bars } from "./bars.js";
import { Tensor } from "./bytes.js";
import { edgeList } from "./circuit.js";
import { make, table } from "./dom.js";
import { label, textOf } from "./tokens.js";

const ROWS = ["queries", "scores", "scaled", "masked", "weights", "output"]; // arrays with one row per target
const NOTE =
  "Orange paths and parts support the outcome, blue ones oppose it. The numbers say by how many nats a path changes its " +
  "log-probability. A part is coloured by what it adds to the logit directly.";

/** The source of the pieces: those in the data, else what `ask` returns. */
export function library({ pieces = {} }, ask) {
  const missing = "This file does not contain this part of the model. To see it, open the model with penwright serve.";
  const rowOf = (all, position) => {
    const one = (name) => new Tensor([1, all[name].shape[1]], all[name].dtype, all[name].part(position).values);
    const rows = Object.fromEntries(ROWS.map((name) => [name, one(name)]));
    return { ...all, ...rows, target_tokens: [all.target_tokens[position]] };
  };
  return async (picture, extra) => {
    const key = [picture, ...Object.values(extra)].join(" ");
    if (pieces[key]) return pieces[key];
    const whole = pieces[`arithmetic ${extra.head}`];
    if (whole) return picture === "row" ? rowOf(whole, extra.position) : whole;
    if (ask) return ask(picture, extra);
    throw new Error(missing);
  };
}

/** What the model predicts at the position, and what it would predict after each block. */
export function prediction({ stacks, outcomes, position, layer_texts: texts, layer_probabilities: shares }, choose) {
  const { name, tokens } = stacks.at(-1);
  const ofText = name === "encoder";
  const rows = outcomes.texts.map((text, at) => ({
    name: label(String(text)),
    values: [outcomes.probabilities.at(at)],
    choose: choose(at),
  }));
  const guesses = texts.map((text, at) => [at ? `block ${at - 1}` : "embedding", label(text), percent(shares.at(at))]);
  return [
    make("h3", {}, ofText ? "Prediction for the text" : `After “${label(textOf(tokens[position]))}”`),
    bars(ofText ? "label" : "next", ["probability"], rows),
    make("h3", {}, "If the model stopped earlier"),
    table(["after", "prediction", "probability"], guesses),
  ];
}

/** The edges of a circuit with their sentences. `mark(at)` is called with the number of the edge under the pointer. */
export const strongestPaths = ({ edges, sentences }, mark) => [
  make("h3", {}, "The strongest paths"),
  make("p", { class: "pw-note" }, NOTE),
  edgeList(edges, sentences, mark),
];

/** Let an element grow or shrink into its place. */
export const zoom = (element, scale) =>
  element.animate(
    [
      { transform: `scale(${scale})`, opacity: 0.3 },
      { transform: "none", opacity: 1 },
    ],
    { duration: 180, easing: "ease-out" },
  );
