/** The start of an exported page: unpack the data, and draw the views below each other. */

import { inflate, unpack } from "./bytes.js";
import { make } from "./dom.js";

/** A button that switches between the light and the dark theme, regardless of the system's theme. */
function themeSwitch() {
  const root = document.documentElement;
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const turn = () => (root.dataset.theme = (root.dataset.theme || system()) === "dark" ? "light" : "dark");
  return make(
    "button",
    { type: "button", class: "pw-theme", "aria-label": "Light or dark", title: "Light or dark", click: turn },
    "◐",
  );
}

/** Send the height to the notebook and receive the theme, by messages, since the frame is sandboxed. */
function livingInAFrame() {
  const tell = () => parent.postMessage({ penwright: "height", height: document.documentElement.offsetHeight }, "*");
  const introduce = () => {
    tell(); // a ResizeObserver in a hidden frame reports nothing
    parent.postMessage({ penwright: "ready" }, "*");
  };
  addEventListener("message", ({ source, data }) => {
    if (source !== parent || !data) return;
    if (data.penwright === "theme") document.documentElement.dataset.theme = data.theme;
    if (data.penwright === "here") introduce();
  });
  new ResizeObserver(tell).observe(document.documentElement);
  introduce();
}

/** Draw the views of the page. `views` are the draw functions by name. */
export async function start(views) {
  const main = document.querySelector("main");
  try {
    const page = unpack(await inflate(document.getElementById("data").textContent));
    main.querySelector("header")?.append(themeSwitch());
    for (const { name, heading, data, options } of page.views) {
      const section = make("section", { "data-view": name }, heading && make("h2", {}, heading));
      main.append(section);
      views[name](section, data, options);
    }
    if (parent !== window) livingInAFrame();
    main.dataset.ready = "yes";
  } catch (error) {
    main.append(
      make(
        "p",
        { role: "alert" },
        `This page could not be drawn: ${error.message}. Use a browser from 2023 or later.`,
      ),
    );
    throw error;
  }
}
