/** A table of texts with their labels, in a chosen order, next to a confusion matrix. */

import { percent } from "../../views/axes.js";
import { draw as drawConfusion } from "../../views/confusion.js";
import { make } from "../../views/dom.js";
import { askJson } from "../../api.js";
import { newest } from "../../newest.js";
import { download } from "../../saving.js";
import { columnsOf, format } from "./csv.js";

const AT_ONCE = 64; // maximum number of texts per request
const MOST_CHARACTERS = 500_000; // maximum length of these texts: the server limits the bytes of a request
const SHOWN = 500; // maximum number of rows to draw

const ORDERS = {
  given: ["original order", (one, other) => one.number - other.number],
  unsure: ["least confident first", (one, other) => one.confidence - other.confidence],
  sure: ["most confident first", (one, other) => other.confidence - one.confidence],
  label: ["by label", (one, other) => one.label.localeCompare(other.label) || one.confidence - other.confidence],
  wrong: ["errors first", (one, other) => other.wrong - one.wrong || other.confidence - one.confidence],
};

/** Return the rows of a request that begins with row `from`: at least one. */
function batch(rows, from) {
  let [to, size] = [from, 0];
  do size += rows[to++].text.length;
  while (to < Math.min(rows.length, from + AT_ONCE) && size + rows[to].text.length <= MOST_CHARACTERS);
  return rows.slice(from, to);
}

