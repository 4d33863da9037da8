// Light, dark, or the system's setting; the choice is kept where the browser allows it.
const THEMES = ["auto", "light", "dark"];
const themeListeners = [];

const remembered = () => {
  try { return localStorage.getItem("mem1-theme"); } catch { return null; }
};

const setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.textContent = `theme: ${theme}`;
  button.hidden = false;
  try { localStorage.setItem("mem1-theme", theme); } catch { /* a page from a file may not */ }
  for (const listener of themeListeners) listener();
};

setTheme(THEMES.includes(remembered()) ? remembered() : "auto");
byId("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const listener of themeListeners) listener();
});

// The current colour of a CSS variable: `--line-0` is light-dark(...), which only a real element resolves.
const colorOf = (variable) => {
  const probe = make("span", { hidden: true });
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
};
