/** Attention rollout through all layers (Abnar and Zuidema 2020): the share of each token in each position. */

import { percent } from "./axes.js";
import { tensor } from "./bytes.js";
import { view } from "./dom.js";
import { caution, looksBack } from "./head.js";
import { matrix } from "./matrix.js";
import { labels } from "./tokens.js";

/** data: {name: the part, weights [targets, sources], target_tokens, source_tokens}. Emits cell-chosen. */
export function draw(element, data, options = {}) {
  return view(element, "rollout", build, data, options);
}

function build(root, data) {
  const values = tensor(data.weights);
  const [rows, columns] = [labels(data.target_tokens), labels(data.source_tokens)];
  const say = (row, column) =>
    `“${rows[row]}” (${row}): ${percent(values.at(row, column))} comes from “${columns[column]}” (${column})`;
  const drawn = matrix(root, {
    values,
    rows,
    columns,
    say,
    name: "Rollout through all layers",
    hidden: looksBack(data.name || "decoder"),
  });
  root.append(caution());
  return drawn;
}
