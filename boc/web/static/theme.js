/** The button that switches between light and dark colours, and remembers a choice that is not the system's. */

import { icon } from "./dom.js";

const SYSTEM = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

const systemTheme = () => (SYSTEM.matches ? "dark" : "light");
const currentTheme = () => root.dataset.theme ?? systemTheme();

function setTheme(name) {
  const chosen = name !== systemTheme();
  if (chosen) root.dataset.theme = name;
  else delete root.dataset.theme;
  try {
    if (chosen) localStorage.setItem("boc-theme", name);
    else localStorage.removeItem("boc-theme");
  } catch {
    // storage is barred: the choice holds until the page is left
  }
}

/** Make `button` switch the colours; its icon and label name the other ones. */
export function themeButton(button) {
  const draw = () => {
    const dark = currentTheme() === "dark";
    button.setAttribute("aria-label", dark ? "Light colours" : "Dark colours");
    button.replaceChildren(icon(dark ? "sun" : "moon"));
  };
  button.addEventListener("click", () => {
    setTheme(currentTheme() === "dark" ? "light" : "dark");
    draw();
  });
  SYSTEM.addEventListener("change", draw);
  draw();
}
