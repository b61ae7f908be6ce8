/**
 * The places of the overview of a model. Rows are tokens and columns are stages, from the embedding to the output.
 * Below, each head is a circle and each feed-forward network a square.
 */

import { number, percent } from "./axes.js";
import { table } from "./dom.js";
import { label, textOf } from "./tokens.js";

const ROWS_HIGH = 470; // pixels for all rows of a stack
const PARTS_HIGH = 156; // pixels for all heads of a layer
const TOP = 46; // pixels for the headings and the numbers above the first token

const LEAD = 0.15; // space before the embedding, as a share of the distance of two columns

export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** The columns of a stack: the embedding, each sublayer, and for the last stack the output. */
function columnsOf(stack, last) {
  const inner = stack.sublayers.map((sublayer) => ({ kind: sublayer.kind, sublayer }));
  return [{ kind: "embedding" }, ...inner, ...(last ? [{ kind: "output" }] : [])];
}

/** Where everything is: a place for each stack, and the size of the whole. */
export function layout(map, width) {
  const beside = map.stacks.length > 1 && width >= 900;
  const columns = map.stacks.map((stack, at) => columnsOf(stack, at === map.stacks.length - 1));
  const total = columns.reduce((sum, each) => sum + each.length, 0);
  const gutter = width < 560 ? 66 : 104;
  const places = [];
  let [left, top] = [0, 0];
  map.stacks.forEach((stack, at) => {
    const n = columns[at].length;
    const wide = beside ? (width * (n + 2)) / (total + 4) : width;
    const room = beside ? ROWS_HIGH : ROWS_HIGH / map.stacks.length;
    const high = clamp(Math.floor(room / stack.tokens.length), 3, 26);
    const step = Math.min(150, (wide - gutter - 26) / Math.max(1, n - 0.8 + LEAD));
    const heads = Math.max(1, ...stack.sublayers.map(({ weights }) => weights.shape[0]));
    const gap = clamp(PARTS_HIGH / heads, 4, 17);
    const rows = top + TOP;
    const parts = rows + stack.tokens.length * high + 34;
    const place = { at, stack, columns: columns[at], left, wide, gutter, step, high, gap, heads, rows, parts };
    place.x = (column) => place.left + gutter + (column + LEAD) * step;
    place.y = (row) => rows + (row + 0.5) * high;
    place.end = parts + heads * gap + 6;
    place.partY = (head) => parts + (head + 0.5) * gap;
    places.push(place);
    if (beside) left += wide;
    else top = place.end + 18;
  });
  return { places, beside, width, height: Math.max(...places.map(({ end }) => end)) };
}

/** What is at a point: {place, column, row} or {place, column, head}, or null. */
export function hit({ places }, x, y) {
  const place = places.find(
    (each) => x >= each.left && x < each.left + each.wide && y >= each.rows - TOP && y < each.end + 6,
  );
  if (!place) return null;
  const column = clamp(Math.round((x - place.left - place.gutter) / place.step - LEAD), 0, place.columns.length - 1);
  const row = Math.floor((y - place.rows) / place.high);
  if (row < place.stack.tokens.length) return { place, column, row: Math.max(0, row) };
  if (y < place.parts - 8) return null;
  const head = clamp(Math.floor((y - place.parts) / place.gap), 0, place.heads - 1);
  const kind = place.columns[column].kind;
  return { place, column, head: kind === "attention" ? head : 0 };
}

/** The point of a part of the model by name: "decoder.3.2", "decoder.3.feed_forward", "decoder.tokens" or "output". */
export function pointOf({ places }, name) {
  const [part, layer, last] = name.split(".");
  const place = places.find(({ stack }) => stack.name === part) || places.at(-1);
  const middle = (head) => place.partY(head);
  if (name === "output") return { x: place.x(place.columns.length - 1), y: middle((place.heads - 1) / 2) };
  if (layer === "tokens" || layer === "positions") {
    return { x: place.x(0), y: middle((place.heads - 1) / 2) + (layer === "tokens" ? -8 : 8) };
  }
  const column = place.columns.findIndex(
    ({ sublayer }) =>
      sublayer &&
      sublayer.layer === Number(layer) &&
      (last === "feed_forward") === (sublayer.kind === "feed_forward") &&
      (last === "feed_forward" || sublayer.part === part),
  );
  const head = last === "feed_forward" ? (place.heads - 1) / 2 : Number(last);
  return { x: place.x(column), y: middle(head) };
}

const ranked = new WeakMap(); // the sorted sources of each attention, by head: sorting takes longer than drawing

