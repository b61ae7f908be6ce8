/** A short tour of a Transformer, from the text to the next token, with a person's own sentence. */

import { make } from "./views/dom.js";

const number = (value) => value.toLocaleString("en");

/** What the tokens of a model are, by the type of its tokenizer. */
function whatTokensAre({ tokenizer, vocab_size: vocabulary }) {
  const n = number(vocabulary);
  if (tokenizer === "characters") return `This model reads letter by letter: its ${n} tokens are single characters.`;
  if (tokenizer === "bytes") return `This model reads byte by byte: its ${n} tokens are the bytes of the text, one for most letters.`;
  return `A model reads neither letters nor words but tokens: the ${n} pieces of its vocabulary.`;
}

/** Return the steps for a model: [title, text, screen, state]. */
function stepsFor(model) {
  const { kind, d_model: width, n_heads: heads, n_layers: layers } = model;
  const look = (tool) => ["inspect", { tool, head: "" }];
  const steps = [
    [
      kind === "classifier" ? "Labels" : "Tokens",
      kind === "classifier"
        ? "This model reads a text and gives a probability to each label. The next steps show how it gets there."
        : `${whatTokensAre(model)} The model gives each token a probability before reading it. The stronger the colour, the less the token was expected. Point at a token to see the alternatives.`,
      ...look("tokens"),
    ],
    [
      "Embeddings",
      `Each token becomes a vector of ${width} numbers, its embedding. Tokens that are used in similar ways have vectors that point in similar directions: the cosine of the angle between them is near 1. Search for a token and look at its neighbours.`,
      ...look("embeddings"),
    ],
    [
      "Positions",
      "Attention alone ignores the order of the tokens. Every position therefore gets a mark of its own: fast and slow waves, or hands that turn on the unit circle. The marks of close positions are similar.",
      ...look("positions"),
    ],
    [
      "Queries, keys, values",
      `This is what one head computes, with all its numbers. Each token asks with a query, and every token answers with a key. Their product, divided by the square root of their length, is the score. The softmax turns a row of scores into weights that sum to 1, and the weights mix the values.`,
      ...look("arithmetic"),
    ],
    [
      "Many heads",
      `A word can need several things at once, so each of the ${layers} layers has ${heads} heads, and each head attends in its own way.${kind === "writer" ? " A triangle stays empty: a model that writes may only look back, never at what is still to come." : ""} Open a head.`,
      ...look("heads"),
    ],
    [
      "Layer upon layer",
      "Each layer adds its results to the vectors that it reads. This is what the model would say if it stopped after each layer: first guesses at the bottom, its answer at the top. The last step is a linear layer and a softmax over everything that it could say.",
      ...look("lens"),
    ],
    [
      "The whole model",
      "The whole model at once, with the numbers of your sentence: each row is a token, each column a step. The longer the vector that a step adds, the stronger its colour. Choose a block or a head to go in, down to one product of a query and a key.",
      ...look("model"),
    ],
    [
      "Where, and why",
      "Attention shows what a head attends to, not why. Switch heads off and see what changes: the loss, and the next token. Many heads change little; some change a lot.",
      ...look("ablation"),
    ],
  ];
  if (kind === "translator") {
    steps.splice(5, 0, [
      "From one language to the other",
      "While it chooses each word, the decoder asks the encoder: its queries are compared with the keys of the source. The lines show which source words it attends to. Lines cross where the two languages order their words differently.",
      ...look("alignment"),
    ]);
  }
  if (kind === "writer") {
    steps.push([
      "And again",
      "One token is drawn from these probabilities and added to the text, and everything starts again. The temperature and the other settings change how it is drawn: move them and watch the bars. Then let the model write, and click a different token to change the course of the text.",
      "write",
      {},
    ]);
  }
  return steps;
}

let open = null;

/** Start the tour of a model with a text; `go` opens a screen. A second call ends the first tour. */
export function startTour({ model, text, go }) {
  open?.close();
  const steps = stepsFor(model);
  const state = { at: -1, text };
  const title = make("h2", { tabindex: -1 });
  const told = make("p", {});
  const count = make("span", { class: "hint" });
  const field = make("textarea", { rows: 2, dir: "auto", "aria-label": "A sentence of your own" }, text);
  const back = make("button", { type: "button", click: () => show(state.at - 1) }, "Back");
  const next = make("button", { type: "button", class: "main", click: () => show(state.at + 1) }, "Next");
  const skip = make("button", { type: "button", class: "plain", click: close }, "Skip the tour");
  const card = make(
    "section",
    { class: "tour", role: "dialog", "aria-label": "Tour" },
    make("div", { class: "line" }, title, make("span", { class: "push" }, count)),
    told,
    field,
    make("div", { class: "line" }, skip, make("span", { class: "push line" }, back, next)),
  );

  function show(at) {
    if (at >= steps.length) return close();
    if (state.at < 0) state.text = field.value.trim() || text;
    state.at = at;
    const first = at < 0;
    const [name, what, screen, values] = first ? [] : steps[at];
    title.textContent = first ? "A Transformer, part by part" : name;
    told.textContent = first ? "Every picture on this tour shows a sentence of your own. Write one:" : what;
    count.textContent = first ? "" : `${at + 1} of ${steps.length}`;
    field.hidden = !first;
    back.hidden = first;
    next.textContent = first ? "Start" : at + 1 < steps.length ? "Next" : "Done";
    if (!first) go(screen, { ...values, model: model.id, text: state.text });
    (first ? field : title).focus();
    return undefined;
  }
  function close() {
    card.remove();
    document.removeEventListener("keydown", onKey);
    open = null;
  }
  function onKey(event) {
    if (event.key === "Escape" && (card.contains(event.target) || event.target === document.body)) close();
  }
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    show(0);
  });
  document.addEventListener("keydown", onKey);
  document.body.append(card);
  open = { close };
  show(-1);
}
