/** Two columns of words with lines between them, for attention and alignment. */

import { percent } from "./axes.js";
import { emit, make, makeSvg, readout } from "./dom.js";
import { roving } from "./keyboard.js";

const ROW = 26; // pixels per row

/**
 * `from` and `to` are labels. `strongest()` returns the links [{from, to, strength}] shown while nothing is selected,
 * `row(from)` and `column(to)` the links of one word. The links of several selected words are summed. Emits token-chosen.
 */
export function links(root, { from, to, fromTitle, toTitle, strongest, row, column }) {
  const height = ROW * Math.max(from.length, to.length);
  const drawing = makeSvg("svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  drawing.style.setProperty("height", `${height}px`);
  const line = readout("Point at a word, or choose it. Shift or the space bar adds words to the sum; Escape clears it.");
  const selected = { side: "from", places: new Set() };
  const word = (side) => (text, place) =>
    make(
      "button",
      { type: "button", class: "pw-word", "aria-pressed": "false", "data-side": side, "data-place": place },
      make("bdi", {}, text),
    );
  const words = { from: from.map(word("from")), to: to.map(word("to")) };
  const stack = (side, title) =>
    make(
      "div",
      { class: `pw-stack pw-${side}` },
      make("p", { class: "pw-title" }, title),
      make("div", { class: "pw-words", role: "group", "aria-label": title }, words[side]),
    );
  const stacks = [stack("from", fromTitle), stack("to", toTitle)];
  const middle = make("div", { class: "pw-lines" }, make("p", { class: "pw-title" }, "\u00a0"), drawing);
  const columns = make("div", { class: "pw-links" }, stacks[0], middle, stacks[1]);

  function draw(list) {
    const path = ({ from: one, to: other, strength }) => {
      const [start, end] = [one, other].map((place) => (place + 0.5) * ROW);
      return makeSvg("path", {
        d: `M0 ${start}C45 ${start} 55 ${end} 100 ${end}`,
        "stroke-opacity": Math.min(1, 0.12 + strength),
        "stroke-width": 1 + 2.5 * strength,
      });
    };
    drawing.replaceChildren(...list.map(path));
  }
  function shade(side, sums) {
    const other = side === "from" ? "to" : "from";
    words[side].forEach((node) => node.style.removeProperty("--share"));
    words[other].forEach((node, place) => {
      node.style.setProperty("--share", `${Math.round(100 * Math.min(1, sums.get(place) || 0))}%`);
    });
  }
  function show(side, places, aloud = false) {
    if (places.length === 0) {
      [...words.from, ...words.to].forEach((node) => node.style.removeProperty("--share"));
      draw(strongest());
      return;
    }
    const find = side === "from" ? row : column;
    const list = places.flatMap((place) => find(place));
    const sums = new Map();
    const end = side === "from" ? "to" : "from";
    list.forEach((link) => sums.set(link[end], (sums.get(link[end]) || 0) + link.strength));
    draw(list.sort((one, other) => other.strength - one.strength).slice(0, 128));
    shade(side, sums);
    const texts = side === "from" ? [from, to] : [to, from];
    const best = [...sums].sort((one, other) => other[1] - one[1]).slice(0, 3);
    const named = places.map((place) => `“${texts[0][place]}”`).join(" + ");
    line.show(
      `${named}: ${best.map(([place, sum]) => `“${texts[1][place]}” ${percent(sum)}`).join(", ") || "–"}`,
      aloud,
    );
  }
  function select(side, place, more) {
    const again = selected.side === side && selected.places.has(place);
    if (!more || selected.side !== side) selected.places.clear();
    selected.side = side;
    if (again) selected.places.delete(place);
    else selected.places.add(place);
    press();
    emit(columns, "token-chosen", { side, places: [...selected.places] });
  }
  function press() {
    for (const [side, nodes] of Object.entries(words)) {
      const on = (place) => side === selected.side && selected.places.has(place);
      nodes.forEach((node, place) => node.setAttribute("aria-pressed", String(on(place))));
    }
    show(selected.side, [...selected.places], true);
  }
  const found = (event) => event.target.closest(".pw-word");
  columns.addEventListener("pointerover", (event) => {
    const node = found(event);
    if (node && selected.places.size === 0) show(node.dataset.side, [Number(node.dataset.place)]);
  });
  columns.addEventListener("pointerleave", () => selected.places.size === 0 && show("from", []));
  columns.addEventListener("focusin", (event) => {
    const node = found(event);
    if (node && selected.places.size === 0) show(node.dataset.side, [Number(node.dataset.place)], true);
  });
  columns.addEventListener("click", (event) => {
    const node = found(event);
    if (node) select(node.dataset.side, Number(node.dataset.place), event.shiftKey);
  });
  columns.addEventListener("keydown", (event) => {
    if (event.key === "Escape") selected.places.clear();
    else if (event.key === " " && found(event))
      select(found(event).dataset.side, Number(found(event).dataset.place), true);
    else return;
    event.preventDefault();
    press();
  });
  columns.addEventListener("keyup", (event) => event.key === " " && event.preventDefault()); // prevents a click
  stacks.forEach((node, place) => roving(node, () => words[place ? "to" : "from"]));
  root.append(make("div", { class: "pw-scroll pw-frame" }, columns), ...line.nodes);
  draw(strongest());
  return { redraw: () => selected.places.size === 0 && draw(strongest()), select };
}
