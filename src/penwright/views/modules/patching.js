/** Activation patching: how much of the difference between two texts each activation restores. */

import { number } from "./axes.js";
import { tensor } from "./bytes.js";
import { make, view } from "./dom.js";
import { matrix } from "./matrix.js";
import { labels, textOf } from "./tokens.js";

const NAMES = { residual: "Residual stream", attention: "Attention", feed_forward: "Feed-forward networks", heads: "Heads" };

/** data: {explanation, kind, part, layers, tokens, other_tokens, restored [layers, columns]}. */
export function draw(element, data, options = {}) {
  return view(element, "patching", build, data, options);
}

function build(root, { explanation, kind, part, layers, tokens, other_tokens: others, restored }) {
  const values = tensor(restored);
  const heads = kind === "heads";
  const pair = (token, at) => [...new Set([textOf(others[at]), textOf(token)])].join("←");
  const columns = heads ? Array.from(
    { length: values.shape[1] },
    (_, head) => `head ${head}`,
  ) : labels(tokens.map(pair));
  const rows = layers.map((layer) => `layer ${layer}`);
  const limit = Math.max(1, ...Array.from(values.values, Math.abs));
  const say = (row, column) => {
    const where = heads ? columns[column] : `at “${columns[column]}”`;
    return `${rows[row]}, ${where}: restores ${number(100 * values.at(row, column))} % of the difference`;
  };
  root.append(make("p", {}, explanation));
  return matrix(
    root,
    { values, rows, columns, say, name: `${NAMES[kind]} of the ${part}`, signed: true, limit },
  );
}
