/** The probability of each label according to a classifier. */

import { bars } from "./bars.js";
import { emit, make, view } from "./dom.js";
import { label } from "./tokens.js";

/** data: {labels: [text], probabilities: [n], note: a remark or null}. Emits label-chosen {place, label}. */
export function draw(element, data, options = {}) {
  return view(element, "labels", build, data, options);
}

function build(root, { labels, probabilities, note = null }) {
  const values = probabilities.numbers ? probabilities.numbers() : probabilities;
  const rows = labels
    .map((text, place) => ({
      name: label(text, 40),
      values: [values[place]],
      choose: () => emit(root, "label-chosen", { place, label: text }),
    }))
    .sort((one, other) => other.values[0] - one.values[0]);
  root.append(bars("label", ["probability"], rows));
  if (note) root.append(make("p", { class: "pw-note" }, note));
}
