/** The beginning of an exported page: its data unpacked, its views drawn one under the other. */

import { inflate, unpack } from "./bytes.js";
import { make } from "./dom.js";

/** The page with its own theme, whatever the system's. */
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

/** Tell the notebook how tall the views are, and be told whether it is dark; both by message, as the frame is sealed. */
function livingInAFrame() {
  const tell = () => parent.postMessage({ penwright: "height", height: document.documentElement.offsetHeight }, "*");
  const introduce = () => {
    tell(); // a frame out of sight observes nothing
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

/** Draw what the page holds; `views` are the draw functions by name. */
export async function start(views) {
  const main = document.querySelector("main");
  try {
    const page = unpack(await inflate(document.getElementById("data").textContent));
    if (page.title) main.append(make("header", {}, make("h1", {}, page.title), themeSwitch()));
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
        `This page could not be drawn: ${error.message}. A browser of 2023 or later is needed.`,
      ),
    );
    throw error;
  }
}
