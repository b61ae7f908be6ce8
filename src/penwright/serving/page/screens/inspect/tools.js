/**
 * What can be looked at. A tool has a name, a title, a sentence that says what its picture shows, the kinds of model it is
 * for (none: all), and `show`, which asks and draws. `textless`: it is about the model, whatever the text.
 */

import { choices, make } from "../../views/dom.js";
import { label } from "../../views/tokens.js";
import { ablation } from "./ablation.js";
import { compare } from "./compare.js";
import { embeddings } from "./embeddings.js";
import { caution, heads } from "./heads.js";

/** A picture that needs no controls. */
const simple =
  (picture, extra = {}) =>
  async ({ ask, draw, place, gone }) => {
    const { views } = await ask(picture, extra);
    if (!gone()) await draw(place, views[0]);
  };

const tokens = {
  name: "tokens",
  title: "Tokens",
  lead: "The text in the pieces that the model reads, coloured by how little each was expected: what the softmax gave it, and what it gave to others.",
  show: simple("tokens"),
};

const labels = { ...tokens, title: "Labels", lead: "What the model takes the text for: the softmax over its labels." };

const alignment = {
  name: "alignment",
  title: "Cross-attention",
  kinds: ["translator"],
  lead: "Where the decoder looks in the source while it chooses each word of the translation: the mean of all its heads.",
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
  lead: "Where each position's content comes from when attention is followed through all layers, back to the words.",
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
  lead: "Which tokens speak for what the model says, and which against: by how much its log-probability changes with them.",
  async show({ model, state, ask, draw, place, controls, look, gone }) {
    const method = state.get("method", METHODS[0][0]);
    const choose = (name) => (state.set({ method: name === METHODS[0][0] ? "" : name }), look());
    controls.append(choices("Method", METHODS, method, choose));
    const extra = { method };
    if (model.kind !== "classifier") {
      const { views } = await ask("tokens", {}, { main: false });
      if (gone()) return;
      const field = positions(model, views[0].data.tokens, state, look);
      controls.append(make("label", {}, "for the token ", field));
      extra.position = Number(field.value);
    }
    const { views } = await ask("attribution", extra);
    if (!gone()) await draw(place, views[0]);
  },
};

/** The tokens that can be asked for, each by the place of the one before it; the last of a writer is still to come. */
function positions(model, tokens, state, look) {
  const names = [...tokens.map(({ text }) => label(text)), "(the next one)"];
  names.splice(Math.min(names.length - (model.kind === "writer" ? 0 : 1), model.context_length)); // what it reads at once
  const usual = model.kind === "writer" ? names.length - 1 : 0;
  const chosen = Math.min(state.number("position", usual), names.length - 1);
  const option = (name, place) => make("option", { value: place, selected: place === chosen }, `${place + 1} ${name}`);
  const change = ({ target }) => (state.set({ position: target.value }), look());
  return make("select", { change }, names.map(option));
}

const arithmetic = {
  name: "arithmetic",
  title: "Arithmetic",
  lead: "One head, number by number: queries meet keys, the softmax makes weights of the scores, and the weights mix the values.",
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
  lead: "How the model tells places apart: how alike any two positions are, their curves, and the hands of the unit circle.",
  show: simple("positions"),
};

/** For a kind of model, in the order of the tabs. */
export const TOOLS = [
  { ...tokens, kinds: ["writer", "translator"] },
  { ...labels, kinds: ["classifier"] },
  heads,
  alignment,
  rollout,
  lens,
  gradients,
  ablation,
  arithmetic,
  embeddings,
  position,
  compare,
];
