/** The inner levels of the picture of a model: a block, an embedding, the output layer, a head, a row and a product. */

import { decimals, number, percent } from "./axes.js";
import { Tensor } from "./bytes.js";
import { diverging, inkOn, isDark, sequential } from "./colour.js";
import { make, table, twin } from "./dom.js";
import { move } from "./keyboard.js";
import { matrix, paint } from "./matrix.js";
import { label, labels, textOf } from "./tokens.js";

const MOST_ROWS = 40; // sources listed in a row of attention; the rest are summed up

const lengthOf = (vector) => Math.sqrt(Array.from(vector.values).reduce((sum, value) => sum + value * value, 0));
const named = (token) => label(textOf(token));

/** A vector as a strip of colours. Pointing at a number, or moving to it with the arrow keys, says it. */
function strip(vector, name, line) {
  const n = vector.size;
  const limit = Math.max(...Array.from(vector.values, Math.abs), 1e-9);
  const canvas = make(
    "canvas",
    { class: "pw-strip", width: n, height: 1, tabindex: 0, role: "application", "aria-label": `${name}, ${n} numbers` },
  );
  let at = 0;
  const say = (aloud) => line.show(`${name}, number ${at} of ${n}: ${number(vector.at(at))}`, aloud);
  canvas.addEventListener("pointermove", (event) => {
    at = Math.max(0, Math.min(n - 1, Math.floor((event.offsetX / canvas.clientWidth) * n)));
    say(false);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = move(event.key);
    if (!step || step[0]) return;
    event.preventDefault();
    event.stopPropagation();
    at = Math.max(0, Math.min(n - 1, at + step[1]));
    say(true);
  });
  const repaint = () => paint(canvas, new Tensor([1, n], "f32", vector.values), { signed: true, limit });
  return { node: canvas, repaint };
}

/** A list of steps with arrows between them; `add` appends a step, `arrow` the number on the way to the next. */
function steps(root, line) {
  const strips = [];
  const list = make("ol", { class: "pw-flow" });
  root.append(list);
  return {
    vector(title, vector, name, note = "") {
      const drawn = strip(vector, name, line);
      strips.push(drawn);
      const length = `${vector.size} numbers, length ${number(lengthOf(vector))}`;
      list.append(
        make(
          "li",
          {},
          make("div", { class: "pw-flow-name" }, make("strong", {}, title), make("span", {}, length)),
          drawn.node,
          note && make("p", { class: "pw-note" }, note),
        ),
      );
    },
    item(title, ...content) {
      list.append(make("li", {}, make("div", { class: "pw-flow-name" }, make("strong", {}, title)), ...content));
    },
    arrow(text) {
      list.append(make("li", { class: "pw-flow-arrow" }, `↓ ${text}`));
    },
    repaint: () => strips.forEach((each) => each.repaint()),
  };
}

/** An embedding: the token's vector, its position's vector, their sum, and in some models a norm. */
export function drawEmbedding(root, { token, names, vectors }, line) {
  const flow = steps(root, line);
  const isNormalized = names.includes("sum");
  const embedded = isNormalized ? "What the first block reads" : "Sum: what the first block reads";
  const texts = { token: "Token vector", position: "Position vector", sum: "Sum", embedded };
  const arrows = {
    token: `row ${token.id} of the token table`,
    position: "+ the vector of its position",
    sum: "=",
    embedded: isNormalized ? "normalized" : "=",
  };
  flow.item(
    "Token",
    make("p", {}, make("strong", {}, `“${named(token)}”`), ` has the number ${token.id} in the vocabulary.`),
  );
  names.forEach((name, at) => {
    flow.arrow(arrows[name]);
    flow.vector(texts[name], vectors[at], name);
  });
  if (!names.includes("position")) {
    const rotary = "With rotary positions, each head rotates its queries and keys instead.";
    root.append(make("p", { class: "pw-note" }, `This model adds no position vectors. ${rotary}`));
  }
  flow.repaint();
  return flow;
}

