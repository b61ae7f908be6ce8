/** All heads as thumbnails, and one opened head, whose weights are fetched on demand. */

import { make } from "../../views/dom.js";
import { CAUTION } from "../../views/head.js";

/** Create the note on what attention does not show, with a button that opens ablation. */
export function caution(open) {
  const check = make("button", { type: "button", click: () => open("ablation") }, "Check with ablation");
  return make("p", { class: "banner" }, `${CAUTION} `, check);
}

const parse = (name) => {
  const [part, layer, number] = name.split(".");
  return { part, layer: Number(layer), number: Number(number) };
};

/** Return the head that a key leads to from the head `name`, or null. */
function neighbour(heads, name, key) {
  const from = parse(name);
  const steps = { PageUp: [-1, 0], PageDown: [1, 0], "[": [0, -1], "]": [0, 1] };
  if (!steps[key]) return null;
  const [layers, numbers] = steps[key];
  const next = `${from.part}.${from.layer + layers}.${from.number + numbers}`;
  return heads.includes(next) ? next : null;
}

export const heads = {
  name: "heads",
  title: "Heads",
  lead: "Every head of the model on your text. Each row is a token that attends, each column a token that is attended to. Open a head to read it.",
  async show({ model, state, ask, draw, place, controls, open, gone, announce, fail }) {
    const { views } = await ask("heads");
    if (gone()) return;
    const names = views[0].data.parts.map(({ name }) => name);
    const options = {
      part: Math.max(0, names.indexOf(state.get("part"))),
      sort: state.get("sort", "layer"),
      shape: state.get("shape", "matrix"),
      missing: "Loading the weights …",
    };
    place.append(caution(open));
    const handle = await draw(place, views[0], options);
    const { root } = handle;
    const more = make(
      "div",
      { class: "line", hidden: true },
      make("button", { type: "button", click: () => open("arithmetic") }, "Show its arithmetic"),
      make("button", { type: "button", click: () => open("ablation", { heads: state.get("head") }) }, "Switch it off"),
      make(
        "span",
        { class: "hint" },
        make("kbd", {}, "Page Up"),
        " ",
        make("kbd", {}, "Page Down"),
        " layer, ",
        make("kbd", {}, "["),
        " ",
        make("kbd", {}, "]"),
        " head, ",
        make("kbd", {}, "Esc"),
        " all heads",
      ),
    );
    controls.append(more);

    async function openHead(name) {
      state.set({ head: name });
      try {
        const { views: found } = await ask("head", { head: name });
        if (gone() || state.get("head") !== name) return;
        handle.parts.show(found[0].data);
        more.hidden = false;
      } catch (error) {
        fail(error);
      }
    }
    root.addEventListener("head-opened", ({ detail }) =>
      openHead(`${names[detail.part]}.${detail.layer}.${detail.head}`),
    );
    root.addEventListener("head-closed", () => {
      state.set({ head: "" });
      more.hidden = true;
      ask("heads");
    });
    root.addEventListener("sort-chosen", ({ detail }) =>
      state.set({ sort: detail.sort === "layer" ? "" : detail.sort }),
    );
    root.addEventListener("part-chosen", ({ detail }) => state.set({ part: detail.part ? names[detail.part] : "" }));
    root.addEventListener("shape-chosen", ({ detail }) => state.set({ shape: detail.shape }));
    root.addEventListener("keydown", (event) => {
      const next = state.get("head") && neighbour(model.heads, state.get("head"), event.key);
      if (!next || event.target.closest("input, select, textarea")) return;
      event.preventDefault();
      announce(next);
      openHead(next);
    });
    if (model.heads.includes(state.get("head"))) await openHead(state.get("head"));
  },
};
