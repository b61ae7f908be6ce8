/** A text in paragraphs and sentences, and the same again with each sentence translated. */

import { columns, gapBetween, units } from "./scripts.js";

/** Where each word of the sentences stands in the text: [{start, end, sentence, word}], in order. */
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

/** All sentences of paragraphs, each with the number of its paragraph. */
export const sentencesOf = (paragraphs) =>
  paragraphs.flatMap(({ sentences }, paragraph) => sentences.map((each) => ({ ...each, paragraph })));

/** The document with these texts in place of its sentences: bullets and indentation stay, wrapped lines are wrapped. */
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

/** The white space after the translation of a sentence of a paragraph. */
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
