/** The tree of a beam search: the candidates of each step, the kept ones, and the finished translations. */

import { number, percent } from "./axes.js";
import { emit, make, makeSvg, readout, table, twin, view } from "./dom.js";
import { roving } from "./keyboard.js";
import { label, textOf } from "./tokens.js";

const [WIDE, HIGH] = [118, 30]; // pixels per step and per node

/**
 * data: {nodes: [{id, parent (an id or null), token (text), text (of all tokens up to this one), log_prob (cumulative,
 * in nats), step, kept, final}]}. Emits node-chosen {id, text}.
 */
export function draw(element, data, options = {}) {
  return view(element, "beam", build, data, options);
}

/** The row of each node. A node shares the row of its best child; the other children are below. */
function layout(nodes) {
  const children = new Map();
  nodes.forEach((node) => children.set(node.parent, [...(children.get(node.parent) || []), node]));
  const known = new Set(nodes.map(({ id }) => id));
  const roots = nodes.filter(({ parent }) => parent === null || !known.has(parent));
  const rows = new Map();
  let next = 0;
  const todo = roots.map((node, at) => [node, at === 0]).reverse();
  while (todo.length) {
    const [node, first] = todo.pop();
    if (!first) next += 1;
    rows.set(node.id, next);
    const below = (children.get(node.id) || []).toSorted((one, other) => other.log_prob - one.log_prob);
    below
      .map((child, at) => [child, at === 0])
      .reverse()
      .forEach((entry) => todo.push(entry));
  }
  return { rows, count: next + 1 };
}

function build(root, { nodes }) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const { rows, count } = layout(nodes);
  const steps = nodes.map(({ step }) => step);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const place = (node) => [8 + (node.step - first) * WIDE, 8 + rows.get(node.id) * HIGH];
  const path = (node) => {
    const found = [];
    for (let each = node; each; each = byId.get(each.parent)) found.unshift(each);
    return found;
  };
  const line = readout(
    "Point at a node, or use the arrow keys. Bold: kept in the beam; framed: a finished translation.",
  );
  const size = { width: `${(last - first + 1) * WIDE + 16}`, height: `${count * HIGH + 16}` };
  const edges = nodes
    .filter(({ parent }) => byId.has(parent))
    .map((node) => {
      const [[x1, y1], [x2, y2]] = [place(byId.get(node.parent)), place(node)];
      const [start, middle, end] = [x1 + 12, y1 + 12, y2 + 12];
      const d = `M${start} ${middle}H${x2 - 30}C${x2 - 8} ${middle} ${x2 - 22} ${end} ${x2} ${end}`;
      return makeSvg("path", { d, class: node.kept ? "pw-edge pw-kept" : "pw-edge", "data-id": node.id });
    });
  const drawing = makeSvg("svg", { ...size, "aria-hidden": "true" }, edges);
  const kind = (node) => ["pw-node", node.kept && "pw-kept", node.final && "pw-final"].filter(Boolean).join(" ");
  const name = (node) =>
    `${label(textOf(node.token))}, step ${node.step}, ${number(node.log_prob)} nats${node.kept ? ", kept" : ""}${node.final ? ", finished" : ""}`;
  const buttons = nodes.map((node) => {
    const [left, top] = place(node);
    return make(
      "button",
      { type: "button", class: kind(node), "aria-label": name(node), style: { left: `${left}px`, top: `${top}px` } },
      make("bdi", {}, label(textOf(node.token), 10)),
    );
  });
  function show(at, aloud) {
    const node = nodes[at];
    const way = new Set(path(node).map(({ id }) => id));
    buttons.forEach((button, each) => button.classList.toggle("pw-way", way.has(nodes[each].id)));
    edges.forEach((edge) => edge.classList.toggle("pw-way", way.has(Number(edge.dataset.id))));
    const parent = byId.get(node.parent);
    const own = node.log_prob - (parent ? parent.log_prob : 0);
    line.show(
      `“${label(node.text, 200)}”: ${number(node.log_prob)} nats in total, this token ${percent(Math.exp(own))}`,
      aloud,
    );
  }
  const canvas = make(
    "div",
    { class: "pw-tree", style: { width: `${size.width}px`, height: `${size.height}px` } },
    drawing,
    buttons,
  );
  const at = (event) => buttons.indexOf(event.target.closest(".pw-node"));
  canvas.addEventListener("pointerover", (event) => at(event) >= 0 && show(at(event), false));
  canvas.addEventListener("focusin", (event) => at(event) >= 0 && show(at(event), true));
  canvas.addEventListener(
    "click",
    (event) => at(event) >= 0 && emit(root, "node-chosen", { id: nodes[at(event)].id, text: nodes[at(event)].text }),
  );
  roving(canvas, () => buttons);
  const finals = nodes.filter(({ final }) => final).toSorted((one, other) => other.log_prob - one.log_prob);
  root.append(make("div", { class: "pw-scroll pw-frame" }, canvas), ...line.nodes);
  root.append(
    twin("Finished, as a list", () =>
      table(
        ["text", "nats", "tokens"],
        finals.map((node) => [label(node.text, 400), number(node.log_prob), String(path(node).length)]),
      ),
    ),
  );
  return { show };
}
