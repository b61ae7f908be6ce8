/** Light or dark: as the system has it, until a person chooses otherwise. */

const KEY = "penwright-theme";

const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

/** Take up the theme that was chosen before. */
export function startTheme() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
}

/** The other theme from now on; the one that the system has needs no choice. */
export function turnTheme() {
  const root = document.documentElement;
  const next = (root.dataset.theme || system()) === "dark" ? "light" : "dark";
  root.dataset.theme = next;
  if (next === system()) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
}
