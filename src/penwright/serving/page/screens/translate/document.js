/** A text in paragraphs and sentences, and its translation in the same layout. */

import { columns, gapBetween, units } from "./scripts.js";

/** Return the position of each word in the text: [{start, end, sentence, word}], in order. */
export function placesOf(text, sentences) {
  const places = [];
  let from = 0;
  sentences.forEach(({ words }, number) => {
    words.forEach((word, at) => {
      const start = text.indexOf(word, from);
      if (start < 0) return;
      from = start + word.length;
      places.push({ start, end: from, sentence: number, word: at });
    });
  });
  return places;
}

/** Return all sentences of paragraphs, each with the index of its paragraph. */
export const sentencesOf = (paragraphs) =>
  paragraphs.flatMap(({ sentences }, paragraph) => sentences.map((each) => ({ ...each, paragraph })));

/** Return the document with its sentences replaced by these texts. Bullets, indentation and line wrapping stay. */
export function joined(paragraphs, texts) {
  let next = 0;
  return paragraphs
    .map((paragraph) => {
      const { sentences } = paragraph;
      const mine = texts.slice(next, (next += sentences.length));
      const text = mine.map((each, at) => sentences[at].before + each + gapAfter(sentences, mine, at)).join("");
      return paragraph.width ? wrapped(paragraph, text) : paragraph.first + text;
    })
    .join("\n");
}

/** Return the white space after the translation of a sentence. */
export function gapAfter(sentences, texts, at) {
  const [{ after, text }, next] = [sentences[at], sentences[at + 1]];
  if (!next || next.before) return after;
  return gapBetween(texts[at] || "", after, texts[at + 1] || "", text, next.text);
}

function wrapped({ first, rest, width }, text) {
  const lines = [];
  let line = "";
  for (const unit of units(text.trim().replace(/\s+/gu, " "))) {
    const indent = lines.length ? rest : first;
    if (line && columns(indent + line + unit.trimEnd()) > width) {
      lines.push(indent + line.trimEnd());
      line = "";
    }
    line += unit;
  }
  lines.push((lines.length ? rest : first) + line);
  return lines.join("\n");
}
