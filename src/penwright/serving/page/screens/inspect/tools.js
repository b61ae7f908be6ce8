/**
 * The tools of the Inspect screen. A tool has a name, a title, a `lead` that explains its picture, the kinds of model
 * that it supports (none: all), and `show`, which requests and draws the picture. A `textless` tool needs no text.
 */

import { choices, make } from "../../views/dom.js";
import { label } from "../../views/tokens.js";
import { ablation } from "./ablation.js";
import { compare } from "./compare.js";
import { embeddings } from "./embeddings.js";
import { caution, heads } from "./heads.js";
import { model, parts, patching } from "./model.js";

/** Return the `show` function of a picture without controls. */
const simple =
  (picture, extra = {}) =>
  async ({ ask, draw, place, gone }) => {
    const { views } = await ask(picture, extra);
    if (!gone()) await draw(place, views[0]);
  };

const tokens = {
  name: "tokens",
  title: "Tokens",
  lead: "The text as the model reads it, in tokens. The stronger the colour, the less the token was expected. Point at a token to see its probability and the alternatives.",
  show: simple("tokens"),
};

const labels = { ...tokens, title: "Labels", lead: "What the model thinks of the text: the softmax over its labels." };

const alignment = {
  name: "alignment",
  title: "Cross-attention",
  kinds: ["translator"],
  lead: "Which source words the decoder attends to while it chooses each word of the translation: the mean of all heads.",
  async show({ ask, draw, place, open, gone }) {
    const { views } = await ask("alignment");
    if (gone()) return;
    place.append(caution(open));
    await draw(place, views[0]);
  },
};

const rollout = {
  name: "rollout",
  title: "Rollout",
  lead: "Where the content of each position comes from if attention is traced back through all layers to the words.",
  async show({ model, state, ask, draw, place, controls, look, gone }) {
    const parts = { translator: ["cross", "decoder", "encoder"], writer: [], classifier: [] }[model.kind];
    const part = parts.includes(state.get("rollout")) ? state.get("rollout") : parts[0];
    const names = parts.map((name) => [name, name === "cross" ? "decoder to encoder" : name]);
    const choose = (name) => (state.set({ rollout: name }), look());
    if (parts.length) controls.append(choices("Part of the model", names, part, choose));
    const { views } = await ask("rollout", part ? { part } : {});
    if (!gone()) await draw(place, views[0]);
  },
};

const lens = {
  name: "lens",
  title: "Lens",
  lead: "What the model would say if it stopped after each layer: early layers guess, later ones know better.",
  show: simple("lens"),
};

const METHODS = [
  ["integrated_gradients", "integrated gradients"],
  ["gradient_x_input", "gradient × input"],
];

const gradients = {
  name: "gradients",
  title: "Gradients",
  lead: "Which tokens support the model's answer and which oppose it: how much the answer's log-probability changes with each token.",
  async show({ model, state, ask, draw, place, controls, look, gone }) {
    const method = state.get("method", METHODS[0][0]);
    const choose = (name) => (state.set({ method: name === METHODS[0][0] ? "" : name }), look());
    controls.append(choices("Method", METHODS, method, choose));
    const extra = { method };
    if (model.kind !== "classifier") {
      const { views } = await ask("tokens", {}, { main: false });
      if (gone()) return;
      const { tokens, log_probs: scores } = views[0].data; // the first token of a text may have no score
      const field = positions(model, tokens.slice(tokens.length - scores.size), state, look);
      controls.append(make("label", {}, "for the token ", field));
      extra.position = Number(field.value);
    }
    const { views } = await ask("attribution", extra);
    if (!gone()) await draw(place, views[0]);
  },
};

/** Create the choice of tokens. A value is the position before the token. A writer's last token is not yet written. */
function positions(model, tokens, state, look) {
  const names = [...tokens.map(({ text }) => label(text)), "(next token)"];
  names.splice(Math.min(names.length - (model.kind === "writer" ? 0 : 1), model.context_length)); // no more than the model reads
  const usual = model.kind === "writer" ? names.length - 1 : 0;
  const chosen = Math.min(state.number("position", usual), names.length - 1);
  const option = (name, place) => make("option", { value: place, selected: place === chosen }, `${place + 1} ${name}`);
  const change = ({ target }) => (state.set({ position: target.value }), look());
  return make("select", { change }, names.map(option));
}

const arithmetic = {
  name: "arithmetic",
  title: "Arithmetic",
  lead: "One head, number by number: queries are multiplied by keys, the softmax turns the scores into weights, and the weights mix the values.",
  async show({ model, state, ask, draw, place, controls, look, gone }) {
    const usual = model.heads.find((head) => head.startsWith("cross")) || model.heads[0];
    const head = model.heads.includes(state.get("head")) ? state.get("head") : usual;
    const option = (name) => make("option", { value: name, selected: name === head }, name);
    const change = ({ target }) => (state.set({ head: target.value }), look());
    controls.append(make("label", {}, "head ", make("select", { change }, model.heads.map(option))));
    const { views } = await ask("arithmetic", { head });
    if (!gone()) await draw(place, views[0]);
  },
};

const position = {
  name: "positions",
  title: "Positions",
  textless: true,
  lead: "How the model distinguishes positions: the similarity of any two positions, their curves, and hands on the unit circle.",
  show: simple("positions"),
};

/** All tools, in the order of the tabs. */
const TOOLS = [
  { ...tokens, kinds: ["writer", "translator"] },
  { ...labels, kinds: ["classifier"] },
  model,
  heads,
  alignment,
  rollout,
  lens,
  gradients,
  parts,
  patching,
  ablation,
  arithmetic,
  embeddings,
  position,
  compare,
];

const EXPLAIN = ["tokens", "model", "lens", "gradients", "parts", "patching", "ablation"]; // names of tools that explain a prediction

/** The tools for a model. An encoder without labels predicts nothing that could be explained. */
export const toolsFor = ({ kind, labels }) =>
  TOOLS.filter(
    ({ kinds, name }) =>
      (!kinds || kinds.includes(kind)) && (kind !== "classifier" || labels.length > 0 || !EXPLAIN.includes(name)),
  );
