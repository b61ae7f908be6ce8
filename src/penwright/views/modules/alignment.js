/** The word alignment of a source and its translation. */

import { make, view } from "./dom.js";
import { links } from "./links.js";
import { labels } from "./tokens.js";

/**
 * data: {source: words or tokens, target: words or tokens, links: [{source, target, strength}] by index}.
 * Emits token-chosen {side: "from" (source) or "to" (target), places}.
 */
export function draw(element, data, options = {}) {
  return view(element, "alignment", build, data, options);
}

function build(root, data, { threshold = 0.1 }) {
  const all = data.links.map(({ source, target, strength }) => ({ from: source, to: target, strength }));
  const drawn = links(root, {
    from: labels(data.source),
    to: labels(data.target),
    fromTitle: "source",
    toTitle: "target",
    strongest: () => all.filter(({ strength }) => strength >= threshold),
    row: (place) => all.filter(({ from }) => from === place),
    column: (place) => all.filter(({ to }) => to === place),
  });
  if (data.note) root.append(make("p", { class: "pw-note" }, data.note));
  return drawn;
}
