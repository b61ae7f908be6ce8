/** What the model would predict after each layer if it stopped there (the logit lens). */

import { number, percent } from "./axes.js";
import { bars } from "./bars.js";
import { tensor } from "./bytes.js";
import { isDark, inkOn, sequential } from "./colour.js";
import { emit, make, makePanel, view } from "./dom.js";
import { roving } from "./keyboard.js";
import { label, textOf } from "./tokens.js";

const PAGE = 48; // positions shown at once

/**
 * data: {tokens: [positions], top_tokens [n_layers + 1][positions][k] as texts, top_probabilities of the same shape,
 * true_probabilities and true_ranks [n_layers + 1, positions] of the actual next token, or null}.
 * Emits position-chosen {layer, position}.
 */
export function draw(element, data, options = {}) {
  return view(element, "lens", build, data, options);
}

function build(root, data) {
  const probabilities = tensor(data.top_probabilities);
  const [layers, positions] = probabilities.shape;
  const truth = data.true_probabilities && tensor(data.true_probabilities);
  const ranks = data.true_ranks && tensor(data.true_ranks);
  const panel = makePanel(
    "Each cell shows the most probable next token according to its layer. Stronger colour: more probable. Point at a cell, or use the arrow keys.",
  );
  const frame = make("div", { class: "pw-scroll pw-frame" });
  const state = { start: 0, cells: [] };
  const rowNames = Array.from({ length: layers }, (_, layer) => (layer === 0 ? "embedding" : `layer ${layer - 1}`));

  function show(layer, position) {
    const row = (text, at) => ({ name: label(text), values: [probabilities.at(layer, position, at)] });
    const facts = [`after ${rowNames[layer]}, at “${label(textOf(data.tokens[position]))}” (${position})`];
    if (truth && Number.isFinite(truth.at(layer, position)))
      facts.push(`actual next token: ${percent(truth.at(layer, position))}`);
    if (ranks && ranks.at(layer, position) > 0) facts.push(`rank ${number(ranks.at(layer, position))}`);
    panel.replaceChildren(
      make("p", {}, facts.join(" · ")),
      bars("next", ["probability"], data.top_tokens[layer][position].map(row)),
    );
  }
  function cell(layer, position) {
    const text = label(data.top_tokens[layer][position][0], 12);
    const node = make("td", { "data-layer": layer, "data-position": position }, make("bdi", {}, text));
    state.cells.push(node);
    return node;
  }
  function fill() {
    state.cells = [];
    const shown = Array.from({ length: Math.min(PAGE, positions - state.start) }, (_, at) => state.start + at);
    const heads = shown.map((position) =>
      make("th", { scope: "col" }, make("bdi", {}, label(textOf(data.tokens[position]), 12))),
    );
    const lines = rowNames.map((name, layer) => [
      layer,
      make(
        "tr",
        {},
        make("th", { scope: "row" }, name),
        shown.map((position) => cell(layer, position)),
      ),
    ]);
    const body = make(
      "tbody",
      {},
      lines.reverse().map(([, line]) => line),
    ); // the last layer on top, as in drawings of models
    const grid = make(
      "table",
      { class: "pw-lens-table", role: "grid", "aria-label": "layers by positions" },
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "after"), heads)),
      body,
    );
    frame.replaceChildren(grid);
    state.cells = [...body.querySelectorAll("td")];
    keys.settle();
    repaint();
  }
  function repaint() {
    const dark = isDark(root);
    for (const node of state.cells) {
      const { layer, position } = node.dataset;
      const colour = sequential(Math.sqrt(probabilities.at(Number(layer), Number(position), 0)), dark);
      node.style.background = colour;
      node.style.color = inkOn(colour);
    }
  }
  const found = (event) => event.target.closest("td");
  const place = (node) => [Number(node.dataset.layer), Number(node.dataset.position)];
  frame.addEventListener("pointerover", (event) => found(event) && show(...place(found(event))));
  frame.addEventListener("focusin", (event) => found(event) && show(...place(found(event))));
  const choose = (event) => {
    if (!found(event)) return;
    const [layer, position] = place(found(event));
    emit(root, "position-chosen", { layer, position });
  };
  frame.addEventListener("click", choose);
  frame.addEventListener("keydown", (event) => event.key === "Enter" && choose(event));
  const keys = roving(
    frame,
    () => state.cells,
    () => Math.min(PAGE, positions - state.start),
  );
  if (positions > PAGE) root.append(pager());
  root.append(frame, panel);
  fill();
  return { repaint, show };

  function pager() {
    const shown = make("output", {});
    const go = (start) => {
      state.start = Math.max(0, Math.min(positions - 1, start));
      shown.textContent = `positions ${state.start} to ${Math.min(positions, state.start + PAGE) - 1} of ${positions}`;
      fill();
    };
    const button = (text, by) =>
      make("button", { type: "button", click: () => state.start + by < positions && go(state.start + by) }, text);
    shown.textContent = `positions 0 to ${PAGE - 1} of ${positions}`;
    return make(
      "div",
      { class: "pw-bar" },
      make("div", { class: "pw-choices" }, button("← before", -PAGE), button("after →", PAGE)),
      shown,
    );
  }
}
