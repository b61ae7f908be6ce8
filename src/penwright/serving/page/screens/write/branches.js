/** The branches of a text: each version is kept below the one from which it diverged. */

import { make } from "../../views/dom.js";
import { label } from "../../views/tokens.js";
import { join } from "./text.js";

const SHOWN = 60; // maximum number of characters of a branch to show

/** Return where two texts diverge. */
function parting(one, other) {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at++;
  return at;
}

/** Create a tree of texts. Calls `open(parts)` when a person returns to one. */
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
    // depth first: a branch, then the branches that diverge from it
    const below = (parent) => kept.flatMap((branch, at) => (branch.parent === parent ? [at, ...below(at)] : []));
    list.replaceChildren(...below(null).map((at) => row(kept[at], at)));
  }
  const depth = (at) => (kept[at].parent === null ? 0 : 1 + depth(kept[at].parent));
  return {
    root,
    /** Keep a finished text. If it continues the current branch, it replaces that branch. */
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
