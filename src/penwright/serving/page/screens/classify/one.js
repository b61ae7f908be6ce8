/** One text: the probability of each label, and the tokens that support the chosen label. */

import { percent } from "../../views/axes.js";
import { draw as drawAttribution } from "../../views/attribution.js";
import { choices, make } from "../../views/dom.js";
import { draw as drawLabels } from "../../views/labels.js";
import { askJson, askPacked, wasStopped } from "../../api.js";
import { newest } from "../../newest.js";
import { aloneNote } from "../../screens.js";

const METHODS = [
  ["integrated_gradients", "integrated gradients"],
  ["gradient_x_input", "gradient × input"],
  ["leaving_out", "leaving out"],
];
const SAID = {
  integrated_gradients:
    "The values and the gap add up to the change in the label's log-probability, compared with a neutral text. If the gap is large, do not trust the values.",
  gradient_x_input: "A quick first estimate. If the gap is large, do not trust the values.",
  leaving_out:
    "How much the label's log-probability drops when the token is left out. This method needs no gradient and has no gap.",
};

/** Describe how often the model was right at this probability. See GET /classifying/calibration. */
export function trust(calibration, probability) {
  if (!calibration) return "";
  if (!calibration.n)
    return `These are the model's own probabilities. How reliable they are is unknown (${calibration.note}).`;
  const bin = calibration.bins.find(({ low, high }) => probability >= low && (probability < high || high >= 1));
  const all = `Over all ${calibration.n.toLocaleString("en")} held-out texts, probabilities were off by ${percent(calibration.error)} on average.`;
  if (!bin) return `No held-out text had a probability close to this one. ${all}`;
  const range = `${Math.round(100 * bin.low)} to ${Math.round(100 * bin.high)} %`;
  return `Of ${bin.n.toLocaleString("en")} held-out texts with a probability of ${range}, the model labelled ${percent(bin.accuracy)} correctly. ${all}`;
}

/** Describe an answer without a most likely label. */
function saidOf({ labels, score }) {
  if (labels !== null) return `Labels: ${labels.join(", ") || "none"}`;
  return score === null ? "A text without visible characters has no label." : `Predicted number: ${score}`;
}

/** Create the view of one text. `remember` stores the method; `calibration` resolves to the calibration or null. */
export function makeOne({ model, signal, fail, announce, method, remember, calibration }) {
  const bars = make("div", { class: "labels" });
  const note = make("p", { class: "pw-note" });
  const picture = make("div", { class: "picture" });
  const why = make("p", { class: "pw-note" });
  const chosen = choices("Attribution by", METHODS, method, (name) => (remember(name), explain(name)));
  const reasons = make(
    "section",
    { "aria-label": "Why" },
    make("div", { class: "line" }, make("h2", {}, "Why"), chosen),
    picture,
    why,
  );
  const root = make(
    "div",
    { class: "one", hidden: true },
    make("section", { "aria-label": "Labels" }, bars, note),
    reasons,
  );
  const shown = { text: "", label: null, method, handles: [] };
  const asking = newest(signal);
  bars.addEventListener("label-chosen", ({ detail }) => ((shown.label = detail.label), explain(shown.method)));

  async function explain(name) {
    shown.method = name;
    const stopped = asking.begin();
    const body = { model: model.id, text: shown.text, ...(shown.label === null ? {} : { target: shown.label }) };
    const [path, extra] =
      name === "leaving_out" ? ["inspect/leaving_out", {}] : ["inspect/attribution", { method: name }];
    picture.setAttribute("aria-busy", "true");
    try {
      const answer = await askPacked(path, { ...body, ...extra }, { signal: stopped });
      shown.handles.splice(0).forEach((handle) => handle.destroy());
      shown.handles.push(drawAttribution(picture, answer.views[0].data));
      why.textContent = [SAID[name], aloneNote(model), ...answer.warnings].join(" ");
    } catch (error) {
      if (!stopped.aborted && !wasStopped(error)) fail(error);
    }
    if (!stopped.aborted) picture.removeAttribute("aria-busy");
  }
  return {
    root,
    /** Classify a text and explain its most likely label. */
    async show(text, stopped) {
      const { results } = await askJson("classify", { model: model.id, texts: text }, { signal: stopped });
      const { label, labels, score, scores, warnings } = results[0];
      const isSingle = labels === null && score === null && label !== null;
      const [names, probabilities] = [Object.keys(scores), Object.values(scores)];
      bars.replaceChildren();
      if (names.length) drawLabels(bars, { labels: names, probabilities, note: warnings.join(" ") || null });
      root.hidden = false;
      reasons.hidden = !isSingle;
      Object.assign(shown, { text, label: null });
      if (!isSingle) {
        note.textContent = saidOf(results[0]);
        announce(note.textContent);
        return;
      }
      announce(`${label}, ${percent(scores[label])}`);
      const known = await calibration;
      note.textContent = trust(known, scores[label]);
      await explain(shown.method);
    },
    hide: () => (root.hidden = true),
  };
}
