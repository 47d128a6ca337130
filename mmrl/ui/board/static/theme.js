// Light or dark as the system has it, or as was chosen. The style sheets keep what is dark in rules for
// (prefers-color-scheme: dark); a choice says when these hold. It stands in the page's head, after the style sheets and before
// anything is painted:
//   <script src="/static/theme.js"></script>
// The choice is made by <button type="button" id="theme">. Whoever draws hears "recolour" of the document.
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
      // a browser that keeps nothing
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
        // then it holds for this page
      }
      name();
      apply(theme);
    });
  });
}
