/** Direct logit attribution: what each part of a model adds to the logit of an outcome. */

import { signed } from "./axes.js";
import { tensor } from "./bytes.js";
import { diverging, inkOn, isDark } from "./colour.js";
import { make, view } from "./dom.js";

const LISTED = 24; // parts in the list

/** data: {explanation, target, logit, names, values, labels: the names in words}. */
export function draw(element, data, options = {}) {
  return view(element, "parts", build, data, options);
}

function build(root, { explanation, values: given, labels, logit }) {
  const values = Array.from(tensor(given).values);
  const limit = Math.max(...values.map(Math.abs), 1e-9);
  const order = values.map((_, at) => at).sort((one, other) => Math.abs(values[other]) - Math.abs(values[one]));
  const painters = []; // one for each line, which take whether the page is dark
  const line = (at) => {
    const number = make("td", { class: "pw-number" }, signed(values[at]));
    const half = { width: `${(50 * Math.abs(values[at])) / limit}%`, [values[at] >= 0 ? "left" : "right"]: "50%" };
    const bar = make("span", { style: half });
    painters.push((dark) => {
      const background = diverging(values[at] / limit, dark);
      Object.assign(number.style, { background, color: inkOn(background) });
      bar.style.background = diverging(Math.sign(values[at]) * 0.75, dark);
    });
    return make("tr", {}, make("th", { scope: "row" }, labels[at]), number, make("td", { class: "pw-bar-both" }, bar));
  };
  const rest = order.slice(LISTED);
  const sum = rest.reduce((total, at) => total + values[at], 0);
  const further = rest.length ? `Other parts (${rest.length}) add ${signed(sum)} together. ` : "";
  root.append(
    make("p", {}, explanation),
    make(
      "table",
      { class: "pw-parts-table" },
      make(
        "thead",
        {},
        make("tr", {}, ["part", "adds to the logit", "as a bar"].map((text) => make("th", { scope: "col" }, text))),
      ),
      make("tbody", {}, order.slice(0, LISTED).map(line)),
    ),
    make(
      "p",
      { class: "pw-note" },
      `${further}All parts add up to ${signed(logit)}.`,
    ),
  );
  const repaint = () => painters.forEach((paint) => paint(isDark(root)));
  repaint();
  return { repaint };
}
