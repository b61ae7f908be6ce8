/** The grid of all heads, and the opened head as a matrix or as lines. */

import { tensor } from "./bytes.js";
import { choices, emit, make, view } from "./dom.js";
import { draw as drawHead, headName } from "./head.js";
import { draw as drawHeads } from "./heads.js";
import { draw as drawLines } from "./lines.js";

/**
 * data as in heads.js. Instead of all `weights`, a part may have `thumbs` of all heads, and the weights of some heads as
 * `open`: {heads: [[layer, head]], weights: [n, targets, sources]}. To show another head, the page listens for
 * head-opened {part, layer, head} and calls parts.show(data of head.js). Emits head-closed and shape-chosen.
 */
export function draw(element, data, options = {}) {
  return view(element, "attention", build, data, options);
}

/** The data of head.js for a head, or null if only its thumbnail is available. */
function headData(part, layer, head) {
  const { name, target_tokens, source_tokens } = part;
  const found = part.open ? part.open.heads.findIndex((each) => each[0] === layer && each[1] === head) : -1;
  if (found < 0 && !part.weights) return null;
  const weights =
    found < 0
      ? tensor(part.weights).part(part.layers ? part.layers.indexOf(layer) : layer, head)
      : tensor(part.open.weights).part(found);
  return { name, layer, head, weights, target_tokens, source_tokens };
}

function build(root, data, options) {
  const shelf = make("div", {});
  const stage = make("div", { class: "pw-stage", hidden: true });
  root.append(shelf, stage);
  const grid = drawHeads(shelf, data, options);
  const state = { drawn: null, shape: options.shape || "matrix", opened: null };

  function show(head) {
    close();
    const part = data.parts.findIndex(({ name }) => name === head.name);
    state.opened = { part, layer: head.layer, head: head.head };
    stage.hidden = false;
    const title = make("h3", { tabindex: -1 }, headName(head));
    const back = make("button", { type: "button", class: "pw-back", click: leave }, "← all heads");
    const place = make("div", {});
    const shapes = choices(
      "Shown as",
      [
        ["matrix", "matrix"],
        ["lines", "lines"],
      ],
      state.shape,
      (shape) => {
        state.shape = shape;
        redraw();
        emit(root, "shape-chosen", { shape });
      },
    );
    function redraw() {
      if (state.drawn) state.drawn.destroy();
      state.drawn = (state.shape === "matrix" ? drawHead : drawLines)(place, head, options);
    }
    stage.replaceChildren(make("div", { class: "pw-bar" }, back, title, shapes), place);
    shelf.hidden = true;
    redraw();
    title.focus();
  }
  function close() {
    if (state.drawn) state.drawn.destroy();
    state.drawn = null;
    stage.hidden = true;
    shelf.hidden = false;
    stage.replaceChildren();
  }
  function leave() {
    close();
    if (state.opened) grid.parts.focus(state.opened.layer, state.opened.head);
    emit(root, "head-closed", state.opened);
  }
  function missing() {
    stage.hidden = false;
    stage.replaceChildren(
      make(
        "p",
        { class: "pw-note", role: "status" },
        options.missing || "Only a thumbnail of this head is available here.",
      ),
    );
  }
  shelf.addEventListener("head-opened", ({ detail }) => {
    const head = headData(data.parts[detail.part], detail.layer, detail.head);
    if (head) show(head);
    else missing();
  });
  stage.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && state.drawn) leave();
  });
  return { show, leave, stop: () => (close(), grid.destroy()) };
}
