/** All screens, in the order of the navigation. A new screen is a row here and a module that exports `show`. */

/** @typedef {"writer" | "translator" | "classifier"} Kind */

/**
 * A module in screens/ exports `show(element, context)`, which may return {stop}, and `keys`, [[key, what it does]].
 *
 * @typedef {object} Context
 * @property {{id: string, kind: Kind}} model the chosen model, as GET /models describes it
 * @property {object[]} models all served models
 * @property {{get: Function, number: Function, set: Function}} state kept in the address (store.js)
 * @property {AbortSignal} signal aborted when the screen is left: pass it to every request
 * @property {(error: Error) => void} fail shows the message of an error, unless the request was aborted
 * @property {(text: string) => void} announce announces a text to screen readers
 * @property {(screen: string, values?: object) => void} go opens another screen; the values override its state
 */

/** Say that the answers of a classifier do not come from its Transformer alone, which the views show. */
export const aloneNote = ({ has_linear: hasLinear }) =>
  hasLinear
    ? "This is the Transformer alone. The classifier's answer also counts words and letters, so it can be different."
    : "";

/** The screen that uses a model of each task. */
export const SCREEN_OF = { generate: "write", chat: "write", translate: "translate", classify: "classify", encode: "inspect" };

/** `kinds`: the kinds of model that a screen can use; null: it uses none. `needsLabels`: not for encoders. `studio`: only in `penwright studio`. */
export const SCREENS = [
  {
    name: "train",
    title: "Train",
    kinds: null,
    studio: true,
    load: () => import("./screens/train.js"),
  },
  {
    name: "write",
    title: "Write",
    kinds: ["writer"],
    load: () => import("./screens/write.js"),
  },
  {
    name: "translate",
    title: "Translate",
    kinds: ["translator"],
    load: () => import("./screens/translate.js"),
  },
  {
    name: "classify",
    title: "Classify",
    kinds: ["classifier"],
    needsLabels: true,
    load: () => import("./screens/classify.js"),
  },
  {
    name: "inspect",
    title: "Inspect",
    kinds: ["writer", "translator", "classifier"],
    load: () => import("./screens/inspect.js"),
  },
  {
    name: "clusters",
    title: "Clusters",
    kinds: ["classifier", "writer"],
    load: () => import("./screens/clusters.js"),
  },
  {
    name: "runs",
    title: "Runs",
    kinds: null,
    load: () => import("./screens/runs.js"),
  },
];
