/** A small table of terms and their required translations. Its text has the format of a glossary file. */

import { make } from "../../views/dom.js";

const CASES = [
  ["", "any case"],
  ["exact", "exact case"],
  ["follow", "copy case"],
];

/** Return [term, words, rule] for each line of a glossary file. */
export const rowsOf = (text) =>
  text
    .split(/\r?\n/)
    .filter((line) => line.trim() && !line.startsWith("#"))
    .map((line) => [...line.split("\t"), "", "", ""].slice(0, 3).map((cell) => cell.trim()));

/** Return the glossary file of rows. Rows without both sides are left out. */
export const textOf = (rows) =>
  rows
    .map((row) => row.map((cell) => cell.replace(/\s+/g, " ").trim()))
    .filter(([term, words]) => term && words)
    .map(([term, words, rule]) => [term, words, ...(rule ? [rule] : [])].join("\t"))
    .join("\n");

/** Create the table. Calls `changed(text)` when the glossary has changed. */
export function makeGlossary({ text, changed }) {
  const body = make("tbody");
  const note = make("p", { class: "hint" }, "Separate alternative forms with |.");
  const add = make("button", { type: "button", click: () => addRow([], true) }, "Add a term");
  const columns = ["term", "required words", "case"].map((name) => make("th", { scope: "col" }, name));
  columns.push(make("th", { scope: "col" }, make("span", { class: "pw-hidden" }, "remove")));
  const table = make("table", {}, make("thead", {}, make("tr", {}, columns)), body);
  let before = text;

  const cells = (row) => [...row.querySelectorAll("input, select")].map(({ value }) => value);
  function settle() {
    const now = textOf([...body.children].map(cells));
    if (now !== before) changed((before = now));
  }
  function input(value, name) {
    const field = make("input", { type: "text", dir: "auto", "aria-label": name, change: settle });
    field.value = value || "";
    field.addEventListener("paste", (event) => {
      const pasted = event.clipboardData.getData("text");
      if (!pasted.includes("\t")) return;
      event.preventDefault();
      field.closest("tr").remove();
      rowsOf(pasted).forEach((row) => addRow(row));
      settle();
    });
    return field;
  }
  function addRow([term, words, rule] = [], focused = false) {
    const options = CASES.map(([value, name]) => make("option", { value, selected: value === (rule || "") }, name));
    const choice = make("select", { "aria-label": "Case", change: settle }, options);
    const away = make("button", { type: "button", class: "plain", "aria-label": "Remove this term" }, "×");
    const fields = [input(term, "Term"), input(words, "Required words"), choice, away];
    const row = make(
      "tr",
      {},
      fields.map((field) => make("td", {}, field)),
    );
    away.addEventListener("click", () => (row.remove(), settle(), add.focus()));
    body.append(row);
    if (focused) fields[0].focus();
  }
  rowsOf(text).forEach((row) => addRow(row));
  const title = make("summary", {}, "Glossary");
  const root = make("details", { class: "glossary", open: Boolean(text) }, title, table, add, note);
  return {
    root,
    /** Show how many terms were found, forced, inserted or missed. */
    tell(counts) {
      const said = Object.entries(counts).map(([state, count]) => `${count} ${state}`);
      title.textContent = said.length ? `Glossary · ${said.join(", ")}` : "Glossary";
    },
  };
}
