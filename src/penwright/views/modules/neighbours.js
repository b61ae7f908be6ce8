/** The tokens with the embeddings nearest to a token. */

import { number } from "./axes.js";
import { bars } from "./bars.js";
import { emit, view } from "./dom.js";
import { label } from "./tokens.js";

/** data: {token, neighbours: [{text, id, similarity}]}, similarity a cosine. Emits token-chosen {text, id}. */
export function draw(element, data, options = {}) {
  return view(element, "neighbours", build, data, options);
}

function build(root, { token, neighbours }) {
  const rows = neighbours.map(({ text, id, similarity }) => ({
    name: label(text),
    values: [similarity],
    choose: () => emit(root, "token-chosen", { text, id }),
  }));
  root.append(bars(`near “${label(token)}”`, ["cosine"], rows, { say: number }));
}
