/** The list of runs to choose from, newest first. */

import { number } from "../../views/axes.js";
import { isDark, lineColour } from "../../views/colour.js";
import { make } from "../../views/dom.js";
import { redraw } from "../../redraw.js";
import { SCREEN_OF } from "../../screens.js";

const IN_WORK = ["training", "stopping"];

/** Format seconds as 1:02:03 or 02:03. */
function clock(seconds) {
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${two(minutes)}:${two(rest)}`;
}

/** Create the list. Calls `changed(names)`, `open(screen, model)` for a served run, and `stop(name)` in training. */
export function makeList({ changed, open, stop }) {
  const root = make("ul", { class: "run-list", "aria-label": "Runs" });

  function progress({ state, step, total_steps: total }) {
    const share = total ? Math.min(1, step / total) : 0;
    if (!IN_WORK.includes(state) || !total) return null;
    return make("progress", { value: share, max: 1, "aria-label": `${Math.round(100 * share)} % of its steps` });
  }
  function item(run, chosen, colour) {
    const [score] = Object.entries(run.scores).filter(([, value]) => value !== null);
    const box = make("input", { type: "checkbox", checked: chosen, value: run.name, change: () => changed(names()) });
    const swatch = make("span", { class: "pw-swatch", "aria-hidden": "true" });
    if (chosen) swatch.style.setProperty("background", lineColour(colour, isDark(root)));
    const of = run.total_steps ? ` of ${run.total_steps.toLocaleString("en")}` : "";
    const facts = [
      `step ${run.step.toLocaleString("en")}${of}`,
      clock(run.seconds),
      score && `${score[0]} ${number(score[1])}`,
      run.model && ![null, run.step].includes(run.model_step) && `opens step ${run.model_step.toLocaleString("en")}`,
    ];
    const button = (text, label, click) =>
      make("button", { type: "button", class: "plain", value: run.name, "aria-label": label, click }, text);
    const uses = [
      run.model && SCREEN_OF[run.task] && button("Open", `Open ${run.name}`, () => open(SCREEN_OF[run.task], run.model)),
      run.state === "training" && button("Stop", `Stop training ${run.name}`, () => stop(run.name)),
    ];
    return make(
      "li",
      { class: IN_WORK.includes(run.state) ? "training" : run.state, "data-key": run.name },
      make("label", {}, box, make("bdi", {}, run.name), swatch),
      make("span", { class: "state" }, run.state),
      make("span", { class: "hint run-facts" }, facts.filter(Boolean).join(" · ")),
      make("span", { class: "uses", "data-key": "uses" }, ...uses.filter(Boolean)),
      progress(run),
      run.problem && make("p", { class: "warning" }, make("span", { "aria-hidden": "true" }, "⚠ "), run.problem),
    );
  }
  /** Focus the control of a run with this label or, if there is none, the checkbox of the run. */
  function focus(name, text) {
    const found = [...root.querySelectorAll("input, button")].filter(({ value }) => value === name);
    (found.find(({ textContent }) => textContent === text) || found[0])?.focus();
  }
  const names = () => [...root.querySelectorAll("input:checked")].map(({ value }) => value);
  return {
    root,
    /** Draw all runs; `colours` maps the chosen ones to the numbers of their colours. */
    draw(runs, colours) {
      const focused = document.activeElement?.closest(".run-list") && document.activeElement;
      redraw(root, runs.map((run) => item(run, colours.has(run.name), colours.get(run.name))));
      if (focused && focused !== document.activeElement) focus(focused.value, focused.textContent);
    },
    focus,
  };
}
