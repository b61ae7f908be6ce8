/** The Translate screen: a text and its translation, sentence by sentence. Every word can be inspected and replaced. */

import { percent } from "../views/axes.js";
import { make } from "../views/dom.js";
import { askJson } from "../api.js";
import { newest } from "../newest.js";
import { makeDetails } from "./translate/details.js";
import { joined, placesOf, sentencesOf } from "./translate/document.js";
import { makeGlossary } from "./translate/glossary.js";
import { makeHistory } from "./translate/history.js";
import { makeLinks, strongest } from "./translate/links.js";
import { makeOthers } from "./translate/others.js";
import { makeTranslations } from "./translate/sentences.js";
import { makeSource } from "./translate/source.js";
import { makeTarget, sureness } from "./translate/target.js";
import { languageName, makeTools } from "./translate/tools.js";

const PAUSE = 400; // milliseconds after the last change
const LONGEST_ADDRESS = 3000; // characters of a text that the address may hold

export const keys = [
  ["Ctrl + Enter", "translate now"],
  ["← → in the translation", "move from word to word"],
  ["Enter", "show alternatives to the word; select one with the arrow keys and Enter"],
  ["Alt + ↑ ↓", "previous or next sentence"],
];

const known = makeTranslations();

/** @param {HTMLElement} element @param {import("../screens.js").Context} context */
export async function show(element, { model, state, signal, fail, announce, go }) {
  const page = { paragraphs: [], sentences: [], chosen: -1, glossary: state.get("glossary") };
  const asking = newest(signal);
  const links = makeLinks({ model, signal });
  let pointing = 0; // counts the words pointed at, so that late answers are dropped
  const [from, to] = model.languages;
  const [fromTag, toTag] = model.languages.map((code) => (languageName(code) ? code : null));
  const readout = make(
    "p",
    { class: "hint readout" },
    "Point at a word to see its source words; click the word for alternatives.",
  );
  const source = makeSource({
    changed: later,
    pointed: pointSource,
    opened: (file) => tools.openFile(file),
    label: `Text in ${languageName(from, "the source language")}`,
    lang: fromTag,
  });
  const target = makeTarget({ pointed: pointTarget, chosen: (place, near) => others.open(place, near), lang: toTag });
  const others = makeOthers({ body: bodyOfWords, chosen: replace, fail, signal });
  const details = makeDetails({
    body: (number) => ({ ...how(), text: page.sentences[number].text, prefix: page.sentences[number].prefix }),
    links: (number) => linksOf(number),
    choose: chooseWay,
    move: (step) => choose(page.chosen + step),
    inspect: (number) =>
      go("inspect", {
        model: model.id,
        text: page.sentences[number].text,
        target: shownText(number),
        tool: "alignment",
      }),
    lang: toTag,
    fail,
    signal,
  });
  const glossary = makeGlossary({
    text: page.glossary,
    changed: (text) => ((page.glossary = text), state.set({ glossary: text }), take()),
  });
  const history = makeHistory((entry) => go("translate", { model: entry.model, text: entry.source }));

  const how = () => ({ model: model.id, glossary: page.glossary });
  const shownText = (number) => {
    const { result, way } = page.sentences[number];
    return result ? result.ways[way].text : "";
  };
  const whole = () =>
    joined(
      page.paragraphs,
      page.sentences.map((_, number) => shownText(number)),
    );

  function become(text) {
    source.set(text);
    source.field.focus();
    return take();
  }
  function later() {
    asking.later(take, PAUSE);
  }
  /** Split the text, and translate the sentences that are not cached. */
  async function take() {
    const stopped = asking.begin();
    const text = source.field.value;
    state.set({ text: text.length <= LONGEST_ADDRESS ? text : "" });
    try {
      const { paragraphs } = await askJson("translating/cut", { model: model.id, text }, { signal: stopped });
      lay(text, paragraphs);
      await known.ask(page.sentences, how(), model.step, stopped, fill);
      finish(text);
    } catch (error) {
      if (!stopped.aborted) fail(error);
    }
  }
  /** Lay out new sentences. A sentence whose text is unchanged keeps its chosen prefix. */
  function lay(text, paragraphs) {
    const begun = new Map(page.sentences.map((each) => [each.text, each.prefix]));
    const fresh = ({ text: sentence, words, paragraph }) => ({
      text: sentence,
      words,
      paragraph,
      prefix: begun.get(sentence) || "",
      result: null,
      way: 0,
    });
    pointing++;
    page.paragraphs = paragraphs;
    page.sentences = sentencesOf(paragraphs).map(fresh);
    source.place(placesOf(text, page.sentences));
    target.lay(paragraphs, "The translation appears here as you type.");
    readout.hidden = !page.sentences.length;
    if (page.chosen >= page.sentences.length) page.chosen = page.sentences.length - 1;
    if (!page.sentences.length) details.hide();
  }
  function fill(number, result) {
    const sentence = page.sentences[number];
    Object.assign(sentence, { result, way: 0 });
    target.fill(number, result.ways[0]);
    if (number === Math.max(page.chosen, 0)) choose(number);
  }
  function finish(text) {
    source.mark(new Map(), termWords());
    glossary.tell(counts());
    tools.enable(page.sentences.length > 0);
    if (!page.sentences.length) return;
    history.add(model.id, text, whole());
    const n = page.sentences.length;
    announce(n === 1 ? `Translated: ${shownText(0)}` : `${n} sentences translated.`);
  }
  const shownTerms = (number) => page.sentences[number].result?.ways[page.sentences[number].way].terms || [];
  function counts() {
    const all = page.sentences.flatMap((_, number) => shownTerms(number).filter((term) => !term.protected));
    const found = {};
    all.forEach((term) => (found[term.state] = (found[term.state] || 0) + 1));
    return found;
  }
  function termWords() {
    const numbers = page.sentences.flatMap((_, sentence) =>
      shownTerms(sentence).flatMap((term) => term.source_words.map((word) => source.numberOf(sentence, word))),
    );
    return new Set(numbers);
  }

  function choose(number) {
    if (number < 0 || number >= page.sentences.length || !page.sentences[number].result) return;
    page.chosen = number;
    target.mark(number, new Map());
    details.show(number, page.sentences[number], page.sentences.length);
  }
  function chooseWay(number, way) {
    page.sentences[number].way = way;
    target.fill(number, page.sentences[number].result.ways[way]);
    choose(number);
    details.root.querySelector(".way[aria-pressed=true]")?.focus();
    finish(source.field.value);
  }
  function bodyOfWords({ sentence, word }) {
    return { ...how(), text: page.sentences[sentence].text, prefix: before(sentence, word), n: 8 };
  }
  /** Return the translation up to a word, with the white space before the word. */
  function before(sentence, word) {
    const { result, way } = page.sentences[sentence];
    const words = result.ways[way].words.slice(0, word + 1);
    return words.map((each, at) => each.before + (at < word ? each.text : "")).join("");
  }
  async function replace({ sentence, word }, prefix) {
    const wanted = page.sentences[sentence];
    try {
      await known.ask([{ text: wanted.text, prefix }], how(), model.step, signal, (_, result) => {
        wanted.prefix = prefix;
        fill(sentence, result);
      });
      choose(sentence);
      finish(source.field.value);
      target.spanOf({ sentence, word })?.focus();
    } catch (error) {
      fail(error);
    }
  }

  const linksOf = (number) => links.ask(page.sentences[number].text, shownText(number));

  /** Return the word alignment of a sentence, or null if the pointer has moved on meanwhile. */
  async function looked(number) {
    const turn = ++pointing;
    try {
      const found = await linksOf(number);
      return turn === pointing ? found.links : null;
    } catch (error) {
      if (turn === pointing) fail(error);
      return null;
    }
  }
  async function pointTarget(place, aloud) {
    if (!place || !page.sentences[place.sentence]?.result) {
      pointing++;
      return source.mark(new Map(), termWords());
    }
    const { result, way } = page.sentences[place.sentence];
    target.mark(place.sentence, new Map([[place.word, 1]]));
    if (aloud && page.chosen !== place.sentence) choose(place.sentence);
    const found = await looked(place.sentence);
    if (!found) return undefined;
    const row = found.filter((link) => link.target === place.word);
    source.mark(new Map(row.map((link) => [source.numberOf(place.sentence, link.source), link.weight])), termWords());
    target.mark(place.sentence, new Map([[place.word, 1]]));
    const best = strongest(row);
    const { text, probability } = result.ways[way].words[place.word];
    const looks = best ? ` · attends to “${result.source[best.source].text}” ${percent(best.weight)}` : "";
    return tell(`“${text}”${sureness(probability)}${looks}`, aloud);
  }
  async function pointSource(number, aloud) {
    const place = source.placeOf(number);
    const sentence = place && page.sentences[place.sentence];
    if (!sentence?.result) {
      pointing++;
      return target.mark(page.chosen, new Map());
    }
    source.mark(new Map([[number, 1]]), termWords());
    const found = await looked(place.sentence);
    if (!found) return undefined;
    const column = found.filter((link) => link.source === place.word);
    target.mark(place.sentence, new Map(column.map((link) => [link.target, link.weight])));
    const best = strongest(column);
    const words = sentence.result.ways[sentence.way].words;
    if (!best || !words[best.target]) return undefined;
    return tell(
      `“${sentence.result.source[place.word]?.text}” is attended to by “${words[best.target].text}” ${percent(best.weight)}`,
      aloud,
    );
  }
  function tell(text, aloud) {
    readout.textContent = text;
    if (aloud) announce(text);
  }

  const tools = await makeTools({ model, signal, fail, announce, go, take: become, whole });
  const head = (title, parts) =>
    make("div", { class: "line head" }, make("h2", {}, title), make("span", { class: "push line" }, parts));
  const pane = (title, parts, { root }) =>
    make("section", { class: "card", "aria-label": title }, head(title, parts), root);
  element.append(
    make("h1", { class: "pw-hidden" }, "Translate"),
    make(
      "div",
      { class: "panes" },
      pane(languageName(from, "Source"), tools.source, source),
      pane(languageName(to, "Translation"), tools.target, target),
    ),
    readout,
    make(
      "div",
      { class: "below" },
      details.root,
      make("aside", { "aria-label": "Glossary and history" }, glossary.root, history.root, tools.examples),
    ),
    others.root,
  );

  document.addEventListener(
    "keydown",
    (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "Enter") take();
      else if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown"))
        choose(page.chosen + (event.key === "ArrowUp" ? -1 : 1));
      else return;
      event.preventDefault();
    },
    { signal },
  );
  source.set(state.get("text"));
  await take();
  return {
    stop: () => asking.end(),
  };
}
