/** The whole model as one picture, whose pieces are requested when they are opened, and attribution to its parts. */

import { choices, make } from "../../views/dom.js";
import { label } from "../../views/tokens.js";
import { askJson } from "../../api.js";

/** Return a function from the id of a likely next token to its text, or "" for a special token or part of a character. */
async function textsOf(model, state) {
  const { likeliest } = await askJson("next", { model: model.id, text: state.get("text") });
  const texts = new Map(likeliest.filter(({ shown }) => shown === null).map(({ id, text }) => [id, text]));
  return (id) => texts.get(id) || "";
}

export const model = {
  name: "model",
  title: "Whole model",
  lead: "Your text on its way through this model: each row is a token, each column a step. Choose a token or a step to go in, down to a single product.",
  async show({ model, state, ask, draw, place, open, gone, fail }) {
    const at = state.get("position") === "" ? {} : { position: state.number("position", 0) };
    const [{ views }, adds] = await Promise.all([ask("model", at), model.kind === "writer" ? textsOf(model, state) : null]);
    if (gone()) return;
    const piece = async (picture, extra) => {
      const named = { row: ["arithmetic", extra], head: ["head", extra] }[picture] || [picture, extra];
      const { views: found } = await ask(...named, { main: false });
      return picture === "model" ? found[0].data.map : found[0].data;
    };
    const circuit = async (position) => (await ask("circuit", { position }, { main: false })).views[0].data;
    const { root } = await draw(place, views[0], { ask: piece, circuit, adds });
    root.addEventListener("position-chosen", ({ detail }) => state.set({ position: detail.position }));
    root.addEventListener("outcome-chosen", ({ detail }) => {
      const text = document.getElementById("inspect-text");
      text.value += detail.text;
      open("model", { text: text.value, position: "" });
    });
  },
};

export const parts = {
  name: "parts",
  title: "Parts",
  lead: "What each head and feed-forward network adds to the model's answer directly. All parts together add up to its logit.",
  async show({ ask, draw, place, gone }) {
    const { views } = await ask("parts");
    if (!gone()) await draw(place, views[0]);
  },
};

const KINDS = [
  ["residual", "residual stream"],
  ["attention", "attention"],
  ["feed_forward", "feed-forward"],
  ["heads", "heads"],
];

export const patching = {
  name: "patching",
  title: "Patching",
  lead: "The model reads a different text, but one activation is copied from your text. If this restores the answer to your text, that activation carries what matters.",
  async show({ model, state, ask, draw, place, controls, look, gone }) {
    const kind = state.get("kind", "residual");
    const set = (name) => (value) => (state.set({ [name]: value }), look());
    const field = make(
      "input",
      {
        type: "text",
        dir: "auto",
        value: state.get("other_text"),
        "aria-label": "Other text",
        placeholder: `A different text with the same number of tokens`,
      },
    );
    const submit = (event) => (event.preventDefault(), set("other_text")(field.value));
    controls.append(
      choices("What to copy", KINDS, kind, set("kind")),
      make("form", { class: "line wide", submit }, field, make("button", {}, "Patch")),
    );
    const names = { translator: ["cross", "decoder", "encoder"] }[model.kind] || [];
    const usable = kind === "attention" || kind === "heads" ? names : names.slice(1);
    const part = usable.includes(state.get("part")) ? state.get("part") : usable.at(-1);
    if (usable.length) controls.append(choices("Part", usable.map((name) => [name, name]), part, set("part")));
    if (!state.get("other_text")) {
      return void place.append(
        make("p", {}, `Write a different text above, for example “${label(state.get("text"), 60)}” with one word changed.`),
      );
    }
    const { views } = await ask("patching", { other_text: state.get("other_text"), kind, ...(part ? { part } : {}) });
    if (!gone()) await draw(place, views[0]);
    return undefined;
  },
};
