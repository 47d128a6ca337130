"""Pages in Chinese, docs/zh: which English page each is made from, and whether that has changed since.

The first line of a translation is `<!-- translated: docs/index.md 0123456789abcdef -->`, the page and a digest of its text.
`python docs/site/docs_translations.py` lists those that are behind; with names of translations it records that these are so
no longer.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import docs_check

ROOT = docs_check.ROOT
FOLDER = ROOT / "docs" / "zh"
_FIRST = re.compile(r"\A<!-- translated: (\S+) ([0-9a-f]{16}) -->\n")
_CODE = re.compile(r"^```\w+[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTE = '!!! note "英文页后来有改动"\n    本页译自较早的英文版；以[英文页]({english})为准。\n\n'


def translated() -> dict[Path, Path]:
    """English page -> its translation, of those that are to have one: the README, the path, the recipes."""
    start = sorted((ROOT / "docs" / "start").glob("*.md"))
    return {
        ROOT / "README.md": FOLDER / "overview.md",
        ROOT / "docs" / "index.md": FOLDER / "index.md",
        ROOT / "docs" / "recipes.md": FOLDER / "recipes.md",
        **{page: FOLDER / "start" / page.name for page in start},
    }


def digest(page: Path) -> str:
    """Of the text of an English page."""
    return hashlib.sha256(page.read_bytes()).hexdigest()[:16]


def faults(pages: dict[Path, Path] | None = None) -> list[str]:
    """`file:line: what is wrong`: a translation is missing, doesn't say what it is of, or shows code that its original hasn't."""
    found = []
    for page, translation in (translated() if pages is None else pages).items():
        if not translation.exists():
            found.append(f"{_name(translation)}:1: there is no translation of {_name(page)}")
            continue
        text = translation.read_text("utf-8")
        first = _FIRST.match(text)
        if not first or first[1] != _name(page):
            found.append(f"{_name(translation)}:1: the first line must say what it is of: {line(page)}")
        own = set(_CODE.findall(page.read_text("utf-8")))
        for code in _CODE.finditer(text):
            if code[1] not in own:
                at = text.count("\n", 0, code.start()) + 1
                found.append(f"{_name(translation)}:{at}: this code is not in {_name(page)}: copy it from there")
    return found


def behind(pages: dict[Path, Path] | None = None) -> dict[Path, Path]:
    """English page -> its translation, of those whose English has changed since."""
    found = {}
    for page, translation in (translated() if pages is None else pages).items():
        first = _FIRST.match(translation.read_text("utf-8")) if translation.exists() else None
        if first and first[2] != digest(page):
            found[page] = translation
    return found


def line(page: Path) -> str:
    """The first line of an up-to-date translation."""
    return f"<!-- translated: {_name(page)} {digest(page)} -->"


def with_note(translation: Path, text: str) -> str:
    """The text of a page, with a note under its title if it is a translation that is behind."""
    for page, other in behind().items() if translation.is_relative_to(FOLDER) else ():
        if other == translation:
            up = "../" * len(translation.relative_to(FOLDER).parents)
            english = f"{up}{page.relative_to(ROOT / 'docs')}" if page.is_relative_to(ROOT / "docs") else f"{up}../{_name(page)}"
            title, note = re.compile(r"^# [^\n]*\n\n", re.MULTILINE), NOTE.format(english=english)
            at = found.end() if (found := title.search(text)) else 0
            return text[:at] + note + text[at:]
    return text


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def main(names: list[str]) -> None:
    made = {translation: page for page, translation in translated().items()}
    for name in names:
        translation = Path(name).resolve()
        text = _FIRST.sub("", translation.read_text("utf-8"))
        translation.write_text(f"{line(made[translation])}\n{text}", "utf-8")
    for page, translation in behind().items():
        print(f"{_name(translation)} is behind {_name(page)}")


if __name__ == "__main__":
    main(sys.argv[1:])
