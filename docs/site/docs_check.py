"""Checks of the pages, with file and line, and of the built site: links, anchors, references, and that nothing is loaded from
another host."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import docs_links
from mmrl.api.errors import UserError

ROOT = docs_links.ROOT
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)*?(?<!`)\1(?!`)", re.DOTALL)

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
"""What only the site shows is checked in the built pages."""


def markdown_files() -> list[Path]:
    """The Markdown files of the repository, those of templates left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / path for path in listed if "/templates/" not in path and (ROOT / path).exists()]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", _without(page.read_text("utf-8"), FENCE), re.MULTILINE)
    return frozenset(
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).lower().replace(" ", "-") for title in titles
    )


def dead_links(pages: Iterable[Path] | None = None) -> list[str]:
    """`file:line: what is wrong`, for links of pages that lead nowhere."""
    found = []
    for page in markdown_files() if pages is None else pages:
        text = _without(_without(_without(page.read_text("utf-8"), FENCE), INLINE), COMMENT)
        for link in LINK.finditer(text):
            other = page.parent / link[1] if link[1] else page
            line = text.count("\n", 0, link.start()) + 1
            if not other.exists():
                found.append(f"{_name(page)}:{line}: the link to {link[1]} leads nowhere: no such file")
            elif link[2] and other.suffix == ".md" and link[2] not in anchors(other):
                found.append(f"{_name(page)}:{line}: the link to {link[1]}#{link[2]} leads nowhere: no such heading")
    return found


def raise_for(what: str, found: Sequence[str]) -> None:
    """Raise UserError if anything was found."""
    if found:
        raise UserError(f"{what} can't stay so ({len(found)} found):\n" + "\n".join(found))


class _Page(HTMLParser):
    """The links, the anchors, the loaded addresses and the text of a built page."""

    LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}
    NO_LOAD = {"canonical", "next", "prev", "alternate"}

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[int, str]] = []
        self.loaded: list[tuple[int, str]] = []
        self.unnamed: list[int] = []
        self.text: list[tuple[int, str]] = []
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        line = self.getpos()[0]
        self._code += tag in ("code", "pre", "script", "style")
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append((line, given["href"]))
        if tag == "img" and "alt" not in given:
            self.unnamed.append(line)
        if not (tag == "link" and self.NO_LOAD & {*given.get("rel", "").split()}):
            self.loaded += [(line, given[name]) for kind, name in self.LOADED if kind == tag and given.get(name)]

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text.append((self.getpos()[0], data))


def of_site(site: Path) -> list[str]:
    """What is wrong with the built pages."""
    pages: dict[Path, _Page] = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text("utf-8"))
    found = []
    for path, page in pages.items():
        at = path.relative_to(site.parent).as_posix()
        found += [f"{at}:{line}: {said}" for line, said in sorted(_of_page(site, path, page, pages))]
    for style in site.rglob("*.css"):
        found += [
            f"{style.relative_to(site.parent)}: loads {url}"
            for url in re.findall(r"url\(['\"]?(https?:[^)'\"]*)", style.read_text())
        ]
    return found


def _of_page(site: Path, path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[tuple[int, str]]:
    for line, address in page.loaded:
        if urlsplit(address).netloc:
            yield line, f"loads {address} from another host"
    for line in page.unnamed:
        yield line, "a picture has no text that says what it shows"
    for line, text in page.text:
        if left := re.search(r"\]\[[\w.]+\]|\]\([^)\s]*\.md[^)]*\)|^:::? ", text):
            yield line, f"{left[0]!r} was not rendered"
    for line, address in (*page.links, *page.loaded):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or (path.name == "404.html" and address.startswith("/")):
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.exists():
            yield line, f"the link to {address} leads nowhere"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
            yield line, f"the link to {address} leads to no such place of its page"


def _without(text: str, code: re.Pattern[str]) -> str:
    """The text with code blanked, lines kept."""
    return code.sub(lambda match: "\n" * match[0].count("\n"), text)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
