/** Answers of the weights from several moments of training to the same text, side by side. */

import { make } from "../../views/dom.js";
import { inText } from "../../views/tokens.js";
import { askJson } from "../../api.js";
import { newest } from "../../newest.js";

/** Format a moment: 1 second, 100 seconds. */
const moment = (seconds) => `${Math.round(seconds).toLocaleString("en")} second${Math.round(seconds) === 1 ? "" : "s"}`;

/** Create the section. `show(model, text)` sets the served model, or null, and the text to begin with. */
export function makeEarly({ signal, fail }) {
  const asking = newest(signal);
  const known = { model: null };
  const field = make("input", { type: "text", dir: "auto", "aria-label": "Text", maxlength: 2000 });
  const button = make("button", { type: "submit" }, "Answer");
  const form = make("form", { class: "line", submit: (event) => (event.preventDefault(), answer()) }, field, button);
  const list = make("div", { class: "tried", "aria-live": "polite" });
  const title = make("h2", {}, "Then and now");
  const hint = make("p", { class: "hint" }, "The same text, answered by the weights after 1, 10, 100 … seconds of learning.");
  const root = make("section", { class: "samples", "aria-label": "Then and now", hidden: true }, title, hint, form, list);

  async function answer() {
    const stopped = asking.begin();
    list.setAttribute("aria-busy", "true");
    try {
      const { answers } = await askJson("early", { model: known.model, text: field.value }, { signal: stopped });
      list.replaceChildren(...answers.map(card));
    } catch (error) {
      if (!stopped.aborted) fail(error);
    }
    list.removeAttribute("aria-busy");
  }
  function card({ step, seconds, text, is_served: isServed }) {
    const when = isServed ? "Now" : `After ${moment(seconds)}`;
    const at = step === null ? "" : ` · step ${step.toLocaleString("en")}`;
    return make(
      "article",
      { class: "card" },
      make("p", { class: "hint" }, when + at),
      make("p", { class: "written", dir: "auto" }, inText(text)),
    );
  }
  return {
    root,
    show(model, text) {
      root.hidden = !model;
      if (model === known.model) return;
      known.model = model;
      field.value = text;
      asking.end();
      list.replaceChildren();
    },
  };
}
