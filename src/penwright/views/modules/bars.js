/** Bars of probabilities in a table: one or two per row, for example before and after a change. */

import { percent } from "./axes.js";
import { make } from "./dom.js";

const bar = (value, most, kind) =>
  make(
    "span",
    { class: `pw-bar-track pw-${kind}`, "aria-hidden": "true" },
    value > 0 ? make("span", { style: { width: `${(100 * value) / most}%` } }) : null,
  );

/**
 * A table of bars. `rows`: [{name: text or element, values: [a number for each column], choose: function or null}].
 * The largest value has the longest bar.
 */
export function bars(heading, columns, rows, { say = percent, caption = null } = {}) {
  const most = Math.max(...rows.flatMap(({ values }) => values), 1e-12);
  const line = ({ name, values, choose }) => {
    const text = make("bdi", {}, name);
    const cell = choose ? make("button", { type: "button", class: "pw-choose", click: choose }, text) : text;
    const kinds = ["first", "second"];
    const cells = values.map((value, at) =>
      make("td", { class: "pw-number" }, bar(value, most, kinds[at % 2]), say(value)),
    );
    return make("tr", {}, make("th", { scope: "row" }, cell), cells);
  };
  return make(
    "table",
    { class: "pw-bars" },
    caption && make("caption", {}, caption),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        [heading, ...columns].map((text) => make("th", { scope: "col" }, text)),
      ),
    ),
    make("tbody", {}, rows.map(line)),
  );
}

/** The tokens of two lists of {text, id, probability}, with their probabilities in both lists (0 if absent). */
export function paired(before, after) {
  const key = ({ id, text }) => (id === undefined ? text : id);
  const known = (list) => new Map(list.map((each) => [key(each), each.probability]));
  const [early, later] = [known(before), known(after)];
  const all = [...before, ...after.filter((each) => !early.has(key(each)))];
  return all.map((each) => ({ ...each, values: [early.get(key(each)) || 0, later.get(key(each)) || 0] }));
}
