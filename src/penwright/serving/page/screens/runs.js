/** The Runs screen: curves, samples, settings and alerts of all visible runs. */

import { draw as drawCurves } from "../views/curves.js";
import { choices, make, table } from "../views/dom.js";
import { askJson, wasStopped } from "../api.js";
import { confirmed } from "../dialogs.js";
import { newest } from "../newest.js";
import { download, menu } from "../saving.js";
import { AXES, csvOf, differences, linesOf, measuresOf } from "./runs/figures.js";
import { makeEarly } from "./runs/early.js";
import { makeList } from "./runs/list.js";
import { makeSamples } from "./runs/samples.js";

const AGAIN = 2000; // milliseconds between updates of a run in training
const BY = [
  ["step", "by step"],
  ["targets", "by tokens"],
  ["time", "by time"],
];
const FORMATS = [
  ["csv", "Numbers (.csv)"],
  ["svg", "Picture (.svg)"],
  ["png", "Picture (.png)"],
];
const IN_WORK = ["training", "stopping"];
const KINDS = { "not finite": "Not finite", spike: "Spike", plateau: "Plateau", "over-fitting": "Overfitting" };

export const keys = [
  ["← → in the diagram", "read the curves"],
  ["0 in the diagram", "show the whole curves again"],
  ["Space on a run", "show or hide it"],
];

