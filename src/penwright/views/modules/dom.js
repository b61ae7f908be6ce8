/** Elements, events, and the common frame of all views. */

import { onTheme } from "./colour.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element. Attributes that are functions become event listeners; `style` is a table of properties. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A panel that describes the item under the pointer. At first, it shows a hint. */
export function makePanel(hint) {
  return make("div", { class: "pw-panel", "aria-live": "polite" }, make("p", { class: "pw-note" }, hint));
}

/** Notify the page of a choice with an event that bubbles. */
export function emit(element, name, detail) {
  element.dispatchEvent(new CustomEvent(name, { detail, bubbles: true }));
}

/**
 * A view: `build(root, data, options)` fills the root, and may return {repaint, stop} and further functions as `parts`.
 * update() builds the view again, with new options added to the earlier ones; destroy() removes the view.
 */
export function view(element, name, build, data, options = {}) {
  const root = make("div", { class: `pw pw-${name}` });
  element.append(root);
  let given = options;
  let built = build(root, data, given) || {};
  const stopTheme = onTheme(() => built.repaint && built.repaint());
  return {
    root,
    get parts() {
      return built;
    },
    update(newData, newOptions = {}) {
      if (built.stop) built.stop();
      root.replaceChildren();
      given = { ...given, ...newOptions };
      built = build(root, newData, given) || {};
    },
    destroy() {
      if (built.stop) built.stop();
      stopTheme();
      root.remove();
    },
  };
}

/** A choice between a few values: a group of buttons, one of them pressed. `choose` is called with its value. */
export function choices(label, values, chosen, choose) {
  const buttons = values.map(([value, text]) =>
    make("button", { type: "button", "aria-pressed": String(value === chosen), click: () => press(value) }, text),
  );
  function press(value) {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(values[place][0] === value)));
    choose(value);
  }
  return make("div", { class: "pw-choices", role: "group", "aria-label": label }, buttons);
}

/** A line that describes the item under the pointer; screen readers also read out the item with the keyboard focus. */
export function readout(hint) {
  const shown = make("p", { class: "pw-readout" }, hint);
  const spoken = make("p", { class: "pw-hidden", "aria-live": "polite" });
  return {
    nodes: [shown, spoken],
    show(text, aloud = false) {
      shown.textContent = text;
      if (aloud) spoken.textContent = text;
    },
  };
}

/** The content of a canvas as a table. `build` is called when the table is first opened. */
export function twin(title, build) {
  const details = make("details", { class: "pw-twin" }, make("summary", {}, title));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) {
      details.append(make("div", { class: "pw-scroll", tabindex: 0, role: "group", "aria-label": title }, build()));
    }
  });
  return details;
}

/** A table of rows. Cells are texts or elements; the first cell of each row is its heading. */
export function table(headings, rows, caption = null) {
  const line = (cells) =>
    make(
      "tr",
      {},
      cells.map((cell, at) => make(at ? "td" : "th", at ? {} : { scope: "row" }, cell)),
    );
  return make(
    "table",
    {},
    caption && make("caption", {}, caption),
    make(
      "thead",
      {},
      make(
        "tr",
        {},
        headings.map((heading) => make("th", { scope: "col" }, heading)),
      ),
    ),
    make("tbody", {}, rows.map(line)),
  );
}
