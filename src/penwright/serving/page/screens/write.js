/** The Write screen: a text that a person and the model write in turn, coloured by the model's scores. */

import { number } from "../views/axes.js";
import { make } from "../views/dom.js";
import { askJson } from "../api.js";
import { makeBranches } from "./write/branches.js";
import { makeChoices } from "./write/choices.js";
import { makeButtons, makeColours, makeExamples } from "./write/controls.js";
import { makeEditor } from "./write/editor.js";
import { makeHistory } from "./write/history.js";
import { makePreview } from "./write/preview.js";
import { makeSettings } from "./write/settings.js";
import { stream } from "./write/stream.js";
import { branched, chosen, edited, join, partsOf, plain, prompt } from "./write/text.js";

const PAUSE = 250; // milliseconds after the last change before the next token is requested

export const keys = [
  ["Ctrl + Enter", "continue at the end of the text"],
  ["Escape", "stop"],
  ["Ctrl + Z", "undo what was written or typed; with Shift: redo"],
  ["Alt + 1 … 9, 0", "choose an alternative for the token at the caret, and continue from there"],
];

/** @param {HTMLElement} element @param {import("../screens.js").Context} context */
export function show(element, { model, state, signal, fail, announce, go }) {
  const writing = { parts: [], running: null, place: -1, next: null };
  const history = makeHistory();
  const panel = makeChoices({ closed: () => point(-1) });
  const settings = makeSettings({ state, defaults: model.decoding, changed: () => preview.later(0) });
  const branches = makeBranches((parts) => !writing.running && become(parts));
  const preview = makePreview({
    question: () => ({ model: model.id, ...prompt(writing.parts), settings: settings.rules() }),
    found(next) {
      writing.next = next;
      if (writing.place < 0) showNext();
    },
    fail,
    signal,
  });
  const editor = makeEditor({
    changed: (text) => become(edited(writing.parts, text), { typed: true }),
    pointed: point,
    placeholder: "Begin a text, then press Ctrl + Enter to let the model continue it.",
  });
  const buttons = makeButtons({
    start: () => start(),
    stop: () => writing.running?.abort(),
    undo: () => back(history.undo),
    redo: () => back(history.redo),
    score: scoreAll,
    inspect: () => go("inspect", { model: model.id, text: join(writing.parts) }),
    parts: () => writing.parts,
    name: model.id,
  });
  const examples = makeExamples(model.examples, (text) => {
    become([plain(text)]);
    start();
  });
  const status = make("p", { class: "status hint" });

  /** Show another text and keep it in the address, and in the history unless it comes from there. */
  function become(parts, { typed = false, known = false } = {}) {
    if (!known) history.push(parts, typed);
    writing.parts = parts;
    editor.draw(parts);
    remember();
    point(-1);
    refresh();
    preview.later(PAUSE);
  }
  function remember() {
    const given = writing.parts.findIndex(({ tokens }) => tokens.length);
    state.set({
      text: join(writing.parts),
      given: given < 0 ? "" : String(join(writing.parts.slice(0, given)).length),
    });
  }
  function refresh() {
    const [resting, empty] = [writing.running === null, join(writing.parts) === ""];
    const [undo, redo] = [resting && history.canUndo(), resting && history.canRedo()];
    buttons.allow({ start: resting, stop: !resting, undo, redo, score: resting && !empty });
    examples.hidden = !resting || !empty;
  }
  function back(step) {
    const parts = writing.running ? null : step();
    if (parts) become(parts, { known: true });
    editor.toEnd();
  }

  /** Show the scores of a part or, for -1, what may come after the text. */
  function point(place, byKeys = false) {
    if (place === writing.place || writing.running) return;
    writing.place = place;
    editor.mark(place);
    if (place < 0) return void showNext();
    const take = (choice) => start(branched(writing.parts, place, choice));
    const said = panel.showPart(writing.parts[place], take);
    if (byKeys) announce(said);
  }
  function showNext() {
    if (!writing.next) return;
    const { likeliest, entropy } = writing.next;
    panel.showNext(writing.next, (choice) => start([...writing.parts, chosen(choice, entropy, likeliest)]));
  }

  /** Let the model continue the text, or another one. */
  async function start(from = writing.parts) {
    if (writing.running) return;
    if (from !== writing.parts && join(writing.parts)) branches.keep(writing.parts);
    const body = { model: model.id, ...prompt(from), settings: settings.all() };
    const whole = from.findLastIndex(({ text }) => text) + 1; // the tokens after it have no text yet
    const begun = from.slice(whole).flatMap(({ tokens }) => tokens);
    become(from.slice(0, whole));
    preview.stop();
    writing.running = new AbortController();
    editor.lock(true);
    refresh();
    announce("Writing.");
    const began = performance.now();
    const stopped = AbortSignal.any([signal, writing.running.signal]);
    const arrived = (parts, count) => {
      writing.parts = writing.parts.concat(parts);
      if (!signal.aborted) remember(); // the screen may be left at any time
      status.textContent = speed(count, (performance.now() - began) / 1000);
      editor.append(parts); // reads its height, so it comes last: one layout is enough
    };
    try {
      await stream(body, { begun, signal: stopped, arrived });
    } catch (error) {
      fail(error);
    }
    if (!signal.aborted) finish();
  }
  const speed = (count, seconds) =>
    `${count} tokens · ${number(count / Math.max(seconds, 1e-3))} per second · seed ${settings.seed()}`;
  function finish() {
    writing.running = null;
    editor.lock(false);
    history.replace(writing.parts);
    branches.keep(writing.parts);
    remember();
    refresh();
    editor.toEnd();
    preview.later(0);
    announce(status.textContent);
  }

  /** Score a text; tokens that begin before `given` stay plain. */
  async function scored(text, given = 0) {
    try {
      const { tokens, warnings } = await askJson("score", { model: model.id, text }, { signal });
      if (join(writing.parts) !== text) return;
      become(partsOf(text, tokens, given), { known: true });
      history.replace(writing.parts);
      const nats = -tokens.reduce((sum, { log_prob }) => sum + log_prob, 0) / Math.max(1, tokens.length);
      status.textContent = [`${tokens.length} tokens · ${number(nats)} nats per token`, ...warnings].join(" · ");
    } catch (error) {
      fail(error);
    }
  }
  function scoreAll() {
    become([...writing.parts]);
    return scored(join(writing.parts));
  }
  /** Restore the text from the address, and the scores of the part that the model wrote. */
  function restore() {
    const [text, given] = [state.get("text"), state.number("given", -1)];
    become(text ? [plain(text)] : [], { known: true });
    history.replace(writing.parts);
    if (text && given >= 0) scored(text, given);
  }

  function onKey(event) {
    const control = event.ctrlKey || event.metaKey;
    const altGraph = event.getModifierState("AltGraph"); // types characters
    const key = event.key.toLowerCase();
    const inField = event.target.closest?.("input, select, textarea, dialog");
    if (control && key === "enter") start();
    else if (key === "escape" && writing.running) writing.running.abort();
    else if (control && !inField && (key === "y" || (key === "z" && event.shiftKey))) back(history.redo);
    else if (control && !inField && key === "z") back(history.undo);
    else if (event.altKey && !control && !event.shiftKey && !altGraph && /^Digit\d$/.test(event.code))
      panel.press((Number(event.code[5]) + 9) % 10);
    else return;
    event.preventDefault();
  }
  document.addEventListener("keydown", onKey, { signal });
  const colours = make("div", { class: "line" }, makeColours({ state, chosen: editor.setMeasure }), status);
  const named = { class: "aside", "aria-label": "Next token and settings" };
  element.append(
    make("h1", { class: "pw-hidden" }, "Write"),
    make("div", { class: "paper" }, buttons.root, editor.root, examples, colours),
    make("aside", named, panel.root, settings.root, branches.root),
  );
  panel.showHint("What may come next", "Begin a text to see the next tokens.");
  restore();
  return {
    stop() {
      preview.stop();
      editor.stop();
    },
  };
}
