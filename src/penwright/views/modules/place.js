/** One place of a model at one position: an embedding, a block or the output layer, with the vectors on the way. */

import { emit, make, readout, view } from "./dom.js";
import { strongest } from "./flow.js";
import { drawBlock, drawEmbedding, drawHead, drawOutput, drawProduct, drawRow } from "./levels.js";
import { label, textOf } from "./tokens.js";

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
function drawPlace(root, data, line, open) {
  if (data.place === "output") return drawOutput(root, data, line);
  return data.place.endsWith(".embedding") ? drawEmbedding(root, data, line) : drawBlock(root, data, line, open);
}

/** Fetch what a level needs; the result has its node, and `build` draws it. `go(next)` opens the next level inwards. */
export async function drawLevel({ level, place, head, position, source }, piece, line, go) {
  const node = make("div", {});
  const built = (build) => ({ node, build: () => build() });
  if (level === "place") {
    const found = await piece("place", { place, position });
    const title = (name) => `head ${name.split(".").slice(1).join(".")}`;
    const open = (name) => go({ level: "head", head: name, position, title: title(name) });
    return built(() => drawPlace(node, found, line, open));
  }
  if (level === "head") {
    const found = await piece("head", { head });
    const open = (row) => go({ level: "row", head, position: row, title: `row ${row}` });
    const own = { shape: [1, found.weights.shape[1]], at: (_, at) => found.weights.at(position, at) };
    return built(() => {
      const drawn = drawHead(node, found, open);
      drawn.select(position, strongest(own, 0, 1)[0][0]);
      return drawn;
    });
  }
  const found = await piece("row", { head, position });
  if (level === "product") return built(() => drawProduct(node, found, source, line));
  const title = (at) => `“${label(textOf(found.source_tokens[at]))}”`;
  const open = (at) => go({ level: "product", head, position, source: at, title: title(at) });
  return built(() => drawRow(node, found, line, open));
}
