/** How a model distinguishes positions: their similarity, their dimensions as curves, and rotating clock hands. */

import { number } from "./axes.js";
import { tensor } from "./bytes.js";
import { isDark, lineColour } from "./colour.js";
import { choices, make, makeSvg, view } from "./dom.js";
import { draw as drawCurves } from "./curves.js";
import { matrix } from "./matrix.js";

/**
 * data: {encodings [n_positions, d_model], similarity [n, n] (cosines), frequencies: [pairs] in radians per position, or
 * null}. Only shapes with data are offered. options: {shape: "similarity", "curves" or "circle"}.
 */
export function draw(element, data, options = {}) {
  return view(element, "positions", build, data, options);
}

function build(root, data, options) {
  const shapes = [
    ["similarity", "similarity"],
    ["encodings", "curves"],
    ["frequencies", "circle"],
  ].filter(([field]) => data[field]);
  const chosen = options.shape || shapes[0][1];
  const place = make("div", {});
  const makers = { similarity, curves, circle };
  let drawn = {};
  const show = (shape) => {
    if (drawn.stop) drawn.stop();
    place.replaceChildren();
    drawn = makers[shape](place, data) || {};
  };
  root.append(
    make(
      "div",
      { class: "pw-bar" },
      choices(
        "Shown as",
        shapes.map(([, name]) => [name, name]),
        chosen,
        show,
      ),
    ),
    place,
  );
  show(chosen);
  return { repaint: () => drawn.repaint && drawn.repaint(), stop: () => drawn.stop && drawn.stop() };
}

function similarity(place, data) {
  const values = tensor(data.similarity);
  const names = Array.from({ length: values.shape[0] }, (_, at) => String(at));
  const say = (row, column) => `positions ${row} and ${column}: cosine ${number(values.at(row, column))}`;
  return matrix(place, { values, rows: names, columns: names, say, signed: true, name: "Similarity of positions" });
}

function curves(place, data) {
  const encodings = tensor(data.encodings);
  const [positions, dimensions] = encodings.shape;
  const shown = { first: 0, step: Math.max(1, Math.floor(dimensions / 6)) };
  const xs = Array.from({ length: positions }, (_, at) => at);
  const run = (dimension) => ({
    name: `dimension ${dimension}`,
    x: xs,
    y: xs.map((at) => encodings.at(at, dimension)),
  });
  const runs = Array.from({ length: Math.min(6, dimensions) }, (_, at) => run(shown.first + at * shown.step));
  const drawn = drawCurves(place, { runs, x_label: "position", y_label: "value" });
  return { stop: drawn.destroy };
}

function circle(place, data) {
  const frequencies = tensor(data.frequencies).numbers();
  const pairs = Array.from({ length: Math.min(6, frequencies.length) }, (_, at) =>
    Math.floor((at * frequencies.length) / Math.min(6, frequencies.length)),
  );
  const last = data.encodings ? tensor(data.encodings).shape[0] - 1 : 63;
  const shown = make("output", {}, "1");
  const slider = make("input", { type: "range", min: 0, max: last, value: 1, input: () => turn(Number(slider.value)) });
  const hands = pairs.map((pair, at) => dial(frequencies[pair], at));
  const figures = hands.map(({ node, note }, at) =>
    make(
      "figure",
      {},
      node,
      make(
        "figcaption",
        {},
        `pair ${pairs[at]}: one turn in ${number((2 * Math.PI) / frequencies[pairs[at]])} positions`,
        note,
      ),
    ),
  );
  place.append(
    make("div", { class: "pw-bar" }, make("label", {}, "position ", slider, " ", shown)),
    make("div", { class: "pw-dials" }, figures),
  );
  place.append(
    make(
      "p",
      { class: "pw-note" },
      "Each pair of dimensions is a hand that turns with the position. Slow hands distinguish distant positions, fast hands nearby ones.",
    ),
  );
  function turn(position) {
    shown.textContent = String(position);
    hands.forEach((hand) => hand.turn(position));
  }
  const repaint = () => hands.forEach(({ paint }) => paint(isDark(place)));
  turn(1);
  repaint();
  return { repaint };
}

function dial(frequency, at) {
  const hand = makeSvg("line", { x1: 0, y1: 0, x2: 40, y2: 0, "stroke-width": 2.5, "stroke-linecap": "round" });
  const tip = makeSvg("circle", { r: 4 });
  const trail = Array.from({ length: 12 }, () => makeSvg("circle", { r: 1.6, opacity: 0.5 }));
  const node = makeSvg(
    "svg",
    { viewBox: "-48 -48 96 96", "aria-hidden": "true" },
    makeSvg("circle", { r: 40, fill: "none", class: "pw-rule" }),
    ...trail,
    hand,
    tip,
  );
  const note = make("span", { class: "pw-number" });
  const spot = (circle, angle) => {
    circle.setAttribute("cx", 40 * Math.cos(angle));
    circle.setAttribute("cy", -40 * Math.sin(angle));
  };
  return {
    node,
    note,
    turn(position) {
      const angle = position * frequency;
      hand.setAttribute("x2", 40 * Math.cos(angle));
      hand.setAttribute("y2", -40 * Math.sin(angle));
      spot(tip, angle);
      trail.forEach((circle, back) => spot(circle, Math.max(0, position - back - 1) * frequency));
      note.textContent = `cos ${number(Math.cos(angle))}, sin ${number(Math.sin(angle))}`;
    },
    paint(dark) {
      const colour = lineColour(at, dark);
      hand.setAttribute("stroke", colour);
      [tip, ...trail].forEach((circle) => circle.setAttribute("fill", colour));
    },
  };
}
