/** A matrix as pixels, with labels that stay visible, zoom, a crosshair for pointer and keys, and a table. */

import { number } from "./axes.js";
import { isDark, pixels } from "./colour.js";
import { emit, make, readout, table, twin } from "./dom.js";
import { move } from "./keyboard.js";

const READABLE = 12; // pixels per cell; smaller cells have numbers instead of tokens as labels
const LARGEST = 30; // pixels per cell, unless zoomed in

/** Paint values (a Tensor [rows, columns]) on a canvas with one pixel per value. Cells that are `hidden` stay clear. */
export function paint(canvas, values, { signed = false, limit = 1, hidden = null }) {
  const [rows, columns] = values.shape;
  const colours = pixels(signed, isDark(canvas));
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const out = new Uint32Array(image.data.buffer);
  if (signed) {
    for (let at = 0; at < out.length; at++) {
      const share = Math.max(-1, Math.min(1, values.values[at] / limit)) || 0;
      out[at] = colours[Math.round((share + 1) * 127.5)];
    }
  } else {
    const bytes = values.bytes();
    for (let at = 0; at < out.length; at++) out[at] = colours[bytes[at]];
  }
  if (hidden) {
    for (let row = 0, at = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, at++) if (hidden(row, column)) out[at] = 0;
    }
  }
  context.putImageData(image, 0, 0);
}

