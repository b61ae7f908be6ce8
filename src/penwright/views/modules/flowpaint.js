/** The overview of a model on a canvas. One drawing takes a few milliseconds for 12 layers and 256 tokens. */

import { number, percent } from "./axes.js";
import { isDark, lineColour, sequential } from "./colour.js";
import { clamp, strongest } from "./flow.js";
import { paintCircuit, paintCursor, paintParts, share, write } from "./flowparts.js";
import { label, textOf } from "./tokens.js";

const WEAKEST = 0.04; // smallest weight of a link
const LINKS = 6; // links drawn per attention
const CROSS_LINKS = 3; // and per cross-attention

/** Draw the overview. `state`: {cursor, circuit, values, pulse}; see model.js. */
export function paintFlow(canvas, map, plan, state) {
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(plan.width * ratio) || canvas.height !== Math.round(plan.height * ratio)) {
    canvas.width = plan.width * ratio;
    canvas.height = plan.height * ratio;
  }
  const context = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const dark = isDark(canvas);
  const pen = {
    context,
    dark,
    ink: style.color,
    family: style.fontFamily,
    soft: dark ? "#a3a5ae" : "#5b5d66",
    rule: dark ? "#33363f" : "#dcdcd5",
    raised: dark ? "#1e2026" : "#f1f1ec",
    accent: lineColour(0, dark),
    cross: lineColour(1, dark),
  };
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.drawImage(background(pen, map, plan, state, ratio), 0, 0);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.textBaseline = "middle";
  plan.places.forEach((place) => {
    paintLinks(pen, map, plan, place, state);
    paintRow(pen, map, place, state);
    paintTokens(pen, map, plan, place, state);
  });
  if (state.circuit) paintCircuit(pen, plan, state);
  plan.places.forEach((place) => paintParts(pen, place, state));
  paintCursor(pen, state.cursor);
}

/** The part of the picture that stays the same while the cursor moves: blocks, lines and squares. */
function background(pen, map, plan, state, ratio) {
  const known = state.background;
  if (known && known.map === map && known.plan === plan && known.dark === pen.dark) return known.canvas;
  const canvas = document.createElement("canvas");
  canvas.width = plan.width * ratio;
  canvas.height = plan.height * ratio;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.textBaseline = "middle";
  plan.places.forEach((place) => paintStack({ ...pen, context }, plan, place));
  state.background = { map, plan, dark: pen.dark, canvas };
  return canvas;
}

function paintStack(pen, plan, place) {
  const { context } = pen;
  const { stack, columns, high } = place;
  paintBlocks(pen, place, plan);
  context.fillStyle = pen.rule;
  for (let row = 0; row < stack.tokens.length; row++) {
    context.fillRect(place.x(0), place.y(row) - 0.5, place.x(columns.length - 1) - place.x(0), high < 6 ? 0.5 : 1);
  }
  const size = clamp(high - 4, 2, 9);
  columns.forEach(({ sublayer }, column) => {
    if (!sublayer) return;
    const [added, after] = [sublayer.added.values, sublayer.after.values];
    for (let row = 0; row < added.length; row++) {
      context.fillStyle = sequential(Math.min(1, added[row] / (added[row] + after[row])), pen.dark);
      context.fillRect(place.x(column) - size / 2, place.y(row) - size / 2, size, size);
    }
  });
  context.fillStyle = pen.soft;
  stack.tokens.forEach((_, row) => context.fillRect(place.x(0) - 2, place.y(row) - size / 2, 4, size));
}

/** Headings, and a band for each block. */
function paintBlocks(pen, place, plan) {
  const { context } = pen;
  const { stack, columns, step, rows } = place;
  const layers = [...new Set(stack.sublayers.map(({ layer }) => layer))];
  for (const layer of layers) {
    const mine = columns.flatMap(({ sublayer }, column) => (sublayer && sublayer.layer === layer ? [column] : []));
    const [left, right] = [place.x(mine[0]) - 0.42 * step, place.x(mine.at(-1)) + 0.42 * step];
    context.fillStyle = pen.raised;
    context.beginPath();
    context.roundRect(left, rows - 32, right - left, place.end - rows + 32, 6);
    context.fill();
    const room = right - left;
    const title = room > 52 ? `block ${layer}` : String(layer);
    write(pen, title, (left + right) / 2, rows - 40, { align: "center", bold: true, size: room > 52 ? 11.5 : 10 });
    if (step < 30) continue;
    for (const column of mine) {
      const { kind, part } = columns[column].sublayer;
      const long = {
        attention: part === "cross" ? "cross-attention" : "attention",
        feed_forward: "feed-forward",
      }[kind];
      const short = { attention: part === "cross" ? "cross" : "attn", feed_forward: "ff" }[kind];
      write(pen, step > 84 ? long : short, place.x(column), rows - 22, { align: "center", size: 10 });
    }
  }
  if (step >= 30) {
    write(pen, step > 60 ? "embedding" : "emb", place.x(0), rows - 22, { align: "center", size: 10 });
    if (columns.at(-1).kind === "output") {
      write(pen, step > 44 ? "output" : "out", place.x(columns.length - 1), rows - 22, { align: "center", size: 10 });
    }
  }
  if (plan.places.length > 1) write(pen, stack.name, place.left + 2, rows - 40, { bold: true, ink: pen.ink, size: 12 });
}

