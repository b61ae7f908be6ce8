/** The frame around all screens: the navigation, the choice of a model, and the theme. */

import { make } from "./views/dom.js";
import { askJson, wasStopped } from "./api.js";
import { openShortcuts } from "./dialogs.js";
import { icon } from "./icons.js";
import { SCREENS as ALL } from "./screens.js";
import { makeStore } from "./store.js";
import { startTheme, turnTheme } from "./theme.js";
import { startTour } from "./tour.js";

const main = document.getElementById("main");
const spoken = document.getElementById("spoken");
const rail = document.getElementById("rail");
const picker = document.getElementById("picker");
const store = makeStore(arrive);
let SCREENS = ALL.filter(({ studio }) => !studio);
const frame = { models: [], hasStudio: false, model: null, screen: null, module: null, arrivals: 0, leave: () => {} };
const AGAIN = 2000; // milliseconds between checks for newer weights

const NAMES = { writer: "a writer", translator: "a translator", classifier: "a classifier" };
const able = ({ kinds, needsLabels }, model) =>
  kinds === null || (kinds.includes(model.kind) && (!needsLabels || model.labels.length > 0));

/** Return the models that a screen can use. */
const modelsFor = (screen) => frame.models.filter((model) => able(screen, model));

/** Return why a screen cannot be used, or "". */
function reason(screen) {
  if (screen.kinds === null || modelsFor(screen).length) return "";
  const wanted = screen.kinds.map((kind) => NAMES[kind]).join(" or ");
  const advice = frame.hasStudio ? "Train a model first" : "Serve a run: penwright serve RUN";
  return `${screen.title} needs ${wanted}, but none is served. ${advice}`;
}

/** Whether the screen can show the model that is asked for, if any. */
const has = (screen, wanted) => !wanted || screen.kinds === null || modelsFor(screen).some(({ id }) => id === wanted);

/** Show the screen of an address; an unknown name leads to the first screen that can be used. */
async function arrive(name, values) {
  const now = ++frame.arrivals;
  const screen = SCREENS.find((each) => each.name === name);
  if (screen && !has(screen, values.model)) {
    await learn().catch(() => {}); // perhaps it is new; the next request shows the error
    if (now !== frame.arrivals) return undefined;
  }
  if (!screen || reason(screen)) {
    const usable = SCREENS.find((each) => !reason(each));
    if (screen || !usable) return showReason(screen || SCREENS[0]);
    return store.go(usable.name, values);
  }
  return show(screen);
}

async function show(screen) {
  frame.leave();
  const leaving = new AbortController();
  let shown = null;
  frame.leave = () => (leaving.abort(), shown && shown.stop && shown.stop());
  const state = store.of(screen.name);
  const usable = modelsFor(screen);
  const wanted = state.get("model");
  const model = usable.find(({ id }) => id === wanted) || usable[0] || null;
  if (screen !== frame.screen || model !== frame.model) document.querySelector(".alert")?.remove();
  Object.assign(frame, { screen, model });
  if (model && !has(screen, wanted)) {
    const kinds = screen.kinds.map((kind) => NAMES[kind]).join(" or ");
    fail({ status: 0, message: `“${wanted}” is not served, or is not ${kinds}. The model here is “${model.id}”.` });
    state.set({ model: model.id });
  }
  drawRail();
  drawPicker(screen, model);
  document.title = `${screen.title} · Penwright`;
  try {
    const module = await screen.load();
    if (leaving.signal.aborted) return;
    frame.module = module;
    const place = make("div", { class: `screen ${screen.name}` });
    main.replaceChildren(place);
    const context = { model, models: frame.models, state, signal: leaving.signal, fail, announce, go: store.go };
    shown = (await module.show(place, context)) || {};
    if (leaving.signal.aborted) return shown.stop && shown.stop();
    main.dataset.ready = screen.name;
  } catch (error) {
    fail(error);
  }
}

function showReason(screen) {
  frame.leave();
  frame.screen = screen;
  drawRail();
  const title = make("h1", {}, screen.title);
  main.replaceChildren(make("div", { class: "screen" }, title, make("p", {}, reason(screen))));
  main.dataset.ready = screen.name;
}

/** Announce a text to screen readers. */
function announce(text) {
  spoken.textContent = "";
  requestAnimationFrame(() => (spoken.textContent = text));
}

/** Show an error above the screen until a person closes it or another error replaces it. */
function fail(error) {
  if (wasStopped(error)) return;
  document.querySelector(".alert")?.remove();
  const close = make("button", { type: "button", "aria-label": "Close", click: () => alert.remove() }, "×");
  const alert = make("div", { class: "alert", role: "alert" }, make("p", {}, error.message), close);
  main.before(alert);
  if (!("status" in error)) console.error(error);
}

