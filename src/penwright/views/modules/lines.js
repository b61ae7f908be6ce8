/** One head as lines from query tokens to key tokens. Weak links are left out. */

import { percent } from "./axes.js";
import { tensor } from "./bytes.js";
import { make, view } from "./dom.js";
import { caution } from "./head.js";
import { links } from "./links.js";
import { labels } from "./tokens.js";

const MOST = 1000; // most lines at a time

/**
 * data as in head.js; options: {threshold: the smallest weight drawn while nothing is selected, 0 to 1}.
 * Emits token-chosen {side, places}.
 */
export function draw(element, data, options = {}) {
  return view(element, "lines", build, data, options);
}

function build(root, data, { threshold = 0.2 }) {
  const values = tensor(data.weights);
  const [targets, sources] = values.shape;
  const state = { threshold };

  function strongest() {
    const list = [];
    for (let from = 0; from < targets; from++) {
      for (let to = 0; to < sources; to++) {
        const strength = values.at(from, to);
        if (strength >= state.threshold) list.push({ from, to, strength });
      }
    }
    return list.sort((one, other) => other.strength - one.strength).slice(0, MOST);
  }
  const among = (count, link) =>
    Array.from({ length: count }, (_, place) => link(place)).filter((one) => one.strength > 0.01);
  const shown = make("output", {}, percent(threshold));
  const slider = make("input", { type: "range", min: 0.02, max: 0.98, step: 0.02, value: threshold, input: slide });
  root.append(make("div", { class: "pw-bar" }, make("label", {}, "weights from ", slider, " ", shown)));
  const drawn = links(root, {
    from: labels(data.target_tokens),
    to: labels(data.source_tokens),
    fromTitle: "query tokens",
    toTitle: "key tokens",
    strongest,
    row: (from) => among(sources, (to) => ({ from, to, strength: values.at(from, to) })),
    column: (to) => among(targets, (from) => ({ from, to, strength: values.at(from, to) })),
  });
  function slide() {
    state.threshold = Number(slider.value);
    shown.textContent = percent(state.threshold);
    drawn.redraw();
  }
  root.append(caution());
  return drawn;
}
