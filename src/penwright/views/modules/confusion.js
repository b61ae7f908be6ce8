/** The confusion matrix of a classifier: true labels as rows, predicted labels as columns. */

import { number, percent } from "./axes.js";
import { tensor } from "./bytes.js";
import { inkOn, isDark, sequential } from "./colour.js";
import { emit, make, view } from "./dom.js";
import { label } from "./tokens.js";

const MOST_LEVEL = 5; // number of labels up to which the headings of the columns are level; more of them stand upright

/** data: {labels: [n], counts [n, n] (rows true, columns predicted)}. Emits cell-chosen {row, column, count}. */
export function draw(element, data, options = {}) {
  return view(element, "confusion", build, data, options);
}

function build(root, { labels, counts }) {
  const values = tensor(counts);
  const names = labels.map((text) => label(text, 20));
  const sums = names.map((_, row) => names.reduce((sum, _, column) => sum + values.at(row, column), 0));
  const cells = [];
  const cell = (row) => (_, column) => {
    const count = values.at(row, column);
    const share = sums[row] ? count / sums[row] : 0;
    const choose = () => emit(root, "cell-chosen", { row, column, count });
    const said = `${names[row]} predicted as ${names[column]}: ${count}, ${percent(share)}`;
    const node = make(
      "td",
      {},
      make("button", { type: "button", "aria-label": said, title: said, click: choose }, number(count)),
    );
    cells.push([node, share]);
    return node;
  };
  const heading = (text) => make("th", { scope: "col", title: text }, make("bdi", {}, text));
  const kind = names.length > MOST_LEVEL ? "pw-confusion-table pw-upright" : "pw-confusion-table";
  const recall = (row) =>
    make("td", { class: "pw-number" }, sums[row] ? percent(values.at(row, row) / sums[row]) : "–");
  const line = (name, row) =>
    make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, name)), names.map(cell(row)), recall(row));
  const head = make("tr", {}, heading("true ↓  predicted →"), names.map(heading), heading("recall"));
  root.append(
    make(
      "div",
      { class: "pw-scroll" },
      make("table", { class: kind }, make("thead", {}, head), make("tbody", {}, names.map(line))),
    ),
  );
  root.append(
    make(
      "p",
      { class: "pw-note" },
      "Colour: share of the row. Recall: the share of texts with this true label that were recognised.",
    ),
  );
  function repaint() {
    const dark = isDark(root);
    cells.forEach(([node, share]) => {
      const colour = sequential(Math.sqrt(share), dark);
      node.style.background = colour;
      node.style.color = inkOn(colour);
    });
  }
  repaint();
  return { repaint };
}
