/** Write: a raw text that a person and the model write in turn, coloured by what the model thought of it. */

import { number } from "../views/axes.js";
import { choices, make } from "../views/dom.js";
import { MEASURES } from "../views/text.js";
import { askEvents, askJson, wasStopped } from "../api.js";
import { download, menu } from "../saving.js";
import { makeBranches } from "./write/branches.js";
import { makeChoices } from "./write/choices.js";
import { makeEditor } from "./write/editor.js";
import { makeHistory } from "./write/history.js";
import { makeSettings } from "./write/settings.js";
import { branched, chosen, edited, join, makeCollector, partsOf, plain, prompt, tokenOf } from "./write/text.js";

const PAUSE = 250; // milliseconds after the last change before the next token is asked for

export const keys = [
  ["Ctrl + Enter", "write on from the end of the text"],
  ["Escape", "stop"],
  ["Ctrl + Z", "undo what was written, or typed; with Shift: redo"],
  ["Alt + 1 … 9, 0", "take a choice for the token at the caret, and write on from there"],
];

/** @param {HTMLElement} element @param {import("../screens.js").Context} context */
export function show(element, { model, state, signal, fail, announce, go }) {
  const writing = { parts: [], running: null, queue: [], frame: 0, place: -1, next: null, timer: 0, asked: null };
  const history = makeHistory();
  const panel = makeChoices();
  const settings = makeSettings({ state, defaults: model.decoding, changed: () => showNext(0) });
  const branches = makeBranches((parts) => become(parts));
  const editor = makeEditor({
    changed: (text) => become(edited(writing.parts, text), { typed: true }),
    pointed: point,
    placeholder: "Begin a text here, and let the model go on: Ctrl + Enter.",
  });
  const status = make("p", { class: "status hint" });
  const run = make("button", { type: "button", class: "main", click: start }, "Write on");
  const stop = make("button", { type: "button", click: () => writing.running?.abort(), disabled: true }, "Stop");
  const undo = make("button", { type: "button", click: () => back(history.undo) }, "Undo");
  const redo = make("button", { type: "button", click: () => back(history.redo) }, "Redo");
  const score = make(
    "button",
    { type: "button", click: scoreAll, title: "Colour all of the text by how it surprises the model" },
    "Score my text",
  );

  /** Another text: drawn, kept in the address, and in the history unless it comes from there. */
  function become(parts, { typed = false, known = false } = {}) {
    if (!known) history.push(parts, typed);
    writing.parts = parts;
    editor.draw(parts);
    remember();
    point(-1);
    refresh();
    showNext(PAUSE);
  }
  function remember() {
    const given = writing.parts.findIndex(({ tokens }) => tokens.length);
    const before = given < 0 ? writing.parts : writing.parts.slice(0, given);
    state.set({ text: join(writing.parts), given: given < 0 ? "" : join(before).length || "0" });
  }
  function refresh() {
    const running = writing.running !== null;
    run.disabled = running;
    stop.disabled = !running;
    undo.disabled = running || !history.canUndo();
    redo.disabled = running || !history.canRedo();
    score.disabled = running || join(writing.parts) === "";
    examples.hidden = running || join(writing.parts) !== "";
  }
  function back(step) {
    const parts = step();
    if (parts) become(parts, { known: true });
    editor.toEnd();
  }

  /** Show what is known of a part; of none (-1), what may come after the text. */
  function point(place, byKeys = false) {
    if (place === writing.place || writing.running) return;
    writing.place = place;
    editor.mark(place);
    if (place < 0) return showChoices();
    const part = writing.parts[place];
    const said = panel.showPart(part, (choice) => start({ from: branched(writing.parts, place, choice) }));
    if (byKeys) announce(said);
  }
  function showChoices() {
    if (!writing.next) return panel.showHint("What may come next", "Begin a text to see it.");
    const { likeliest, entropy } = writing.next;
    panel.showNext(writing.next, (choice) => start({ from: [...writing.parts, chosen(choice, entropy, likeliest)] }));
  }
  /** Ask for the next token; the server runs the model only where the text is another one. */
  function showNext(pause) {
    clearTimeout(writing.timer);
    if (writing.running) return;
    writing.timer = setTimeout(async () => {
      writing.asked?.abort();
      writing.asked = new AbortController();
      const stopped = AbortSignal.any([signal, writing.asked.signal]);
      try {
        const body = { model: model.id, ...prompt(writing.parts), settings: settings.rules() };
        writing.next = await askJson("next", body, { signal: stopped });
        if (writing.place < 0) showChoices();
      } catch (error) {
        fail(error);
      }
    }, pause);
  }

  async function start({ from = writing.parts } = {}) {
    if (writing.running) return;
    const before = join(writing.parts);
    if (before && from !== writing.parts) branches.keep(writing.parts);
    history.push(from, false);
    writing.parts = from;
    editor.draw(from);
    point(-1);
    writing.running = new AbortController();
    const stopped = AbortSignal.any([signal, writing.running.signal]);
    editor.lock(true);
    refresh();
    announce("Writing.");
    const open = from.findLastIndex(({ text }) => text) + 1;
    const collect = makeCollector(from.slice(open).flatMap(({ tokens }) => tokens));
    writing.parts = from.slice(0, open);
    const began = performance.now();
    let count = 0;
    try {
      const body = { model: model.id, ...prompt(from), settings: settings.all() };
      for await (const { event, data } of askEvents("write", body, { signal: stopped })) {
        if (event === "error") throw new Error(data.message);
        if (event !== "token") continue;
        count++;
        const part = collect(tokenOf(data), data.shown);
        if (part) writing.queue.push(part);
        paintLater(count, began);
      }
    } catch (error) {
      fail(error);
      if (wasStopped(error)) announce("Stopped.");
    }
    finish(count, began);
  }
  /** New tokens are painted once in a frame, all that have come, after those that are there. */
  function paintLater(count, began) {
    writing.frame ||= requestAnimationFrame(() => {
      paint();
      status.textContent = speed(count, began);
    });
  }
  function paint() {
    cancelAnimationFrame(writing.frame);
    writing.frame = 0;
    const fresh = writing.queue.splice(0);
    writing.parts.push(...fresh);
    editor.append(fresh);
  }
  function speed(count, began) {
    const seconds = (performance.now() - began) / 1000;
    return `${count} tokens · ${number(count / Math.max(seconds, 1e-3))} a second · seed ${settings.seed()}`;
  }
  function finish(count, began) {
    writing.running = null;
    paint();
    editor.lock(false);
    if (signal.aborted) return;
    status.textContent = speed(count, began);
    history.replace(writing.parts);
    branches.keep(writing.parts);
    remember();
    refresh();
    editor.toEnd();
    showNext(0);
    announce(`${count} tokens written.`);
  }

  /** What the model thinks of the text as it is; tokens that it wrote before keep what it thought then. */
  async function scoreAll() {
    const text = join(writing.parts);
    try {
      const { tokens, warnings } = await askJson("score", { model: model.id, text }, { signal });
      if (join(writing.parts) === text) become(partsOf(text, tokens));
      status.textContent = [`${tokens.length} tokens`, meanOf(tokens), ...warnings].join(" · ");
    } catch (error) {
      fail(error);
    }
  }
  const meanOf = (tokens) => {
    const nats = -tokens.reduce((sum, { log_prob }) => sum + log_prob, 0) / Math.max(1, tokens.length);
    return `${number(nats)} nats a token`;
  };
  /** As the address has it: the text, and what the model thought of the part that it wrote. */
  async function restore() {
    const [text, given] = [state.get("text"), state.number("given", -1)];
    become(text ? [plain(text)] : []);
    if (!text || given < 0) return;
    try {
      const { tokens } = await askJson("score", { model: model.id, text }, { signal });
      if (join(writing.parts) === text) become(partsOf(text, tokens, given), { known: true });
      history.replace(writing.parts);
    } catch (error) {
      fail(error);
    }
  }

  const shown = (MEASURES[state.get("colour")] && state.get("colour")) || "probability";
  const measures = ["probability", "surprise", "rank", "entropy", "none"].map((name) => [name, MEASURES[name][0]]);
  const colour = (name) => (editor.setMeasure(name), state.set({ colour: name === "probability" ? "" : name }));
  const save = menu(
    "Save",
    [
      ["txt", "Text (.txt)"],
      ["json", "With all numbers (.json)"],
    ],
    (format) => {
      const text = format === "txt" ? join(writing.parts) : JSON.stringify(writing.parts, null, 1);
      download(`${model.id}.${format}`, new Blob([text], { type: "text/plain" }));
    },
  );
  const inspect = make(
    "button",
    { type: "button", click: () => go("inspect", { model: model.id, text: join(writing.parts) }) },
    "Inspect",
  );
  const example = (text) =>
    make(
      "button",
      { type: "button", click: () => (become([plain(text)]), start()) },
      make("bdi", {}, text.slice(0, 60)),
    );
  const examples = make(
    "div",
    { class: "examples line", hidden: true },
    make("span", { class: "hint" }, "Try"),
    model.examples.map(example),
  );

  element.append(
    make("h1", { class: "pw-hidden" }, "Write"),
    make(
      "div",
      { class: "paper" },
      make("div", { class: "line" }, run, stop, undo, redo, make("span", { class: "push line" }, score, inspect, save)),
      editor.root,
      examples,
      make(
        "div",
        { class: "line" },
        make("span", { class: "hint" }, "coloured by"),
        choices("Coloured by", measures, shown, colour),
        status,
      ),
    ),
    make(
      "aside",
      { class: "aside", "aria-label": "The next token and the settings" },
      panel.root,
      settings.root,
      branches.root,
    ),
  );
  editor.setMeasure(shown);

  function onKey(event) {
    const control = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    const inField = event.target.closest?.("input, select, textarea, dialog");
    if (control && key === "enter") start();
    else if (key === "escape" && writing.running) writing.running.abort();
    else if (control && !inField && (key === "y" || (key === "z" && event.shiftKey))) back(history.redo);
    else if (control && !inField && key === "z") back(history.undo);
    else if (event.altKey && !event.shiftKey && /^Digit\d$/.test(event.code))
      panel.press((Number(event.code[5]) + 9) % 10);
    else return;
    event.preventDefault();
  }
  document.addEventListener("keydown", onKey, { signal });
  restore();
  return {
    stop() {
      clearTimeout(writing.timer);
      editor.stop();
    },
  };
}