/** Curves from the tokens that the position attends to. */
function paintLinks(pen, map, plan, place, { cursor }) {
  const { context } = pen;
  const { stack, columns, step } = place;
  const row = stack.position;
  columns.forEach(({ sublayer }, column) => {
    if (!sublayer || sublayer.kind !== "attention") return;
    const cross = sublayer.part === "cross";
    const from = cross ? plan.places[0] : place;
    const mine = cursor && cursor.place.at === place.at && cursor.column === column && cursor.head !== undefined;
    const ink = cross ? pen.cross : pen.accent;
    const found = strongest(sublayer.weights, mine ? cursor.head : null, cross ? CROSS_LINKS : LINKS);
    found.forEach(([source, weight], rank) => {
      if (weight < WEAKEST) return;
      const [x, y] = [place.x(column), place.y(row)];
      const startX = cross ? from.x(from.columns.length - 1) + 6 : x - step + 6;
      const startY = from.y(source);
      context.strokeStyle = ink;
      context.globalAlpha = clamp(0.25 + weight, 0.25, 0.9);
      context.lineWidth = 0.8 + 4.2 * weight;
      context.beginPath();
      context.moveTo(startX, startY);
      context.bezierCurveTo(startX + 0.35 * (x - startX), startY, x - 0.3 * Math.min(step, x - startX), y, x - 4, y);
      context.stroke();
      context.globalAlpha = 1;
      if (rank < 2 && weight >= 0.1 && step >= 56 && source !== row && !cross) {
        write(pen, percent(weight), startX + 3, startY - 7, { size: 9.5, ink, halo: true });
      }
    });
  });
}

/** The chosen position: its numbers above its line. */
function paintRow(pen, map, place, { pulse }) {
  const { context } = pen;
  const { stack, columns, step } = place;
  const [row, y] = [stack.position, place.y(stack.position)];
  context.strokeStyle = pen.ink;
  context.lineWidth = 1.6;
  context.beginPath();
  context.moveTo(place.x(0), y);
  context.lineTo(place.x(columns.length - 1), y);
  context.stroke();
  const size = clamp(0.8 * step, 4, 11);
  columns.forEach(({ kind, sublayer }, column) => {
    const x = place.x(column);
    context.fillStyle = sublayer ? sequential(share(sublayer, row), pen.dark) : pen.ink;
    context.strokeStyle = pen.ink;
    context.lineWidth = 1.2;
    context.beginPath();
    if (kind === "attention") context.arc(x, y, size / 2, 0, 2 * Math.PI);
    else context.roundRect(x - size / 2, y - size / 2, size, size, 2);
    context.fill();
    context.stroke();
    if (step < 34) return;
    const short = (value) => number(step < 44 && value < 1 ? Number(value.toFixed(2)) : value); // "+0.163" is too wide
    const length = kind === "embedding" ? short(stack.embedded.at(row)) : "";
    const text = sublayer ? `+${short(sublayer.added.at(row))}` : length;
    if (text) write(pen, text, x, y - 13, { align: "center", size: 10.5, ink: pen.ink, halo: true });
    if (step >= 74 && sublayer) {
      const after = number(sublayer.after.values[row]);
      write(pen, after, x + step / 2, y + 10, { align: "center", size: 10, halo: true });
    }
  });
  if (pulse !== null && pulse !== undefined) {
    const x = place.x(0) + pulse * (place.x(columns.length - 1) - place.x(0));
    context.fillStyle = pen.cross;
    context.beginPath();
    context.arc(x, y, 5, 0, 2 * Math.PI);
    context.fill();
  }
}

/** Names of tokens beside their rows: all that fit, else the chosen one and those it attends to. */
function paintTokens(pen, map, plan, place, { cursor }) {
  const { stack, high } = place;
  const longest = place.gutter < 80 ? 7 : 13;
  const name = (row, options) =>
    write(
      pen,
      label(textOf(stack.tokens[row]), longest),
      place.x(0) - 12,
      place.y(row),
      { align: "right", ...options },
    );
  const chosen = { ink: pen.ink, bold: true, halo: true };
  if (high >= 11) {
    stack.tokens.forEach((_, row) => name(row, row === stack.position ? chosen : { size: high >= 15 ? 12 : 10.5, halo: place.at > 0 }));
    return;
  }
  const wanted = [stack.position];
  if (cursor && cursor.place.at === place.at && cursor.row !== undefined) wanted.push(cursor.row);
  for (const { weights, part, kind } of plan.places.flatMap((each) => each.stack.sublayers)) {
    const seen = part === "cross" ? "encoder" : part;
    if (kind === "attention" && seen === stack.name) wanted.push(...strongest(weights, null, 1).map(([row]) => row));
  }
  const taken = [];
  for (const row of [...new Set(wanted)]) {
    if (taken.some((other) => Math.abs(place.y(other) - place.y(row)) < 12)) continue;
    taken.push(row);
    name(row, row === stack.position ? chosen : { size: 11 });
  }
}
