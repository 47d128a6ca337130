// The theme: light, dark or the system's. The style sheets' dark rules are in (prefers-color-scheme: dark); a choice changes
// their media condition. This script is in the page's head after the style sheets, so that it runs before the first paint:
//   <script src="/static/theme.js"></script>
// <button type="button" id="theme"> selects the theme. The document receives the event "recolour" when colours change.
{
  const WORDS = { auto: "auto, as the system", light: "light", dark: "dark" };
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const DARK = "(prefers-color-scheme: dark)";
  const rules = [];

  const find = (sheet) => {
    for (const rule of sheet.cssRules) {
      if (rule instanceof CSSImportRule && rule.styleSheet) find(rule.styleSheet);
      if (rule instanceof CSSMediaRule && rule.media.mediaText === DARK) rules.push(rule);
    }
  };
  const chosen = () => {
    try {
      const theme = localStorage.getItem("theme");
      return theme in WORDS ? theme : "auto";
    } catch {
      // storage is disabled
      return "auto";
    }
  };
  const apply = (theme) => {
    for (const rule of rules) rule.media.mediaText = { auto: DARK, light: "not all", dark: "all" }[theme];
    document.documentElement.style.colorScheme = theme === "auto" ? "light dark" : theme;
    document.dispatchEvent(new Event("recolour"));
  };

  let theme = chosen();
  [...document.styleSheets].forEach(find);
  apply(theme);
  matchMedia(DARK).addEventListener("change", () => document.dispatchEvent(new Event("recolour")));

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => {
      button.textContent = theme;
      button.setAttribute("aria-label", `colours: ${WORDS[theme]}`);
    };
    name();
    button.addEventListener("click", () => {
      theme = NEXT[theme];
      try {
        localStorage.setItem("theme", theme);
      } catch {
        // storage is disabled: the choice applies to this page only
      }
      name();
      apply(theme);
    });
  });
}
