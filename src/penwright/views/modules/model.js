/**
 * A whole model as one picture: from the text through embeddings, blocks and heads to probabilities. It zooms in: the
 * whole, a block, a head, one row of its attention, one product of a query and a key.
 */

import { percent } from "./axes.js";
import { emit, make, readout, twin, view } from "./dom.js";
import { asTable, describe, hit, layout, moved } from "./flow.js";
import { paintFlow } from "./flowpaint.js";
import { move } from "./keyboard.js";
import { library, prediction, strongestPaths, zoom } from "./pieces.js";
import { drawLevel } from "./place.js";
import { label, textOf } from "./tokens.js";

const STEP = 450; // milliseconds of the animation of a step
const LEGEND =
  "Squares and circles: the stronger the colour, the more the step adds to the token's vector. " +
  "Numbers are lengths of vectors: above the line what the step adds, below it the result. " +
  "Curves: where the chosen token attends, as a mean over heads; point at a head to see its own attention.";
const HINTS = {
  whole: "Point at anything, or use the arrow keys; Enter goes in, Escape goes out.",
  place: "One step at one token. Each strip is a vector: orange above zero, blue below. Choose a head to go in.",
  head: "Each row is a token, each column a token that it attends to. Choose a row to see how its weights are computed.",
  row: "One row of attention: one query and all keys. Choose a token to see its product.",
  product: "One product of a query and a key. Point at a number to read it.",
};

/**
 * data: {map: a ModelMap, pieces: {"model 3": a ModelMap, "place decoder.0 3": a PlaceDetail, "arithmetic decoder.0.1":
 * a HeadArithmetic}, circuit: {position, edges, sentences, explanation, names, values} or null}. options: {ask(picture,
 * extra), which returns data that are not in `pieces`; circuit(position); adds(id), which returns the text
 * that a token adds at the end, or "" if it cannot be appended; without it, the text does not grow}. Emits position-chosen {position}, outcome-chosen {text, id}.
 */
export function draw(element, data, options = {}) {
  return view(element, "model", build, data, options);
}

