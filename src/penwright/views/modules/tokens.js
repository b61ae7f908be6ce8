/** Display of tokens: invisible characters become symbols, long tokens are cut, and no token affects its neighbours. */

const SIGNS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u2028": "⏎", "\u2029": "¶" };
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u00ad]/gu;

const code = (letter) => SIGNS[letter] || `‹${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;

/** A token as a label: at most `longest` characters, with symbols for hidden characters and for spaces at the ends. */
export function label(text, longest = 24) {
  if (text === "") return "∅";
  const letters = Array.from(text.slice(0, 4 * longest));
  const cut = letters.length > longest;
  const shown = letters.slice(0, longest).join("");
  const signs = shown.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)).replace(HIDDEN, code);
  return cut ? `${signs}…` : signs;
}

/** A token for running text: the token itself if it has visible characters, else its label. */
export function inText(text) {
  return /[^\p{Cc}\p{Cf}\p{Z}]/u.test(text) || /^ +$/.test(text)
    ? text
    : label(text) + (text.includes("\n") ? "\n" : "");
}

/** The text of a token; a token may also be a plain text. */
export const textOf = (token) => (typeof token === "string" ? token : token.text);

/** The labels of tokens. */
export const labels = (tokens, longest) => tokens.map((token) => label(textOf(token), longest));
