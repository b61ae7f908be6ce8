/** How texts are written, with or without spaces between words: the same rules as penwright/text.py. */

const HAN = "\\u2e80-\\u2fdf\\u3005-\\u3007\\u3100-\\u312f\\u31a0-\\u31bf\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}";
const KANA = "\\u3041-\\u30ff\\u31f0-\\u31ff\\uff66-\\uff9f";
const OTHERS = "\\u0e00-\\u0fff\\u1000-\\u109f\\u1780-\\u17ff\\u1950-\\u19df";
const WIDE_MARKS = "\\u3000-\\u303f\\ufe30-\\ufe4f\\uff00-\\uff65";
const ALONE = `[${HAN}${KANA}${WIDE_MARKS}${OTHERS}]`;
const WITHOUT_SPACES = new RegExp(ALONE, "u");
const CHINESE_OR_JAPANESE = new RegExp(`[${HAN}${KANA}${WIDE_MARKS}]`, "u");
const BASE = `(?:(?!${ALONE})\\S)+|\\S`;
const UNIT = new RegExp(`[「『（《〈【〔“‘]*(?:${BASE})[」』）》〉】〕”’、。，．：；？！…—]*\\s*`, "gu");

const firstOf = (text) => Array.from(text.slice(0, 2))[0] || "";
const lastOf = (text) => Array.from(text.slice(-2)).pop() || "";

/** Return the white space between two translations whose sources had `gap` between them. */
export function gapBetween(before, gap, after, sourceBefore, sourceAfter) {
  const sides = [lastOf(before), firstOf(after)];
  if (gap === " " && sides.every((letter) => CHINESE_OR_JAPANESE.test(letter))) return "";
  const parted = [lastOf(sourceBefore), firstOf(sourceAfter)].every((letter) => WITHOUT_SPACES.test(letter));
  if (!gap && parted && sides.every((letter) => letter && !WITHOUT_SPACES.test(letter))) return " ";
  return gap;
}

/** Return the units between which a line can break, each with the white space after it. */
export const units = (text) => text.match(CHINESE_OR_JAPANESE.test(text) ? UNIT : /\S+\s*/gu) || [];

/** Return the width of a text in columns: two for each Chinese or Japanese character. */
export const columns = (text) =>
  Array.from(text).reduce((sum, letter) => sum + (CHINESE_OR_JAPANESE.test(letter) ? 2 : 1), 0);
