/** Icons: small line drawings in the colour of the text around them. */

import { makeSvg } from "./views/dom.js";

const PATHS = {
  write: "M4 20h16 M5 16 15.5 5.5a2.1 2.1 0 0 1 3 3L8 19l-4 1Z",
  translate: "M4 6h9 M8.5 4v2 M11.5 6c-.8 4-3.4 7-7 8.5 M6 9c1 2.5 3.5 4.5 6 5.3 M12.5 20l4-10 4 10 M14 17h5",
  classify: "M4 12V5a1 1 0 0 1 1-1h7l8 8-8 8Z M8.5 8.5h.01",
  inspect: "M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14Z M16 16l5 5 M8 11h6 M11 8v6",
  clusters: "M7 5.5h.01 M10 8h.01 M6 9.5h.01 M17 6h.01 M19 9h.01 M15.5 9.5h.01 M10 16h.01 M13.5 18.5h.01 M13 14.5h.01 M8 3.5a4.5 4.5 0 1 1-.01 0Z M17.2 4a4 4 0 1 1-.01 0Z M12.2 12.5a4.2 4.2 0 1 1-.01 0Z",
  runs: "M4 4v16h16 M7 8c2 6 5 8 12 8.5",
  train: "M12 3v4 M12 17v4 M3 12h4 M17 12h4 M12 8.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7Z M6 6l2 2 M16 16l2 2 M18 6l-2 2 M8 16l-2 2",
  theme: "M12 4a8 8 0 1 0 0 16Z M12 4a8 8 0 0 1 0 16",
  help: "M9 9a3 3 0 1 1 4.2 2.7c-.8.4-1.2 1-1.2 1.8v.5 M12 17.5h.01 M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18Z",
  tour: "M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18Z M15.5 8.5l-2 5-5 2 2-5Z",
  other: "M5 12h14",
};

/** Return the icon of this name. */
export function icon(name) {
  const path = makeSvg("path", { d: PATHS[name] || PATHS.other });
  return makeSvg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, path);
}