function build(root, data, options) {
  const piece = library(data, options.ask);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const state = {
    map: data.map,
    path: [],
    cursor: null,
    plan: null,
    circuit: null,
    values: null,
    edge: null,
    pulse: null,
    frame: 0,
    wanted: 0,
    drawn: null,
    background: null,
  };
  const last = () => state.map.stacks.at(-1);
  const crumbs = make("nav", { class: "pw-crumbs", "aria-label": "Levels of the picture" });
  const line = readout(HINTS.whole);
  const canvas = make(
    "canvas",
    {
      class: "pw-flowmap",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "model",
      "aria-label": "The whole model",
    },
  );
  const side = make("div", { class: "pw-model-side" });
  const whole = make(
    "div",
    { class: "pw-model-whole" },
    make("div", { class: "pw-model-map" }, canvas, make("p", { class: "pw-note" }, LEGEND)),
    side,
  );
  const inner = make("div", { class: "pw-model-inner", hidden: true, tabindex: -1 });
  const edges = make("div", { class: "pw-circuit" });
  const steps = [
    make("button", { type: "button", click: () => step(-1) }, "◀ back"),
    make("button", { type: "button", click: () => step(1) }, "next token ▶"),
  ];
  const find = make("button", { type: "button", "aria-pressed": "false", click: () => toggleCircuit() }, "Circuit");
  const has = data.circuit || options.circuit;
  root.append(
    make(
      "div",
      { class: "pw-bar pw-model-bar" },
      crumbs,
      make("div", { class: "pw-choices" }, steps),
      has ? find : null,
    ),
    ...line.nodes,
    whole,
    edges,
    inner,
  );
  root.append(twin("The numbers of this position as a table", () => asTable(state.map)));

  function repaint() {
    if (state.frame || !state.plan) return;
    state.frame = requestAnimationFrame(() => {
      state.frame = 0;
      paintFlow(canvas, state.map, state.plan, state);
    });
  }
  function lay() {
    const width = canvas.parentElement.clientWidth;
    if (!width) return;
    const cursor = state.cursor;
    state.plan = layout(state.map, width);
    canvas.style.height = `${state.plan.height}px`;
    if (cursor) state.cursor = { ...cursor, place: state.plan.places[cursor.place.at] };
    if (state.cursor && state.cursor.row >= state.cursor.place.stack.tokens.length) state.cursor = null;
    repaint();
  }
  const isLast = () => state.map.position >= last().tokens.length - 1;
  /** Return a function that appends an outcome to the text, or null if it cannot be appended. */
  function appending(at) {
    const id = state.map.outcomes.ids.at(at);
    const text = isLast() && options.adds?.(id);
    return text ? () => emit(root, "outcome-chosen", { text, id }) : null;
  }
  function showSide() {
    side.replaceChildren(...prediction(state.map, appending));
    steps[0].disabled = state.map.position === 0;
    steps[1].disabled = isLast() && !appending(0);
  }

  /** Choose another position; the newest choice wins. */
  async function choosePosition(position) {
    const now = ++state.wanted;
    try {
      const map = await piece("model", { position });
      if (now !== state.wanted) return;
      state.map = map;
      if (state.circuit) toggleCircuit(false);
      lay();
      showSide();
      emit(root, "position-chosen", { position });
    } catch (error) {
      line.show(error.message, true);
    }
  }
  async function step(by) {
    const position = state.map.position + by;
    if (position < 0) return;
    if (position >= last().tokens.length) return void appending(0)?.();
    animate();
    if (state.path.length) open([]);
    await choosePosition(position);
    const token = label(textOf(last().tokens[position]));
    const { texts, probabilities } = state.map.outcomes;
    const next = `“${label(String(texts[0]))}” next (${percent(probabilities.at(0))})`;
    line.show(`The model has read “${token}”. It expects ${next}.`, true);
  }
  function animate() {
    if (still) return;
    const start = performance.now();
    const tick = (now) => {
      const share = (now - start) / STEP;
      state.pulse = share < 1 ? share : null;
      repaint();
      if (share < 1) requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  /** The circuit: edges over the heads, and a sentence for each. */
  async function toggleCircuit(on = !state.circuit) {
    find.setAttribute("aria-pressed", String(on));
    if (!on) {
      [state.circuit, state.values, state.edge] = [null, null, null];
      edges.replaceChildren();
      return repaint();
    }
    find.disabled = true;
    line.show("Searching for the strongest paths …");
    try {
      const known = data.circuit?.position === state.map.position ? data.circuit : null;
      const found = known || (await options.circuit?.(state.map.position));
      if (!found) throw new Error("This file has only the circuit of a different position.");
      state.circuit = found.edges;
      state.values = new Map(found.names.map((name, at) => [name, found.values.at(at)]));
      edges.replaceChildren(...strongestPaths(found, (at) => ((state.edge = at), repaint())));
      line.show(found.explanation, true);
    } catch (error) {
      find.setAttribute("aria-pressed", "false");
      line.show(error.message, true);
    }
    find.disabled = false;
    return repaint();
  }
  /** Go to a level: [] the whole, then {level, ...} for each step inwards. */
  async function open(path) {
    const now = ++state.wanted;
    const before = state.path.length;
    try {
      const go = (next) => open([...state.path, next]);
      const drawn = path.length ? await drawLevel(path.at(-1), piece, line, go) : null;
      if (now !== state.wanted) return;
      state.path = path;
      whole.hidden = edges.hidden = path.length > 0;
      inner.hidden = path.length === 0;
      inner.replaceChildren(...(drawn ? [drawn.node] : []));
      state.drawn = drawn?.build();
      line.show(HINTS[path.at(-1)?.level || "whole"]);
      showCrumbs();
      const shown = path.length ? inner : whole;
      if (!still) zoom(shown, path.length >= before ? 0.94 : 1.06);
      if (path.length) inner.focus({ preventScroll: true });
      else canvas.focus({ preventScroll: true });
      if (!path.length) lay();
    } catch (error) {
      line.show(error.message, true);
    }
  }
  function showCrumbs() {
    const names = ["whole model", ...state.path.map(({ title }) => title)];
    const crumb = (name, at) => at === names.length - 1 ? make("span", { "aria-current": "true" }, name) : make(
      "button",
      { type: "button", class: "pw-choose", click: () => open(state.path.slice(0, at)) },
      name,
    );
    crumbs.replaceChildren(...names.flatMap((name, at) => (at ? [" › ", crumb(name, at)] : [crumb(name, at)])));
  }
  function enter({ place, column, row, head }) {
    const { kind, sublayer } = place.columns[column];
    const position = row === undefined ? place.stack.position : row;
    const token = label(textOf(place.stack.tokens[position]), 12);
    if (kind === "attention" && head !== undefined) {
      const name = `${sublayer.part}.${sublayer.layer}.${head}`;
      const block = {
        level: "place",
        place: `${place.stack.name}.${sublayer.layer}`,
        position,
        title: `block ${sublayer.layer}, “${token}”`,
      };
      return open([block, { level: "head", head: name, position, title: `head ${sublayer.layer}.${head}` }]);
    }
    const [where, title] = {
      output: ["output", "output"],
      embedding: [`${place.stack.name}.embedding`, `embedding of “${token}”`],
    }[kind] || [`${place.stack.name}.${sublayer.layer}`, `block ${sublayer.layer}, “${token}”`];
    return open([{ level: "place", place: where, position, title }]);
  }

  function setCursor(cursor, aloud) {
    state.cursor = cursor;
    if (cursor) line.show(describe(state.map, cursor), aloud);
    repaint();
  }
  canvas.addEventListener("pointermove", (event) => {
    const found = hit(state.plan, event.offsetX, event.offsetY);
    canvas.style.cursor = found ? "pointer" : "default";
    setCursor(found, false);
  });
  canvas.addEventListener("pointerleave", () => setCursor(null, false));
  canvas.addEventListener("click", (event) => {
    const found = hit(state.plan, event.offsetX, event.offsetY);
    if (!found) return;
    setCursor(found, false);
    const chosen = found.row === undefined || found.row === found.place.stack.position || found.place.stack !== last();
    if (chosen) enter(found);
    else choosePosition(found.row);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const start = state.cursor || { place: state.plan.places.at(-1), column: 0, row: last().position };
    const by = move(event.key);
    if (event.key === "Enter") enter(start);
    else if (by) setCursor(moved(state.plan, start, by), true);
    else return;
    event.preventDefault();
    const { place, row } = state.cursor || {};
    if (by && by[0] && row !== undefined && place.stack === last() && row !== state.map.position) choosePosition(row);
  });
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !state.path.length) return;
    event.preventDefault();
    event.stopPropagation();
    open(state.path.slice(0, -1));
  });
  const watch = new ResizeObserver(() => !whole.hidden && lay());
  watch.observe(whole);
  showCrumbs();
  showSide();
  lay();
  return {
    repaint: () => (repaint(), state.drawn?.repaint?.()),
    stop: () => watch.disconnect(),
    choosePosition,
    open,
    state,
  };
}
