/** A run's completions of the same prompts at each step, with a slider over the steps. */

import { make } from "../../views/dom.js";
import { inText } from "../../views/tokens.js";

/** Create the samples. Calls `moved(step)` when the slider has moved. */
export function makeSamples({ moved }) {
  const slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Step", input: () => draw(true) });
  const output = make("output", {});
  const choice = make("select", { "aria-label": "Run", change: () => draw() });
  const list = make("div", { class: "tried" });
  const bar = make(
    "div",
    { class: "line" },
    make("h2", {}, "Samples"),
    choice,
    make("label", { class: "line" }, slider, output),
  );
  const root = make("section", { class: "samples", "aria-label": "Samples", hidden: true }, bar, list);
  const known = { runs: [], step: null };

  const current = () => known.runs.find(({ name }) => name === choice.value) || known.runs[0];
  const stepsOf = ({ samples }) => [...new Set(samples.map(({ step }) => step))];

  function draw(byHand = false) {
    const run = current();
    if (!run) return;
    const steps = stepsOf(run);
    slider.max = steps.length - 1;
    if (!byHand) {
      const at = known.step === null ? -1 : steps.findLastIndex((step) => step <= known.step);
      slider.value = at < 0 ? steps.length - 1 : at;
    }
    const step = steps[Number(slider.value)];
    if (byHand) moved((known.step = Number(slider.value) === steps.length - 1 ? null : step));
    output.textContent = `step ${step.toLocaleString("en")}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    list.replaceChildren(...run.samples.filter((each) => each.step === step).map(item));
  }
  function item({ prompt, completion, reference }) {
    const row = (name, text, kind) =>
      make("p", { class: kind, dir: "auto" }, make("span", { class: "pw-hidden", dir: "ltr" }, `${name}: `), inText(text));
    return make(
      "article",
      { class: "card" },
      row("prompt", prompt, "prompt"),
      row("written", completion, "written"),
      reference && row("expected", reference, "reference"),
    );
  }
  return {
    root,
    /** Show [{name, samples}] of the chosen runs, at this step or at the last one (null). */
    show(runs, step) {
      known.runs = runs.filter(({ samples }) => samples.length);
      known.step = step;
      root.hidden = !known.runs.length;
      const before = choice.value;
      choice.replaceChildren(
        ...known.runs.map(({ name }) => make("option", { value: name, selected: name === before }, name)),
      );
      choice.hidden = known.runs.length < 2;
      draw();
    },
  };
}
