/** The ways the text has gone: each end is kept, below the one that it left. */

import { make } from "../../views/dom.js";
import { label } from "../../views/tokens.js";
import { join } from "./text.js";

const SHOWN = 60; // characters

/** Where two texts part. */
function parting(one, other) {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at++;
  return at;
}

/** A tree of texts; `open(parts)` is called when a person goes back to one. */
export function makeBranches(open) {
  /** @type {{parts: object[], text: string, parent: number | null}[]} */
  const kept = [];
  const list = make("ul", {});
  const root = make(
    "section",
    { class: "branches", "aria-label": "Branches", hidden: true },
    make("h2", {}, "Branches"),
    list,
  );
  let current = null;

  function draw() {
    root.hidden = kept.length < 2;
    const row = (branch, at) => {
      const from = branch.parent === null ? 0 : parting(branch.text, kept[branch.parent].text);
      const rest = branch.text.slice(from).trimStart() || branch.text;
      const name = (from ? "…" : "") + label(rest.slice(0, SHOWN), SHOWN);
      const click = () => ((current = at), open(branch.parts), draw());
      const button = make("button", { type: "button", dir: "auto", "aria-pressed": String(at === current), click }, name);
      return make("li", { style: { "--depth": depth(at) } }, button);
    };
    // below one another as they grew: a branch, then those that left it
    const below = (parent) => kept.flatMap((branch, at) => (branch.parent === parent ? [at, ...below(at)] : []));
    list.replaceChildren(...below(null).map((at) => row(kept[at], at)));
  }
  const depth = (at) => (kept[at].parent === null ? 0 : 1 + depth(kept[at].parent));
  return {
    root,
    /** Keep a text that has come to an end; one that goes on from the present branch takes its place. */
    keep(parts) {
      const text = join(parts);
      const same = kept.findIndex((branch) => branch.text === text);
      const grown = current !== null && text.startsWith(kept[current].text);
      if (same >= 0) current = same;
      else if (grown) Object.assign(kept[current], { parts, text });
      else current = kept.push({ parts, text, parent: current }) - 1;
      draw();
    },
  };
}