/** A block at one position: each sublayer with what it reads, does and adds. `open(head)` opens a head. */
export function drawBlock(root, { sublayers }, line, open) {
  const flow = steps(root, line);
  flow.vector("Residual stream", sublayers[0].before, "stream before the block");
  for (const each of sublayers) {
    const cross = each.part === "cross";
    const attention = each.kind === "attention";
    const isPostNorm = each.before.values.every((value, at) => value === each.read.values[at]);
    flow.arrow(
      (cross && "queries from the decoder, keys and values from the encoder") ||
        `${isPostNorm ? "" : "normalized, "}to ${attention ? "every head" : "the network"}`,
    );
    if (attention) {
      flow.item(cross ? "Cross-attention" : "Attention", heads(each, open));
    } else {
      const active = Array.from(each.hidden.values).filter(
        (value) => Math.abs(value) > 0.01 * Math.max(...Array.from(each.hidden.values, Math.abs), 1e-9),
      ).length;
      flow.vector(
        "Feed-forward: hidden layer",
        each.hidden,
        "hidden layer",
        `${active} of ${each.hidden.size} hidden numbers exceed 1 % of the largest, in absolute value.`,
      );
    }
    flow.arrow(`adds a vector of length ${number(lengthOf(each.output))}`);
    flow.vector(
      `What the ${attention ? (cross ? "cross-attention" : "attention") : "feed-forward network"} adds`,
      each.output,
      "output",
    );
    const change = `the length changes from ${number(lengthOf(each.before))} to ${number(lengthOf(each.after))}`;
    flow.arrow(`${isPostNorm ? "added to the stream and normalized: " : ""}${change}`);
    flow.vector("Residual stream", each.after, "stream after it");
  }
  flow.repaint();
  return flow;
}

function heads({ part, layer, head_added: added, head_sources: seen, head_weights: weights, sources }, open) {
  const card = (_, head) => {
    const source = seen[head];
    const share = weights.at(head);
    return make(
      "button",
      { type: "button", class: "pw-head-box", click: () => open(`${part}.${layer}.${head}`) },
      make("strong", {}, `head ${head}`),
      make("span", {}, `attends to “${named(sources[source])}” ${percent(share)}`),
      make("span", { class: "pw-head-share", style: { "--share": share } }),
      make("span", {}, `adds ${number(added.at(head))}`),
    );
  };
  return make("div", { class: "pw-head-boxes" }, Array.from({ length: added.size }, card));
}

/** The output layer: the last vector, its logits, and the softmax. */
export function drawOutput(root, { names, vectors, outcomes, logits, log_sum: logSum }, line) {
  const flow = steps(root, line);
  const titles = {
    stream: "Residual stream after the last block",
    normalized: "After the final norm",
    pooled: "One vector for the whole text",
  };
  names.forEach((name, at) => {
    if (at) flow.arrow(name === "pooled" ? "pooled" : "normalized");
    flow.vector(titles[name], vectors[at], name);
  });
  flow.arrow("times the vector of each outcome");
  const rows = outcomes.texts.map(
    (text, at) => [
      label(String(text)),
      decimals(logits.at(at)),
      `e^(${decimals(logits.at(at))} − ${decimals(logSum)})`,
      percent(outcomes.probabilities.at(at)),
    ],
  );
  flow.item(
    "Logits, and their softmax",
    make(
      "div",
      { class: "pw-scroll", tabindex: 0, role: "group", "aria-label": "Logits" },
      table(["outcome", "logit", "softmax", "probability"], rows),
    ),
    make("p", { class: "pw-note" }, `${decimals(logSum)} is the logarithm of the sum of e^logit over all outcomes.`),
  );
  flow.repaint();
  return flow;
}

/** A head as a matrix. `open(row)` opens a row. */
export function drawHead(root, data, open) {
  const [rows, columns] = [labels(data.target_tokens), labels(data.source_tokens)];
  const values = data.weights;
  const say = (row, column) => {
    const seen = `“${columns[column]}” (${column}): ${percent(values.at(row, column))}`;
    return `“${rows[row]}” (${row}) attends to ${seen}. Press Enter to open this row.`;
  };
  const hidden = data.name === "decoder" ? (row, column) => column > row : null;
  const drawn = matrix(root, { values, rows, columns, say, name: `head ${data.layer}.${data.head}`, hidden });
  root.addEventListener("cell-chosen", ({ detail }) => open(detail.row));
  return drawn;
}

