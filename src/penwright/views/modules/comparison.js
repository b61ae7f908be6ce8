/** The surprisal of two texts under one model, or of one text under two models, token by token and side by side. */

import { number, percent } from "./axes.js";
import { bars } from "./bars.js";
import { tensor } from "./bytes.js";
import { diverging, inkOn, isDark, sequential } from "./colour.js";
import { choices, make, makePanel, table, twin, view } from "./dom.js";
import { roving } from "./keyboard.js";
import { inText, label } from "./tokens.js";

const SIDES = ["first", "second"];
const LIMIT = 4; // nats; larger differences all have the same colour
const MOST = 10; // nats; higher surprisals all have the same colour
const LISTED = 1000; // maximum rows of the table
const MEASURES = [
  ["difference", "difference"],
  ["surprise", "surprise"],
];

/**
 * data: {names: [first, second], first_texts, second_texts: [rows] ("" if only the other side has a token), first,
 * second, differences: [rows] in nats (NaN if there is no value), sums: [nats of the first, nats of the second]}.
 * options: {measure: "difference" or "surprise", for the colours}. Emits no events.
 */
export function draw(element, data, options = {}) {
  return view(element, "comparison", build, data, options);
}

function build(root, data, { measure = MEASURES[0][0] }) {
  const texts = { first: data.first_texts, second: data.second_texts };
  const nats = Object.fromEntries([...SIDES, "differences"].map((name) => [name, tensor(data[name])]));
  const known = (value, sign = false) =>
    Number.isFinite(value) ? `${sign && value > 0 ? "+" : ""}${number(value)}` : "–";
  const state = { measure, row: -1 };
  const passages = SIDES.map((side, at) => passage(side, data.names[at]));
  const panel = makePanel(
    "Point at a token, or use the arrow keys. Orange: higher surprisal on the second side; blue: higher on the first.",
  );

  function passage(side, name) {
    const spans = texts[side].map((text, row) =>
      text === "" ? null : make("span", { class: "pw-token", role: "button", "data-row": row }, inText(text)),
    );
    const title = make("h3", {}, make("bdi", {}, name), make("span", { class: "pw-note" }, sum(side)));
    const words = make(
      "div",
      { class: "pw-passage", dir: "auto", role: "group", "aria-label": name },
      spans.filter(Boolean),
    );
    const found = (event) => event.target.closest(".pw-token");
    const shown = (event) => found(event) && show(Number(found(event).dataset.row));
    words.addEventListener("pointerover", shown);
    words.addEventListener("focusin", shown);
    const all = spans.filter(Boolean);
    roving(words, () => all);
    return { node: make("div", {}, title, words), spans };
  }
  function sum(side) {
    const [one, other] = data.sums;
    if (!Number.isFinite(one)) return ""; // labels have no sum
    return side === "first" ? ` ${number(one)} nats` : ` ${number(other)} nats (${known(other - one, true)})`;
  }
  function paint() {
    const dark = isDark(root);
    passages.forEach(({ spans }, at) =>
      spans.forEach((span, row) => span && Object.assign(span.style, coloured(SIDES[at], row, dark))),
    );
  }
  function coloured(side, row, dark) {
    const value = nats[state.measure === "surprise" ? side : "differences"].number(row);
    if (!Number.isFinite(value)) return { background: "", color: "" };
    const background =
      state.measure === "surprise"
        ? sequential(Math.min(1, value / MOST) * 0.5, dark)
        : diverging(Math.max(-1, Math.min(1, value / LIMIT)), dark);
    return { background, color: inkOn(background) };
  }
  function show(row) {
    passages.forEach(({ spans }) => {
      spans[state.row]?.classList.remove("pw-current");
      spans[row]?.classList.add("pw-current");
    });
    state.row = row;
    const [one, other] = SIDES.map((side) => nats[side].number(row));
    const quoted = SIDES.map((side) => texts[side][row]);
    const said = [...new Set(quoted)].map((text) => make("bdi", { class: "pw-quoted" }, text ? label(text, 60) : "–"));
    const chances = [one, other].map((value) => (Number.isFinite(value) ? Math.exp(-value) : 0));
    const rows = data.names.map((name, at) => ({ name, values: [chances[at]] }));
    panel.replaceChildren(
      make("p", {}, said.flatMap((each, at) => (at ? [" | ", each] : [each]))),
      make("p", {}, `${known(one)} and ${known(other)} nats: difference ${known(other - one, true)}`),
      bars("side", ["probability"], rows, { say: percent }),
    );
  }
  const asTable = () => {
    const rows = texts.first.slice(0, LISTED).map((text, row) => [
      label(text),
      label(texts.second[row]),
      known(nats.first.number(row)),
      known(nats.second.number(row)),
      known(nats.differences.number(row), true),
    ]);
    const rest = texts.first.length - rows.length;
    const note = rest > 0 ? `The first ${LISTED} of ${texts.first.length}.` : null;
    return table([data.names[0], data.names[1], "nats", "nats", "difference"], rows, note);
  };
  const choose = (name) => ((state.measure = name), paint());
  root.append(
    make(
      "div",
      { class: "pw-bar" },
      make("span", { class: "pw-title" }, "coloured by"),
      choices("Coloured by", MEASURES, measure, choose),
    ),
    make("div", { class: "pw-pair" }, passages.map(({ node }) => node)),
    panel,
    twin("As a table", asTable),
  );
  paint();
  return { repaint: paint, show };
}
