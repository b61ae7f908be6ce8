/** The runs one can choose among, the newest first. */

import { number } from "../../views/axes.js";
import { isDark, lineColour } from "../../views/colour.js";
import { make } from "../../views/dom.js";

const SCREENS = { generate: "write", translate: "translate", classify: "classify" };
const STATES = { training: "training", finished: "finished", stopped: "stopped" };

/** 1:02:03, or 02:03. */
function clock(seconds) {
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${two(minutes)}:${two(rest)}`;
}

/** `changed(names)` when others are chosen; `open(screen, model)` to use a run that is served. */
export function makeList({ changed, open }) {
  const root = make("ul", { class: "run-list", "aria-label": "Runs" });

  function progress({ state, step, total_steps: total }) {
    const share = total ? Math.min(1, step / total) : 0;
    if (state !== "training" || !total) return null;
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
    ];
    const use =
      run.model &&
      make("button", { type: "button", class: "plain", click: () => open(SCREENS[run.task], run.model) }, "Open");
    return make(
      "li",
      { class: run.state },
      make("label", {}, box, make("bdi", {}, run.name), swatch),
      make("span", { class: "state" }, STATES[run.state]),
      make("span", { class: "hint run-facts" }, facts.filter(Boolean).join(" · ")),
      progress(run),
      use,
    );
  }
  const names = () => [...root.querySelectorAll("input:checked")].map(({ value }) => value);
  return {
    root,
    /** Draw all, with `colours` a map from the chosen ones to the numbers of their colours. */
    draw(runs, colours) {
      const focused = document.activeElement?.value;
      root.replaceChildren(...runs.map((run) => item(run, colours.has(run.name), colours.get(run.name))));
      if (focused && !document.activeElement?.closest(".run-list"))
        [...root.querySelectorAll("input")].find(({ value }) => value === focused)?.focus();
    },
  };
}