/** @param {HTMLElement} element @param {import("../screens.js").Context} context */
export async function show(element, { state, signal, fail, announce, go }) {
  const page = { runs: [], chosen: [], figures: new Map(), more: new Map(), timer: 0, handle: null, drawn: "", failed: "" };
  const loading = newest(signal);
  const list = makeList({ changed: choose, open: (screen, model) => go(screen, { model }), stop });
  const alerts = make("div", { class: "alerts", "aria-live": "polite" });
  const tabs = make("div", { class: "tabs", role: "group", "aria-label": "What to draw" });
  const diagram = make("div", { class: "diagram" });
  const samples = makeSamples({ moved: (step) => state.set({ step: step ?? "" }) });
  const early = makeEarly({ signal, fail });
  const settings = make("section", { class: "differences", "aria-label": "Settings" });
  const by = () => (AXES[state.get("by")] ? state.get("by") : "step");
  const measures = () => measuresOf([...page.figures.values()]);
  const measure = () => measures().find(({ name }) => name === state.get("measure")) || measures()[0];
  const colours = () => new Map(page.chosen.map((name, at) => [name, at]));
  const address = (path, name) => `runs/${path}?run=${encodeURIComponent(name)}`;
  const save = menu("Save", FORMATS, (format) => saveAs(format).catch(fail));
  diagram.addEventListener("drawing-changed", ({ detail }) =>
    state.set({ logx: detail.log_x || "", logy: detail.log_y || "", smooth: detail.smoothing || "" }),
  );

  function choose(names) {
    page.chosen = [
      ...page.chosen.filter((name) => names.includes(name)),
      ...names.filter((name) => !page.chosen.includes(name)),
    ];
    state.set({ runs: JSON.stringify(page.chosen) });
    list.draw(page.runs, colours());
    return load();
  }
  async function stop(name) {
    const words = "Training stops after the current step, and the run is saved. To resume it later: ";
    const command = make("kbd", {}, "penwright train --resume");
    const sure = await confirmed(`Stop training ${name}?`, [words, command], { yes: "Stop training", no: "Keep training" });
    list.focus(name, "Stop"); // it may have been redrawn behind the dialog
    if (!sure) return;
    try {
      await askJson("runs/stop", { run: name }, { signal });
      announce(`${name} is stopping.`);
    } catch (error) {
      fail(error);
    }
    clearTimeout(page.timer);
    await refresh();
  }
  /** Load and draw the chosen runs, unless others have been chosen meanwhile. */
  async function load() {
    const stopped = loading.begin();
    const results = await Promise.allSettled(page.chosen.map((name) => learn(name, stopped)));
    if (stopped.aborted) return;
    draw();
    const failed = results.find(({ status }) => status === "rejected");
    if (failed) fail(failed.reason);
  }
  /** Load the figures of a run, and its samples and settings if there is a new evaluation. */
  async function learn(name, stopped) {
    const figures = await askJson(address("figures", name), undefined, { signal: stopped });
    page.figures.set(name, figures);
    const step = figures.evaluations.step?.at(-1) ?? -1;
    if (page.more.get(name)?.step === step) return;
    const [tried, given] = await Promise.all(
      ["samples", "settings"].map((path) => askJson(address(path, name), undefined, { signal: stopped })),
    );
    page.more.set(name, { step, samples: tried.samples, settings: given.settings });
  }
  /** Return the chosen runs that are loaded. Others may still be loading, or cannot be read. */
  const shown = () => page.chosen.filter((name) => page.figures.has(name) && page.more.has(name));
  function lines() {
    return shown().flatMap((name) =>
      linesOf({ name, colour: colours().get(name), figures: page.figures.get(name) }, measure().name, by()),
    );
  }
  function draw() {
    drawTabs();
    drawAlerts();
    drawDiagram();
    samples.show(
      shown().map((name) => ({ name, samples: page.more.get(name).samples })),
      state.number("step", null),
    );
    const [only, ...others] = page.runs.filter(({ name }) => shown().includes(name));
    const first = only && page.more.get(only.name).samples.at(-1);
    early.show(only && !others.length ? only.model : null, first ? first.prompt : "");
    drawSettings();
  }
  /** Draw the diagram. New numbers go into the existing one; another measure or other runs need a new one. */
  function drawDiagram() {
    const key = JSON.stringify([page.chosen, measure().name, by()]);
    const runs = lines();
    if (key === page.drawn && page.handle) return page.handle.parts.setRuns(runs);
    page.drawn = key;
    page.handle?.destroy();
    page.handle = null;
    diagram.replaceChildren();
    if (!runs.length)
      return diagram.append(
        make("p", { class: "hint" }, page.chosen.length ? "There are no values yet." : "Choose a run."),
      );
    const options = {
      log_x: state.get("logx") === "true",
      log_y: state.get("logy") === "true",
      smoothing: state.number("smooth", 0),
    };
    const [, xLabel] = AXES[by()];
    page.handle = drawCurves(diagram, { runs, x_label: xLabel, y_label: measure().label }, options);
    return undefined;
  }
  function drawTabs() {
    const tab = ({ name, title }) =>
      make(
        "button",
        {
          type: "button",
          "aria-pressed": String(name === measure().name),
          click: () => (state.set({ measure: name }), draw()),
        },
        title,
      );
    const focused = document.activeElement?.closest(".tabs") && document.activeElement.textContent;
    tabs.replaceChildren(...measures().map(tab));
    if (focused) [...tabs.children].find(({ textContent }) => textContent === focused)?.focus();
  }
  function drawAlerts() {
    const found = shown().flatMap((name) => page.figures.get(name).alerts.map((alert) => ({ ...alert, name })));
    const item = ({ kind, step, text, name }) =>
      make(
        "p",
        { class: "alarm" },
        make("strong", {}, KINDS[kind] || kind),
        ` · ${page.chosen.length > 1 ? `${name}, ` : ""}step ${step.toLocaleString("en")}: ${text}`,
      );
    const before = alerts.textContent;
    const fresh = found.map(item);
    if (fresh.map(({ textContent }) => textContent).join("") !== before) alerts.replaceChildren(...fresh);
  }
  function drawSettings() {
    const names = shown();
    const heading = make("h2", {}, names.length > 1 ? "Settings that differ" : "Settings");
    const all = names.map((name) => page.more.get(name).settings);
    const found =
      names.length > 1 ? differences(all) : Object.entries(all[0] || {}).map(([name, value]) => [name, [value]]);
    const said = (value) => (value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value));
    const rows = found.map(([name, values]) => [name, ...values.map((value) => make("bdi", {}, said(value)))]);
    const body = rows.length
      ? make(
          "div",
          { class: "pw-scroll", tabindex: 0, role: "group", "aria-label": "Table of settings" },
          table(["setting", ...names], rows),
        )
      : make("p", { class: "hint" }, "All settings are the same.");
    settings.hidden = names.length === 0;
    if (names.length > 1) return settings.replaceChildren(heading, body);
    const open = settings.querySelector("details")?.open || false;
    return settings.replaceChildren(make("details", { open }, make("summary", {}, "Settings"), body));
  }
  async function saveAs(format) {
    if (!page.handle) throw new Error("There is no diagram to save.");
    const { canvas, svg, paper, paint } = page.handle.parts;
    const name = `${page.chosen.join("-")}-${measure().name}`.replace(/[^\w.-]+/g, "_");
    const [, xLabel] = AXES[by()];
    if (format === "csv")
      return download(`${name}.csv`, new Blob([csvOf(lines(), xLabel, measure().label)], { type: "text/csv" }));
    if (format === "svg") return download(`${name}.svg`, new Blob([svg()], { type: "image/svg+xml" }));
    paint();
    const copy = make("canvas", { width: canvas.width, height: canvas.height });
    const context = copy.getContext("2d");
    context.fillStyle = paper();
    context.fillRect(0, 0, copy.width, copy.height);
    context.drawImage(canvas, 0, 0);
    return copy.toBlob((blob) => download(`${name}.png`, blob));
  }

  /** Reload the list, and the figures of chosen runs that are training. */
  async function refresh() {
    try {
      const before = new Map(page.runs.map((run) => [run.name, run.state]));
      page.runs = (await askJson("runs", undefined, { signal })).runs;
      list.draw(page.runs, colours());
      const live = page.runs.filter(
        ({ name, state: now }) =>
          page.chosen.includes(name) && (IN_WORK.includes(now) || IN_WORK.includes(before.get(name))),
      );
      page.runs
        .filter(({ name, state: now }) => !IN_WORK.includes(now) && IN_WORK.includes(before.get(name)))
        .forEach(({ name, state: now }) => announce(`${name} has ${now === "finished" ? "finished" : "stopped"}.`));
      if (live.length) await load();
      page.failed = "";
    } catch (error) {
      if (!wasStopped(error) && error.message !== page.failed) fail(error);
      page.failed = error.message; // the same alert is shown once
    }
    if (!signal.aborted) page.timer = setTimeout(refresh, AGAIN);
  }
  function first() {
    try {
      const wanted = JSON.parse(state.get("runs", "[]")).filter((name) => page.runs.some((run) => run.name === name));
      if (wanted.length) return wanted;
    } catch {
      // the address was written by hand
    }
    return page.runs.slice(0, 1).map(({ name }) => name);
  }
  element.append(
    make("h1", { class: "pw-hidden" }, "Runs"),
    make("nav", { class: "chooser", "aria-label": "Runs" }, list.root),
    make(
      "div",
      { class: "seen" },
      alerts,
      make(
        "div",
        { class: "line" },
        tabs,
        make(
          "span",
          { class: "push line" },
          choices("By", BY, by(), (value) => (state.set({ by: value }), draw())),
          save,
        ),
      ),
      diagram,
      samples.root,
      early.root,
      settings,
    ),
  );
  await refresh();
  page.chosen = first();
  list.draw(page.runs, colours());
  await load();
  return {
    stop() {
      clearTimeout(page.timer);
      loading.end();
      early.stop();
      page.handle?.destroy();
    },
  };
}
