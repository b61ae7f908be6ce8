/** Two texts on one model, or two models on one text, side by side. */

import { choices, make } from "../../views/dom.js";

const WHAT = [
  ["tokens", "surprise"],
  ["heads", "heads"],
];

/** Return the second side of the request: another model, or another text with its target. */
function other(state, rivals, beside) {
  if (beside === "model") return { other_model: rival(state, rivals) };
  const target = state.get("other_target");
  return { other_text: state.get("other_text"), ...(target ? { other_target: target } : {}) };
}

const rival = (state, rivals) =>
  rivals.some(({ id }) => id === state.get("other_model")) ? state.get("other_model") : rivals[0].id;

function modelField(state, rivals, look) {
  const chosen = rival(state, rivals);
  const option = ({ id }) => make("option", { value: id, selected: id === chosen }, id);
  const change = ({ target }) => (state.set({ other_model: target.value }), look());
  return make("label", {}, "model ", make("select", { "aria-label": "Other model", change }, rivals.map(option)));
}

function textField(model, state, look) {
  const field = (name, label) =>
    make("input", { type: "text", name, dir: "auto", value: state.get(name), placeholder: label, "aria-label": label });
  const fields = [field("other_text", model.kind === "translator" ? "Another source" : "Another text")];
  if (model.kind === "translator") fields.push(field("other_target", "Its translation (empty: the model's own)"));
  const submit = (event) => {
    event.preventDefault();
    state.set(Object.fromEntries(fields.map(({ name, value }) => [name, value])));
    look();
  };
  return make("form", { class: "line wide", submit }, fields, make("button", {}, "Compare"));
}

export const compare = {
  name: "compare",
  title: "Compare",
  lead: "Compare two texts on this model, or this text on two models, such as two checkpoints of a run. See which tokens are more surprising, and which heads differ.",
  async show({ model, models, state, ask, draw, place, controls, look, gone }) {
    const rivals = models.filter(({ id, kind }) => kind === model.kind && id !== model.id);
    const beside = rivals.length && state.get("beside") === "model" ? "model" : "text";
    const offered = model.kind === "classifier" && !model.labels.length ? WHAT.slice(1) : WHAT; // an encoder predicts nothing
    const what = offered.some(([name]) => name === state.get("what")) ? state.get("what") : offered[0][0];
    const set = (name) => (value) => (state.set({ [name]: value }), look());
    if (rivals.length) {
      const sides = [
        ["text", "another text"],
        ["model", "another model"],
      ];
      controls.append(choices("Compare with", sides, beside, set("beside")));
    }
    controls.append(
      choices("What to compare", offered, what, set("what")),
      beside === "model" ? modelField(state, rivals, look) : textField(model, state, look),
    );
    if (beside === "text" && !state.get("other_text"))
      return void place.append(make("p", {}, "Write a second text to compare."));
    const { views } = await ask(`compared/${what}`, other(state, rivals, beside));
    if (gone()) return undefined;
    const { root } = await draw(place, views[0], what === "heads" ? { sort: state.get("statistic", "entropy") } : {});
    root.addEventListener("sort-chosen", ({ detail }) => state.set({ statistic: detail.sort }));
    return undefined;
  },
};
