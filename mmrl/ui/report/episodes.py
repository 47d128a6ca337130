"""A report's section of episodes: videos of successes and failures of the first, the best and the last evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmrl.run_folder import excerpt
from mmrl.run_folder.bounded import Budget
from mmrl.run_folder.episodes import ROWS
from mmrl.run_folder.reader import RunData, step_of
from mmrl.ui.report import videos
from mmrl.ui.report.media_sources import Decoding, EmbeddedMedia, MediaSource
from mmrl.ui.report.svg import number
from mmrl.ui.report.tabs import tabs
from mmrl.ui.report.text import count, esc

BUDGET = 3_000_000
"""Maximal characters of HTML for all evaluations together, embedded videos included."""
EVALUATIONS, MOST = 20, 500
"""Maximal number of evaluations, and of episodes of each."""
OPEN = 4
"""Number of tasks whose episodes are expanded."""
_ENDS = {"truncated-time": "time limit", "environment-error": "simulator error"}

Row = Mapping[str, Any]


def section(run: RunData) -> str:
    """The section as HTML; empty if the run recorded no episodes."""
    names = _names(run)
    panels = []
    budget, decoding = Budget(), Decoding()
    for folder, (tab, title) in names.items():
        if rows := rows_of(folder, budget, run.left_out):
            panels.append((tab, title, panel(rows, EmbeddedMedia(folder, BUDGET // len(names), decoding))))
    if not panels:
        return ""
    return (
        '<section class="episodes"><h2>Episodes</h2><p class="hint">The first held-out episodes that succeeded and the first '
        f"that failed, in prompt order. Click a video to enlarge it.</p>{videos.PAUSE}"
        f"{tabs('e', 'Evaluation', panels, len(panels) - 1)}</section>"
    )


def rows_of(folder: Path, budget: Budget, left_out: list[str]) -> list[dict[str, Any]]:
    """The rows of the videos of an evaluation. budget, left_out: see `excerpt.rows`."""
    found = [row for row in excerpt.rows(folder / ROWS, budget, left_out) if isinstance(row.get("outcome"), dict)]
    if len(found) > MOST:
        left_out.append(f"{folder.name}: {len(found) - MOST:,} of {len(found):,} episodes are left out")
    return found[:MOST]


def _names(run: RunData) -> dict[Path, tuple[str, str]]:
    """Folder of an evaluation with recorded episodes -> (its tab, its title)."""
    folders, best = run.episode_folders, (run.summary or {}).get("best_step")
    shown = folders if len(folders) <= EVALUATIONS else [folders[0], *folders[1 - EVALUATIONS :]]
    if len(folders) > len(shown):
        run.left_out.append(f"episodes/: {len(folders) - len(shown):,} of {len(folders):,} evaluations are left out")
    names = {}
    for folder in shown:
        step = step_of(folder)
        name = f"step {step}" if step else "before any training"
        first = ["first"] if step and folder == folders[0] else []
        words = [*first, *(["best"] if step == best else []), *(["last"] if folder == folders[-1] and run.summary else [])]
        title = f"Evaluation after {name}" if step else f"Evaluation {name}"
        names[folder] = (f"{name} ({' and '.join(words)})" if words else name, title)
    return names


def panel(rows: Sequence[Row], pictures: MediaSource) -> str:
    """One evaluation as HTML: a card for each task. If the videos exceed the budget, every task keeps its first ones."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(str(row.get("task")), []).append(row)
    ranked = [_ranked(of_task) for of_task in by_task.values()]
    shown = {id(row): _figure(row, pictures) for rank in zip_longest(*ranked) for row in rank if row is not None}
    return "".join(_card(task, of_task, shown, i < OPEN) for i, (task, of_task) in enumerate(by_task.items()))


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """A task's episodes, successes and failures alternating."""
    pairs = zip_longest([r for r in rows if _succeeded(r)], [r for r in rows if not _succeeded(r)])
    return [row for pair in pairs for row in pair if row is not None]


def _card(task: str, rows: Sequence[Row], shown: Mapping[int, str], unfolded: bool) -> str:
    halves = []
    for title, css, succeeded in (("Succeeded", "up", True), ("Failed", "down", False)):
        items = "".join(shown[id(row)] for row in rows if _succeeded(row) == succeeded)
        none = '<p class="hint">none</p>'
        halves.append(f'<div><h4 class="{css}">{title}</h4>{f"<ul>{items}</ul>" if items else none}</div>')
    return (
        f'<details class="card watched"{" open" if unfolded else ""}><summary><h3>{esc(task, 200)}</h3></summary>'
        f'<div class="halves">{"".join(halves)}</div></details>'
    )


def _figure(row: Row, pictures: MediaSource) -> str:
    """One episode as a list item: video, instruction, outcome, prompt id and seed."""
    instruction = str(row.get("instruction"))
    shown = videos.video_html(pictures, str(row.get("video")), f"{instruction}: {_outcome(row)}")
    return (
        f'<li>{shown}<p class="instruction">{esc(instruction, 300)}</p><p class="hint">{esc(_outcome(row))}</p>'
        f'<p class="id">{esc(row.get("prompt_id", ""), 80)}, seed {esc(row.get("seed"), 40)}</p></li>'
    )


def _succeeded(row: Row) -> bool:
    return bool(row["outcome"].get("success"))


def _outcome(row: Row) -> str:
    """The outcome of an episode in words."""
    outcome = row["outcome"]
    parts = []
    if _succeeded(row) and not outcome.get("success_at_end", 1.0):
        parts.append("no longer at the end")
    if isinstance(steps := outcome.get("steps"), int | float):
        parts.append(count(round(steps), "step"))
    if not _succeeded(row) and row.get("status") in _ENDS:
        parts.append(_ENDS[row["status"]])
    if isinstance(value := outcome.get("return"), int | float):
        parts.append(f"return {number(value)}")
    return ", ".join(parts)
