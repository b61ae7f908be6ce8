/** The text as it stands on the screen: editable, raw, its tokens coloured; the caret and the pointer find a token. */

import { make } from "../../views/dom.js";
import { MEASURES } from "../../views/text.js";
import { placeAt, scoreOf } from "./text.js";

const NEAR_THE_END = 60; // pixels from the bottom within which the text is followed while it grows

/**
 * `changed(text)` is called when a person has changed the text, `pointed(place, byKeys)` when the pointer or the caret
 * comes to a part with tokens, or leaves them (-1).
 */
export function makeEditor({ changed, pointed, placeholder }) {
  let end = document.createTextNode("\n"); // after a last line break, so that the empty line can be seen
  const root = make("div", {
    class: "editor",
    contenteditable: "plaintext-only",
    role: "textbox",
    "aria-multiline": "true",
    "aria-label": "Text",
    "data-placeholder": placeholder,
    dir: "auto",
    spellcheck: "false",
    autocapitalize: "off",
  });
  const state = {
    parts: [],
    nodes: [],
    measure: "probability",
    marked: null,
    composing: false,
    locked: false,
    line: null,
    rest: -1, // where the caret was put, not moved to, by a person
  };

  function nodeOf(part, place) {
    if (part.tokens.length === 0) return document.createTextNode(part.text);
    const span = make("span", { class: "pw-token", "data-place": place }, part.text);
    colour(span, part);
    return span;
  }
  function colour(span, part) {
    const share = MEASURES[state.measure][1](scoreOf(part)) || 0;
    span.style.setProperty("--share", `${Math.round(100 * share)}%`);
    span.style.setProperty("--weight", `${Math.round(4 * share)}px`);
  }
  const fits = (node, part) =>
    node !== end && node.textContent === part.text && (node.nodeType === Node.TEXT_NODE) === (part.tokens.length === 0);

  /** Show these parts, leaving alone what is there already. */
  function draw(parts) {
    const caret = document.activeElement === root ? caretOffset() : null;
    let same = 0;
    flatten();
    while (same < parts.length && root.childNodes[same] && fits(root.childNodes[same], parts[same])) same++;
    const stale = [...root.childNodes].slice(same).filter((node) => node !== end);
    const fresh = parts.slice(same).map((part, at) => nodeOf(part, same + at));
    for (let place = 0; place < same; place++) {
      if (parts[place] !== state.parts[place] && parts[place].tokens.length)
        colour(root.childNodes[place], parts[place]);
    }
    state.nodes = [...[...root.childNodes].slice(0, same), ...fresh];
    stale.forEach((node) => node.remove());
    root.append(...fresh);
    state.parts = parts;
    settle();
    if (caret !== null && (stale.length || fresh.length)) setCaret(caret);
  }
  function settle() {
    end.remove();
    end = document.createTextNode("\n"); // browsers write into the old one
    if (state.parts.at(-1)?.text.endsWith("\n")) root.append(end);
  }
  /** The text on the screen, without the line break that is only there to be seen. */
  const content = () => (end.isConnected ? root.textContent.replace(/\n$/, "") : root.textContent);

  /**
   * Show more parts after those that are there. While the text is locked, each line (up to a line break) is a block of its
   * own: a browser lays out the last one only, and paints none out of sight, so that the cost does not grow with the text.
   */
  function append(more) {
    const follow = root.scrollHeight - root.scrollTop - root.clientHeight < NEAR_THE_END;
    const fresh = more.map((part, at) => nodeOf(part, state.parts.length + at));
    end.remove();
    if (state.locked) addLines(fresh);
    else root.append(...fresh);
    state.nodes.push(...fresh);
    state.parts = state.parts.concat(more);
    if (!state.locked) settle();
    if (follow) root.scrollTop = root.scrollHeight;
  }
  const endsLine = (node) => node.textContent.endsWith("\n");
  /** Nodes as blocks, of which the last one stays open for more. */
  function addLines(nodes) {
    const finished = [];
    for (const node of nodes) {
      if (state.line?.lastChild && endsLine(state.line.lastChild)) finished.push(state.line);
      if (!state.line || finished.at(-1) === state.line) root.append((state.line = make("div", {})));
      state.line.append(node);
    }
    // all are measured before any is changed: that takes one layout
    const heights = finished.map((line) => line.getBoundingClientRect().height);
    finished.forEach((line, at) => {
      line.style.setProperty("contain-intrinsic-block-size", `${heights[at]}px`);
      line.classList.add("finished");
    });
  }
  /** One line of nodes again, as it is edited. */
  function flatten() {
    if (!state.line) return;
    [...root.children].filter(({ tagName }) => tagName === "DIV").forEach((line) => line.replaceWith(...line.childNodes));
    state.line = null;
  }
  function caretOffset() {
    const selection = getSelection();
    if (!selection.rangeCount || !root.contains(selection.focusNode)) return null;
    const range = document.createRange();
    range.setStart(root, 0);
    range.setEnd(selection.focusNode, selection.focusOffset);
    return range.toString().length;
  }
  function setCaret(offset) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    let left = offset;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (left <= node.length) return getSelection().collapse(node, left);
      left -= node.length;
    }
    return getSelection().collapse(root, 0);
  }
  function insert(text) {
    const [range] = getSelection().rangeCount ? [getSelection().getRangeAt(0)] : [];
    if (!range || !root.contains(range.commonAncestorContainer)) return;
    const before = document.createRange();
    before.setStart(root, 0);
    before.setEnd(range.startContainer, range.startOffset);
    const [start, whole] = [before.toString().length, content()];
    changed(whole.slice(0, start) + text + whole.slice(start + range.toString().length));
    setCaret(start + text.length);
  }
  function read() {
    if (!state.composing) changed(content());
  }
  function mark(place) {
    state.marked?.classList.remove("pw-current");
    const node = place >= 0 ? state.nodes[place] : null;
    state.marked = node && node.classList ? node : null;
    state.marked?.classList.add("pw-current");
  }
  function atCaret() {
    if (document.activeElement !== root || root.contentEditable === "false") return;
    const offset = caretOffset() ?? -1;
    if (offset === state.rest) return;
    state.rest = -1;
    const place = placeAt(state.parts, offset);
    pointed(place >= 0 && state.parts[place].tokens.length ? place : -1, true);
  }
  root.addEventListener("beforeinput", (event) => {
    const pasted = event.dataTransfer?.getData("text/plain").replace(/\r\n?/g, "\n");
    const breaks = event.inputType === "insertParagraph" || event.inputType === "insertLineBreak";
    if (!breaks && !pasted) return;
    event.preventDefault(); // a browser would put in two line breaks where the text ends
    insert(breaks ? "\n" : pasted);
  });
  root.addEventListener("compositionstart", () => (state.composing = true));
  root.addEventListener("compositionend", () => ((state.composing = false), read()));
  root.addEventListener("input", read);
  root.addEventListener("pointerover", ({ target }) => {
    const span = target.closest(".pw-token");
    if (span) pointed(Number(span.dataset.place), false);
  });
  const onSelection = () => root.isConnected && atCaret();
  document.addEventListener("selectionchange", onSelection);
  return {
    root,
    draw,
    append,
    mark,
    /** Put the caret at the end of the text, where it points at nothing; not where that would bring up a keyboard. */
    toEnd() {
      if (matchMedia("(pointer: coarse)").matches) return;
      state.rest = content().length;
      root.focus({ preventScroll: true });
      setCaret(state.rest);
    },
    setMeasure(measure) {
      state.measure = measure;
      state.parts.forEach((part, place) => part.tokens.length && colour(state.nodes[place], part));
    },
    /** While the model writes, nobody else does. */
    lock(on) {
      state.locked = on;
      if (on) {
        end.remove();
        addLines(state.nodes);
      } else {
        flatten();
        settle();
      }
      root.setAttribute("contenteditable", on ? "false" : "plaintext-only");
    },
    stop: () => document.removeEventListener("selectionchange", onSelection),
  };
}
