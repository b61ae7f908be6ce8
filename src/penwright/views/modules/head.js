/** One head as a matrix: each row is a query token, each column a key token. */

import { percent } from "./axes.js";
import { tensor } from "./bytes.js";
import { make, view } from "./dom.js";
import { matrix } from "./matrix.js";
import { labels } from "./tokens.js";

/** A caution about the meaning of attention, displayed with every view of attention. */
export const CAUTION =
  "Attention shows what a head attends to, not why the model answers as it does: switch heads off to check.";

/** The caution as a note below a picture. A page with the caution above the pictures hides this note. */
export const caution = () => make("p", { class: "pw-note pw-caution" }, CAUTION);

const PARTS = { decoder: "decoder", encoder: "encoder", cross: "decoder to encoder" };

/** The readable name of a head. */
export const headName = ({ name, layer, head }) => `${PARTS[name] || name}, layer ${layer}, head ${head}`;

/** For the decoder, a function that returns whether a cell is masked because it is a later token; else null. */
export const looksBack = (name) => (name === "decoder" ? (row, column) => column > row : null);

/**
 * data: {name, layer, head, weights [targets, sources], target_tokens, source_tokens}.
 * Emits cell-chosen {row, column, value}.
 */
export function draw(element, data, options = {}) {
  return view(element, "head", build, data, options);
}

function build(root, data) {
  const [rows, columns] = [labels(data.target_tokens), labels(data.source_tokens)];
  const values = tensor(data.weights);
  const say = (row, column) =>
    `“${rows[row]}” (${row}) attends to “${columns[column]}” (${column}): ${percent(values.at(row, column))}`;
  const drawn = matrix(root, { values, rows, columns, say, name: headName(data), hidden: looksBack(data.name) });
  root.append(caution());
  return drawn;
}
