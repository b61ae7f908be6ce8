/** The sampling settings: a slider for each rule, with a position for "off". The address keeps changed settings. */

import { number } from "../../views/axes.js";
import { make } from "../../views/dom.js";

/** [name, title, minimum, maximum, step, the value that means "off" or null, what it does] */
const USUAL = [
  ["temperature", "Temperature", 0, 2, 0.05, null, "below 1, likely tokens become more likely; 0 always takes the most likely token"],
  ["top_k", "Top k", 0, 100, 1, 0, "keep the k most likely tokens"],
  ["top_p", "Top p", 0.05, 1, 0.01, 1, "keep the most likely tokens whose probabilities add up to p"],
  ["min_p", "Min p", 0, 0.5, 0.01, 0, "keep tokens with at least this fraction of the highest probability"],
];
const MORE = [
  ["typical_p", "Typical p", 0.05, 1, 0.01, 1, "keep tokens that are about as surprising as expected"],
  ["top_n_sigma", "Top n sigma", 0, 5, 0.1, 0, "keep tokens within n standard deviations of the best score"],
  ["repetition_penalty", "Repetition", 1, 2, 0.05, null, "above 1, tokens that occurred before get a lower score"],
  ["presence_penalty", "Presence", -2, 2, 0.1, null, "subtracted from the score of tokens that occurred before"],
  ["frequency_penalty", "Frequency", -2, 2, 0.1, null, "subtracted once for each time the token occurred"],
  ["no_repeat_ngram", "No repeat", 0, 10, 1, 0, "no sequence of this many tokens occurs twice"],
];
const SLIDERS = [...USUAL, ...MORE];

/**
 * Create the sliders, the length and the seed. `defaults` are the model's own settings. Calls `changed()` when a rule
 * has changed. `all()` returns the settings of a request: the rules that differ from the model's own, seed and length.
 */
export function makeSettings({ state, defaults, changed }) {
  const initial = ([name, , , , , off]) => defaults[name] ?? off;
  const fields = new Map();

  function slider([name, title, min, max, step, off, what], row) {
    const value = state.number(name, initial(row));
    const shown = make("output", {});
    const input = make("input", { type: "range", min, max, step, value, title: what });
    const write = () => (shown.textContent = Number(input.value) === off ? "off" : number(Number(input.value)));
    input.addEventListener("input", () => {
      write();
      state.set({ [name]: Number(input.value) === initial(row) ? "" : input.value });
      changed();
    });
    write();
    fields.set(name, { input, write, row });
    return make("label", { class: "slider" }, make("span", { title: what }, title), input, shown);
  }
  function field(name, title, value, attributes) {
    const input = make("input", { type: "number", step: 1, value, ...attributes });
    input.addEventListener("change", () => state.set({ [name]: input.value === String(value) ? "" : input.value }));
    fields.set(name, { input });
    return make("label", { class: "number" }, title, input);
  }
  function reset() {
    for (const { input, write, row } of fields.values()) {
      if (!row) continue;
      input.value = initial(row);
      write();
      state.set({ [row[0]]: "" });
    }
    changed();
  }
  const length = field("length", "Tokens", state.number("length", 200), { min: 1, max: 4096 });
  const seed = field("seed", "Seed", state.number("seed", 0), { min: 0 });
  const root = make(
    "section",
    { class: "settings", "aria-label": "Settings" },
    make(
      "div",
      { class: "line" },
      make("h2", {}, "Sampling"),
      make("button", { type: "button", class: "plain push", click: reset }, "Reset"),
    ),
    USUAL.map((row) => slider(row, row)),
    make(
      "details",
      {},
      make("summary", {}, "More settings"),
      MORE.map((row) => slider(row, row)),
    ),
    make("div", { class: "line" }, length, seed),
  );
  const numberIn = (name) => Math.max(0, Math.round(Number(fields.get(name).input.value) || 0));
  return {
    root,
    /** Use the next seed from now on. */
    turnSeed() {
      const { input } = fields.get("seed");
      input.value = String(numberIn("seed") + 1);
      state.set({ seed: input.value });
    },
    seed: () => numberIn("seed"),
    /** Return the rules that differ from the model's own, without the seed and the length. */
    rules() {
      const given = SLIDERS.map(([name, , , , , off]) => [name, Number(fields.get(name).input.value), off]);
      const moved = given.filter(([name, value], at) => value !== initial(SLIDERS[at]) && name);
      return Object.fromEntries(moved.map(([name, value, off]) => [name, value === off ? null : value]));
    },
    all() {
      return { ...this.rules(), seed: numberIn("seed"), max_new_tokens: Math.max(1, numberIn("length")) };
    },
  };
}