/** The strongest sources of an attention: [[source, weight]], as a mean over heads or for one head. */
export function strongest(weights, head, most = 6) {
  const known = ranked.get(weights) || new Map();
  ranked.set(weights, known);
  if (!known.has(head)) known.set(head, rank(weights, head));
  return known.get(head).slice(0, most);
}

function rank(weights, head) {
  const [heads, sources] = weights.shape;
  const chosen = head === null ? Array.from({ length: heads }, (_, at) => at) : [head];
  const total = Array.from({ length: sources }, (_, source) =>
    chosen.reduce((sum, one) => sum + weights.at(one, source) / chosen.length, 0),
  );
  return [...total.entries()].sort((one, other) => other[1] - one[1]);
}

/** A sentence about what is under the cursor. */
export function describe(map, { place, column, row, head }) {
  const { stack, columns } = place;
  const { kind, sublayer } = columns[column];
  const at = row === undefined ? stack.position : row;
  const token = `“${label(textOf(stack.tokens[at]))}” (position ${at})`;
  if (kind === "embedding") {
    return `${token}: its embedding is a vector of length ${number(stack.embedded.at(at))}.`;
  }
  if (kind === "output") {
    const [text, probability] = [map.outcomes.texts[0], map.outcomes.probabilities.at(0)];
    return `The output layer predicts “${label(String(text))}” with a probability of ${percent(probability)}.`;
  }
  const { part, layer, weights, added, after, head_added: written } = sublayer;
  if (head !== undefined && kind === "attention") {
    const [[source, weight]] = strongest(weights, head, 1);
    const from = part === "cross" ? map.stacks[0].tokens : stack.tokens;
    const seen = `“${label(textOf(from[source]))}”`;
    const does = `attends most to ${seen} (${percent(weight)}), adds a vector of length ${number(written.at(head))}`;
    return `Head ${part}.${layer}.${head} at ${token}: ${does}.`;
  }
  const name = {
    attention: part === "cross" ? "cross-attention" : "attention",
    feed_forward: "feed-forward network",
  }[kind];
  const looks = kind === "attention" && at === stack.position ? mostSeen(map, sublayer, stack) : "";
  const does = `adds a vector of length ${number(added.at(at))}; the stream then has length ${number(after.at(at))}`;
  return `${token}, block ${layer}: the ${name} ${does}.${looks}`;
}

function mostSeen(map, { weights, part }, stack) {
  const from = part === "cross" ? map.stacks[0].tokens : stack.tokens;
  const seen = strongest(weights, null, 3).map(
    ([source, weight]) => `“${label(textOf(from[source]))}” ${percent(weight)}`,
  );
  return ` Mean attention: ${seen.join(", ")}.`;
}

/** The cursor one step on. Below the last token are the heads; beyond the last column is the next stack. */
export function moved({ places }, { place, column, row, head }, [down, right]) {
  const next = column + right;
  if (next < 0 || next >= place.columns.length) {
    const other = places[place.at + right];
    if (!other) return { place, column, row, head };
    const at = right > 0 ? 0 : other.columns.length - 1;
    return { place: other, column: at, row: Math.min(row ?? other.stack.position, other.stack.tokens.length - 1) };
  }
  if (row === undefined) {
    const lines = place.columns[next].kind === "attention" ? place.heads : 1;
    const to = Math.min(head ?? 0, lines - 1) + down;
    if (to < 0) return { place, column: next, row: place.stack.tokens.length - 1 };
    return { place, column: next, head: Math.min(to, lines - 1) };
  }
  if (row + down >= place.stack.tokens.length) return { place, column: next, head: 0 };
  return { place, column: next, row: Math.max(0, row + down) };
}

/** The numbers of the chosen position: each sublayer with what it adds and what it attends to. */
export function asTable(map) {
  const rows = map.stacks.flatMap((stack) => stack.sublayers.map((each) => {
    const from = each.part === "cross" ? map.stacks[0].tokens : stack.tokens;
    const seen = each.kind === "attention" ? strongest(each.weights, null, 3).map(
      ([source, weight]) => `${label(textOf(from[source]))} ${percent(weight)}`,
    ).join(", ") : "";
    return [
      `${each.part} ${each.layer} ${each.kind.replace("_", "-")}`,
      String(each.added.at(stack.position).toFixed(3)),
      String(each.after.at(stack.position).toFixed(3)),
      seen,
    ];
  }));
  return table(["sublayer", "adds", "stream after it", "attends most to"], rows);
}