/** A colour bar with the numbers that the colours represent. */
export function legend({ signed = false, limit = 1 }) {
  const bar = make("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const marks = signed ? [-limit, 0, limit] : [0, 0.05, 0.25, 0.5, 1];
  const place = (value) => (signed ? (value / limit + 1) / 2 : Math.sqrt(value));
  const ticks = marks.map((value) => make("span", { style: { left: `${100 * place(value)}%` } }, number(value)));
  const repaint = () => {
    const context = bar.getContext("2d");
    const image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(pixels(signed, isDark(bar)));
    context.putImageData(image, 0, 0);
  };
  return { node: make("div", { class: "pw-legend" }, bar, make("div", {}, ticks)), repaint };
}

/** Labels along one side: every token if they fit, else some numbers. */
function side(name, texts) {
  const longest = Math.max(...texts.map((text) => text.length));
  const node = make("div", { class: `pw-side pw-${name}`, "aria-hidden": "true", style: { "--longest": longest } });
  return {
    node,
    lay(cell) {
      const every = cell >= READABLE ? 1 : Math.ceil(36 / cell / 5) * 5;
      const spans = [];
      for (let at = 0; at < texts.length; at += every) {
        const start = `${at * cell}px`;
        const style = { [name === "left" ? "top" : "left"]: start, "--cell": `${cell}px` };
        spans.push(make("span", { style }, every === 1 ? make("bdi", {}, texts[at]) : String(at)));
      }
      node.classList.toggle("pw-tokens", every === 1);
      node.style.setProperty(name === "left" ? "height" : "width", `${texts.length * cell}px`);
      node.replaceChildren(...spans);
    },
  };
}

/**
 * Build a matrix in `root`. `values` is a Tensor [rows, columns]; `rows` and `columns` are labels; `say(row, column)`
 * describes a cell; `name` is the accessible name. Emits cell-chosen {row, column, value}.
 */
export function matrix(root, { values, rows, columns, name, say, signed = false, limit = 1, hidden = null }) {
  const canvas = make("canvas", { class: "pw-pixels", width: columns.length, height: rows.length });
  const bands = [make("div", { class: "pw-band" }), make("div", { class: "pw-band" })];
  const field = make(
    "div",
    { class: "pw-field", tabindex: 0, role: "application", "aria-roledescription": "matrix", "aria-label": name },
    canvas,
    bands,
  );
  const sides = [side("top", columns), side("left", rows)];
  const grid = make(
    "div",
    { class: "pw-matrix" },
    make("div", { class: "pw-corner" }),
    sides[0].node,
    sides[1].node,
    field,
  );
  const scroller = make("div", { class: "pw-scroll pw-frame" }, grid);
  const line = readout(`${name}. Point at a cell, or use the arrow keys; Enter chooses, + and − zoom, 0 fits the page.`);
  const key = legend({ signed, limit });
  const at = { row: 0, column: 0, cell: 1, pinned: false };

  function fit() {
    const room = Math.min((scroller.clientWidth || 600) - 110, 700);
    return Math.max(1, Math.min(LARGEST, Math.floor(Math.min(room / columns.length, 560 / rows.length))));
  }
  function zoom(cell) {
    at.cell = Math.max(1, Math.min(64, Math.round(cell)));
    field.style.setProperty("width", `${columns.length * at.cell}px`);
    field.style.setProperty("height", `${rows.length * at.cell}px`);
    sides.forEach((each) => each.lay(at.cell));
    mark();
  }
  function mark() {
    const { row, column, cell } = at;
    bands[0].style.cssText = `top:0;height:${cell}px;width:100%;transform:translateY(${row * cell}px)`;
    bands[1].style.cssText = `left:0;width:${cell}px;height:100%;transform:translateX(${column * cell}px)`;
  }
  function select(row, column, aloud = false) {
    at.row = Math.max(0, Math.min(rows.length - 1, row));
    at.column = Math.max(0, Math.min(columns.length - 1, column));
    mark();
    line.show(say(at.row, at.column), aloud);
  }
  function intoView() {
    const [top, left] = [at.row * at.cell, at.column * at.cell];
    const [high, wide] = [sides[0].node.offsetHeight, sides[1].node.offsetWidth];
    const room = [scroller.clientHeight - high - at.cell, scroller.clientWidth - wide - at.cell];
    scroller.scrollTop = Math.min(top, Math.max(scroller.scrollTop, top - room[0]));
    scroller.scrollLeft = Math.min(left, Math.max(scroller.scrollLeft, left - room[1]));
  }
  const choose = () =>
    emit(field, "cell-chosen", { row: at.row, column: at.column, value: values.at(at.row, at.column) });
  const under = (event) => [Math.floor(event.offsetY / at.cell), Math.floor(event.offsetX / at.cell)];

  field.addEventListener("pointermove", (event) => {
    const [row, column] = under(event);
    if (!at.pinned && (row !== at.row || column !== at.column)) select(row, column);
  });
  field.addEventListener("click", (event) => {
    select(...under(event));
    choose();
  });
  field.addEventListener("keydown", (event) => {
    const step = move(event.key);
    const keys = {
      Enter: choose,
      " ": () => (at.pinned = !at.pinned),
      "+": () => zoom(at.cell * 1.5 + 1),
      "-": () => zoom(at.cell / 1.5 - 1),
      0: () => zoom(fit()),
      Home: () => select(at.row, 0, true),
      End: () => select(at.row, columns.length - 1, true),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(step || keys[event.key])) return;
    event.preventDefault();
    if (step)
      select(at.row + step[0] * (event.shiftKey ? 10 : 1), at.column + step[1] * (event.shiftKey ? 10 : 1), true);
    else keys[event.key]();
    intoView();
  });
  scroller.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? at.cell * 1.25 + 1 : at.cell / 1.25 - 1);
    },
    { passive: false },
  );
  const button = (text, title, click) => make("button", { type: "button", "aria-label": title, title, click }, text);
  const tools = make(
    "div",
    { class: "pw-choices" },
    button("−", "Zoom out", () => zoom(at.cell / 1.5 - 1)),
    button("+", "Zoom in", () => zoom(at.cell * 1.5 + 1)),
    button("fit", "Fit to the page", () => zoom(fit())),
  );
  root.append(make("div", { class: "pw-bar" }, key.node, tools), scroller, ...line.nodes);
  root.append(twin("As a table", () => asTable({ values, rows, columns, hidden })));
  const repaint = () => {
    paint(canvas, values, { signed, limit, hidden });
    key.repaint();
  };
  zoom(fit());
  repaint();
  return { repaint, select, zoom, field, canvas };
}

/** A table of all numbers if they are few, else of the five largest in each row. */
function asTable({ values, rows, columns, hidden }) {
  const shown = (row, column) => (hidden && hidden(row, column) ? "" : number(values.at(row, column)));
  if (columns.length <= 32 && rows.length <= 64) {
    return table(
      ["row", ...columns],
      rows.map((text, row) => [text, ...columns.map((_, column) => shown(row, column))]),
    );
  }
  const strongest = (row) =>
    columns
      .map((text, column) => ({ text, column, size: Math.abs(values.at(row, column)) }))
      .filter(({ column }) => !(hidden && hidden(row, column)))
      .sort((one, other) => other.size - one.size)
      .slice(0, 5)
      .map(({ text, column }) => `${column} ${text}: ${shown(row, column)}`);
  const pad = (cells) => [...cells, ...Array(5 - cells.length).fill("")];
  const lines = rows.map((text, row) => [`${row} ${text}`, ...pad(strongest(row))]);
  return table(["row", "largest", "2nd", "3rd", "4th", "5th"], lines);
}
