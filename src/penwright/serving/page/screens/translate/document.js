/** A text in paragraphs and sentences, and the same again with each sentence translated. */

/** Where each word of the sentences stands in the text: [{start, end, sentence, word}], in order. */
export function placesOf(text, sentences) {
  const places = [];
  let from = 0;
  sentences.forEach(({ text: sentence }, number) => {
    sentence
      .split(/\s+/u)
      .filter(Boolean)
      .forEach((word, at) => {
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
      const text = paragraph.sentences.map(({ before, after }) => before + texts[next++] + after).join("");
      return paragraph.width ? wrapped(paragraph, text) : paragraph.first + text;
    })
    .join("\n");
}

function wrapped({ first, rest, width }, text) {
  const lines = [];
  let line = "";
  for (const word of text.split(/\s+/u).filter(Boolean)) {
    const indent = lines.length ? rest : first;
    if (line && indent.length + line.length + 1 + word.length > width) {
      lines.push(indent + line);
      line = word;
    } else line = line ? `${line} ${word}` : word;
  }
  lines.push((lines.length ? rest : first) + line);
  return lines.join("\n");
}
