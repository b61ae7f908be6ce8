/** One place of a model at one position: an embedding, a block or the output layer, with the vectors on the way. */

import { emit, readout, view } from "./dom.js";
import { drawBlock, drawEmbedding, drawOutput } from "./levels.js";

/** data: a PlaceDetail of inspection/model_map.py. Emits head-chosen {head}. */
export function draw(element, data, options = {}) {
  return view(element, "place", build, data, options);
}

function build(root, data) {
  const line = readout("Point at a number, or choose a strip and use the arrow keys.");
  root.append(...line.nodes);
  return drawPlace(root, data, line, (head) => emit(root, "head-chosen", { head }));
}

/** Draw a place in `root`; `open(head)` is called with the name of a head that is chosen. */
export function drawPlace(root, data, line, open) {
  if (data.place === "output") return drawOutput(root, data, line);
  return data.place.endsWith(".embedding") ? drawEmbedding(root, data, line) : drawBlock(root, data, line, open);
}
