/**
 * A text in parts: parts that a person wrote are plain, and parts that the model wrote or scored have tokens. Parts are
 * never changed, so that earlier texts can be restored.
 *
 * @typedef {object} Choice a candidate token
 * @property {number} id
 * @property {string} text the token alone
 * @property {string} [shown] what it adds to the text, if that differs: nothing for part of a character
 * @property {number} probability the model's probability
 * @property {number | null} chance probability after the settings; null if none applied
 *
 * @typedef {object} Token
 * @property {number} id
 * @property {string} text the token alone
 * @property {number} logProb in nats
 * @property {number} rank 1 for the likeliest
 * @property {number} entropy in nats
 * @property {Choice[]} likeliest
 *
 * @typedef {{text: string, tokens: Token[]}} Part no tokens: plain; several: bytes of one character
 */

/** @type {(text: string) => Part} */
export const plain = (text) => ({ text, tokens: [] });

/** Return the whole text. */
export const join = (parts) => parts.map(({ text }) => text).join("");

/** Return the parts after a person has changed the text. Tokens after the change lose their scores. */
export function edited(parts, text) {
  let [kept, at] = [0, 0];
  while (kept < parts.length && text.startsWith(parts[kept].text, at)) at += parts[kept++].text.length;
  while (kept && (parts[kept - 1].tokens.length === 0 || parts[kept - 1].text === "")) at -= parts[--kept].text.length;
  const rest = text.slice(at);
  return rest ? [...parts.slice(0, kept), plain(rest)] : parts.slice(0, kept);
}

/** Return what the model should continue: a text, and the known tokens after it. */
export function prompt(parts) {
  const last = parts.findLastIndex(({ tokens }) => tokens.length === 0);
  const tokens = parts.slice(last + 1).flatMap((part) => part.tokens.map(({ id }) => id));
  return { text: join(parts.slice(0, last + 1)), tokens };
}

/** Return the parts before a place, followed by one of the choices at that place. */
export function branched(parts, place, choice) {
  const { entropy, likeliest } = parts[place].tokens[0];
  return [...parts.slice(0, place), chosen(choice, entropy, likeliest)];
}

/** Return a token that a person has chosen, as a part. */
export function chosen(choice, entropy, likeliest) {
  const rank = 1 + likeliest.filter(({ probability }) => probability > choice.probability).length;
  const token = { id: choice.id, text: choice.text, logProb: Math.log(choice.probability), rank, entropy, likeliest };
  return { text: choice.shown ?? choice.text, tokens: [token] };
}

/** Create a function that turns arriving tokens into parts. Bytes wait until they form a character. */
export function makeCollector(open = []) {
  return (token, text) => {
    open = [...open, token];
    if (!text) return null;
    const part = { text, tokens: open };
    open = [];
    return part;
  };
}

/** Convert a token from the server's format. */
export const tokenOf = ({ id, text, log_prob, rank, entropy, likeliest }) => ({
  id,
  text,
  logProb: log_prob,
  rank,
  entropy,
  likeliest,
});

/** Return the scores of a part. The probabilities of several tokens are multiplied. */
export function scoreOf({ tokens }) {
  return {
    logProb: tokens.reduce((sum, { logProb }) => sum + logProb, 0),
    rank: Math.max(...tokens.map(({ rank }) => rank)),
    entropy: tokens[0].entropy,
  };
}

/** Return the index of the part that holds the character before an offset, or -1. */
export function placeAt(parts, offset) {
  let end = 0;
  for (let place = 0; place < parts.length; place++) {
    end += parts[place].text.length;
    if (offset <= end && parts[place].text) return place;
  }
  return -1;
}

/** Return a text as parts with the server's scores. Tokens that begin before `given` stay plain. */
export function partsOf(text, scored, given = 0) {
  const letters = Array.from(text); // the server counts code points
  const starts = [0];
  for (const letter of letters) starts.push(starts.at(-1) + letter.length);
  const collect = makeCollector();
  const first = scored.findIndex(({ start }) => starts[start] >= given);
  if (first < 0) return text ? [plain(text)] : [];
  const parts = [plain(text.slice(0, starts[scored[first].start]))];
  let at = scored[first].start;
  for (let number = first; number < scored.length; number++) {
    // tokens that share a character are one part, which ends where the next token begins
    const end = number + 1 < scored.length ? scored[number + 1].start : letters.length;
    const whole = scored[number].end <= end;
    const part = collect(tokenOf(scored[number]), whole ? text.slice(starts[at], starts[scored[number].end]) : "");
    if (!part) continue;
    parts.push(part);
    at = scored[number].end;
  }
  return parts.filter((part) => part.text || part.tokens.length);
}
