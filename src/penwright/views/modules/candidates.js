/** The most probable next tokens, before and after temperature, top-k, top-p and other sampling settings. */

import { unsure } from "./axes.js";
import { bars, paired } from "./bars.js";
import { emit, make, view } from "./dom.js";
import { label } from "./tokens.js";

/**
 * data: {before: [{text, id, probability}], after: the same, or null}. Excluded tokens are not in `after`.
 * Emits alternative-chosen {text, id}.
 */
export function draw(element, data, options = {}) {
  return view(element, "candidates", build, data, options);
}

function build(root, { before, after = null, entropy = null }) {
  const all = after ? paired(before, after) : before.map((each) => ({ ...each, values: [each.probability] }));
  const shown = (each) => each.values.at(-1);
  const rows = all.toSorted((one, other) => shown(other) - shown(one)).map(({ text, id, values }) => ({
    name: label(text),
    values,
    choose: () => emit(root, "alternative-chosen", { text, id }),
  }));
  root.append(bars("next", after ? ["the model's", "as sampled"] : ["probability"], rows));
  if (entropy !== null) {
    const title = `exp(${entropy.toFixed(2)}): the number of equally likely tokens with this entropy`;
    root.append(make("p", { class: "pw-note", title }, `Entropy ${entropy.toFixed(2)} nats: ${unsure(entropy)}.`));
  }
}
