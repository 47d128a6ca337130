"""Links between the pages of this repository lead somewhere: the file exists, and the heading that is named."""

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|<!--.*?-->", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / path for path in listed if "/templates/" not in path]


@cache
def headings(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return frozenset(
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", t)).lower().replace(" ", "-") for t in titles
    )


def dead(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for target, anchor in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        other = page.parent / target if target else page
        if not other.exists():
            found.append(target)
        elif anchor and other.suffix == ".md" and anchor not in headings(other):
            found.append(f"{target}#{anchor}")
    return found


def test_links_lead_somewhere():
    broken = {str(page.relative_to(ROOT)): links for page in pages() if (links := dead(page))}
    assert not broken


def test_dead_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`, three\n[a](gone.md) [b](#one-two-three) [c](#two) `[d](nowhere.md)` [e](page.md#one-two-three)\n"
    )
    assert dead(page) == ["gone.md", "#two"]
