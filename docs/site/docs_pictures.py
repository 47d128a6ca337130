"""Make the pictures of docs/start from real runs: `make docs-pictures`; with names only those of these pages, or `simulators`.

A page's commands run in a new folder. A terminal becomes an SVG, a page of a browser a PNG by Chromium; a file is copied.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

import docs_blocks
import docs_shown
from docs_blocks import START, Step, outdated, record

ROOT = docs_blocks.ROOT
PICTURES = ROOT / "docs" / "pictures" / "start"
COLUMNS, LINES = 108, 44
"""Of a terminal's picture; what is longer is wrapped, and its middle left out."""
CELL, HEIGHT = 7.83, 18
"""Width of a character and height of a line, in pixels at 13 px."""
MOST_WIDE = 1100
TYPED, SAID = "#8fd3ff", "#e8eaee"

__all__ = ["main", "outdated"]


def main(names: list[str]) -> None:
    if not names or "simulators" in names:
        simulators()
    made: dict[str, str] = {}
    for page in sorted(START.glob("*.md")):
        if (names and page.stem not in names) or not any(step.kind == "picture" for step in docs_blocks.steps(page)):
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            for step, printed in docs_blocks.run(page, Path(folder)):
                if step.kind == "picture":
                    _take(step, printed, Path(folder), ROOT / "docs" / step.name)
                    made[step.name] = step.digest
        print(f"{page.name}: {time.monotonic() - start:.0f} s")
        PICTURES.mkdir(parents=True, exist_ok=True)
        known = {**record(), **made}  # another call may have made others meanwhile
        (PICTURES / "made.json").write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", "utf-8")


def simulators() -> None:
    """Store pictures of the simulators that are installed in environments of their own."""
    from PIL import PngImagePlugin

    from mmrl.registry import plugins

    environments = Path(os.environ.get("MMRL_SIMULATORS", ROOT / ".simulators"))
    for id, sample in docs_shown.SAMPLES["elsewhere"].items():
        python = environments / sample["environment"] / "bin" / "python"
        if not python.exists():
            print(f"{id}: {python} is missing, so its picture stays as it is: make simulators")
            continue
        options = {**sample["options"], "python": str(python)}
        picture, instruction = docs_shown.first_observation(plugins.registry(), id, options)
        said = PngImagePlugin.PngInfo()
        said.add_text("instruction", instruction)
        docs_shown.STORED.mkdir(parents=True, exist_ok=True)
        target = docs_shown.STORED / f"{id.replace('/', '-')}.png"
        picture.convert("RGB").save(target, optimize=True, pnginfo=said)
        print(f"{id}: {instruction}")


def _take(step: Step, printed: str, folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if step.of == "terminal":
        target.write_text(terminal(step.body, printed.replace(str(folder), "~/work")), "utf-8")
    elif step.of == "file":
        from PIL import Image

        with Image.open(folder / step.body) as picture:
            _save(picture, target)
    else:
        from PIL import Image

        name, _, height = step.body.partition(" ")
        with Image.open(io.BytesIO(screenshot(folder / name, int(height or 900)))) as picture:
            _save(picture, target)


def _save(picture: object, target: Path) -> None:
    from PIL import Image

    assert isinstance(picture, Image.Image)
    shown = picture.convert("RGB")
    if shown.width > MOST_WIDE:
        shown = shown.resize((MOST_WIDE, round(shown.height * MOST_WIDE / shown.width)), Image.Resampling.LANCZOS)
    shown.save(target, optimize=True)


def screenshot(page: Path, height: int) -> bytes:
    """A page of a run as Chromium shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium") or None, args=["--no-sandbox"])
        try:
            shown = browser.new_page(viewport={"width": 1100, "height": height})
            shown.goto(page.resolve().as_uri())
            shown.wait_for_timeout(500)
            return shown.screenshot()
        finally:
            browser.close()


def terminal(command: str, printed: str) -> str:
    """A terminal with a command and what it printed, as SVG."""
    rows = [(f"$ {line}" if number == 0 else line, True) for number, line in enumerate(command.splitlines())]
    said = [line.rstrip() for line in printed.strip("\n").splitlines()]
    wrapped = [part for line in said for part in _wrap(line)]
    if len(wrapped) > LINES:
        wrapped = [*wrapped[: LINES // 2], "...", *wrapped[-LINES // 2 :]]
    rows += [(line, False) for line in wrapped]
    width = round(max(60, *(len(line) for line, _ in rows)) * CELL) + 40
    height = len(rows) * HEIGHT + 56
    lines = [
        f'<text x="20" y="{48 + i * HEIGHT}" fill="{TYPED if typed else SAID}" xml:space="preserve">{escape(line)}</text>'
        for i, (line, typed) in enumerate(rows)
    ]
    dots = "".join(
        f'<circle cx="{22 + 18 * i}" cy="18" r="5" fill="{c}"/>' for i, c in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<rect width="{width}" height="{height}" rx="8" fill="#1d2129"/>{dots}'
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace" font-size="13">\n'
        + "\n".join(lines)
        + "\n</g></svg>\n"
    )


def _wrap(line: str) -> list[str]:
    """The line in pieces that fit, broken at spaces; what goes on is indented."""
    pieces = []
    while len(line) > COLUMNS:
        at = line.rfind(" ", COLUMNS // 2, COLUMNS + 1)
        at = COLUMNS if at < 0 else at
        pieces.append(line[:at].rstrip())
        line = f"      {line[at:].lstrip()}"
    return [*pieces, line]


if __name__ == "__main__":
    main(sys.argv[1:])
