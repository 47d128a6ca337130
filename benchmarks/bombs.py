"""Reports and board on run folders that are made to bring them down: peak memory and seconds.

    python benchmarks/bombs.py [--only REGEX] [--verbose] [--together]

Prints one JSON object {"cases", "peak_mb", "seconds", "report", "board", "over"}: the worst of all cases, the worst of reports
and of boards, and the cases that took more than they may, failed, or hid the sound run beside. Seconds are of the slowest page.
Each case is written into a temporary folder, which needs some gigabytes of disk. --together: only one board with all bombs at
once.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support")]

import bounds  # noqa: E402
from bombs import BOMBS, all_bombed, bombed  # noqa: E402


def faults(report: bounds.Cost, board: bounds.Cost) -> list[str]:
    """What is wrong with the pages of a case."""
    found = []
    for kind, cost in (("report", report), ("board", board)):
        if cost.peak_mb > bounds.MEMORY_MB or cost.seconds > bounds.SECONDS:
            found.append(f"{kind}: {cost.peak_mb:.0f} MB, {cost.seconds:.1f} s for {cost.slowest}")
    found += [
        f"{page}: no sound run" for page, text in board.texts.items() if page[:2] == "/ " and 'data-run="sound"' not in text
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--together", action="store_true")
    asked = parser.parse_args()
    names = [name for name in BOMBS if re.search(asked.only, name)]
    if not names:
        parser.error(f"--only {asked.only} matches no case; they are: {', '.join(BOMBS)}")
    if asked.together:
        with tempfile.TemporaryDirectory() as temporary:
            runs = all_bombed(Path(temporary) / "runs")
            cost = bounds.board(runs[0].parent, *(run.name for run in runs))
        failed = [page for page, text in cost.texts.items() if text.startswith(("0 ", "5"))]
        print(
            json.dumps({"peak_mb": round(cost.peak_mb), "seconds": round(cost.seconds, 1), "of": cost.slowest, "failed": failed})
        )
        return
    worst: dict[str, dict[str, Any]] = {kind: {"peak_mb": 0, "seconds": 0.0} for kind in ("report", "board")}
    over = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            folder = Path(temporary) / "case"
            run = bombed(folder / "runs", name)
            report, board = bounds.report(run), bounds.board(run.parent, run.name)
            shutil.rmtree(folder)
            for kind, cost in (("report", report), ("board", board)):
                for key, value in (("peak_mb", round(cost.peak_mb)), ("seconds", round(cost.seconds, 1))):
                    if value > worst[kind][key]:
                        worst[kind] |= {key: value, f"{key}_of": name}
                if asked.verbose:
                    print(f"{name}: {kind} {cost.peak_mb:.0f} MB, {cost.seconds:.1f} s, {cost.slowest}", file=sys.stderr)
            if wrong := faults(report, board):
                over[name] = wrong
    total = {key: max(worst[kind][key] for kind in worst) for key in ("peak_mb", "seconds")}
    print(json.dumps({"cases": len(names), **total, **worst, "over": over}))


if __name__ == "__main__":
    main()
