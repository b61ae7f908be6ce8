/** A short walk through a Transformer, from the text to what comes next, over a person's own sentence. */

import { make } from "./views/dom.js";

const number = (value) => value.toLocaleString("en");

/** The steps for a model: [title, text, the screen, its state]. */
function stepsFor(model) {
  const { kind, d_model: width, n_heads: heads, n_layers: layers, vocab_size: vocabulary } = model;
  const look = (tool) => ["inspect", { tool, head: "" }];
  const steps = [
    [
      kind === "classifier" ? "What it says" : "Tokens",
      kind === "classifier"
        ? "This model reads a text and says which label suits it: a probability for each. What follows is how it comes to that."
        : `A model reads no letters and no words but tokens, the ${number(vocabulary)} pieces of its vocabulary. To each it gave a probability before it came: the stronger the colour, the less it was expected. Point at one to see what else might have come.`,
      ...look("tokens"),
    ],
    [
      "Embeddings",
      `Each token becomes a vector of ${width} numbers, its embedding. Tokens that are used alike come to point the same way: the cosine of the angle between “blue” and “red” is near 1. Search for one, and look at its neighbours.`,
      ...look("embeddings"),
    ],
    [
      "Positions",
      "Attention by itself knows no order. So every position gets a mark of its own: waves, fast ones and slow ones, or hands that turn on the unit circle. Places that are close look alike.",
      ...look("positions"),
    ],
    [
      "Queries, keys, values",
      `Here is what one head does, with all its numbers. Each token asks with a query; each answers with a key. Their product, divided by the root of their length, is the score; the softmax makes weights of a row of scores, which sum to 1; and the values are mixed by these weights.`,
      ...look("arithmetic"),
    ],
    [
      "Many heads",
      `A word can need several things at once, so there are ${heads} heads in each of ${layers} layers, and each looks in its own way.${kind === "writer" ? " A triangle is left empty: a model that writes may look back only, never at what is still to come." : ""} Open one.`,
      ...look("heads"),
    ],
    [
      "Layer upon layer",
      "Each layer adds what it found to what was there. If the model stopped after one of them, this is what it would say: first guesses below, its answer on top. The last step is a linear layer and a softmax over everything that it could say.",
      ...look("lens"),
    ],
    [
      "Where, and why",
      "Attention shows where a head looks, not what for. Switch heads off, and see what changes: the loss, and what comes next. Many change little; some are dearly missed.",
      ...look("ablation"),
    ],
  ];
  if (kind === "translator") {
    steps.splice(5, 0, [
      "From one language to the other",
      "While it chooses each word, the decoder asks the encoder: its queries meet the keys of the source. The lines go to where it looks; they cross where the languages put words in another order.",
      ...look("alignment"),
    ]);
  }
  if (kind === "writer") {
    steps.push([
      "And again",
      "One token is drawn from these probabilities, put after the text, and all begins anew. The temperature and its like change how it is drawn: move them, and watch the bars. Then let it write, and click another token to lead it elsewhere.",
      "write",
      {},
    ]);
  }
  return steps;
}

let open = null;

/** Begin the tour of a model with a text; `go` leads to a screen. A second call ends the first. */
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
    title.textContent = first ? "A Transformer, from its parts" : name;
    told.textContent = first ? "Every picture on this tour is of a sentence of your own. Write one:" : what;
    count.textContent = first ? "" : `${at + 1} of ${steps.length}`;
    field.hidden = !first;
    back.hidden = first;
    next.textContent = first ? "Begin" : at + 1 < steps.length ? "Next" : "Done";
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
