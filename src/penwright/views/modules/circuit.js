/** The strongest paths from part to part, each with a sentence. */

import { signed } from "./axes.js";
import { make, view } from "./dom.js";

/** data: {target, position, explanation, edges: [{source, destination, via, effect}], sentences}. */
export function draw(element, data, options = {}) {
  return view(element, "circuit", build, data, options);
}

function build(root, { explanation, edges, sentences }) {
  root.append(
    make("p", {}, explanation),
    edgeList(edges, sentences, () => null),
    make(
      "p",
      { class: "pw-note" },
      "Orange paths support the outcome, blue ones oppose it. Effects are in nats of log-probability.",
    ),
  );
}

/** A list of edges. `mark(at)` is called with the number of the edge under the pointer, or null. */
export function edgeList(edges, sentences, mark) {
  const item = (text, at) =>
    make(
      "li",
      {
        class: "pw-path",
        tabindex: 0,
        "data-for": edges[at].effect >= 0 ? "yes" : "no",
        pointerenter: () => mark(at),
        pointerleave: () => mark(null),
        focus: () => mark(at),
        blur: () => mark(null),
      },
      make("span", {}, text),
      make("span", { class: "pw-number" }, signed(edges[at].effect)),
    );
  return make("ol", { class: "pw-paths" }, sentences.map(item));
}
