"""Build the documentation site into build/docs/site, without a network, and check it: `make docs`.

A broken link, a task without a docstring or a picture that is missing ends the build with the file and line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docs_check
import docs_code
import docs_gallery
import docs_links
import docs_papers
import docs_pictures
import docs_reference
import docs_translations
import mmrl
from mmrl.api.errors import UserError

ROOT = docs_links.ROOT
BUILD = ROOT / "build" / "docs"
PAGES, SITE = BUILD / "pages", BUILD / "site"
NAV = {"GALLERY": "gallery", "REFERENCE": "reference", "DECISIONS": "decisions"}


def collect() -> None:
    """Write all pages of the site as Markdown into `PAGES`."""
    shutil.rmtree(BUILD, ignore_errors=True)
    waiting: dict[str, str] = {}
    for path in sorted(docs_links.DOCS.rglob("*")):
        inside = path.relative_to(docs_links.DOCS)
        if inside.parts[0] == "site" or path.is_dir():
            continue
        if path.suffix == ".md":
            waiting[inside.as_posix()] = docs_links.with_site_parts(docs_translations.with_note(path, path.read_text("utf-8")))
        elif path.suffix in (*docs_links.PICTURES, ".ipynb"):
            _copy(path, PAGES / inside)
    waiting |= docs_reference.pages() | docs_papers.pages() | docs_gallery.pages(PAGES)
    _copy(docs_links.DOCS / "site" / "site.css", PAGES / "site.css")
    while waiting:
        page, text = waiting.popitem()
        found: list[Path] = []
        text = docs_links.rewritten(page, docs_links.pipes_in_code(text), found.append)
        _write(PAGES / page, docs_links.lists_apart(text))
        for path in found:
            shown = docs_links.shown_at(path)
            if (PAGES / shown).exists() or shown in waiting:
                continue
            if path.suffix in docs_links.PICTURES:
                _copy(path, PAGES / shown)
            else:
                waiting[shown] = docs_links.page_of(path)
    config = (docs_links.DOCS / "site" / "mkdocs.yml").read_text("utf-8")
    for mark, folder in NAV.items():
        names = sorted(path.relative_to(PAGES).as_posix() for path in (PAGES / folder).glob("*.md"))
        names.sort(key=lambda name: not name.endswith(("index.md", "README.md")))
        config = config.replace(f"[{mark}]", f"[{', '.join(names)}]")
    config = config.replace("[VERSION]", mmrl.__version__)
    if names := os.environ.get("VERSIONS", "").split():
        config = config.replace("  # [SELECTOR]", "\n  version: {provider: mike}")
    _write(BUILD / "versions.json", json.dumps(versions(names or [mmrl.__version__])))
    _write(BUILD / "mkdocs.yml", config)


def versions(names: Sequence[str]) -> list[dict[str, Any]]:
    """What the selector of versions reads, in mike's form; the first is the latest."""
    return [{"version": name, "title": name, "aliases": ["latest"] if i == 0 else []} for i, name in enumerate(names)]


def build() -> None:
    """Run the generator: it fails for an unknown page or an unrendered reference."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", str(BUILD / "mkdocs.yml")],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.strip() and not line.startswith("INFO")]
        raise UserError("\n".join(["mkdocs could not build the site:", *said]))


def say_language() -> None:
    """Pages in Chinese say so to screen readers and browsers: the generator knows one language."""
    for path in (SITE / "zh").rglob("*.html"):
        path.write_text(path.read_text("utf-8").replace('<html lang="en"', '<html lang="zh"', 1), "utf-8")


def main() -> None:
    start = time.monotonic()
    try:
        docs_check.raise_for(
            "the pages",
            [
                *docs_check.dead_links(),
                *docs_code.faults(docs_code.blocks()),
                *docs_pictures.outdated(),
                *docs_translations.faults(),
            ],
        )
        collect()
        build()
        say_language()
        docs_check.raise_for("the built site", docs_check.of_site(SITE))
    except UserError as error:
        sys.exit(f"docs: {error}")
    pages = sum(1 for _ in SITE.rglob("*.html"))
    print(f"docs: {pages} pages in {SITE.relative_to(ROOT)} after {time.monotonic() - start:.0f} s; open {SITE}/index.html")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


if __name__ == "__main__":
    main()
