/** Training curves of several runs, with logarithmic axes, and smoothing that keeps the raw line visible. */

import { extent, number } from "./axes.js";
import { tensor } from "./bytes.js";
import { isDark, lineColour } from "./colour.js";
import { choices, emit, make, readout, table, twin, view } from "./dom.js";
import { plot } from "./plot.js";

/**
 * data: {runs: [{name, x: [n], y: [n], colour: a number, by default its index, dots: whether to draw points}],
 * x_label, y_label}. options: {log_x, log_y, smoothing: 0 to 0.99, the weight of earlier values}. NaN and values without
 * a logarithm are skipped. Emits drawing-changed {log_x, log_y, smoothing}. parts.setRuns(runs) replaces the runs.
 */
export function draw(element, data, options = {}) {
  return view(element, "curves", build, data, options);
}

/** An exponential moving average with bias correction. */
export function smooth(points, weight) {
  let [sum, total] = [0, 0];
  return points
    .filter(([, y]) => Number.isFinite(y))
    .map(([x, y]) => {
      sum = weight * sum + (1 - weight) * y;
      total = weight * total + (1 - weight);
      return [x, sum / total];
    });
}

function build(root, data, options) {
  const { x_label = "step", y_label = "loss" } = data;
  const state = { logX: Boolean(options.log_x), logY: Boolean(options.log_y), smoothing: options.smoothing || 0 };
  let [runs, points, lines, values] = [data.runs, [], [], []];
  const legend = make("ul", { class: "pw-keys" });
  const colourOf = ({ colour }, at) => colour ?? at;

  function settle() {
    points = runs.map(({ x, y }) => {
      const [xs, ys] = [tensor(x).numbers(), tensor(y).numbers()];
      return Array.from(xs, (value, at) => [value, ys[at]]);
    });
    lines = runs.flatMap(({ name, dots }, at) => {
      const isSmooth = state.smoothing > 0 && !dots;
      const raw = { name, points: points[at], colour: colourOf(runs[at], at), faint: isSmooth, dots };
      return isSmooth ? [raw, { ...raw, points: smooth(points[at], state.smoothing), faint: false }] : [raw];
    });
  }
  function drawLegend() {
    values = runs.map(() => make("span", { class: "pw-number" }));
    const key = ({ name, dots }, at) => {
      const swatch = make("span", { class: dots ? "pw-swatch pw-dots" : "pw-swatch" });
      swatch.style.setProperty("background", lineColour(colourOf(runs[at], at), isDark(root)));
      return make("li", {}, swatch, make("bdi", {}, name), " ", values[at]);
    };
    legend.replaceChildren(...runs.map(key));
  }
  settle();
  const line = readout("Point at the chart, or use the arrow keys; drag to zoom in, double-click or press 0 to show all.");
  const frame = make("div", {});
  const drawn = plot(frame, {
    name: `${y_label} by ${x_label}, runs: ${runs.length}`,
    lines: () => lines,
    settings: () => ({ ...state, xLabel: x_label, yLabel: y_label }),
    hover,
  });
  function hover(x, aloud) {
    if (x === null) return;
    const near = points.map((list) => nearest(list, x));
    if (runs.length <= 20) near.forEach((found, at) => (values[at].textContent = found ? number(found[1]) : "–"));
    const said = runs.map(({ name }, at) => `${name} ${near[at] ? number(near[at][1]) : "–"}`).slice(0, 6);
    line.show(`${x_label} ${number(x)}: ${said.join(", ")}`, aloud);
  }
  function tell() {
    settle();
    drawn.repaint();
    emit(root, "drawing-changed", { log_x: state.logX, log_y: state.logY, smoothing: state.smoothing });
  }
  const toggle = (name, text) =>
    make(
      "label",
      {},
      make("input", {
        type: "checkbox",
        checked: state[name],
        change: ({ target }) => {
          state[name] = target.checked;
          tell();
        },
      }),
      text,
    );
  const levels = [
    [0, "raw"],
    [0.6, "0.6"],
    [0.9, "0.9"],
    [0.97, "0.97"],
  ];
  const smoothing = choices("Smoothing", levels, state.smoothing, (value) => {
    state.smoothing = value;
    tell();
  });
  const bar = make(
    "div",
    { class: "pw-bar" },
    toggle("logX", "log x"),
    toggle("logY", "log y"),
    make("span", { class: "pw-title" }, "smoothing"),
    smoothing,
  );
  const summary = (list) => {
    const finite = list.filter(([, y]) => Number.isFinite(y));
    return finite.length
      ? [number(finite[0][1]), number(extent(finite.map(([, y]) => y))[0]), number(finite.at(-1)[1])]
      : ["–", "–", "–"];
  };
  root.append(bar, frame, legend, ...line.nodes);
  root.append(
    twin("As a table", () =>
      table(
        ["run", "first", "lowest", "last"],
        runs.map(({ name }, at) => [name, ...summary(points[at])]),
      ),
    ),
  );
  const repaint = () => {
    drawLegend();
    drawn.repaint();
  };
  function setRuns(fresh) {
    runs = fresh;
    settle();
    repaint();
  }
  drawn.measure();
  repaint();
  return {
    repaint,
    paint: drawn.paint,
    stop: drawn.stop,
    setRuns,
    canvas: drawn.canvas,
    svg: drawn.svg,
    paper: drawn.paper,
  };
}

/** The point with the nearest x, among points sorted by x. */
function nearest(points, x) {
  if (points.length === 0) return null;
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
}
