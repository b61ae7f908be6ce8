/** The Inspect screen: what happens inside a model for a text of your own, one picture at a time. */

import { make } from "../views/dom.js";
import { label } from "../views/tokens.js";
import { askPacked, wasStopped } from "../api.js";
import { saveMenu } from "../saving.js";
import { aloneNote } from "../screens.js";
import { toolsFor } from "./inspect/tools.js";

const KEPT = 24; // number of cached answers: returning to a picture then needs no request

export const keys = [
  ["Ctrl + Enter", "inspect the text"],
  ["← ↑ → ↓", "move between tokens, heads and cells; Enter opens or chooses"],
  ["Page Up, Page Down", "same head in the previous or next layer"],
  ["[  ]", "previous or next head"],
  ["+  −  0", "zoom in or out of a matrix or a map, or show all of it"],
  ["Space", "pin a cell; on a word, add it to the sum"],
];

const MEANT = {
  writer: ["Text", null],
  translator: ["Source", "Translation (empty: the model's own)"],
  classifier: ["Text", "Label"],
};

/** @param {HTMLElement} element @param {import("../screens.js").Context} context */
export function show(element, { model, models, state, signal, go, announce }) {
  const tools = toolsFor(model);
  const answers = new Map();
  const shown = { handles: [], asked: null, looking: null };
  const text = make("textarea", {
    id: "inspect-text",
    rows: 2,
    dir: "auto",
    spellcheck: "false",
    "aria-label": MEANT[model.kind][0],
    placeholder: "A sentence of your own",
  });
  const target = targetField(model);
  const bar = make("div", { class: "tabs", role: "group", "aria-label": "Pictures" });
  const title = make("h2", { class: "pw-hidden" });
  const lead = make("p", { class: "lead" });
  const controls = make("div", { class: "line controls" });
  const notes = make("div", { "aria-live": "polite" });
  const place = make("div", { class: "shown" });
  const tool = () => tools.find(({ name }) => name === state.get("tool")) || tools[0];
  const question = () => ({ ...shown.asked, name: `${model.id}-${tool().name}` });

  function body(extra) {
    const given = target && target.value ? { target: target.value } : {};
    return { model: model.id, text: state.get("text"), ...given, ...extra };
  }
  /** Request a picture of the text: {views, warnings}. "Save" saves the latest `main` picture. */
  async function ask(picture, extra = {}, { main = true } = {}) {
    const question = { path: `inspect/${picture}`, body: body(extra) };
    const key = JSON.stringify([model.step, question]); // training changes the weights
    if (main) shown.asked = question;
    if (!answers.has(key) || answers.get(key).signal?.aborted) {
      const { signal: stopped } = shown.looking;
      const fresh = { found: askPacked(question.path, question.body, { signal: stopped }), signal: stopped };
      answers.set(key, fresh);
      fresh.found.then(
        () => (fresh.signal = null), // a complete answer stays valid
        () => answers.get(key) === fresh && answers.delete(key),
      );
      if (answers.size > KEPT) answers.delete(answers.keys().next().value);
    }
    const answer = await answers.get(key).found;
    if (answer.warnings.length)
      notes.replaceChildren(...answer.warnings.map((each) => make("p", { class: "hint" }, each)));
    return answer;
  }
  /** Draw a view and return its handle (see views/dom.js). */
  async function draw(where, { name, data, options = {} }, more = {}) {
    const module = await import(`../views/${name}.js`);
    const handle = module.draw(where, data, { ...options, ...more });
    shown.handles.push(handle);
    return handle;
  }
  /** Show the current tool's picture of the text, and abort the previous requests. */
  async function look() {
    shown.looking?.abort();
    shown.looking = new AbortController();
    const now = shown.looking;
    const current = tool();
    clear();
    drawTabs(current);
    title.textContent = current.title;
    lead.textContent = `${current.lead} ${aloneNote(model)}`;
    if (!state.get("text") && !current.textless) return void place.append(make("p", {}, "Write a sentence above."));
    place.setAttribute("aria-busy", "true");
    try {
      const gone = () => now.signal.aborted;
      await current.show({ model, models, state, controls, place, ask, draw, look, gone, announce, open, fail: shownHere });
    } catch (error) {
      if (!now.signal.aborted) shownHere(error);
    }
    if (shown.looking === now) place.removeAttribute("aria-busy");
  }
  function shownHere(error) {
    if (wasStopped(error)) return;
    place.append(make("p", { class: "problem", role: "alert" }, error.message));
    if (!("status" in error)) console.error(error);
  }
  function clear() {
    shown.handles.splice(0).forEach((handle) => handle.destroy());
    [controls, notes, place].forEach((each) => each.replaceChildren());
  }
  /** Open another tool, with some of its state. */
  function open(name, values = {}) {
    state.set({ ...values, tool: name });
    look();
  }
  function drawTabs(current) {
    const tab = ({ name, title }) =>
      make("button", { type: "button", "aria-pressed": String(name === current.name), click: () => open(name) }, title);
    bar.replaceChildren(...tools.map(tab));
    bar.querySelector("[aria-pressed=true]").scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  function take() {
    const asked = { text: text.value, target: target ? target.value : "" };
    const isNew = state.get("text", model.sample) !== asked.text || state.get("target") !== asked.target;
    state.set(isNew ? { ...asked, position: "" } : asked); // other texts have other positions
    look();
  }

  const examples = model.examples.map((each) =>
    make(
      "button",
      { type: "button", class: "plain", dir: "auto", click: () => ((text.value = each), take()) },
      label(each, 40),
    ),
  );
  const button = make("button", { type: "button", class: "main", click: take }, "Inspect");
  const about = make(
    "div",
    { class: "subject" },
    text,
    target,
    make(
      "div",
      { class: "line" },
      button,
      make("kbd", {}, "Ctrl + Enter"),
      examples.length ? make("div", { class: "others push" }, make("span", { class: "hint" }, "or"), examples) : null,
    ),
  );
  element.append(make("h1", { class: "pw-hidden" }, "Inspect"), about, bar, title);
  const save = saveMenu(question, shownHere);
  element.append(
    make("div", { class: "line told" }, lead, make("div", { class: "push" }, save)),
    controls,
    notes,
    place,
  );
  text.value = state.get("text") || model.sample;
  if (target) target.value = state.get("target");
  element.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key !== "Enter") return;
    event.preventDefault();
    take();
  });
  take();
  return {
    stop() {
      shown.looking?.abort();
      clear();
    },
  };

  function targetField({ kind, labels }) {
    const name = MEANT[kind][1];
    if (!name) return null;
    if (kind === "translator")
      return make("input", { type: "text", dir: "auto", "aria-label": name, placeholder: name });
    const option = (text, value = text) => make("option", { value }, text);
    const change = () => take();
    return make(
      "select",
      { "aria-label": name, change },
      option("the predicted label", ""),
      labels.map((each) => option(each)),
    );
  }
}
