/** Translations of sentences, requested a few at a time and cached. */

import { askJson } from "../../api.js";

const AT_ONCE = 6; // sentences per request: small requests show results early and are cancelled early
const KEPT = 2000; // maximum number of translations in memory

/**
 * Create a cache. `ask(wanted, how, step, signal, each)` calls each(number, result). `how` is {model, glossary}, and
 * `step` the training step of the model's weights.
 */
export function makeTranslations() {
  const known = new Map();

  function keep(key, result) {
    known.set(key, result);
    if (known.size > KEPT) known.delete(known.keys().next().value);
  }
  return {
    async ask(wanted, how, step, signal, each) {
      const keyOf = ({ text, prefix }) => JSON.stringify([how, step, text, prefix]);
      const missing = [];
      wanted.forEach((one, number) => {
        const result = known.get(keyOf(one));
        if (result) each(number, result);
        else missing.push(number);
      });
      while (missing.length) {
        const numbers = missing.splice(0, AT_ONCE);
        const sentences = numbers.map((number) => ({ text: wanted[number].text, prefix: wanted[number].prefix }));
        const answer = await askJson("translating/sentences", { ...how, sentences }, { signal });
        numbers.forEach((number, at) => {
          const result = answer.sentences[at];
          keep(keyOf(wanted[number]), result);
          each(number, result);
        });
      }
    },
  };
}
