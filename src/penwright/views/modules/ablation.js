/** The effect of switching heads off on the loss, on the loss of each token, and on the next token. */

import { number, signed } from "./axes.js";
import { signedText } from "./attribution.js";
import { bars, paired } from "./bars.js";
import { tensor } from "./bytes.js";
import { make, readout, table, twin, view } from "./dom.js";
import { label, textOf } from "./tokens.js";

/**
 * data: {heads: [[part, layer, head]] that are off, loss: [before, after] in nats, tokens, changes [positions] in the
 * loss of the last tokens, next: {before, after: [{text, id, probability}]} or null}.
 */
export function draw(element, data, options = {}) {
  return view(element, "ablation", build, data, options);
}

function build(root, { heads, loss, tokens, changes, next = null }) {
  const numbers = tensor(changes).numbers();
  const first = tokens.length - numbers.length;
  const values = [...Array(first).fill(NaN), ...numbers];
  const [before, after] = tensor(loss).numbers();
  const line = readout(
    "Point at a token, or use the arrow keys. Orange: harder to predict without these heads; blue: easier.",
  );
  const say = (place) =>
    place < first
      ? "The model did not predict this token, so it has no loss."
      : `“${label(textOf(tokens[place]))}” (${place}): ${signed(values[place])} nats`;
  const text = signedText(root, { tokens, values, line, say, name: "change in loss" });
  const off = heads.map(([part, layer, head]) => `${part} ${layer}·${head}`).join(", ");
  const figure = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const figures = make(
    "dl",
    { class: "pw-figures" },
    figure("heads switched off", off),
    figure("loss before", number(before)),
    figure("loss after", number(after)),
    figure("change, nats per token", signed(after - before)),
  );
  const rows = tokens.map((token, place) => [`${place} ${label(textOf(token))}`, signed(values[place])]);
  root.append(
    figures,
    text.node,
    ...line.nodes,
    twin("As a table", () => table(["token", "change, nats"], rows)),
  );
  if (next)
    root.append(
      bars(
        "next",
        ["before", "after"],
        paired(next.before, next.after).map((each) => ({ ...each, name: label(each.text) })),
      ),
    );
  text.repaint();
  return { repaint: text.repaint };
}
