"""The paper index by arXiv number, from the first line of each recipe and the `paper` of each algorithm."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from mmrl.registry import plugins

ROOT = Path(__file__).resolve().parents[2]
_RECIPE = re.compile(r"^## `([\w-]+)`$", re.MULTILINE)
_NUMBER = re.compile(r",? *arXiv (\d{4}\.\d{5})\.?")


def found() -> tuple[dict[str, list[str]], list[str]]:
    """(arXiv number -> Markdown of what refers to it, what has no number)."""
    numbered: dict[str, list[str]] = defaultdict(list)
    without: list[str] = []
    page_of = {
        name: page.relative_to(ROOT / "docs").as_posix()
        for page in ROOT.glob("docs/recipes/*.md")
        for name in _RECIPE.findall(page.read_text("utf-8"))
    }
    for path in sorted(ROOT.glob("configs/recipes/*.toml")):
        said = path.read_text("utf-8").partition("\n")[0].lstrip("# ")
        link = f"recipe [`{path.stem}`]({page_of[path.stem]}#{path.stem})"
        _enter(numbered, without, said, link)
    for id, spec in plugins.registry().specs("algorithms").items():
        _enter(numbered, without, spec.paper, f"algorithm `{id}`")
    return numbered, without


def _enter(numbered: dict[str, list[str]], without: list[str], said: str, link: str) -> None:
    plain = _NUMBER.sub("", said).replace("|", "\\|")
    numbers = _NUMBER.findall(said)
    for number in numbers:
        numbered[number].append(f"{link}: {plain}")
    if not numbers:
        without.append(f"{link}: {plain}")


def pages() -> dict[str, str]:
    """Path in the site -> Markdown."""
    numbered, without = found()
    rows = [
        f"| [{number}](https://arxiv.org/abs/{number}) | {'<br>'.join(numbered[number])} |"
        for number in sorted(numbered, reverse=True)
    ]
    lines = [
        "# Paper index",
        "",
        "What comes from which paper, by its number on arXiv, the newest first. Made from the recipes and the algorithms.",
        "",
        "| arXiv | here |",
        "|---|---|",
        *rows,
        "",
    ]
    if without:
        lines += ["## Without a number", "", *(f"- {one}" for one in without), ""]
    return {"papers.md": "\n".join(lines)}
