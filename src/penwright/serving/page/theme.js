/** The light or dark theme: the system's, until a person chooses the other one. */

const KEY = "penwright-theme";

const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

/** Apply the theme that was chosen before. */
export function startTheme() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
}

/** Switch to the other theme. The system's own theme is not stored. */
export function turnTheme() {
  const root = document.documentElement;
  const next = (root.dataset.theme || system()) === "dark" ? "light" : "dark";
  root.dataset.theme = next;
  if (next === system()) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
}
