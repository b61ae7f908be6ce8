/** The Clusters screen: pasted or held-out texts, grouped by topic, and the near-duplicates among them. */

import { percent } from "../views/axes.js";
import { make } from "../views/dom.js";
import { askEvents } from "../api.js";
import { textOf } from "../files.js";
import { newest } from "../newest.js";
import { download } from "../saving.js";
import { columnsOf, format, parse } from "./classify/csv.js";

const MOST = 2000; // number of texts that the server compares
const LONGEST = 1000; // number of characters of a text that it reads
const CENTRAL = 3; // number of texts of a cluster to show at first
const MORE = 50; // maximum number of further texts of a cluster to show
const PAIRS = 100; // maximum number of near-duplicates to show
const MOST_CLUSTERS = 30;

export const keys = [["Ctrl + Enter", "find the clusters of the texts"]];

const number = (value) => value.toLocaleString("en");
// The first characters of a text, without half of a pair of UTF-16 units at the end.
const shortened = (text) => text.slice(0, LONGEST).replace(/[\ud800-\udbff]$/, "");
const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** @param {HTMLElement} element @param {import("../screens.js").Context} context */
export function show(element, { model, state, signal, fail, announce }) {
  const asking = newest(signal);
  const shown = { texts: null, found: null }; // texts: null for the held-out texts of the run
  const button = (text, click, attributes = {}) => make("button", { type: "button", click, ...attributes }, text);
  const field = make("textarea", {
    rows: 6,
    dir: "auto",
    spellcheck: "false",
    "aria-label": "Texts, one per line",
    placeholder: "Paste texts, one per line: at least 10, at most 2,000",
  });
  const options = Array.from({ length: MOST_CLUSTERS - 1 }, (_, at) => String(at + 2));
  const choice = make(
    "select",
    { change: () => (state.set({ n: choice.value }), shown.found && find(shown.texts)) },
    ["", ...options].map((n) => make("option", { value: n, selected: n === state.get("n") }, n || "automatic")),
  );
  const chooser = make("input", {
    type: "file",
    accept: ".csv,.tsv,.txt,text/*",
    hidden: true,
    change: () => chooser.files[0] && openFile(chooser.files[0]).catch(fail),
  });
  const progress = make("progress", { hidden: true, "aria-label": "Progress" });
  const summary = make("p", { class: "summary", "aria-live": "polite" });
  const save = button("Save", () => download(`${model.id}-clusters.csv`, new Blob([table()], { type: "text/csv" })), {
    hidden: true,
  });
  const place = make("div", {});

  function take() {
    const texts = field.value.split("\n").filter((line) => line.trim());
    if (texts.length) return find(texts);
    summary.textContent = "Paste texts above, one per line, or open a file.";
    return field.focus();
  }
  async function openFile(file) {
    chooser.value = "";
    const text = await textOf(file);
    const rows = /\.[ct]sv$/i.test(file.name) ? parse(text) : text.split(/\r?\n/).map((line) => [line]);
    if (!rows.length) return fail(new Error("This file contains no text."));
    const { text: column, hasHeader } = columnsOf(rows, model.labels);
    field.value = rows
      .slice(hasHeader ? 1 : 0)
      .map((row) => (row[column] ?? "").replace(/\s*\n\s*/g, " "))
      .join("\n");
    return take();
  }
  /** Find the clusters of these texts, or of the held-out texts of the run (null). */
  async function find(texts) {
    const stopped = asking.begin();
    Object.assign(shown, { texts, found: null });
    place.replaceChildren();
    save.hidden = true;
    summary.textContent = texts ? "" : "Reading the held-out texts";
    progress.hidden = false;
    progress.removeAttribute("value");
    const given = texts ? { texts: texts.slice(0, MOST).map(shortened) } : {};
    const n = choice.value ? { n: Number(choice.value) } : {};
    const body = { model: model.id, ...given, ...n };
    try {
      for await (const { event, data } of askEvents("clusters", body, { signal: stopped })) {
        if (event === "error") throw Object.assign(new Error(data.message), { status: 0 });
        if (event === "done") draw(data);
        else step(data);
      }
    } catch (error) {
      if (stopped.aborted) return;
      summary.textContent = "";
      fail(error);
    }
    if (!stopped.aborted) progress.hidden = true;
  }
  function step({ done, total }) {
    Object.assign(progress, { max: total, value: done });
    summary.textContent = `Embedding ${number(done)} of ${counted(total, "text")}`;
  }
  function draw(found) {
    const { texts, clusters, duplicates } = found;
    shown.found = found;
    const left = shown.texts && shown.texts.length > MOST ? ` (the first of ${number(shown.texts.length)})` : "";
    const facts = [counted(clusters.length, "cluster"), counted(duplicates.length, "near-duplicate")];
    summary.textContent = [counted(texts.length, "text") + left, ...facts].join(" · ");
    announce(summary.textContent);
    save.hidden = false;
    place.replaceChildren(
      make("div", { class: "cards" }, clusters.map((each, at) => card(each, at, texts))),
      ...(duplicates.length ? [pairs(duplicates, texts)] : []),
    );
  }
  function card({ words, rows }, at, texts) {
    const item = (row) => make("li", { dir: "auto" }, texts[row]);
    const share = rows.length / texts.length;
    const more = rows.slice(CENTRAL, CENTRAL + MORE);
    const rest = make("details", {}, make("summary", {}, `${counted(more.length, "more text")}`));
    rest.addEventListener("toggle", () => rest.append(make("ul", {}, more.map(item))), { once: true });
    return make(
      "article",
      { class: "card", "aria-label": `Cluster ${at + 1}` },
      make("h2", { dir: "auto" }, words.join(", ") || `Cluster ${at + 1}`),
      make("p", { class: "hint" }, `${counted(rows.length, "text")}, ${percent(share)}`),
      make(
        "span",
        { class: "pw-bar-track", "aria-hidden": "true" },
        make("span", { style: { width: `${100 * share}%` } }),
      ),
      make("ul", {}, rows.slice(0, CENTRAL).map(item)),
      more.length ? rest : null,
    );
  }
  function pairs(duplicates, texts) {
    const line = ({ similarity, row, earlier }) =>
      make(
        "tr",
        {},
        make("td", { class: "pw-number" }, similarity.toFixed(2)),
        make("td", {}, make("div", { dir: "auto" }, texts[earlier]), make("div", { dir: "auto" }, texts[row])),
      );
    const rest = duplicates.length - PAIRS;
    return make(
      "section",
      { class: "pairs", "aria-labelledby": "near-duplicates" },
      make("h2", { id: "near-duplicates" }, "Near-duplicates"),
      make(
        "p",
        { class: "hint" },
        "Texts that share words, with the cosine similarity of their vectors: 1 if they are equal.",
      ),
      make("table", {}, make("tbody", {}, duplicates.slice(0, PAIRS).map(line))),
      rest > 0 ? make("p", { class: "hint" }, `… and ${number(rest)} more. Save the table to get all of them.`) : null,
    );
  }
  /** Return all texts as CSV, with their clusters, and with the numbers of the texts that they nearly repeat. */
  function table() {
    const { texts, clusters, duplicates } = shown.found;
    const rows = texts.map((text, row) => [String(row + 1), "", "", "", text]);
    clusters.forEach(({ rows: members, similarities }, at) =>
      members.forEach((row, nth) => rows[row].splice(1, 2, String(at + 1), similarities[nth].toFixed(4))),
    );
    duplicates.forEach(({ row, earlier }) => (rows[row][3] = String(earlier + 1)));
    return format([["number", "cluster", "similarity", "duplicate_of", "text"], ...rows]);
  }

  document.addEventListener(
    "keydown",
    (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.key !== "Enter") return;
      event.preventDefault();
      take();
    },
    { signal },
  );
  element.append(
    make("h1", { class: "pw-hidden" }, "Clusters"),
    make(
      "div",
      { class: "asked" },
      field,
      make(
        "div",
        { class: "line" },
        button("Find clusters", take, { class: "main" }),
        make("label", { class: "hint" }, "number of clusters ", choice),
        make(
          "span",
          { class: "push line" },
          button("Use the held-out texts", () => find(null)),
          button("Open a file", () => chooser.click()),
        ),
        chooser,
      ),
    ),
    make("div", { class: "line" }, summary, progress, make("span", { class: "push" }, save)),
    place,
  );
  return { stop: () => asking.end() };
}
