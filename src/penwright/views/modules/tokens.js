/** Showing tokens: what is invisible gets a sign, what is long is cut, and no text can disorder its neighbours. */

const SIGNS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u2028": "⏎", "\u2029": "¶" };
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u00ad]/gu;

const code = (letter) => SIGNS[letter] || `‹${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;

/** The token as a label: at most so many characters, with signs for spaces at its ends and for hidden characters. */
export function label(text, longest = 24) {
  if (text === "") return "∅";
  const letters = Array.from(text.slice(0, 4 * longest));
  const cut = letters.length > longest;
  const shown = letters.slice(0, longest).join("");
  const signs = shown.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)).replace(HIDDEN, code);
  return cut ? `${signs}…` : signs;
}

/** What is put into running text: the token itself if any of it can be seen, else its signs. */
export function inText(text) {
  return /[^\p{Cc}\p{Cf}\p{Z}]/u.test(text) || /^ +$/.test(text)
    ? text
    : label(text) + (text.includes("\n") ? "\n" : "");
}

/** The text of a token, which may be a text already. */
export const textOf = (token) => (typeof token === "string" ? token : token.text);

/** Labels of tokens. */
export const labels = (tokens, longest) => tokens.map((token) => label(textOf(token), longest));
