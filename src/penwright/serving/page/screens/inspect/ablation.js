/** Ablation: switch off the heads that are ticked in a grid, and show the effect on the text. */

import { make } from "../../views/dom.js";

/** Group the heads of a model by part, as views/importance.js expects. */
function partsOf(names) {
  const parts = new Map();
  for (const name of names) {
    const [part, layer, head] = name.split(".");
    if (!parts.has(part)) parts.set(part, { name: part, layers: [], n_heads: 0, changes: null });
    const found = parts.get(part);
    if (!found.layers.includes(Number(layer))) found.layers.push(Number(layer));
    found.n_heads = Math.max(found.n_heads, Number(head) + 1);
  }
  return [...parts.values()];
}

export const ablation = {
  name: "ablation",
  title: "Ablation",
  lead: "How much worse the model gets without some of its heads: their output is set to zero, and everything else stays the same. This shows what a head does, not only what it attends to.",
  async show({ model, state, ask, draw, place, controls, gone, fail }) {
    const grid = make("div", {});
    const result = make("div", { class: "result" });
    place.append(grid, result);
    const chosen = () => state.get("heads").split(",").filter((head) => model.heads.includes(head)); // another model may have fewer
    let handle = await draw(grid, { name: "importance", data: { parts: partsOf(model.heads) } }, { chosen: chosen() });
    let drawn = null;

    async function answer() {
      const heads = chosen();
      none.disabled = heads.length === 0;
      if (heads.length === 0) {
        drawn?.destroy();
        drawn = null;
        return;
      }
      try {
        const { views } = await ask("ablation", { heads });
        if (gone() || heads.join() !== chosen().join()) return;
        if (drawn) drawn.update(views[0].data);
        else drawn = await draw(result, views[0]);
      } catch (error) {
        fail(error);
      }
    }
    async function tryEach() {
      each.disabled = true;
      each.textContent = "Trying each head …";
      try {
        const { views } = await ask("importance", {}, { main: false });
        if (gone()) return;
        handle.update(views[0].data, { chosen: chosen() });
      } catch (error) {
        fail(error);
      }
      each.textContent = "Try each head alone";
      each.disabled = false;
    }
    function set(heads) {
      state.set({ heads: heads.join(",") });
      handle.destroy();
      draw(grid, { name: "importance", data: { parts: partsOf(model.heads) } }, { chosen: heads }).then(
        (made) => (handle = made),
      );
      answer();
    }
    const each = make("button", { type: "button", click: tryEach }, "Try each head alone");
    const none = make("button", { type: "button", click: () => set([]) }, "None");
    controls.append(each, make("button", { type: "button", click: () => set(model.heads) }, "All heads"), none);
    grid.addEventListener("heads-chosen", ({ detail }) => {
      state.set({ heads: detail.heads.join(",") });
      answer();
    });
    await answer();
  },
};
