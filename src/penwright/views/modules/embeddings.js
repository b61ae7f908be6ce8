/** A map of the embeddings, with a point for each token. It can be panned, zoomed and searched. */

import { extent } from "./axes.js";
import { tensor } from "./bytes.js";
import { isDark, lineColour } from "./colour.js";
import { emit, make, readout, view } from "./dom.js";
import { move } from "./keyboard.js";
import { label } from "./tokens.js";

const NEAR = 12; // pixels; the pointer selects a point within this distance
const CELL = [110, 34]; // width and height of a name, in pixels

/**
 * data: {xy [n, 2], labels: [n], ids: [n] or null, note}. options: {search}. Emits token-chosen {place, id, text}.
 */
export function draw(element, data, options = {}) {
  return view(element, "embeddings", build, data, options);
}

function build(root, data, { search = "" }) {
  const xy = tensor(data.xy).numbers();
  const count = xy.length / 2;
  const names = data.labels.map((text) => label(text));
  const canvas = make("canvas", {
    class: "pw-map",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "map",
    "aria-label": `map of ${count} embeddings`,
  });
  const line = readout(
    "Drag to pan, use the wheel or + and − to zoom, press 0 to show all; or search. Choose a point for its neighbours.",
  );
  const input = make("input", {
    type: "search",
    value: search,
    placeholder: "a token",
    "aria-label": "Search for a token",
  });
  const over = make("div", { class: "pw-mark", hidden: true }, make("i", {}), make("bdi", {}));
  const list = make("ul", { class: "pw-found", "aria-label": "search results" });
  const state = { x: 0, y: 0, zoom: 1, found: [], near: -1, frame: 0, width: 0, height: 0 };

  function all() {
    const x = extent(Array.from({ length: count }, (_, at) => xy[2 * at]));
    const y = extent(Array.from({ length: count }, (_, at) => xy[2 * at + 1]));
    const zoom = 0.92 * Math.min(state.width / (x[1] - x[0] || 1), state.height / (y[1] - y[0] || 1));
    Object.assign(state, { zoom, x: (x[0] + x[1]) / 2, y: (y[0] + y[1]) / 2 });
  }
  const screen = (at) => [
    state.width / 2 + (xy[2 * at] - state.x) * state.zoom,
    state.height / 2 - (xy[2 * at + 1] - state.y) * state.zoom,
  ];

  function paint() {
    state.frame = 0;
    if (!state.width) return; // not visible
    const ratio = devicePixelRatio || 1;
    canvas.width = state.width * ratio;
    canvas.height = state.height * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const dark = isDark(root);
    const style = getComputedStyle(root);
    const spread = dots(context, ratio, lineColour(0, dark));
    const named = state.found.length ? state.found : apart(spread);
    context.font = `12px ${style.fontFamily}`;
    context.strokeStyle = getComputedStyle(canvas).backgroundColor;
    context.lineWidth = 3;
    for (const at of named) write(context, at, dark, style.color);
    mark();
  }
  /** Mark the point under the pointer with an element above the canvas, without redrawing the other points. */
  function mark() {
    over.hidden = state.near < 0;
    if (state.near < 0) return;
    const [x, y] = screen(state.near);
    over.style.transform = `translate(${x - 5}px, ${y - 12}px)`;
    over.lastChild.textContent = names[state.near];
  }
  /** Draw all points pixel by pixel, which is fast for many points. Returns one point per cell of the screen. */
  function dots(context, ratio, colour) {
    const image = context.createImageData(context.canvas.width, context.canvas.height);
    const out = new Uint32Array(image.data.buffer);
    const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
    const pixel = ((0xd0 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
    const size = Math.round((count > 2000 ? 2 : 4) * ratio);
    const cells = new Map();
    for (let at = 0; at < count; at++) {
      const x = state.width / 2 + (xy[2 * at] - state.x) * state.zoom;
      const y = state.height / 2 - (xy[2 * at + 1] - state.y) * state.zoom;
      const [left, top] = [Math.round(x * ratio - size / 2), Math.round(y * ratio - size / 2)];
      if (!(left >= 0 && top >= 0 && left + size < image.width && top + size < image.height)) continue;
      for (let row = top; row < top + size; row++)
        out.fill(pixel, row * image.width + left, row * image.width + left + size);
      const cell = Math.round(x / CELL[0]) * 1000 + Math.round(y / CELL[1]);
      if (!cells.has(cell)) cells.set(cell, at);
    }
    context.putImageData(image, 0, 0);
    return [...cells.values()];
  }
  /** The points whose names do not overlap; earlier points have priority. */
  function apart(candidates) {
    const taken = [];
    return candidates.filter((at) => {
      const [x, y] = screen(at);
      if (taken.some(([other, height]) => Math.abs(other - x) < CELL[0] && Math.abs(height - y) < CELL[1] / 2))
        return false;
      return taken.push([x, y]);
    });
  }
  function write(context, at, dark, ink) {
    const [x, y] = screen(at);
    context.fillStyle = lineColour(1, dark);
    if (state.found.includes(at)) context.fillRect(x - 4, y - 4, 8, 8);
    context.fillStyle = ink;
    context.strokeText(names[at], x + 7, y + 4); // an outline in the background colour keeps the name legible over points
    context.fillText(names[at], x + 7, y + 4);
  }
  const later = () => (state.frame = state.frame || requestAnimationFrame(paint));

  function nearest(x, y) {
    let [best, least] = [-1, NEAR * NEAR];
    for (let at = 0; at < count; at++) {
      const [dx, dy] = [
        state.width / 2 + (xy[2 * at] - state.x) * state.zoom - x,
        state.height / 2 - (xy[2 * at + 1] - state.y) * state.zoom - y,
      ];
      const distance = dx * dx + dy * dy;
      if (distance < least) [best, least] = [at, distance];
    }
    return best;
  }
  function point(at, aloud = false) {
    if (at === state.near) return;
    state.near = at;
    if (at >= 0) line.show(`“${names[at]}”`, aloud);
    mark();
  }
  const choose = (at) =>
    at >= 0 && emit(root, "token-chosen", { place: at, id: data.ids ? data.ids[at] : at, text: data.labels[at] });
  function zoom(times, x = state.width / 2, y = state.height / 2) {
    const [dx, dy] = [(x - state.width / 2) / state.zoom, (state.height / 2 - y) / state.zoom];
    state.x += dx * (1 - 1 / times);
    state.y += dy * (1 - 1 / times);
    state.zoom *= times;
    later();
  }
  function centre(at) {
    [state.x, state.y] = [xy[2 * at], xy[2 * at + 1]];
    point(at, true);
    later();
  }
  function find() {
    const wanted = input.value.trim().toLowerCase();
    const hits = wanted ? data.labels.flatMap((text, at) => (text.toLowerCase().includes(wanted) ? [at] : [])) : [];
    hits.sort((one, other) => data.labels[one].length - data.labels[other].length);
    state.found = hits.slice(0, 50);
    const go = (at) =>
      make(
        "li",
        {},
        make(
          "button",
          { type: "button", class: "pw-choose", click: () => (centre(at), choose(at)) },
          make("bdi", {}, names[at]),
        ),
      );
    list.replaceChildren(...state.found.map(go));
    if (wanted) line.show(`${hits.length} found`, true);
    later();
  }
  const drag = { x: 0, y: 0, on: false, moved: false };
  canvas.addEventListener("pointerdown", (event) => {
    Object.assign(drag, { x: event.offsetX, y: event.offsetY, on: true, moved: false });
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag.on) return point(nearest(event.offsetX, event.offsetY));
    drag.moved ||= Math.hypot(event.offsetX - drag.x, event.offsetY - drag.y) > 3;
    state.x -= (event.offsetX - drag.x) / state.zoom;
    state.y += (event.offsetY - drag.y) / state.zoom;
    Object.assign(drag, { x: event.offsetX, y: event.offsetY });
    return later();
  });
  canvas.addEventListener("pointerup", (event) => {
    drag.on = false;
    if (!drag.moved) choose(nearest(event.offsetX, event.offsetY));
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY);
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    const step = move(event.key);
    const keys = {
      "+": () => zoom(1.4),
      "-": () => zoom(1 / 1.4),
      0: () => (all(), later()),
      Enter: () => choose(state.near),
    };
    if (event.ctrlKey || event.metaKey || !(step || keys[event.key])) return;
    event.preventDefault();
    if (!step) return keys[event.key]();
    state.x += (40 * step[1]) / state.zoom;
    state.y -= (40 * step[0]) / state.zoom;
    return point(nearest(state.width / 2, state.height / 2), true);
  });
  input.addEventListener("input", find);
  root.append(
    make("div", { class: "pw-bar" }, make("label", {}, "search ", input)),
    make("div", { class: "pw-beside" }, make("div", { class: "pw-over" }, canvas, over), list),
    ...line.nodes,
  );
  if (data.note) root.append(make("p", { class: "pw-note" }, data.note));
  function measure() {
    const first = state.width === 0;
    Object.assign(state, { width: canvas.clientWidth, height: canvas.clientHeight });
    if (first) all();
    later();
  }
  const resize = new ResizeObserver(measure);
  measure();
  resize.observe(canvas);
  if (search) find();
  return { repaint: later, paint, centre, stop: () => resize.disconnect() };
}
