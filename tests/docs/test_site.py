"""The documentation site: what it is made from, what its checks find, and that it is built."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import docs_check
import docs_gallery
import docs_links
import docs_papers
import docs_reference
import docs_shown
import mmrl
from mmrl.api.errors import UserError
from mmrl.registry import plugins

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_a_broken_link_is_found_with_file_and_line(tmp_path):
    (tmp_path / "other.md").write_text("# One `two`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n\n```\n[a](gone.md)\n```\n[b](gone.md) `[c](gone.md)`\n[d](other.md#one-two)\n[e](other.md#three)\n[f](#top)\n"
    )
    assert docs_check.dead_links([page]) == [
        "page.md:6: the link to gone.md leads nowhere: no such file",
        "page.md:8: the link to other.md#three leads nowhere: no such heading",
    ]


def test_the_pages_have_no_broken_links():
    assert docs_check.dead_links() == []


def site(folder: Path, body: str) -> list[str]:
    (folder / "site").mkdir()
    (folder / "site" / "index.html").write_text(f"<html>\n<body id='here'>\n{body}\n</body></html>")
    (folder / "site" / "other.html").write_text("<p id='there'>x</p>")
    return docs_check.of_site(folder / "site")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<script src='https://cdn.example/x.js'></script>", "loads https://cdn.example/x.js from another host"),
        ("<link rel='stylesheet' href='//fonts.example/x.css'>", "loads //fonts.example/x.css from another host"),
        ("<img src='//example/x.png' alt=''>", "loads //example/x.png from another host"),
        ("<a href='gone.html'>x</a>", "the link to gone.html leads nowhere"),
        ("<a href='other.html#gone'>x</a>", "the link to other.html#gone leads to no such place of its page"),
        ("<a href='#gone'>x</a>", "the link to #gone leads to no such place of its page"),
        ("<p>see [the case][mmrl.Case]</p>", "'][mmrl.Case]' was not rendered"),
        ("<p>see [it](page.md#x)</p>", "'](page.md#x)' was not rendered"),
        ("<img src='other.html'>", "a picture has no text that says what it shows"),
    ],
)
def test_a_fault_of_the_built_site_is_found(tmp_path, body, said):
    assert site(tmp_path, body) == [f"site/index.html:3: {said}"]


def test_a_sound_page_has_no_faults(tmp_path):
    body = "<a href='other.html#there'>x</a><a href='#here'>y</a><a href='https://example.org'>z</a><code>[a][mmrl.b]</code>"
    assert site(tmp_path, body) == []


def test_a_style_that_loads_from_elsewhere_is_found(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "x.css").write_text("@font-face {src: url(https://fonts.example/a.woff2)}")
    assert docs_check.of_site(tmp_path / "site") == ["site/x.css: loads https://fonts.example/a.woff2"]


def test_links_that_leave_docs_lead_to_pages_of_the_site():
    found: list[Path] = []
    text = "[a](../README.md#install) [b](glossary.md) [c](https://x.org) `[d](../README.md)`\n```\n[e](../README.md)\n```\n"
    text += "[f](../configs/demo/digits.toml) [g](../sims) [h](decisions)"
    assert docs_links.rewritten("cli.md", text, found.append) == (
        "[a](files/README.md#install) [b](glossary.md) [c](https://x.org) `[d](../README.md)`\n```\n[e](../README.md)\n```\n"
        "[f](files/configs/demo/digits.toml.page.md) [g](files/sims.page.md) [h](decisions/README.md)"
    )
    back = docs_links.rewritten("files/dot-github/SECURITY.md", "[a](../docs/isolation.md)")
    assert back == "[a](../../isolation.md)"
    assert docs_links.rewritten("promises.md", "[a](../.github/SECURITY.md)") == "[a](files/dot-github/SECURITY.md)"
    assert [path.relative_to(ROOT).as_posix() for path in found] == ["README.md", "configs/demo/digits.toml", "sims"]


def test_a_list_after_a_paragraph_is_a_list():
    assert docs_links.lists_apart("a\n- b\n- c\n  d\n- e\n```\nx\n- y\n```\n") == "a\n\n- b\n- c\n  d\n- e\n```\nx\n- y\n```\n"


def test_a_bar_inside_code_of_a_table_is_a_bar():
    assert docs_links.pipes_in_code("| `a \\| b` | c \\| d |\n`e \\| f`") == "| `a | b` | c \\| d |\n`e \\| f`"


def test_what_only_the_site_can_show_is_seen_there():
    assert (
        docs_links.with_site_parts("a <!-- site: [b](gallery/index.md) --> c <!-- d -->")
        == "a [b](gallery/index.md) c <!-- d -->"
    )


class Bare(mmrl.Task):
    def prompts(self, split, seed):
        return []


class Said(Bare):
    """Which country's flag is shown."""