function drawRail() {
  const item = (screen) => {
    const why = reason(screen);
    const current = frame.screen === screen;
    return make(
      "li",
      {},
      make(
        "a",
        {
          href: `#/${screen.name}`,
          title: why || null,
          "aria-current": current ? "page" : null,
          "aria-disabled": why ? "true" : null,
          click: (event) => (event.preventDefault(), store.go(screen.name)),
        },
        icon(screen.name),
        make("span", {}, screen.title),
        why && make("span", { class: "pw-hidden" }, ` (${why})`),
      ),
    );
  };
  const focused = rail.contains(document.activeElement) && document.activeElement.hash;
  rail.replaceChildren(make("ul", {}, SCREENS.map(item)));
  if (focused) [...rail.querySelectorAll("a")].find(({ hash }) => hash === focused)?.focus();
}

/** Draw the choice among the models of the right kind, and the facts about the chosen one. */
function drawPicker(screen, model) {
  if (!model || screen.kinds === null) return picker.replaceChildren();
  const usable = modelsFor(screen);
  const choose = ({ target }) => store.go(screen.name, { model: target.value, position: "" }); // its tokens are different
  const option = ({ id }) => make("option", { value: id, selected: id === model.id }, id);
  const name =
    usable.length > 1
      ? make("select", { "aria-label": "Model", change: choose }, usable.map(option))
      : make("strong", {}, model.id);
  return picker.replaceChildren(
    name,
    make("span", { class: "step", title: "The training step of the weights in use" }, stepOf(model)),
    make("span", { class: "facts" }, facts(model)),
  );
}

function stepOf({ step, is_learning }) {
  return [step !== null && `step ${step.toLocaleString("en")}`, is_learning && "still learning"]
    .filter(Boolean)
    .join(" · ");
}

/** Ask at intervals which weights answer. A run in training gets newer weights, and models may come and go. */
async function follow() {
  try {
    const { models } = await askJson("models/steps");
    const names = (ids) => ids.sort().join("\n"); // the keys of an object that look like numbers come first
    if (names(Object.keys(models)) !== names(frame.models.map(({ id }) => id))) await learn();
    else frame.models.forEach((model) => Object.assign(model, models[model.id]));
    const here = picker.querySelector(".step");
    const now = frame.model && stepOf(frame.model);
    if (here && here.textContent !== now) here.textContent = now;
  } catch {
    // the next request that a person makes shows the error
  }
  setTimeout(follow, AGAIN);
}

/** Load the facts about all models. The chosen model stays chosen if it is still served. */
async function learn() {
  const known = new Map(frame.models.map((model) => [model.id, model]));
  const { models, has_studio: hasStudio } = await askJson("models");
  frame.hasStudio = hasStudio;
  SCREENS = ALL.filter(({ studio }) => hasStudio || !studio);
  frame.models.splice(0, Infinity, ...models.map((model) => Object.assign(known.get(model.id) || {}, model)));
  if (frame.screen) drawRail();
}

function facts({ kind, parameters, n_layers, n_heads, device }) {
  const size = parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)} M` : `${Math.round(parameters / 1e3)} k`;
  const shape = `${n_layers} layers × ${n_heads} heads`;
  return [kind, `${size} parameters`, shape, device].join(" · ");
}

function drawTools() {
  const tool = (name, title, click, text = "") =>
    make("button", { type: "button", class: "tool", title, "aria-label": title, click }, icon(name), text);
  const shortcuts = () => openShortcuts(frame.screen, frame.module);
  document
    .getElementById("tools")
    .replaceChildren(
      tool("tour", "A tour of a Transformer", tour, make("span", {}, "Tour")),
      tool("theme", "Light or dark", turnTheme),
      tool("help", "Keyboard shortcuts (?)", shortcuts),
    );
  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    const screen = event.altKey && event.shiftKey && !event.ctrlKey && SCREENS[Number(event.code.replace("Digit", "")) - 1];
    if (screen && !reason(screen)) store.go(screen.name);
    else if (event.key === "?" && !typing && !document.querySelector("dialog[open]")) shortcuts();
    else return;
    event.preventDefault();
  });
}

/** Start the tour, with the text on the screen if there is one. */
function tour() {
  const model = frame.model || frame.models[0];
  if (!model) return fail({ status: 0, message: "The tour shows a model of yours. Train or serve one first." });
  const text = frame.screen ? store.of(frame.screen.name).get("text") : "";
  return startTour({ model, text: text || model.sample, go: store.go });
}

async function start() {
  startTheme();
  drawTools();
  drawRail();
  try {
    await learn();
  } catch (error) {
    fail(error);
    return;
  }
  store.start();
  setTimeout(follow, AGAIN);
}

start();
