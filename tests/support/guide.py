"""The guide to plugins as tests read it: docs/plugins.md and the pages of docs/plugins."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "plugins.md", *sorted((DOCS / "plugins").glob("*.md"))]
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def section(begin: str) -> str:
    """What stands under the one heading that begins so, parts of it too."""
    bare = _FENCE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), TEXT)
    [heading] = re.finditer(rf"^(#+) {re.escape(begin)}.*\n", bare, re.MULTILINE)
    end = re.compile(rf"^#{{1,{len(heading[1])}}} ", re.MULTILINE).search(bare, heading.end())
    return TEXT[heading.end() : end.start() if end else None]


def page_with(mark: str) -> Path:
    """The one page that has this text."""
    [page] = [page for page in PAGES if mark in page.read_text("utf-8")]
    return page