def test_a_task_without_a_docstring_is_named_with_file_and_line():
    spec = mmrl.TaskSpec(id="flags/country", target="x:Bare")
    line = Path(__file__).read_text().splitlines().index("class Bare(mmrl.Task):") + 1
    assert docs_shown.undocumented(spec, Bare) == (
        f"tests/docs/test_site.py:{line}: Bare, the task 'flags/country', has no docstring: say in a line what it asks"
    )
    assert docs_shown.undocumented(spec, Said) == ""


@pytest.mark.slow
def test_every_bundled_task_says_what_it_asks():
    registry = plugins.registry()
    bundled = docs_gallery.bundled()
    specs = [spec for id, spec in registry.specs("tasks").items() if id.partition("/")[0] in bundled]
    assert len(specs) > 90
    assert [fault for spec in specs if (fault := docs_shown.undocumented(spec, registry.target(spec)))] == []


def test_the_gallery_shows_a_task(tmp_path):
    pytest.importorskip("PIL")
    registry = plugins.registry()
    spec = registry.get("tasks", "grounding/refer-data")
    used = docs_gallery.recipes()["grounding/refer-data"]
    shown = docs_shown.show_task(registry, spec, used)
    assert shown.picture.size == (340, 255) and shown.settings["path"] == "assets/samples/refer.jsonl" and not shown.missing
    name = docs_gallery.save(shown, tmp_path, spec.id, "tasks")
    assert name == "pictures/grounding-refer-data.png" and (tmp_path / "grounding-refer-data.png").stat().st_size > 1000
    text = docs_gallery.section(registry, "tasks", spec, shown, name, used)
    assert "| `grounding/iou` | 1 | 0 to 1 |" in text and "| `grounding/format` | 0.1 |" in text
    assert "[vlaa-thinking](../../configs/recipes/vlaa-thinking.toml)" in text
    assert "mmrl preview grounding/refer-data --set path=assets/samples/refer.jsonl" in text
    assert shown.prompt.splitlines()[0] in text and '??? note "' in text and "| `path` | required |" in text


def test_the_gallery_says_what_it_cannot_show(tmp_path):
    registry = plugins.registry()
    shown = docs_shown.show_task(registry, registry.get("tasks", "interop/verifiers"), [])
    assert shown.picture is None and shown.missing == "needs data of your own: the option `taskset`"
    assert ">yours<" in (tmp_path / Path(docs_gallery.save(shown, tmp_path, "interop/verifiers", "tasks")).name).read_text()


def test_a_simulator_that_is_not_installed_has_a_stored_picture(monkeypatch, tmp_path):
    pytest.importorskip("PIL")
    spec = plugins.registry().get("simulators", "libero/spatial")
    shown = docs_shown.show_simulator(plugins.registry(), spec, [])
    assert shown.picture.size == (256, 256) and shown.prompt.startswith("pick up the black bowl")
    monkeypatch.setattr(docs_shown, "STORED", tmp_path)
    lines = (DOCS / "site/gallery.toml").read_text().splitlines()
    line = next(n for n, text in enumerate(lines) if text.startswith('"libero/spatial"'))
    with pytest.raises(UserError, match=rf"^docs/site/gallery.toml:{line + 1}: the picture libero-spatial.png is missing"):
        docs_shown.show_simulator(plugins.registry(), spec, [])


