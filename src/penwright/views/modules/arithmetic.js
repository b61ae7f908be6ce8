/** The arithmetic of one head for one query token: every step, with all numbers. */

import { decimals, number, percent } from "./axes.js";
import { tensor } from "./bytes.js";
import { diverging, inkOn, isDark, sequential } from "./colour.js";
import { make, view } from "./dom.js";
import { label, textOf } from "./tokens.js";

const WIDEST = 8; // most dimensions in a table

/**
 * data: {layer, head, target_tokens, source_tokens, queries [targets, d_head], keys and values [sources, d_head], scores,
 * scaled, masked and weights [targets, sources], output [targets, d_head]}. options: {target: index of the query token}.
 */
export function draw(element, data, options = {}) {
  return view(element, "arithmetic", build, data, options);
}

function build(root, data, options) {
  const fields = ["queries", "keys", "scores", "scaled", "masked", "weights", "values", "output"];
  const numbers = Object.fromEntries(fields.map((name) => [name, tensor(data[name])]));
  const last = data.target_tokens.length - 1;
  const option = (token, place) => make("option", { value: place }, `${place} ${label(textOf(token))}`);
  const select = make("select", { change: () => fill() }, data.target_tokens.map(option));
  select.value = String(Math.min(last, options.target ?? last));
  const steps = make("ol", { class: "pw-steps" });
  root.append(
    make(
      "div",
      { class: "pw-bar" },
      make("label", {}, "query token ", select),
      make("span", { class: "pw-title" }, `layer ${data.layer}, head ${data.head}`),
    ),
    steps,
  );
  const fill = () => steps.replaceChildren(...stepsOf(data, numbers, Number(select.value), isDark(root)));
  fill();
  return { repaint: fill };
}

function stepsOf(data, { queries, keys, scores, scaled, masked, weights, values, output }, target, dark) {
  const width = queries.shape[1];
  const sources = data.source_tokens.map((token) => label(textOf(token)));
  const rowsOf = (values) => sources.map((name, source) => [name, values.part(source)]);
  const column = (values) => sources.map((_, source) => values.at(target, source));
  const product = sources.map((name, source) => [name, times(weights.at(target, source), values.part(source))]);
  const step = (title, note, content) =>
    make(
      "li",
      {},
      make("h3", {}, title),
      note && make("p", { class: "pw-note" }, note),
      make("div", { class: "pw-scroll", tabindex: 0, role: "group", "aria-label": title }, content),
    );
  return [
    step(
      "The query",
      `The query of “${label(textOf(data.target_tokens[target]))}” has ${width} numbers.`,
      vectors([["query", queries.part(target)]], dark),
    ),
    step("The keys", "Each token has a key of the same length.", vectors(rowsOf(keys), dark)),
    step(
      "Scores",
      `The dot product of query and key, divided by √${width} = ${number(Math.sqrt(width))}, so that the scores do not depend on the size of the head. Masked tokens get −∞.`,
      columnsOf(sources, ["query · key", "scaled", "masked"], [scores, scaled, masked].map(column), dark),
    ),
    step(
      "Weights",
      "The softmax of the scores: e to the power of each score, divided by the sum over all tokens. The weights add up to 1.",
      columnsOf(sources, ["weight"], [column(weights)], dark, true),
    ),
    step("Weighted values", "Each token's value times its weight.", vectors(product, dark)),
    step(
      "The output",
      "The sum of the rows above: the output of the head for the query token.",
      vectors([["sum", output.part(target)]], dark),
    ),
  ];
}

const times = (weight, row) => tensor(Array.from(row.numbers(), (value) => weight * value));

/** A table of vectors, one per row. Long vectors are cut to the first numbers and the last one. */
function vectors(rows, dark) {
  const width = rows[0][1].size;
  const places = Array.from({ length: width }, (_, at) => at).filter(
    (at) => width <= WIDEST || at < WIDEST - 1 || at === width - 1,
  );
  const limit = Math.max(...rows.flatMap(([, row]) => Array.from(row.numbers(), Math.abs)), 1e-12);
  const cell = (value) => coloured(decimals(value), diverging(value / limit, dark));
  const gap = (cells, filler) => (width > WIDEST ? [...cells.slice(0, -1), filler(), cells.at(-1)] : cells);
  const heads = gap(
    places.map((at) => make("th", { scope: "col" }, String(at))),
    () => make("th", { scope: "col", class: "pw-gap" }, "…"),
  );
  const lines = rows.map(([name, row]) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("bdi", {}, name)),
      gap(
        places.map((at) => cell(row.number(at))),
        () => make("td", { class: "pw-gap" }, "…"),
      ),
    ),
  );
  return make(
    "table",
    { class: "pw-vectors" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "vector"), heads)),
    make("tbody", {}, lines),
  );
}

const coloured = (text, colour) =>
  make("td", { class: "pw-number", style: { background: colour, color: inkOn(colour) } }, text);

/** A table with one row per source token and one column per kind of number. */
function columnsOf(names, headings, columns, dark, shares = false) {
  const finite = columns.map((column) => Math.max(...column.filter(Number.isFinite).map(Math.abs), 1e-12));
  const cell = (value, at) =>
    coloured(
      shares ? percent(value) : decimals(value),
      shares ? sequential(Math.sqrt(value), dark) : diverging(Number.isFinite(value) ? value / finite[at] : 0, dark),
    );
  const lines = names.map((name, row) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("bdi", {}, name)),
      columns.map((column, at) => cell(column[row], at)),
    ),
  );
  return make(
    "table",
    { class: "pw-vectors" },
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        ["token", ...headings].map((text) => make("th", { scope: "col" }, text)),
      ),
    ),
    make("tbody", {}, lines),
  );
}
