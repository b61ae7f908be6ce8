/** Figures in plain words. The exact figure with its unit goes into the tooltip. */

export const TASKS = [
  ["generate", "Write text like this"],
  ["translate", "Translate"],
  ["classify", "Sort texts by label"],
  ["chat", "Answer questions"],
];
export const ROLES = {
  generate: [["text", "Text"]],
  translate: [
    ["source", "Translate from"],
    ["target", "Translate into"],
  ],
  classify: [
    ["text", "Text"],
    ["label", "Label"],
  ],
  chat: [],
};
export const STATES = {
  waiting: "Waiting for its turn",
  preparing: "Getting ready",
  training: "Learning",
  stopping: "Saving, then stopping",
  finished: "Finished",
  stopped: "Stopped; you can continue it",
  failed: "Failed",
};
const BLEU = [
  [10, "hardly usable yet"],
  [20, "the gist can be guessed"],
  [30, "understandable, with clear mistakes"],
  [40, "good"],
  [101, "very good"],
];

/** Round for people: 3.2, 32, 3,200. */
export const rounded = (value) =>
  value >= 99.5 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(2)));

/** Format a duration in minutes: 20 seconds, 5 minutes, 2 hours. */
export function duration(minutes) {
  const [value, unit] =
    minutes < 1 ? [minutes * 60, "second"] : minutes < 100 ? [minutes, "minute"] : [minutes / 60, "hour"];
  return `${rounded(value)} ${unit}${rounded(value) === "1" ? "" : "s"}`;
}

/** Format seconds as 1:02:03 or 2:03. */
export function clock(seconds) {
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Format bytes: 3.2 MB. */
export function size(bytes) {
  const at = Math.min(4, Math.floor(Math.log10(Math.max(1, bytes)) / 3));
  return `${rounded(bytes / 1000 ** at)} ${["bytes", "kB", "MB", "GB", "TB"][at]}`;
}

/** Format a number of parameters: 1.2 million. */
export const parameters = (n) => (n >= 1e6 ? `${rounded(n / 1e6)} million` : `${rounded(n / 1e3)} thousand`);

/** Describe how good a run is: [words, the exact figure], or null without a score. */
export function quality(scores) {
  const score = (start) => Object.entries(scores).find(([name, value]) => name.startsWith(start) && value !== null);
  const exact = ([name, value]) => `${name} ${Number(value.toPrecision(4))}`;
  const [bleu, accuracy, nats] = [score("BLEU"), score("accuracy"), score("nats")];
  if (bleu) return [`BLEU ${rounded(bleu[1])}: ${BLEU.find(([limit]) => bleu[1] < limit)[1]}`, exact(bleu)];
  if (accuracy) {
    const share = accuracy[1] > 1 ? accuracy[1] : 100 * accuracy[1];
    return [`${rounded(share)} % of unseen texts get the right label`, exact(accuracy)];
  }
  if (!nats) return null;
  return [`As unsure about the next piece of text as if choosing between ${rounded(Math.exp(nats[1]))} pieces`, exact(nats)];
}

/**
 * Describe what to expect of a budget: {before, figure, after, exact}; `exact` is the unit. `outlook` is the forecast for the planned budget: more
 * time is of use up to `pays_up_to` minutes, and a linear classifier reaches `accuracy`.
 */
export function expected({ low, high, share, epochs, minutes }, bytesPerLetter, { pays_up_to: paysUpTo, accuracy }) {
  const reads = epochs < 1 ? `reads ${rounded(100 * epochs)} % of the text` : `reads the text ${rounded(epochs)} time${rounded(epochs) === "1" ? "" : "s"}`;
  const more = minutes < paysUpTo ? `More time helps, up to about ${duration(paysUpTo)}.` : "More time would hardly help.";
  if (accuracy !== null)
    return {
      before: `It ${reads}, and should give about `,
      figure: `${rounded(accuracy)} % of unseen texts`,
      after: ` the right label, or more. ${more}`,
      exact: "accuracy of a linear classifier that was fitted to this text just now",
    };
  if (share !== null) {
    const [least, most] = share.map((value) => Math.round(100 * value));
    const well = least < 98 ? `${least} to ${most} % as well` : "about as well";
    return {
      before: `It ${reads}, and should translate `,
      figure: well,
      after: ` as it can learn from this text. ${more}`,
      exact: "share of the best BLEU score, a rough estimate from a few recorded runs",
    };
  }
  if (low === null) return { before: `It ${reads}. `, figure: "", after: more, exact: null };
  const letters = rounded(2 ** (((low + high) / 2) * bytesPerLetter));
  return {
    before: `It ${reads}, and should become as unsure about the next letter as if choosing between `,
    figure: `about ${letters} letters`,
    after: ` (fewer is better). ${more}`,
    exact: `${low.toFixed(2)} to ${high.toFixed(2)} bits per byte of unseen text, a rough estimate`,
  };
}
