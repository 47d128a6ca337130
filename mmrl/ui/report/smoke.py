"""What a smoke run shows, in its report: whether the update of each stage works, and the figures that `smoke_shows` promises."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from mmrl.config.values import is_bound
from mmrl.run_folder import excerpt
from mmrl.run_folder.bounded import Budget
from mmrl.run_folder.reader import RunData
from mmrl.train.smoke_shows import figures, seen, told_update
from mmrl.ui.report.text import esc

READ, VALUES = 64 << 20, 500_000
"""Bytes and values of rollouts that are read for a report."""
ROWS = 100
"""Maximal number of rows."""


def section(run: RunData) -> str:
    """Of the report of a smoke run; empty for other runs."""
    rows = "".join(islice((*_updates(run), *_promises(run)), ROWS)) if run.config.get("smoke") is True else ""
    if not rows:
        return ""
    return (
        '<section class="smoke"><h2>What this smoke run shows</h2><p class="hint">A smoke run has a tiny model and a few steps. '
        "It tests that the run and its updates work, not that it learns.</p>"
        '<div class="card scroll"><table><thead><tr><th>It should show</th><th>It shows</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _updates(run: RunData) -> Iterator[str]:
    for found in (run.summary or {}).get("smoke", []):
        name = f"an update of stage {found['stage']} ({esc(found['kind'], 100)})"
        yield _row(name, esc(told_update(found), 600), found["step"] is not None)


def _promises(run: RunData) -> Iterator[str]:
    entries = run.config.get("smoke_shows")
    promised = [one for one in entries if isinstance(one, str) and is_bound(one)] if isinstance(entries, list) else []
    if not promised:
        return
    budget = Budget(size=READ, values=VALUES)
    found = figures(run, partial(excerpt.rows, budget=budget, left_out=run.left_out))
    so_far = "" if run.summary else " so far"
    for said in promised[:ROWS]:
        one = seen(said, found)
        lacking = f"not in any step{so_far}" if one.exists else f"there is no such figure{so_far}"
        value = f"{one.value:.3g}" if one.value is not None else lacking
        yield _row(f"<code>{esc(said, 300)}</code>", value, one.value is not None)


def _row(name: str, what: str, good: bool) -> str:
    return f'<tr><td>{name}</td><td class="{"up" if good else "down"}">{what}</td></tr>'
