/** The embedding map, and the neighbours of a token that is chosen on it or typed. */

import { choices, make } from "../../views/dom.js";

export const embeddings = {
  name: "embeddings",
  title: "Embeddings",
  textless: true,
  lead: "Every token is a vector. Tokens that are used in similar ways have vectors that point in similar directions. Search for a token to see its nearest neighbours by cosine similarity.",
  async show({ model, state, ask, draw, place, controls, look, gone, fail }) {
    const sides = [
      ["source", "source"],
      ["target", "target"],
    ];
    const side = model.kind === "translator" ? { side: state.get("side", "source") } : {};
    const change = (name) => (state.set({ side: name === "source" ? "" : name }), look());
    if (side.side) controls.append(choices("Side", sides, side.side, change));
    const { views } = await ask("map", side);
    if (gone()) return;
    const near = make("div", { class: "near" });
    const map = make("div", {});
    place.append(make("div", { class: "mapped" }, map, near));
    await draw(map, views[0]);
    let drawn = null;

    async function choose(word, token = "") {
      state.set({ word, token });
      const id = token === "" ? {} : { token: Number(token) };
      try {
        const { views: found } = await ask("neighbours", { word, ...id, k: 12, ...side }, { main: false });
        if (gone() || state.get("word") !== word || state.get("token") !== token) return;
        if (drawn) drawn.update(found[0].data);
        else drawn = await draw(near, found[0]);
      } catch (error) {
        fail(error);
      }
    }
    const chosen = ({ detail }) => choose(detail.text, detail.id);
    [map, near].forEach((each) => each.addEventListener("token-chosen", chosen));
    const field = make("input", {
      type: "text",
      value: state.get("word"),
      placeholder: "a word",
      "aria-label": "A word",
    });
    const submit = (event) => (event.preventDefault(), field.value && choose(field.value));
    controls.append(make("form", { class: "line", submit }, field, make("button", {}, "Neighbours")));
    if (state.get("word")) await choose(state.get("word"), state.get("token"));
  },
};
