/** Looking into a model: soon. */

import { make } from "../views/dom.js";

export const keys = [];

export function show(element) {
  element.append(make("h1", {}, "Inspect"));
}
