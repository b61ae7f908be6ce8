/** The Classify screen: a text with its label and the reasons, or a table of texts, pasted or from a file. */

import { make } from "../views/dom.js";
import { askJson, wasStopped } from "../api.js";
import { textOf } from "../files.js";
import { newest } from "../newest.js";
import { parse } from "./classify/csv.js";
import { makeMany } from "./classify/many.js";
import { makeOne } from "./classify/one.js";

const PAUSE = 500; // milliseconds after the last change
const MANY = 2; // a pasted text with at least this many rows is treated as a table

export const keys = [
  ["Ctrl + Enter", "classify now"],
  ["← → in the text", "move from token to token"],
  ["Enter on a label", "explain that label"],
  ["Escape", "return from a row to the table"],
];

/** @param {HTMLElement} element @param {import("../screens.js").Context} context */
export function show(element, { model, state, signal, fail, announce, go }) {
  const page = { back: null };
  const asking = newest(signal);
  const calibration = askJson(`classifying/calibration?model=${encodeURIComponent(model.id)}`, undefined, {
    signal,
  }).catch(() => null);
  const method = state.get("method", "integrated_gradients");
  const one = makeOne({
    model,
    signal,
    fail,
    announce,
    method,
    remember: (name) => state.set({ method: name }),
    calibration,
  });
  const many = makeMany({ model, signal, fail, announce, chosen: openRow });
  const field = make("textarea", {
    rows: 3,
    dir: "auto",
    spellcheck: "false",
    "aria-label": "Text",
    placeholder: "Write a text, or paste a table of texts",
    input: later,
  });
  const button = (text, click, attributes = {}) => make("button", { type: "button", click, ...attributes }, text);
  const chooser = make("input", {
    type: "file",
    accept: ".csv,.tsv,.txt,text/*",
    hidden: true,
    change: () => chooser.files[0] && openFile(chooser.files[0]),
  });
  const back = button("‹ Back to the table", goBack, { hidden: true });
  const examples = model.examples
    .slice(0, 3)
    .map((text) => button(text.slice(0, 60), () => showText(text), { dir: "auto" }));

  function later() {
    asking.later(take, PAUSE);
  }
  async function take() {
    const stopped = asking.begin();
    const text = field.value;
    state.set({ text });
    if (!text.trim()) return one.hide();
    try {
      await one.show(text, stopped);
    } catch (error) {
      if (!stopped.aborted && !wasStopped(error)) fail(error);
    }
  }
  function showText(text) {
    field.value = text;
    return take();
  }
  function showTable(text) {
    const rows = parse(text);
    if (!rows.length) return fail(new Error("This table contains no text."));
    asking.end();
    one.hide();
    leaveRow();
    field.value = "";
    state.set({ text: "" });
    return many.show(rows);
  }
  async function openFile(file) {
    chooser.value = "";
    try {
      showTable(await textOf(file));
    } catch (error) {
      fail(error);
    }
  }
  field.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text");
    if (field.value.trim() || parse(text).length < MANY) return;
    event.preventDefault();
    showTable(text);
  });
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    openFile(event.dataTransfer.files[0]);
  });

  function openRow(text, row) {
    page.back = row.dataset.number;
    many.root.hidden = true;
    back.hidden = false;
    showText(text);
    back.focus();
  }
  function leaveRow() {
    back.hidden = true;
    page.back = null;
  }
  function goBack() {
    const number = page.back;
    leaveRow();
    one.hide();
    field.value = "";
    state.set({ text: "" });
    many.root.hidden = false;
    many.root.querySelector(`button[data-number="${number}"]`)?.focus();
  }
  document.addEventListener(
    "keydown",
    (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "Enter") take();
      else if (event.key === "Escape" && page.back !== null && !document.querySelector("dialog[open]")) goBack();
      else return;
      event.preventDefault();
    },
    { signal },
  );
  element.append(
    make("h1", { class: "pw-hidden" }, "Classify"),
    make(
      "div",
      { class: "asked" },
      field,
      make(
        "div",
        { class: "line" },
        back,
        make("span", { class: "hint" }, "Try"),
        examples,
        make(
          "span",
          { class: "push line" },
          button("Inspect", () => go("inspect", { model: model.id, text: field.value })),
          button("Open a table", () => chooser.click()),
        ),
        chooser,
      ),
    ),
    one.root,
    many.root,
  );
  if (state.get("text")) showText(state.get("text"));
  return { stop: () => (asking.end(), many.hide()) };
}
