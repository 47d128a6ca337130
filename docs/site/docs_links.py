"""Links of a page that leave docs/: the site shows what they lead to, as a page of its own."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".json": "json", ".jsonl": "json", ".md": "markdown", ".txt": "text"}
HIDDEN, SHOWN_AS = ".github/", "dot-github/"
"""The generator leaves out folders whose name begins with a dot."""
PICTURES = (".png", ".svg", ".webp", ".jpg", ".gif")

_CODE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$|(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)*?(?<!`)\3(?!`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)((?:#[^)\s]+)?\))")
_ITEM = re.compile(r"^(?:[-*+]|\d+\.) ")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with each stretch that is no code changed."""
    done, at = [], 0
    for code in _CODE.finditer(text):
        done += [change(text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*done, change(text[at:])])


def source_of(page: str) -> Path:
    """The file of the repository that a page of the site shows."""
    if not page.startswith("files/"):
        return DOCS / page
    return ROOT / page.removeprefix("files/").replace(SHOWN_AS, HIDDEN).removesuffix(".page.md")


def shown_at(path: Path) -> str:
    """The page of the site that shows a file of the repository."""
    inside = path.relative_to(ROOT).as_posix().replace(HIDDEN, SHOWN_AS)
    if path.is_relative_to(DOCS) and not path.is_dir():
        return path.relative_to(DOCS).as_posix()
    if path == ROOT / "README.md":
        return "files/README.md"
    return f"files/{inside}" if path.suffix in (".md", *PICTURES) else f"files/{inside}.page.md"


def rewritten(page: str, text: str, found: Callable[[Path], None] = lambda path: None) -> str:
    """A page's text with links to files outside docs/ led to the pages that show them; `found` hears of each of those files."""
    at, here = source_of(page).parent, posixpath.dirname(page)

    def one(match: re.Match[str]) -> str:
        target = (at / match[2]).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            return match[0]  # mkdocs says that it is dead
        if target == DOCS:
            target = DOCS / "index.md"
        elif target.is_relative_to(DOCS) and target.is_dir():
            target /= "README.md"
        if not target.is_relative_to(DOCS):
            found(target)
        return f"{match[1]}{posixpath.relpath(shown_at(target), here or '.')}{match[3]}"

    return outside_code(text, lambda part: _LINK.sub(one, part))


def page_of(path: Path) -> str:
    """A page that shows a file, or lists a folder, of the repository."""
    inside = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        return path.read_text("utf-8")
    if path.is_dir():
        names = sorted(child.name + "/" * child.is_dir() for child in path.iterdir() if child.name[0] not in "._")
        return f"# `{inside}/`\n\nA folder of the repository, with:\n\n" + "".join(f"- `{name}`\n" for name in names)
    body = path.read_text("utf-8", "replace").rstrip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    return f"# `{inside}`\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{body}\n{fence}\n"


def with_site_parts(text: str) -> str:
    """What stands in `<!-- site: ... -->` is seen on the site alone: links to the pages that are made from the code."""
    return re.sub(r"<!-- site: (.*?) -->", r"\1", text, flags=re.DOTALL)


def pipes_in_code(text: str) -> str:
    """In a table GitHub wants `\\|` for a bar inside code; Python-Markdown shows the backslash."""
    lines = text.split("\n")
    inside = re.compile(r"`[^`]*`")
    rows = [inside.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line for line in lines]
    return "\n".join(rows)


def lists_apart(text: str) -> str:
    """GitHub lets a list follow a paragraph at once; Python-Markdown needs a blank line."""

    def apart(part: str) -> str:
        lines: list[str] = []
        for line in part.split("\n"):
            before = lines[-1] if lines else ""
            if _ITEM.match(line) and before.strip() and not before[0].isspace() and not _ITEM.match(before):
                lines.append("")
            lines.append(line)
        return "\n".join(lines)

    return outside_code(text, apart)
