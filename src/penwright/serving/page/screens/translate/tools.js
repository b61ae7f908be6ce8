/** The buttons above the panes: open, clear, reverse, copy and save; and texts to try. */

import { make } from "../../views/dom.js";
import { askJson } from "../../api.js";
import { textOf } from "../../files.js";
import { download } from "../../saving.js";

/** Return the English name of a language, or `otherwise` if the language is not known. */
export function languageName(code, otherwise = "") {
  if (!code || code === "source" || code === "target") return otherwise;
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code);
  } catch {
    return code;
  }
}

const button = (text, click, attributes = {}) => make("button", { type: "button", click, ...attributes }, text);

/** Create the buttons. `take(text)` translates a text; `whole()` returns its translation. */
export async function makeTools({ model, signal, fail, announce, go, take, whole }) {
  const [from, to] = model.languages;
  const state = { file: "" };

  async function openFile(file) {
    try {
      const text = await textOf(file);
      state.file = file.name;
      take(text.replace(/\r\n?/g, "\n"));
    } catch (error) {
      fail(error);
    }
  }
  const pick = ({ target }) => target.files[0] && openFile(target.files[0]);
  const chooser = make("input", { type: "file", accept: ".txt,.md,text/plain", hidden: true, change: pick });
  async function copyAll() {
    try {
      await navigator.clipboard.writeText(whole());
      announce("Copied.");
    } catch {
      fail(new Error("The browser did not allow copying."));
    }
  }
  function saveAll() {
    const [stem, ending] = /^(.*?)(\.[^.]*)?$/.exec(state.file || "translation.txt").slice(1);
    download(`${stem}.${to || "translated"}${ending || ".txt"}`, new Blob([whole()], { type: "text/plain" }));
  }
  /** Create the button that opens the served model of the reverse direction, with the translation as its text. */
  async function swapButton() {
    const { models } = await askJson("models", undefined, { signal });
    const isOther = ({ languages }) => from !== to && languages[0] === to && languages[1] === from;
    const other = models.find(isOther);
    if (!other) return null;
    const title = `From ${languageName(to)} to ${languageName(from)}`;
    return button("⇄", () => go("translate", { model: other.id, text: whole() }), { title, "aria-label": title });
  }
  const copy = button("Copy", copyAll, { disabled: true });
  const save = button("Save", saveAll, { disabled: true });
  const clear = button("Clear", () => take(""));
  const example = (text) => button(text.slice(0, 50), () => take(text), { dir: "auto" });
  const hint = make("span", { class: "hint" }, "Try");
  return {
    source: [button("Open", () => chooser.click()), clear, await swapButton(), chooser],
    target: [copy, save],
    examples: make("div", { class: "line" }, hint, model.examples.slice(0, 3).map(example)),
    openFile,
    /** Enable or disable copying and saving. */
    enable(any) {
      copy.disabled = save.disabled = !any;
    },
  };
}
