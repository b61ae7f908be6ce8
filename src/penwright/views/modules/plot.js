/** A line chart on a canvas, with axes, a crosshair, and zoom by dragging. */

import { extent, number, scale } from "./axes.js";
import { isDark, lineColour } from "./colour.js";
import { make } from "./dom.js";
import { move } from "./keyboard.js";
import { vectorContext } from "./vector.js";

const MANY = 16; // lines; with more, repeated colours are not dashed, since dashes are slow
const MARGIN = { left: 52, right: 12, top: 26, bottom: 38 };
const DOT = 3.5; // radius in pixels

/** At most two points (lowest and highest) per column of pixels, to keep every spike. */
export function thin(points, pixelOf) {
  if (points.length < 1000) return points;
  const kept = [];
  let [column, low, high] = [null, null, null];
  const flush = () => column !== null && kept.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  for (const point of points) {
    const at = Math.round(pixelOf(point[0]));
    if (at !== column) {
      flush();
      [column, low, high] = [at, point, point];
    } else if (point[1] < low[1]) low = point;
    else if (point[1] > high[1]) high = point;
  }
  flush();
  return kept;
}

/**
 * Draw `lines()` [{name, points: [[x, y]], colour: a number, faint, dots: whether to draw points}] in `root`.
 * `settings()` returns {logX, logY, xLabel, yLabel}. `hover(x)` is called with the position of the pointer, or null.
 * The result has `svg()`, which returns the chart as a file.
 */
