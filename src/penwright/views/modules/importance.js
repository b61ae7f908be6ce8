/** The change in loss without each head, one at a time. Heads can be selected, to be switched off together. */

import { number, signed } from "./axes.js";
import { tensor } from "./bytes.js";
import { diverging, inkOn, isDark } from "./colour.js";
import { emit, make, readout, view } from "./dom.js";
import { headName } from "./head.js";
import { roving } from "./keyboard.js";

/**
 * data: {parts: [{name, layers: their numbers, n_heads, changes [n_layers, n_heads] in nats, or null until they are
 * known}]}. options: {chosen: names of heads, like "decoder.3.2"}. Emits heads-chosen {heads}.
 */
export function draw(element, data, options = {}) {
  return view(element, "importance", build, data, options);
}

function build(root, { parts }, { chosen = [] }) {
  const ticked = new Set(chosen);
  const known = parts.some(({ changes }) => changes);
  const all = parts.flatMap(({ changes }) => (changes ? Array.from(tensor(changes).numbers(), Math.abs) : []));
  const limit = Math.max(...all.filter(Number.isFinite), 1e-9);
  const line = readout(
    known
      ? `Orange: worse without the head; blue: better. The largest change is ${number(limit)} nats per token. Choose heads to switch off.`
      : "Choose heads to switch off.",
  );
  const cells = [];

  function cell(part, row, layer, head) {
    const change = part.changes ? tensor(part.changes).at(row, head) : null;
    const name = `${part.name}.${layer}.${head}`;
    const said = `${headName({ ...part, layer, head })}${change === null ? "" : `, ${signed(change)} nats`}`;
    const click = () => {
      if (!ticked.delete(name)) ticked.add(name);
      node.setAttribute("aria-pressed", String(ticked.has(name)));
      emit(root, "heads-chosen", { heads: [...ticked] });
    };
    const pressed = String(ticked.has(name));
    const text = change === null ? `${layer}·${head}` : signed(Number(change.toFixed(3)));
    const node = make("button", { type: "button", "aria-pressed": pressed, "aria-label": said, click }, text);
    node.addEventListener("pointerover", () => line.show(said));
    node.addEventListener("focus", () => line.show(said));
    cells.push({ node, change });
    return make("td", {}, node);
  }
  function grid(part) {
    const rows = part.layers.map((layer, row) => {
      const heads = Array.from({ length: part.n_heads }, (_, head) => cell(part, row, layer, head));
      return make("tr", {}, make("th", { scope: "row" }, `layer ${layer}`), heads);
    });
    const names = Array.from({ length: part.n_heads }, (_, head) => make("th", { scope: "col" }, `head ${head}`));
    const title = headName({ ...part, layer: 0, head: 0 }).split(",")[0];
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("td", {}), names)), make("tbody", {}, rows));
    const buttons = () => [...table.querySelectorAll("button")];
    roving(table, buttons, () => part.n_heads);
    return [parts.length > 1 && make("h3", {}, title), make("div", { class: "pw-scroll" }, table)].filter(Boolean);
  }
  function repaint() {
    const dark = isDark(root);
    for (const { node, change } of cells) {
      if (change === null) continue;
      const colour = diverging(change / limit, dark);
      node.style.setProperty("background", colour);
      node.style.setProperty("color", inkOn(colour));
    }
  }
  root.append(...parts.flatMap(grid), ...line.nodes);
  repaint();
  return { repaint };
}
