/** Word alignments of translations, requested when they are needed and cached. */

import { askJson } from "../../api.js";

const KEPT = 500; // maximum number of word alignments in memory

/** Create a cache. `ask(text, target)` returns {links: [{target, source, weight}], alignedBy}, with word indices. */
export function makeLinks({ model, signal }) {
  const known = new Map();

  async function load(text, target) {
    const found = await askJson("translating/links", { model: model.id, text, target }, { signal });
    const links = found.links.map(([word, source, weight]) => ({ target: word, source, weight }));
    return { links, alignedBy: found.aligned_by };
  }
  return {
    ask(text, target) {
      const key = JSON.stringify([model.step, text, target]);
      if (!known.has(key)) {
        const loading = load(text, target);
        known.set(key, loading);
        loading.catch(() => known.delete(key));
        if (known.size > KEPT) known.delete(known.keys().next().value);
      }
      return known.get(key);
    },
  };
}

/** Return the link with the greatest weight, or undefined. */
export const strongest = (links) => links.reduce((best, each) => (best && best.weight >= each.weight ? best : each), undefined);