def test_options_of_the_gallery_are_toml_in_a_shell():
    assert docs_gallery._quoted("assets/samples") == "assets/samples"
    assert docs_gallery._quoted({"train": 0.5, "a": [1, True]}) == "'{train = 0.5, a = [1, true]}'"


def test_the_reference_has_each_public_module_and_name():
    pages = docs_reference.pages()
    index = pages["reference/index.md"]
    assert all(f"| [`{name}`]" in index for name in mmrl.__all__)
    assert pages["reference/mmrl.api.types.md"] == "# `mmrl.api.types`\n\n::: mmrl.api.types\n"
    names = pages["reference/names.md"]
    assert "| `grounding/iou` | grounding | " in names and "| `grpo` | mmrl | " in names and "| `robotics/leaves-goal` |" in names
    assert "reference/mmrl.testing.kit.md" in pages and "reference/mmrl.api.moved.md" not in pages


def test_recipes_and_algorithms_are_in_the_paper_index():
    numbered, without = docs_papers.found()
    assert "2504.07615" in numbered and len(numbered["2504.07615"]) == 2
    assert any("`grpo`" in entry for entry in numbered["2402.03300"])
    assert [re.search(r"`([^`]+)`", entry)[1] for entry in without] == ["r1-v", "uav-vl-r1"], "name the paper's number on arXiv"


def test_what_others_read_names_this_version():
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {mmrl.__version__}\n" in cited and "\nlicense: Apache-2.0\n" in cited
    for name in ("bug.yml", "wish.yml"):
        form = (ROOT / ".github/ISSUE_TEMPLATE" / name).read_text()
        assert form.startswith("name: ") and "mmrl doctor" in form + "mmrl doctor" * (name == "wish.yml")
    assert "CODE_OF_CONDUCT" in " ".join(path.name for path in (ROOT / ".github").iterdir())