/** One row of attention: for each source the score, the scaled score and the weight; then the weighted values. */
export function drawRow(root, data, line, open) {
  const dark = isDark(root);
  const width = data.keys.shape[1];
  const order = Array.from({ length: data.keys.shape[0] }, (_, at) => at).filter(
    (at) => Number.isFinite(data.masked.at(0, at)),
  );
  const ranked = [...order].sort((one, other) => data.weights.at(0, other) - data.weights.at(0, one));
  const shown = new Set(ranked.slice(0, MOST_ROWS));
  const flow = steps(root, line);
  const query = data.queries.part(0);
  flow.vector(`Query of “${named(data.target_tokens[0])}”`, query, "query", "What this position looks for.");
  flow.arrow(`times the key of each token, divided by √${width} = ${number(Math.sqrt(width))}`);
  const limit = Math.max(...order.map((at) => Math.abs(data.scaled.at(0, at))), 1e-9);
  const cell = (text, colour) => make(
    "td",
    { class: "pw-number", style: { background: colour, color: inkOn(colour) } },
    text,
  );
  const rows = order.filter((at) => shown.has(at)).map((at) => {
    const weight = data.weights.at(0, at);
    const button = make(
      "button",
      { type: "button", class: "pw-choose", click: () => open(at) },
      make("bdi", {}, named(data.source_tokens[at])),
    );
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, button),
      make("td", { class: "pw-number" }, decimals(data.scores.at(0, at))),
      cell(decimals(data.scaled.at(0, at)), diverging(data.scaled.at(0, at) / limit, dark)),
      cell(percent(weight), sequential(Math.sqrt(weight), dark)),
      make("td", {}, make("span", { class: "pw-head-share", style: { "--share": weight } })),
    );
  });
  const rest = order.filter((at) => !shown.has(at));
  const sum = rest.reduce((total, at) => total + data.weights.at(0, at), 0);
  const head = make(
    "tr",
    {},
    ["token", "query · key", "scaled", "weight", "as a bar"].map((text) => make("th", { scope: "col" }, text)),
  );
  flow.item(
    "Scores and weights",
    make(
      "p",
      { class: "pw-note" },
      "The softmax turns the scaled scores into weights that add up to 100 %. Choose a token to see its product.",
    ),
    make(
      "div",
      { class: "pw-scroll", tabindex: 0, role: "group", "aria-label": "Scores and weights" },
      make("table", { class: "pw-vectors pw-row-table" }, make("thead", {}, head), make("tbody", {}, rows)),
    ),
    rest.length ? make("p", { class: "pw-note" }, `Other tokens (${rest.length}) share ${percent(sum)}.`) : null,
  );
  flow.arrow("the values, each times its weight, added up");
  flow.vector("Output of the head", data.output.part(0), "output");
  flow.repaint();
  return flow;
}

/** One product: query times key, number by number, and what becomes of the sum. */
export function drawProduct(root, data, source, line) {
  const [query, key] = [data.queries.part(0), data.keys.part(source)];
  const products = new Tensor([query.size], "f32", Float32Array.from(query.values, (value, at) => value * key.at(at)));
  const flow = steps(root, line);
  flow.vector(`Query of “${named(data.target_tokens[0])}”`, query, "query");
  flow.arrow("× (number by number)");
  flow.vector(`Key of “${named(data.source_tokens[source])}”`, key, "key");
  flow.arrow("=");
  flow.vector("Products", products, "product");
  flow.arrow("added up");
  const [score, scaled, weight] = [data.scores, data.scaled, data.weights].map((each) => each.at(0, source));
  const isSeen = Number.isFinite(data.masked.at(0, source));
  const seen = `e^${number(scaled)} ÷ (the sum over all tokens) = ${percent(weight)}`;
  flow.item(
    "Score, and its weight",
    make("p", { class: "pw-sum" }, `${number(score)} ÷ √${query.size} = ${number(scaled)}`),
    make("p", { class: "pw-sum" }, isSeen ? seen : "This token comes later, so it is hidden: its weight is 0."),
  );
  root.append(
    twin(
      "All numbers",
      () => table(
        ["number", "query", "key", "product"],
        Array.from(
          query.values,
          (value, at) => [String(at), number(value), number(key.at(at)), number(products.at(at))],
        ),
      ),
    ),
  );
  flow.repaint();
  return flow;
}
