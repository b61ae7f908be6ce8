/** Drawing text, heads, feed-forward networks and circuits on the overview of a model. */

import { diverging, sequential } from "./colour.js";
import { clamp, pointOf } from "./flow.js";

/** Write a text with the colours and font of `pen`. */
export function write(pen, text, x, y, { size = 11, align = "left", ink = pen.soft, halo = false, bold = false } = {}) {
  const { context } = pen;
  context.font = `${bold ? "600 " : ""}${size}px ${pen.family}`;
  context.textAlign = align;
  if (halo) {
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = pen.dark ? "#15161a" : "#fdfdfb";
    context.strokeText(text, x, y);
  }
  context.fillStyle = ink;
  context.fillText(text, x, y);
}

/** How much a sublayer adds at a row, as a share of the vector that results. */
export const share = (sublayer, row) => sublayer.added.values[row] / (sublayer.added.values[row] + sublayer.after.values[row]);

/** Heads as circles and feed-forward networks as squares, coloured by what they write or by `values`. */
export function paintParts(pen, place, { values }) {
  const { context } = pen;
  const { stack, columns, gap, heads } = place;
  const limit = values ? Math.max(...values.values(), 1e-9, ...[...values.values()].map((value) => -value)) : 1;
  const radius = clamp(Math.min(gap / 2 - 1, 0.4 * place.step), 1.5, 6.5);
  const side = clamp(0.8 * place.step, 4, 14);
  columns.forEach(({ kind, sublayer }, column) => {
    const x = place.x(column);
    if (kind === "embedding" || kind === "output") {
      context.fillStyle = pen.ink;
      context.beginPath();
      context.roundRect(x - 4, place.partY((heads - 1) / 2) - 12, 8, 24, 3);
      context.fill();
      return;
    }
    const base = `${sublayer.part}.${sublayer.layer}`;
    const fill = (name, share) =>
      (context.fillStyle = values
        ? diverging((values.get(name) || 0) / limit, pen.dark)
        : sequential(Math.min(1, share), pen.dark));
    context.strokeStyle = pen.soft;
    context.lineWidth = 0.8;
    if (kind === "feed_forward") {
      fill(`${base}.feed_forward`, share(sublayer, stack.position));
      context.beginPath();
      context.roundRect(x - side / 2, place.partY((heads - 1) / 2) - side / 2, side, side, 3);
      context.fill();
      context.stroke();
      return;
    }
    for (let head = 0; head < sublayer.weights.shape[0]; head++) {
      const written = sublayer.head_added.values[head];
      fill(`${base}.${head}`, written / (written + sublayer.after.values[stack.position]));
      context.beginPath();
      context.arc(x, place.partY(head), radius, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
    }
  });
  write(pen, "heads ○", place.left + place.gutter - 6, place.partY(0) + 1, { align: "right", size: 10.5 });
  if (heads * gap <= 26) return;
  const text = place.gutter < 80 ? "ff □" : "feed-forward □";
  write(pen, text, place.left + place.gutter - 6, place.partY(0) + 16, { align: "right", size: 10.5 });
}

/** The edges of a circuit: orange supports the outcome, blue opposes it. */
export function paintCircuit(pen, plan, { circuit, edge }) {
  const { context } = pen;
  const most = Math.max(...circuit.map(({ effect }) => Math.abs(effect)), 1e-9);
  circuit.forEach((each, at) => {
    const [from, to] = [pointOf(plan, each.source), pointOf(plan, each.destination)];
    const bow = { query: -10, key: 0, value: 10 }[each.via] || 0;
    const strong = Math.abs(each.effect) / most;
    context.strokeStyle = each.effect >= 0 ? pen.cross : pen.accent;
    context.globalAlpha = edge === at ? 1 : edge === null || edge === undefined ? 0.3 + 0.6 * strong : 0.18;
    context.lineWidth = (edge === at ? 2 : 0.8) + 4 * strong;
    context.beginPath();
    context.moveTo(from.x, from.y);
    const middle = (from.x + to.x) / 2;
    context.bezierCurveTo(middle, from.y + bow, middle, to.y + bow, to.x, to.y);
    context.stroke();
    context.globalAlpha = 1;
  });
}

export function paintCursor(pen, cursor) {
  if (!cursor) return;
  const { context } = pen;
  const { place, column, row, head } = cursor;
  const square = place.columns[column].kind !== "attention";
  const y = row !== undefined ? place.y(row) : place.partY(square ? (place.heads - 1) / 2 : head);
  context.strokeStyle = pen.cross;
  context.lineWidth = 2;
  context.beginPath();
  context.arc(place.x(column), y, row !== undefined ? 10 : clamp(place.gap / 2 + 3, 5, 11), 0, 2 * Math.PI);
  context.stroke();
}
