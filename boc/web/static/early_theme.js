// Runs before the page is painted, so that a remembered choice does not flash.
try {
  const theme = localStorage.getItem("boc-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is barred: the system's choice holds
}
