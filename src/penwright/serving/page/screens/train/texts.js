/** The texts of the studio: dropped, chosen or pasted, sent in parts, ticked for training, deleted. */

import { make } from "../../views/dom.js";
import { askJson, wasStopped } from "../../api.js";
import { confirmed } from "../../dialogs.js";
import { size } from "./words.js";

const PART = 1_000_000; // bytes per request
const LONGEST_NAME = 110; // bytes of UTF-8: a little less than the server accepts, since a number may be added
const NOT_ALLOWED = /[<>:"|?*[\]/\\\p{C}]/gu;

/** Return a name that the server accepts. A long name keeps its suffix, which tells the kind of file. */
export function clean(name) {
  const allowed = name.replace(NOT_ALLOWED, "_").replace(/^[.\-~\s]+|[.\s]+$/g, "");
  const [, stem, ending] = /^(.*?)((?:\.[^.\s]{1,8}){0,2})$/s.exec(allowed);
  const length = (letters) => new TextEncoder().encode(letters.join("") + ending).length;
  const letters = Array.from(stem);
  while (length(letters) > LONGEST_NAME) letters.pop();
  return letters.join("").trimEnd() + ending || "text.txt";
}

/** Encode bytes in base64. */
function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

/** Create the section. Calls `changed(names)` with the ticked texts. */
export function makeTexts({ signal, fail, announce, changed }) {
  const known = { texts: [], ticked: new Set(), most: Infinity };
  const list = make("ul", { class: "texts", "aria-label": "Texts" });
  const change = () => take([...chooser.files]);
  const chooser = make("input", { type: "file", class: "pw-hidden", multiple: true, id: "files", change });
  const sending = make("progress", { hidden: true, "aria-label": "Sending" });
  const zone = make(
    "div",
    { class: "zone" },
    make("span", {}, "Drop files here, or "),
    chooser,
    make("label", { for: "files", class: "button" }, "Choose files"),
    make("p", { class: "hint" }, "Novels, tables, translations, subtitles, Word, PDF, EPUB … All texts stay on this computer."),
    sending,
  );
  const pasted = make("textarea", { rows: 4, dir: "auto", "aria-label": "Or paste a text", placeholder: "Or paste a text" });
  const called = make("input", { type: "text", value: "pasted", maxlength: 60, "aria-label": "Name of the pasted text" });
  const keep = make("button", { type: "button", click: keepPasted }, "Keep this text");
  const root = make(
    "section",
    { class: "card step", "aria-labelledby": "step-texts" },
    make("h2", { id: "step-texts" }, "1. Your texts"),
    zone,
    make("details", {}, make("summary", {}, "Paste a text instead"), pasted, make("div", { class: "line" }, called, keep)),
    list,
  );
  // Files may be dropped anywhere: beside the zone, the browser would open them in place of the page.
  const onFiles = (name, act) =>
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      zone.classList.toggle("over", name === "dragover");
      act?.(event);
    }, { signal });
  onFiles("dragover");
  onFiles("dragleave");
  onFiles("drop", (event) => take([...event.dataTransfer.files]));

  async function keepPasted() {
    if (!pasted.value.trim()) return pasted.focus();
    await take([new File([pasted.value], `${called.value || "pasted"}.txt`)]);
    pasted.value = "";
    return undefined;
  }
  async function take(files) {
    const [fresh, errors, left] = [[], [], []];
    for (const file of files) {
      try {
        fresh.push(await send(file));
      } catch (error) {
        if (wasStopped(error)) left.push(file.name);
        else errors.push(error);
      }
    }
    if (left.length) errors.push({ status: 0, message: `You left the Train screen before these texts were sent: ${left.join(", ")}. Add them again.` });
    if (errors.length) fail(Object.assign(errors[0], { message: errors.map(({ message }) => message).join("\n") }));
    chooser.value = "";
    sending.hidden = true;
    if (!fresh.length || signal.aborted) return;
    known.ticked = new Set(fresh);
    announce(`${fresh.join(", ")} added.`);
    await refresh();
    changed(names());
  }
  async function send(file) {
    const name = unused(clean(file.name));
    if (!file.size) throw new Error(`${name} is empty.`);
    if (file.size > known.most) throw new Error(`${name} has a size of ${size(file.size)}, but the limit is ${size(known.most)}.`);
    sending.hidden = false;
    sending.max = file.size;
    const ticket = Math.random().toString(36).slice(2); // tells it apart from another upload with this name
    for (let offset = 0; offset < file.size; offset += PART) {
      sending.value = offset;
      const data = base64(new Uint8Array(await file.slice(offset, offset + PART).arrayBuffer()));
      await askJson("studio/upload", { name, ticket, offset, total: file.size, data }, { signal });
    }
    return name;
  }
  /** Return the name, with a number if a text with this name exists. */
  function unused(name) {
    const taken = (wanted) => known.texts.some((text) => text.name === wanted);
    const [, stem, ending] = /^(.*?)(\.[^.]*)?$/s.exec(name);
    const numbered = (number) => `${stem}-${number}${ending || ""}`;
    let number = 2;
    while (taken(numbered(number))) number += 1;
    return taken(name) ? numbered(number) : name;
  }
  async function remove(name) {
    const sure = await confirmed(`Delete ${name}?`, "Models that were trained on it are kept.", { yes: "Delete", no: "Keep" });
    if (!sure) return;
    try {
      await askJson("studio/delete-text", { name }, { signal });
      known.ticked.delete(name);
      await refresh();
      changed(names());
    } catch (error) {
      fail(error);
    }
  }
  async function refresh() {
    show(await askJson("studio", undefined, { signal }));
  }
  const names = () => known.texts.map(({ name }) => name).filter((name) => known.ticked.has(name));
  function tick({ target }) {
    known.ticked[target.checked ? "add" : "delete"](target.value);
    changed(names());
  }
  function item({ name, bytes }) {
    const box = make("input", { type: "checkbox", value: name, checked: known.ticked.has(name), change: tick });
    const gone = make("button", { type: "button", class: "plain", "aria-label": `Delete ${name}`, click: () => remove(name) }, "Delete");
    return make("li", {}, make("label", {}, box, make("bdi", {}, name)), make("span", { class: "hint" }, size(bytes)), gone);
  }
  /** Show the texts of the server, if they have changed. */
  function show({ texts, max_upload_bytes: most }) {
    known.most = most;
    if (list.children.length === texts.length && JSON.stringify(texts) === JSON.stringify(known.texts)) return;
    known.texts = texts;
    list.replaceChildren(...texts.map(item));
  }
  return {
    root,
    show,
    names,
    /** Untick a text. */
    leaveOut(name) {
      known.ticked.delete(name);
      list.replaceChildren(...known.texts.map(item));
      changed(names());
    },
    /** Tick these texts. */
    choose(wanted) {
      known.ticked = new Set(wanted);
    },
  };
}
