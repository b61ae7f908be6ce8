/** All screens, in the order of the rail. A new one is a row here and a module that exports `show`. */

/** @typedef {"writer" | "translator" | "classifier"} Kind */

/**
 * What a module of screens/ exports: `show(element, context)`, which may return {stop}; and `keys`, [[key, what it does]].
 *
 * @typedef {object} Context
 * @property {{id: string, kind: Kind}} model the chosen one, of the screen's kinds; all that GET /models says of it
 * @property {object[]} models all that are served
 * @property {{get: Function, number: Function, set: Function}} state of the screen, kept in the address (store.js)
 * @property {AbortSignal} signal fires when the screen is left: give it to every request
 * @property {(error: Error) => void} fail shows the message of an error, unless somebody stopped it
 * @property {(text: string) => void} announce says something to screen readers
 * @property {(screen: string, values?: object) => void} go to another screen, with this state laid over its own
 */

/** `kinds`: the models that can do it; null: it needs none. */
export const SCREENS = [
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
    load: () => import("./screens/classify.js"),
  },
  {
    name: "inspect",
    title: "Inspect",
    kinds: ["writer", "translator", "classifier"],
    load: () => import("./screens/inspect.js"),
  },
  {
    name: "runs",
    title: "Runs",
    kinds: null,
    load: () => import("./screens/runs.js"),
  },
];
