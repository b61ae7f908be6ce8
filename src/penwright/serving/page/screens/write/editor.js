/** The editor: a raw text with coloured tokens. The caret and the pointer select a token. */

import { make } from "../../views/dom.js";
import { MEASURES } from "../../views/text.js";
import { placeAt, scoreOf } from "./text.js";

const NEAR_THE_END = 60; // pixels from the bottom within which the view follows a growing text

/**
 * Create an editor. Calls `changed(text)` when a person has changed the text, and `pointed(place, byKeys)` when the
 * pointer or the caret reaches a part with tokens, or leaves it (-1).
 */
export function makeEditor({ changed, pointed, placeholder }) {
  let end = document.createTextNode("\n"); // makes the empty line after a final line break visible
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
    rest: -1, // where the program, not a person, put the caret
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

  /** Show these parts. Nodes that are already right stay. */
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
    end = document.createTextNode("\n"); // browsers may have written into the old one
    if (state.parts.at(-1)?.text.endsWith("\n")) root.append(end);
  }
  /** Return the text on the screen, without the line break that makes an empty line visible. */
  const content = () => (end.isConnected ? root.textContent.replace(/\n$/, "") : root.textContent);

  /**
   * Append parts. While the text is locked, each line (up to a line break) is a block of its own. The browser then lays
   * out the last block only and paints none out of sight, so that the cost does not grow with the text.
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
  /** Put nodes into blocks; the last block stays open for more. */
  function addLines(nodes) {
    const finished = [];
    for (const node of nodes) {
      if (state.line?.lastChild && endsLine(state.line.lastChild)) finished.push(state.line);
      if (!state.line || finished.at(-1) === state.line) root.append((state.line = make("div", {})));
      state.line.append(node);
    }
    // measure all before changing any: one layout is enough
    const heights = finished.map((line) => line.getBoundingClientRect().height);
    finished.forEach((line, at) => {
      line.style.setProperty("contain-intrinsic-block-size", `${heights[at]}px`);
      line.classList.add("finished");
    });
  }
  /** Turn the blocks back into a flat list of nodes, for editing. */
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
    event.preventDefault(); // browsers would insert two line breaks at the end of the text
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
    /** Put the caret at the end of the text, where it selects nothing, unless that opens a touch keyboard. */
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
    /** Lock or unlock the text: it is locked while the model writes. */
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
