/** Translations of sentences, requested a few at a time and cached. */

import { askJson } from "../../api.js";

const AT_ONCE = 6; // sentences per request: small requests show results early and are cancelled early
const KEPT = 2000; // maximum number of translations in memory

/** Create a cache. `ask(wanted, how, signal, each)` calls each(number, result); `how` is {model, glossary, ...}. */
export function makeTranslations() {
  const known = new Map();
  const keyOf = (how, wanted) => JSON.stringify([how, wanted.text, wanted.prefix]);

  function keep(key, result) {
    known.set(key, result);
    if (known.size > KEPT) known.delete(known.keys().next().value);
  }
  return {
    /** Return the cached result of a sentence, or undefined. */
    known: (how, wanted) => known.get(keyOf(how, wanted)),
    async ask(wanted, how, signal, each) {
      const missing = [];
      wanted.forEach((one, number) => {
        const result = known.get(keyOf(how, one));
        if (result) each(number, result);
        else missing.push(number);
      });
      while (missing.length) {
        const numbers = missing.splice(0, AT_ONCE);
        const sentences = numbers.map((number) => ({ text: wanted[number].text, prefix: wanted[number].prefix }));
        const answer = await askJson("translating/sentences", { ...how, sentences }, { signal });
        numbers.forEach((number, at) => {
          const result = answer.sentences[at];
          keep(keyOf(how, wanted[number]), result);
          each(number, result);
        });
      }
    },
  };
}
