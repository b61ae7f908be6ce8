/** Attribution: each token of the text supports (orange) or opposes (blue) the output of the model. */

import { number, signed } from "./axes.js";
import { tensor } from "./bytes.js";
import { diverging, inkOn, isDark } from "./colour.js";
import { emit, make, readout, table, twin, view } from "./dom.js";
import { roving } from "./keyboard.js";
import { inText, label, textOf } from "./tokens.js";

/** A text with tokens coloured by signed values, also used by ablation.js. Returns {node, repaint, limit}. */
export function signedText(root, { tokens, values, line, say, name }) {
  const limit = Math.max(...Array.from(values, Math.abs).filter(Number.isFinite), 1e-12);
  const spans = tokens.map((token, place) =>
    make("span", { class: "pw-token pw-signed", role: "button", "data-place": place }, inText(textOf(token))),
  );
  const node = make("div", { class: "pw-passage", dir: "auto", role: "group", "aria-label": name }, spans);
  const found = (event) => event.target.closest(".pw-token");
  const show = (event, aloud) => found(event) && line.show(say(Number(found(event).dataset.place)), aloud);
  node.addEventListener("pointerover", (event) => show(event, false));
  node.addEventListener("focusin", (event) => show(event, true));
  const choose = (event) => found(event) && emit(root, "token-chosen", { place: Number(found(event).dataset.place) });
  node.addEventListener("click", choose);
  node.addEventListener("keydown", (event) => event.key === "Enter" && choose(event));
  roving(node, () => spans);
  function repaint() {
    const dark = isDark(root);
    spans.forEach((span, place) => {
      const colour = diverging((values[place] || 0) / limit, dark);
      span.style.background = colour;
      span.style.color = inkOn(colour);
    });
  }
  return { node, repaint, limit };
}

/**
 * data: {method, target: the attributed output (a text), tokens, values [positions], gap: the expected sum of the
 * values minus their sum, or null}. Emits token-chosen {place}.
 */
export function draw(element, data, options = {}) {
  return view(element, "attribution", build, data, options);
}

function build(root, { method, target = null, tokens, values, gap = null }) {
  const numbers = tensor(values).numbers();
  const line = readout("Point at a token, or use the arrow keys. Orange supports the output, blue opposes it.");
  const say = (place) => `“${label(textOf(tokens[place]))}” (${place}): ${signed(numbers[place])}`;
  const text = signedText(root, { tokens, values: numbers, line, say, name: "attribution" });
  const facts = [
    method,
    target !== null && `for “${label(textOf(target))}”`,
    gap !== null && `completeness gap ${number(gap)}`,
  ];
  const rows = Array.from(numbers, (value, place) => [`${place} ${label(textOf(tokens[place]))}`, signed(value)]);
  root.append(make("p", { class: "pw-title" }, facts.filter(Boolean).join(" · ")), text.node, ...line.nodes);
  root.append(twin("As a table", () => table(["token", "attribution"], rows)));
  text.repaint();
  return { repaint: text.repaint };
}