@pytest.fixture(scope="module")
def built():
    """The folder of the site, as `make docs` builds it."""
    site = ROOT / "build/docs/site"
    if os.environ.get("CI") and site.exists():
        return site  # by the step before the tests
    pytest.importorskip("mkdocs", reason="the generator is not installed: make docs")
    pytest.importorskip("mkdocstrings", reason="the generator is not installed: make docs")
    done = subprocess.run(
        [sys.executable, DOCS / "site" / "docs_build.py"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return site


@pytest.mark.slow
def test_the_site_is_built(built):
    gallery = (built / "gallery" / "grounding.html").read_text()
    assert 'src="pictures/grounding-refer.png"' in gallery and "grounding/iou" in gallery
    for id in plugins.registry().specs("tasks"):
        plugin = id.partition("/")[0]
        if plugin in docs_gallery.bundled():
            assert f">{id}</code>" in (built / "gallery" / f"{plugin}.html").read_text(), id
    case = (built / "reference" / "mmrl.api.types.html").read_text()
    assert 'id="mmrl.api.types.Case"' in case and 'id="mmrl.api.types.Case.completion"' in case
    assert (built / "search" / "search_index.json").stat().st_size > 100_000


PAGES = ("index", "start/1-install", "start/2-first-run", "gallery/index", "gallery/robotics", "reference/index")
PAGES += ("reference/mmrl.api.types", "run-files", "compare", "plugins", "zh/start/2-first-run")


@pytest.mark.slow
def test_pages_open_without_errors_on_a_phone_and_in_the_dark(built):
    """Ten pages and one in Chinese: no error on the console, nothing from another host, no sideways scrolling, readable contrast,
    names for all that can be pressed, headings in order; search finds."""
    import shutil

    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: make system")
    handler = functools.partial(Quiet, directory=built)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}/"
    faults: list[str] = []
    try:
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for scheme, width in (("light", 360), ("dark", 1280)):
                context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
                shown = context.new_page()
                shown.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
                shown.on("request", lambda asked: faults.append(asked.url) if not asked.url.startswith((here, "data:")) else None)
                for page in PAGES:
                    shown.goto(f"{here}{page}.html")
                    shown.wait_for_load_state("networkidle")
                    if (wide := shown.evaluate("document.documentElement.scrollWidth")) > width:
                        faults.append(f"{page} is {wide} px wide on {width}")
                    if (contrast := shown.evaluate(CONTRAST)) < 4.5:
                        faults.append(f"{page}, {scheme}: contrast {contrast:.1f}")
                    if shown.evaluate("document.querySelectorAll('h1').length") != 1:
                        faults.append(f"{page}: not one title")
                    faults.extend(f"{page}: {said}" for said in shown.evaluate(UNNAMED))
                    if shown.evaluate("document.documentElement.lang") != ("zh" if page.startswith("zh/") else "en"):
                        faults.append(f"{page}: its language is not said")
            shown.goto(f"{here}index.html")
            shown.keyboard.press("/")
            shown.keyboard.type("logprob_gap")
            shown.wait_for_selector(".md-search-result__item")
            browser.close()
    finally:
        server.shutdown()
    assert faults == [], "\n".join(faults)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


CONTRAST = """() => {
  const rgb = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const back = rgb(getComputedStyle(document.body).backgroundColor);
  const over = ([r, g, b, a = 1]) => [r, g, b].map((v, i) => v * a + back[i] * (1 - a));
  const contrast = element => {
    const [x, y] = [light(over(rgb(getComputedStyle(element).color))), light(back)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  return Math.min(...[...document.querySelectorAll("article :is(p, li, td, h1, h2)")].map(contrast));
}"""


UNNAMED = """() => {
  const seen = element => element.getClientRects().length > 0 && getComputedStyle(element).visibility !== "hidden";
  const named = element => (element.textContent.trim() || element.getAttribute("aria-label") || element.title
    || element.placeholder || [...element.querySelectorAll("img[alt]")].map(img => img.alt).join("")
    || (element.labels || []).length > 0);
  const pressed = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), [role=button]")];
  const nameless = pressed.filter(seen).filter(element => !named(element));
  const found = nameless.map(element => "without a name: " + element.outerHTML.slice(0, 90));
  const pictures = [...document.images].filter(img => !img.hasAttribute("alt"));
  found.push(...pictures.map(img => "a picture without a text: " + img.src));
  let before = 0;
  for (const heading of document.querySelectorAll("article :is(h1, h2, h3, h4, h5, h6)")) {
    const level = Number(heading.tagName[1]);
    if (level > before + 1) found.push("a level of headings is left out before: " + heading.textContent.slice(0, 60));
    before = level;
  }
  return found;
}"""


@pytest.mark.slow
def test_the_checks_of_pages_find_planted_faults():
    """A button and a link without a name, a picture without a text, a heading that skips a level, grey on grey."""
    import shutil

    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: make system")
    body = "<article><h1>A</h1><h3>B</h3><p style='color: #999'>grey</p><button style='width: 9px; height: 9px'></button>"
    body += "<a href='#' style='display: block; height: 9px'></a><img src='data:,'><button aria-label='Close'></button></article>"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content(f"<body style='background: #fff'>{body}</body>")
        found, contrast = page.evaluate(UNNAMED), page.evaluate(CONTRAST)
        browser.close()
    assert [said.partition(":")[0] for said in found] == [
        "without a name",
        "without a name",
        "a picture without a text",
        "a level of headings is left out before",
    ]
    assert contrast < 3
