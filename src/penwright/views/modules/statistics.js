/** Statistics of heads in two models, or over two texts, side by side, largest difference first. */

import { number } from "./axes.js";
import { tensor } from "./bytes.js";
import { diverging, inkOn, isDark } from "./colour.js";
import { choices, emit, make, view } from "./dom.js";

/**
 * data: {names: [first, second], parts: [{name, layers, first and second: {statistic: [layers, heads]}}]}, with NaN if
 * one side has no such head. options: {sort: the statistic}. Emits sort-chosen {sort}.
 */
export function draw(element, data, options = {}) {
  return view(element, "statistics", build, data, options);
}

function build(root, data, options) {
  const offered = [...new Set(data.parts.flatMap(({ first }) => Object.keys(first)))];
  const state = { sort: offered.includes(options.sort) ? options.sort : offered[0] };
  const frame = make("div", { class: "pw-scroll", tabindex: 0, role: "group", "aria-label": "Heads" });
  const known = (value, sign = "") => (Number.isFinite(value) ? `${value > 0 ? sign : ""}${number(value)}` : "–");

  function rows() {
    const found = data.parts
      .filter(({ first }) => first[state.sort])
      .flatMap(({ name, layers, first, second }) => {
        const [one, other] = [tensor(first[state.sort]), tensor(second[state.sort])];
        return layers.flatMap((layer, row) =>
          Array.from({ length: one.shape[1] }, (_, head) => ({
            name: `${name}.${layer}.${head}`,
            values: [one.at(row, head), other.at(row, head)],
          })),
        );
      })
      .filter(({ values }) => values.some(Number.isFinite));
    const size = ({ values: [one, other] }) => (Number.isFinite(other - one) ? Math.abs(other - one) : -1);
    return found.toSorted((one, other) => size(other) - size(one));
  }
  function fill() {
    const all = rows();
    const differences = all.map(({ values: [one, other] }) => other - one).filter(Number.isFinite);
    const limit = Math.max(1e-12, ...differences.map(Math.abs));
    const line = ({ name, values: [one, other] }) => {
      const difference = other - one;
      const background = diverging(Number.isFinite(difference) ? difference / limit : 0, isDark(root));
      return make(
        "tr",
        {},
        make("th", { scope: "row" }, name),
        make("td", { class: "pw-number" }, known(one)),
        make("td", { class: "pw-number" }, known(other)),
        make("td", { class: "pw-number", style: { background, color: inkOn(background) } }, known(difference, "+")),
      );
    };
    const heads = ["head", ...data.names, "difference"].map((text) => make("th", { scope: "col" }, text));
    frame.replaceChildren(
      make(
        "table",
        { class: "pw-vectors" },
        make("thead", {}, make("tr", {}, heads)),
        make("tbody", {}, all.map(line)),
      ),
    );
  }
  const choose = (sort) => {
    state.sort = sort;
    fill();
    emit(root, "sort-chosen", { sort });
  };
  const values = offered.map((name) => [name, name]);
  root.append(make("div", { class: "pw-bar" }, choices("Statistic", values, state.sort, choose)), frame);
  fill();
  return { repaint: fill };
}
