/** Answers of the weights from several moments of training to the same text, and a slider that goes through them. */

import { draw as drawAttention } from "../../views/attention.js";
import { make } from "../../views/dom.js";
import { inText } from "../../views/tokens.js";
import { askJson, askPacked } from "../../api.js";
import { newest } from "../../newest.js";

const PAUSE = 120; // milliseconds for which the slider must rest before heads are requested

/** Name a moment of training: "After 10 seconds · step 90". */
function moment({ step, seconds, is_served: isServed }) {
  const rounded = Math.round(seconds);
  const when = isServed ? "Now" : `After ${rounded.toLocaleString("en")} second${rounded === 1 ? "" : "s"}`;
  return step === null ? when : `${when} · step ${step.toLocaleString("en")}`;
}

/** Create the section. `show(model, text)` sets the served model, or null, and the text to begin with. */
export function makeEarly({ signal, fail }) {
  const asking = newest(signal);
  const looking = newest(signal);
  const known = { model: null, text: "", answers: [] };
  const drawn = { handle: null, head: null, options: {} };
  const field = make("input", { type: "text", dir: "auto", "aria-label": "Text", maxlength: 2000, required: true });
  const button = make("button", { type: "submit" }, "Answer");
  const form = make("form", { class: "line", submit: (event) => (event.preventDefault(), answer()) }, field, button);
  const moved = () => choose(PAUSE);
  const slider = make("input", { type: "range", min: 0, step: 1, "aria-label": "Moment of training", input: moved });
  const output = make("output", {});
  const bar = make("label", { class: "line", hidden: true }, slider, output);
  const list = make("div", { class: "tried moments", "aria-live": "polite" });
  const heads = make("div", {});
  const title = make("h2", {}, "Then and now");
  const hint = make(
    "p",
    { class: "hint" },
    "The same text, answered by the weights after 1, 10, 100 … seconds of training. " +
      "The slider chooses the weights whose attention heads are drawn.",
  );
  const root = make(
    "section",
    { class: "samples", "aria-label": "Then and now", hidden: true },
    title,
    hint,
    form,
    bar,
    list,
    heads,
  );
  root.addEventListener("head-opened", ({ detail: { part, layer, head } }) => open({ part, layer, head }));
  root.addEventListener("head-closed", () => (drawn.head = null));
  root.addEventListener("part-chosen", ({ detail }) => (drawn.options.part = detail.part));
  root.addEventListener("sort-chosen", ({ detail }) => (drawn.options.sort = detail.sort));
  root.addEventListener("shape-chosen", ({ detail }) => (drawn.options.shape = detail.shape));

  async function answer() {
    const stopped = asking.begin();
    list.setAttribute("aria-busy", "true");
    try {
      const text = field.value;
      const { answers } = await askJson("early", { model: known.model, text }, { signal: stopped });
      Object.assign(known, { text, answers });
      list.replaceChildren(...answers.map(card));
      bar.hidden = answers.length < 2;
      if (bar.hidden) list.append(make("p", { class: "hint" }, "This run kept no early weights."));
      slider.max = answers.length - 1;
      slider.value = slider.max;
      choose(0);
    } catch (error) {
      if (!stopped.aborted) fail(error);
    }
    list.removeAttribute("aria-busy");
  }
  function card(answer) {
    return make(
      "article",
      { class: "card" },
      make("p", { class: "hint" }, moment(answer)),
      make("p", { class: "written", dir: "auto" }, inText(answer.text)),
    );
  }
  /** Mark the answer that the slider is at, and draw the heads of its weights. */
  function choose(pause) {
    const at = Number(slider.value);
    output.textContent = moment(known.answers[at]);
    slider.setAttribute("aria-valuetext", output.textContent);
    list.querySelectorAll(".card").forEach((each, index) => {
      if (index === at) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    });
    looking.later(() => drawHeads().catch(fail), pause);
  }
  /** Request a picture of the text by the chosen weights. Resolves to null if another request has replaced this one. */
  async function ask(picture, stopped, extra = {}) {
    const { step, is_served: isServed } = known.answers[Number(slider.value)];
    const body = { model: known.model, text: known.text, ...(isServed ? {} : { step }), ...extra };
    try {
      return (await askPacked(`inspect/${picture}`, body, { signal: stopped })).views[0];
    } catch (error) {
      if (stopped.aborted) return null;
      throw error;
    }
  }
  const headName = ({ part, layer, head }, data) => `${data.parts[part].name}.${layer}.${head}`;

  async function drawHeads() {
    const stopped = looking.begin();
    const found = await ask("heads", stopped);
    const opened = found && drawn.head && (await ask("head", stopped, { head: headName(drawn.head, found.data) }));
    if (!found || stopped.aborted) return;
    const focused = document.activeElement;
    if (drawn.handle) drawn.handle.update(found.data, drawn.options);
    else drawn.handle = drawAttention(heads, found.data, { ...drawn.options, missing: "Loading the weights …" });
    drawn.data = found.data;
    if (opened) drawn.handle.parts.show(opened.data);
    if (focused === slider) slider.focus({ preventScroll: true }); // an opened head takes the focus
  }
  async function open(head) {
    drawn.head = head;
    try {
      const found = await ask("head", looking.begin(), { head: headName(head, drawn.data) });
      if (found) drawn.handle.parts.show(found.data);
    } catch (error) {
      fail(error);
    }
  }
  function clear() {
    asking.end();
    looking.end();
    drawn.handle?.destroy();
    Object.assign(drawn, { handle: null, head: null, options: {} });
    bar.hidden = true;
    list.replaceChildren();
  }
  return {
    root,
    show(model, text) {
      root.hidden = !model;
      if (model === known.model) return;
      known.model = model;
      field.value = text;
      clear();
    },
    stop: clear,
  };
}