/** Create the table. Calls `chosen(text, row)` when a row is opened. */
export function makeMany({ model, signal, announce, chosen, fail }) {
  const summary = make("p", { class: "summary", "aria-live": "polite" });
  const progress = make("progress", { hidden: true, "aria-label": "Progress" });
  const columns = make("span", { class: "line" });
  const order = make("select", { "aria-label": "Order", change: draw });
  const save = make(
    "button",
    { type: "button", click: () => download(`${model.id}.csv`, new Blob([table()], { type: "text/csv" })) },
    "Save",
  );
  const body = make("tbody");
  const head = make("tr");
  const matrix = make("div", { class: "matrix" });
  const all = make(
    "button",
    { type: "button", class: "plain", hidden: true, click: () => ((shown.cell = null), draw()) },
    "Show all",
  );
  const frame = make(
    "div",
    { class: "pw-scroll rows", tabindex: 0, role: "group", "aria-label": "Table of texts" },
    make("table", {}, make("thead", {}, head), body),
  );
  const root = make(
    "div",
    { class: "many", hidden: true },
    make("div", { class: "line" }, summary, progress, make("span", { class: "push line" }, columns, order, all, save)),
    make("div", { class: "beside" }, frame, matrix),
  );
  const shown = { rows: [], found: [], spec: null, cell: null, handle: null };
  const asking = newest(signal);
  matrix.addEventListener(
    "cell-chosen",
    ({ detail }) => ((shown.cell = [model.labels[detail.row], model.labels[detail.column]]), draw()),
  );
  frame.addEventListener("click", (event) => open(event.target.closest("[data-number]")));

  function open(row) {
    if (row) chosen(shown.found[Number(row.dataset.number)].text, row);
  }
  const hasTruth = () => shown.spec.label !== null;

  /** Draw the choice of the columns if there are several. */
  function drawColumns() {
    const { rows, spec } = shown;
    const names = rows[0].map((cell, at) => (spec.hasHeader && cell.trim()) || `column ${at + 1}`);
    const choice = (name, key, none) => {
      const change = ({ target }) => ((spec[key] = target.value === "" ? null : Number(target.value)), classify());
      const options = names.map((text, at) =>
        make("option", { value: at, selected: spec[key] === at }, text.slice(0, 30)),
      );
      const empty = none ? [make("option", { value: "", selected: spec[key] === null }, "none")] : [];
      return make("label", { class: "hint" }, `${name} `, make("select", { change }, empty, options));
    };
    columns.replaceChildren(
      ...(names.length > 1 ? [choice("text", "text", false), choice("label", "label", true)] : []),
    );
    const orders = Object.entries(ORDERS).filter(([name]) => name !== "wrong" || hasTruth());
    order.replaceChildren(
      ...orders.map(([value, [name]]) => make("option", { value, selected: value === order.value }, name)),
    );
  }
  async function classify() {
    const stopped = asking.begin();
    const { rows, spec } = shown;
    drawColumns();
    const given = rows
      .slice(spec.hasHeader ? 1 : 0)
      .map((row) => ({
        text: row[spec.text] ?? "",
        truth: spec.label === null ? null : (row[spec.label] ?? "").trim(),
      }));
    shown.found = [];
    shown.cell = null;
    progress.hidden = false;
    progress.max = given.length;
    try {
      for (let from = 0, some; from < given.length; from += some.length) {
        progress.value = from;
        summary.textContent = `${from.toLocaleString("en")} of ${given.length.toLocaleString("en")}`;
        some = batch(given, from);
        const { results } = await askJson(
          "classify",
          { model: model.id, texts: some.map(({ text }) => text) },
          { signal: stopped },
        );
        results.forEach((result, at) => shown.found.push(rowOf(some[at], result, from + at)));
      }
      draw();
      announce(summary.textContent);
    } catch (error) {
      if (stopped.aborted) return;
      draw(); // the rows that are finished
      fail(error);
    }
    if (!stopped.aborted) progress.hidden = true;
  }
  function rowOf({ text, truth }, { label, labels, score, scores }, number) {
    const isSingle = labels === null && score === null;
    const isKnown = isSingle && truth !== null && model.labels.includes(truth);
    return {
      number,
      text,
      truth,
      isKnown,
      label: labels?.join(" | ") ?? (score === null ? (label ?? "") : String(score)), // "" for a blank text
      scores,
      confidence: scores[label] ?? 0,
      wrong: Number(isKnown && truth !== label),
    };
  }
  function draw() {
    const { found, cell } = shown;
    const rows = found
      .filter(({ truth, label }) => !cell || (truth === cell[0] && label === cell[1]))
      .toSorted(ORDERS[order.value || "given"][1]);
    all.hidden = !cell;
    head.replaceChildren(
      ...["number", "label", "probability", ...(hasTruth() ? ["given"] : []), "text"].map((name) =>
        make("th", { scope: "col" }, name),
      ),
    );
    body.replaceChildren(...rows.slice(0, SHOWN).map(line));
    if (rows.length > SHOWN)
      body.append(
        make(
          "tr",
          {},
          make(
            "td",
            { colspan: 5, class: "hint" },
            `… and ${(rows.length - SHOWN).toLocaleString("en")} more. Save the table to get all of them.`,
          ),
        ),
      );
    drawMatrix();
  }
  function line({ number, text, truth, label, confidence, wrong }) {
    const look = make(
      "button",
      { type: "button", class: "plain", "data-number": number, "aria-label": `Open text ${number + 1}` },
      String(number + 1),
    );
    const bar = make(
      "span",
      { class: "pw-bar-track", "aria-hidden": "true" },
      make("span", { style: { width: `${100 * confidence}%` } }),
    );
    const given = hasTruth()
      ? [
          make(
            "td",
            { class: wrong ? "wrong" : "" },
            make("bdi", {}, truth),
            wrong ? make("span", { class: "hint" }, " ✗") : "",
          ),
        ]
      : [];
    return make(
      "tr",
      { "data-number": number },
      make("td", {}, look),
      make("th", { scope: "row" }, make("bdi", {}, label)),
      make("td", { class: "pw-number sure" }, bar, percent(confidence)),
      given,
      make("td", { class: "text", dir: "auto" }, text.slice(0, 300)),
    );
  }
  function drawMatrix() {
    const known = shown.found.filter(({ isKnown }) => isKnown);
    const right = known.filter(({ wrong }) => !wrong).length;
    const n = shown.found.length.toLocaleString("en");
    summary.textContent = known.length
      ? `${n} texts · ${percent(right / known.length)} of ${known.length.toLocaleString("en")} labelled texts correct`
      : `${n} texts`;
    shown.handle?.destroy();
    shown.handle = null;
    matrix.hidden = !known.length;
    if (!known.length) return;
    const counts = model.labels.map((truth) =>
      model.labels.map((label) => known.filter((each) => each.truth === truth && each.label === label).length),
    );
    shown.handle = drawConfusion(matrix, { labels: model.labels, counts });
  }
  /** Return the table as CSV: the text, the given label, the predicted label, and all probabilities. */
  function table() {
    const names = ["text", ...(hasTruth() ? ["given"] : []), "label", ...model.labels.map((label) => `p(${label})`)];
    const rows = shown.found.map(({ text, truth, label, scores }) => [
      text,
      ...(hasTruth() ? [truth] : []),
      label,
      ...model.labels.map((name) => scores[name]?.toFixed(6) ?? ""),
    ]);
    return format([names, ...rows]);
  }
  return {
    root,
    /** Classify the rows of a table. */
    show(rows) {
      root.hidden = false;
      shown.rows = rows;
      shown.spec = columnsOf(rows, model.labels);
      return classify();
    },
    hide() {
      asking.end();
      root.hidden = true;
    },
  };
}