export function plot(root, { lines, settings, hover, name }) {
  const canvas = make("canvas", {
    class: "pw-plot",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "diagram",
    "aria-label": name,
  });
  const cursor = make("div", { class: "pw-cursor", hidden: true });
  root.append(make("div", { class: "pw-over" }, canvas, cursor));
  const state = { window: null, at: null, drag: null, frame: 0, x: null, width: 0, height: 0 };

  const usable = ([x, y], { logX, logY }) =>
    Number.isFinite(x) && Number.isFinite(y) && (!logX || x > 0) && (!logY || y > 0);

  function* values(all, axis, [from, to]) {
    for (const { points } of all) for (const point of points) if (point[0] >= from && point[0] <= to) yield point[axis];
  }
  function paint() {
    state.frame = 0;
    if (!state.width) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = state.width * ratio;
    canvas.height = state.height * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    paintOn(context);
  }
  function paintOn(context) {
    const given = settings();
    const all = lines().map((line) => ({ ...line, points: line.points.filter((point) => usable(point, given)) }));
    const xs = state.window || extent(values(all, 0, [-Infinity, Infinity]));
    const ys = extent(values(all, 1, xs));
    const pad = given.logY ? 0 : 0.04 * (ys[1] - ys[0] || 1);
    state.x = scale(xs, [MARGIN.left, state.width - MARGIN.right], given.logX);
    const y = scale([ys[0] - pad, ys[1] + pad], [state.height - MARGIN.bottom, MARGIN.top], given.logY);
    axes(context, getComputedStyle(root), state.x, y, given);
    context.save();
    context.beginPath();
    const [wide, high] = [state.width - MARGIN.left - MARGIN.right, state.height - MARGIN.top - MARGIN.bottom];
    context.rect(MARGIN.left - DOT, MARGIN.top - DOT, wide + 2 * DOT, high + 2 * DOT); // with a margin for dots at the edge
    context.clip();
    const dark = isDark(root);
    context.lineWidth = all.length > 2 * MANY ? 1 : 1.75;
    all.forEach((line) => stroke(context, line, state.x, y, dark, all.length <= MANY));
    context.restore();
  }
  function axes(context, style, x, y, { xLabel, yLabel }) {
    context.font = `12px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.globalAlpha = 0.75;
    context.strokeStyle = style.color;
    context.lineWidth = 1;
    const [bottom, right] = [state.height - MARGIN.bottom, state.width - MARGIN.right];
    const rule = (x1, y1, x2, y2) => {
      context.globalAlpha = 0.12;
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
      context.stroke();
      context.globalAlpha = 0.75;
    };
    context.textAlign = "center";
    for (const tick of x.ticks(Math.max(2, state.width / 110))) {
      rule(x(tick), MARGIN.top, x(tick), bottom);
      context.fillText(number(tick), x(tick), bottom + 15);
    }
    context.textAlign = "right";
    for (const tick of y.ticks(6)) {
      rule(MARGIN.left, y(tick), right, y(tick));
      context.fillText(number(tick), MARGIN.left - 6, y(tick) + 4);
    }
    context.fillText(xLabel || "", right, state.height - 5);
    context.textAlign = "left";
    context.globalAlpha = 0.9;
    context.fillText(yLabel || "", 4, 14);
    context.globalAlpha = 1;
  }
  function stroke(context, { points, colour, faint, dots }, x, y, dark, dashed) {
    context.strokeStyle = lineColour(colour, dark);
    context.globalAlpha = faint ? 0.28 : 1;
    context.setLineDash(dots ? [2, 4] : dashed && colour >= 8 && !faint ? [5, 3] : []);
    context.beginPath();
    thin(points, x).forEach(([px, py], at) => (at ? context.lineTo(x(px), y(py)) : context.moveTo(x(px), y(py))));
    context.stroke();
    context.setLineDash([]);
    if (dots && points.length < 200) {
      context.fillStyle = context.strokeStyle;
      context.beginPath();
      for (const [px, py] of points) {
        context.moveTo(x(px) + DOT, y(py));
        context.arc(x(px), y(py), DOT, 0, 2 * Math.PI);
      }
      context.fill();
    }
    context.globalAlpha = 1;
  }
  /** Move the crosshair and the zoom range, which lie above the canvas, without redrawing the lines. */
  function mark() {
    const [left, right] = state.drag
      ? state.drag.toSorted((one, other) => one - other)
      : [0, 1].map((wide) => Math.round(state.x(state.at)) + wide);
    const span = `left:${left}px;width:${right - left}px;top:${MARGIN.top}px;bottom:${MARGIN.bottom}px`;
    cursor.style.cssText = `${span};opacity:${state.drag ? 0.15 : 0.6}`;
  }
  const later = () => (state.frame = state.frame || requestAnimationFrame(paint));
  function point(pixel, aloud = false) {
    state.at = pixel === null || !state.x ? null : state.x.invert(pixel);
    hover(state.at, aloud);
    cursor.hidden = state.at === null;
    if (state.at !== null) mark();
  }
  canvas.addEventListener("pointerdown", (event) => (state.drag = [event.offsetX, event.offsetX]));
  canvas.addEventListener("pointermove", (event) => {
    if (state.drag) state.drag[1] = event.offsetX;
    point(event.offsetX);
  });
  canvas.addEventListener("pointerup", () => {
    const [from, to] = (state.drag || [0, 0]).toSorted((one, other) => one - other);
    state.drag = null;
    if (to - from > 8) state.window = [state.x.invert(from), state.x.invert(to)];
    later();
  });
  canvas.addEventListener("pointerleave", () => ((state.drag = null), point(null)));
  canvas.addEventListener("dblclick", () => ((state.window = null), later()));
  canvas.addEventListener("keydown", (event) => {
    const step = move(event.key);
    if (event.key === "0" || event.key === "Escape") state.window = null;
    else if (!step || !state.x) return;
    else point((state.at === null ? MARGIN.left : state.x(state.at)) + 12 * (step[1] - step[0]), true);
    event.preventDefault();
    later();
  });
  function measure() {
    Object.assign(state, { width: canvas.clientWidth, height: canvas.clientHeight });
    later();
  }
  const resize = new ResizeObserver(measure);
  resize.observe(canvas);
  function svg() {
    const context = vectorContext(state.width, state.height);
    paintOn(context);
    return context.svg(paper());
  }
  /** The background colour of the page, for saved files. */
  const paper = () => (isDark(root) ? "#15161a" : "#fdfdfb");
  return { repaint: later, measure, paint, stop: () => resize.disconnect(), canvas, svg, paper };
}
