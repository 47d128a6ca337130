"""The pages in Chinese: each says what it is of, shows the same code, and is named when its English has changed."""

from __future__ import annotations

import warnings

import docs_code
import docs_translations


def test_the_readme_the_path_and_the_recipes_are_translated():
    assert docs_translations.faults() == []
    for page, translation in docs_translations.translated().items():
        if page.parent.name == "start":
            code = [docs_translations._CODE.findall(path.read_text("utf-8")) for path in (page, translation)]
            assert code[0] == code[1], f"{translation.name} shows all of the code, in its order"


def test_pages_that_are_behind_are_named():
    """No failure: whoever changes an English page need not write Chinese. The site shows a note on such pages."""
    for page, translation in docs_translations.behind().items():
        warnings.warn(f"{translation.relative_to(docs_code.ROOT)} is behind {page.name}", stacklevel=1)


def test_a_change_of_the_english_page_puts_its_translation_behind(tmp_path):
    page, translation = tmp_path / "page.md", tmp_path / "zh.md"
    page.write_text("# Page\n\n```sh\nmmrl doctor\n```\n")
    assert docs_translations.faults({page: translation}) == ["zh.md:1: there is no translation of page.md"]
    translation.write_text("# 页面\n\n```sh\nmmrl doctro\n```\n")
    assert docs_translations.faults({page: translation}) == [
        f"zh.md:1: the first line must say what it is of: {docs_translations.line(page)}",
        "zh.md:3: this code is not in page.md: copy it from there",
    ]
    translation.write_text(f"{docs_translations.line(page)}\n# 页面\n\n```sh\nmmrl doctor\n```\n")
    assert docs_translations.faults({page: translation}) == [] and docs_translations.behind({page: translation}) == {}
    page.write_text(page.read_text() + "\nMore.\n")
    assert docs_translations.behind({page: translation}) == {page: translation}


def test_a_page_that_is_behind_says_so(monkeypatch):
    page, translation = docs_translations.ROOT / "docs/start/1-install.md", docs_translations.FOLDER / "start/1-install.md"
    monkeypatch.setattr(docs_translations, "behind", lambda: {page: translation})
    shown = docs_translations.with_note(translation, "<!-- x -->\n# 安装\n\n五分钟。\n")
    assert shown.startswith('<!-- x -->\n# 安装\n\n!!! note "') and "[英文页](../../start/1-install.md)" in shown
    assert docs_translations.with_note(page, "# Install\n\nx\n") == "# Install\n\nx\n"
