/** Every head of a model as a thumbnail: layers as rows and heads as columns, or all heads sorted by a statistic. */

import { number } from "./axes.js";
import { Tensor, tensor } from "./bytes.js";
import { choices, emit, make, view } from "./dom.js";
import { headName, looksBack } from "./head.js";
import { roving } from "./keyboard.js";
import { paint } from "./matrix.js";

const SIZE = 64; // maximum pixels per side

/** Statistics of heads: the name and the meaning of each. */
const STATISTICS = {
  entropy: ["entropy", "how spread out the attention of each head is, in nats"],
  confidence: ["confidence", "how much each head attends to the token with the largest weight"],
  distance: ["distance", "how far away each head attends, in tokens"],
  previous: ["previous", "how much each head attends to the previous token"],
  diagonal: ["diagonal", "how much each head attends to the token itself"],
  first: ["first", "how much each head attends to the first token"],
  last: ["last", "how much each head attends to the last token"],
  induction: ["induction", "how much each head attends to what followed an earlier copy of the token"],
};

/** Weights shrunk to at most `size` by `size` cells. Each cell keeps its largest weight, so thin lines stay visible. */
export function thumbnail(weights, size = SIZE) {
  const [rows, columns] = weights.shape;
  const bytes = weights.bytes();
  if (rows <= size && columns <= size) return new Tensor([rows, columns], "u8", bytes);
  const [high, wide] = [Math.min(size, rows), Math.min(size, columns)];
  const out = new Uint8Array(high * wide);
  const place = Int32Array.from({ length: columns }, (_, column) => Math.floor((column * wide) / columns));
  for (let row = 0, at = 0; row < rows; row++) {
    const start = Math.floor((row * high) / rows) * wide;
    for (let column = 0; column < columns; column++, at++) {
      if (bytes[at] > out[start + place[column]]) out[start + place[column]] = bytes[at];
    }
  }
  return new Tensor([high, wide], "u8", out);
}

/**
 * data: {parts: [{name, target_tokens, source_tokens, weights [n_layers, n_heads, targets, sources] or, if these are not
 * available, thumbs [n_layers, n_heads, up to 64, up to 64], layers: layer numbers, unless all are included}],
 * statistics: [{entropy, ...: [n_layers, n_heads]}]}. options: {part: index of a part, sort: "layer" or the name of a
 * statistic}. Emits head-opened {part, layer, head}, sort-chosen {sort} and part-chosen {part}.
 */
export function draw(element, data, options = {}) {
  return view(element, "heads", build, data, options);
}

function build(root, data, options) {
  const state = { part: options.part || 0, sort: options.sort || "layer" };
  const grid = make("div", { class: "pw-grid" });
  const frame = make("div", { class: "pw-scroll" }, grid);
  const statistic = make("p", { class: "pw-note" });
  let cards = [];

  const statistics = () => (data.statistics && data.statistics[state.part]) || {};
  const offered = () => [
    ["layer", "layer"],
    ...Object.keys(STATISTICS)
      .filter((name) => statistics()[name])
      .map((name) => [name, STATISTICS[name][0]]),
  ];

  function fill() {
    const part = data.parts[state.part];
    const source = tensor(part.thumbs || part.weights);
    const [layers, heads] = source.shape;
    cards = [];
    for (let row = 0; row < layers; row++) {
      const layer = part.layers ? part.layers[row] : row;
      for (let head = 0; head < heads; head++) cards.push(card(part, source.part(row, head), row, layer, head));
    }
    grid.style.setProperty("--heads", heads);
    order();
  }
  function card(part, weights, row, layer, head) {
    const thumb = part.thumbs ? weights : thumbnail(weights);
    const canvas = make("canvas", { width: thumb.shape[1], height: thumb.shape[0], class: "pw-pixels" });
    const caption = make("span", { class: "pw-caption" });
    const open = () => emit(node, "head-opened", { part: state.part, layer, head });
    const node = make("button", { type: "button", class: "pw-head-card", click: open }, canvas, caption);
    return {
      node,
      canvas,
      caption,
      thumb,
      row,
      layer,
      head,
      hidden: thumb.shape[0] === thumb.shape[1] ? looksBack(part.name) : null,
    };
  }
  function order() {
    const values = state.sort === "layer" ? null : tensor(statistics()[state.sort]);
    const value = ({ row, layer, head }) => (values ? values.at(row, head) : -(layer * 1e6 + head));
    cards.sort((one, other) => value(other) - value(one));
    cards.forEach((each) => {
      const said = values ? `, ${state.sort} ${number(value(each))}` : "";
      each.node.setAttribute("aria-label", headName({ name: data.parts[state.part].name, ...each }) + said);
      each.caption.textContent = `${each.layer}·${each.head}${values ? `  ${number(value(each))}` : ""}`;
    });
    grid.classList.toggle("pw-sorted", Boolean(values));
    const heading = (text, place) => make("span", { class: "pw-title", "aria-hidden": "true", style: place }, text);
    const layered = values ? [] : layerTitles(heading);
    grid.replaceChildren(...layered, ...cards.map(({ node }) => node));
    statistic.textContent = values
      ? `Sorted by ${state.sort}: ${STATISTICS[state.sort][1]}.`
      : "Each row is a layer, each column a head.";
    keys.settle();
  }
  function layerTitles(heading) {
    const layers = new Map(cards.map(({ row, layer }) => [row, layer]));
    return [...layers].map(([row, layer]) =>
      heading(`layer ${layer}`, { "grid-column": "1", "grid-row": String(row + 1) }),
    );
  }
  const columns = () => {
    const top = cards[0].node.offsetTop;
    const next = cards.findIndex(({ node }) => node.offsetTop > top);
    return next < 0 ? cards.length : next;
  };
  const keys = roving(grid, () => cards.map(({ node }) => node), columns);
  const repaint = () => cards.forEach(({ canvas, thumb, hidden }) => paint(canvas, thumb, { hidden }));
  const bar = make("div", { class: "pw-bar" });
  function tools() {
    const parts = data.parts.map(({ name }, place) => [place, headName({ name, layer: 0, head: 0 }).split(",")[0]]);
    const change = (part) => {
      state.part = part;
      emit(root, "part-chosen", { part });
      if (!statistics()[state.sort]) state.sort = "layer";
      tools();
      fill();
      repaint();
    };
    const sort = (name) => {
      state.sort = name;
      order();
      emit(root, "sort-chosen", { sort: name });
    };
    bar.replaceChildren(
      ...(parts.length > 1 ? [choices("Part of the model", parts, state.part, change)] : []),
      ...(offered().length > 1
        ? [make("span", { class: "pw-title" }, "sort by"), choices("Sort by", offered(), state.sort, sort)]
        : []),
    );
  }
  root.append(bar, frame, statistic);
  tools();
  fill();
  repaint();
  const focus = (layer, head) => {
    const place = cards.findIndex((each) => each.layer === layer && each.head === head);
    if (place >= 0) keys.go(place);
  };
  return { repaint, focus };
}
