"""What a browser would make of a report, and that it refers to nothing outside of it."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from mmrl.run_folder.writer import RunFolder
from mmrl.ui.report.report import write_report


class Page(HTMLParser):
    """What a browser would make of a report: elements with attributes, text by element, and whether tags balance."""

    VOID = {"meta", "link", "img", "input", "line", "circle"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag} repeats an attribute: {attrs}"
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append((self.open[-1] if self.open else "", data))

    def texts(self, *tags: str) -> list[str]:
        return [data for tag, data in self.words if tag in tags]

    def count(self, tag: str, css: str = "") -> int:
        return sum(t == tag and (not css or css in (a.get("class") or "").split()) for t, a in self.elements)


def page_of(run: RunFolder) -> Page:
    return Page(write_report(run.path).read_text(encoding="utf-8"))


def assert_self_contained(page: Page) -> None:
    """No element refers to anything outside of the page, and no script but the one that the policy names is in it."""
    for tag, attrs in page.elements:
        assert tag not in ("iframe", "object", "embed", "base", "form", "video", "audio")
        assert not [name for name in attrs if name.startswith("on")], (tag, attrs)
        for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
            value = attrs.get(name) or "#"
            assert re.match(r"data:image/(png|jpeg|webp);base64,|data:,$|#", value), (tag, value)
    (script,) = page.texts("script")
    assert re.findall(r"https?:|fetch|XMLHttp|import|eval|innerHTML", script) == ["http:"]  # the SVG namespace
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert (
        policy == f"default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    style = "".join(page.texts("style"))
    assert "url(" not in style
    assert "@import" not in style
