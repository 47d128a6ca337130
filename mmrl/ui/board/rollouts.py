"""HTML of the board's rollouts: pages of groups that match a search, and the page of one rollout."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from mmrl.run_folder.bounded import Budget, lines
from mmrl.run_folder.files import size_text
from mmrl.run_folder.reader import step_entries
from mmrl.run_folder.validated import parsed
from mmrl.ui.board import pages, search
from mmrl.ui.board.index import located
from mmrl.ui.board.run_paths import NotFound
from mmrl.ui.board.run_queries import index_value, open_index
from mmrl.ui.board.search import Wanted
from mmrl.ui.report import cards, overlay
from mmrl.ui.report.media_sources import Decoding, LinkedMedia
from mmrl.ui.report.text import count, esc

PAGE = 12
"""Groups per page."""
PAGE_BYTES, PAGE_VALUES = 64 << 20, 1_000_000
"""Bytes and values of rollouts that are read for a page."""
LARGEST = 4_000_000
"""Maximal characters of a group's HTML."""
_PLACE = re.compile(r"(\d{1,12})\.(\d{1,9})")

Member = tuple[int, dict[str, Any]]
"""(line, row) of a step's file."""


def listed(name: str, run: Path, wanted: Wanted, why: str = "") -> str:
    """A page of matching groups as HTML. why: the error of the run's index, if any."""
    budget, decoding = page_budget(), Decoding()
    with open_index(run) as db:
        newest = not wanted.narrow and not wanted.after and wanted.sort == "newest"
        if db is None or (newest and not _has_newest(db)):
            steps, after = recorded(run), ""
            groups = [] if wanted.narrow else _unindexed(run, steps, budget)  # the newest step does not need the index
            recorded_steps = count(len(steps), "recorded step")
            what = f"{recorded_steps}, none searchable yet" if wanted.narrow else f"The newest of {recorded_steps}"
            until = f"indexing failed: {why}" if why else "indexing is under way"
            summary = f"{what}; {until}." if steps else ""
        else:
            found = search.search(db, wanted, PAGE)
            groups, after = [search.members(db, run, group, budget) for group in found.groups], found.after
            summary = "" if wanted.after else _summary(db, wanted)
    summary += f" {count(budget.refused, 'rollout')} left out for size." if budget.refused else ""
    shown = [card(name, run, members, decoding=decoding) for members in groups if members]
    return pages.groups(shown, name, wanted, after, summary, overlay.legend("".join(shown)))


def page_budget() -> Budget:
    """What a page may read of rollouts."""
    return Budget(size=PAGE_BYTES, values=PAGE_VALUES)


def card(name: str, run: Path, members: Sequence[Member], place: str = "", decoding: Decoding | None = None) -> str:
    """A group as HTML, with links to the pages of its rollouts. place: makes element ids unique when the group is on the page
    more than once. decoding: what the page may still decode."""
    links = [pages.address("/rollout", run=name, id=f"{row['step']}.{line}") for line, row in members]
    shown = cards.group_card([row for _, row in members], linked(name, run, "rollouts", decoding), links, place)
    if len(shown) <= LARGEST:
        return shown
    first = f'<a href="{esc(links[0])}">open its first rollout</a>'
    return f'<p class="card failure">A group of {size_text(len(shown))} is left out: {first}</p>'


def linked(name: str, run: Path, folder: str, decoding: Decoding | None = None) -> LinkedMedia:
    """The images and videos of a run's subfolder, as links to the board. name: of the run. folder: the subfolder. decoding: what
    the page may still decode."""

    def link(of: str) -> Callable[[str], str]:
        return lambda path: pages.address(of, run=name, path=f"{folder}/{path}")

    return LinkedMedia(run / folder, link("/media"), link("/media/frame"), decoding or Decoding())


def alone(name: str, run: Path, place: str) -> tuple[str, str]:
    """(title, HTML) of the page of one rollout. place: its `STEP.LINE`. Raises NotThere if it does not exist."""
    match = _PLACE.fullmatch(place)
    if not match:
        raise NotFound(f"{place!r:.80} is not a rollout's id: write STEP.LINE, such as 120.5")
    step, line = int(match[1]), int(match[2])
    file, budget = run / "rollouts" / f"step-{step:06d}.jsonl", page_budget()
    try:
        row = _row_at(file, line)
        rows = [(number, row) for number, (_, _, row) in enumerate(located(file, budget)) if row is not None]
    except OSError:
        raise NotFound(f"step {step} of {name} has no recorded rollouts; the run may have resumed at an earlier step") from None
    if row is None:
        raise NotFound(f"step {step} of {name} has no rollout {line}")
    if all(number != line for number, _ in rows):  # the budget was spent before it
        rows = sorted([*rows, (line, row)], key=lambda one: one[0])
    members = [(n, other) for n, other in rows if (other.get("task"), other.get("group")) == (row.get("task"), row.get("group"))]
    body = cards.rollout_card(row, [other for _, other in members], linked(name, run, "rollouts"))
    numbers = [number for number, _ in rows]
    at = numbers.index(line)
    around = [
        ("prev", "Previous", f"{step}.{numbers[at - 1]}" if at else None),
        ("next", "Next", f"{step}.{numbers[at + 1]}" if at + 1 < len(rows) else None),
    ]
    links = "".join(
        f'<a rel="{rel}" href="{pages.link("/rollout", run=name, id=number)}">{word}</a>'
        for rel, word, number in around
        if number is not None
    )
    others = f'<a href="{pages.link("/rollouts", run=name, step=step)}">all of step {step:,}</a>'
    same = f'<a href="{pages.link("/rollouts", run=name, prompt=row.get("prompt_id") or "")}">all of this prompt</a>'
    whole = f'<a href="{pages.link("/text", run=name, id=place)}">whole text</a>'
    left = pages.notes([f"{count(budget.refused, 'other rollout')} of this step left out for size"] if budget.refused else [])
    return (
        f"Step {step:,}, rollout {line}",
        f'<p class="bar-of-tools">{links}{others}{same if row.get("prompt_id") else ""}{whole}</p>{body}'
        f'<h2>Its group</h2><div class="groups">{card(name, run, members, "group")}</div>{left}',
    )


def text(run: Path, place: str) -> str:
    """The full completion of a rollout. place: its `STEP.LINE`. Raises NotThere if it does not exist."""
    match = _PLACE.fullmatch(place)
    try:
        row = _row_at(run / "rollouts" / f"step-{int(match[1]):06d}.jsonl", int(match[2])) if match else None
    except OSError:
        row = None
    if row is None:
        raise NotFound(f"there is no rollout {place!r:.80}")
    return str(row.get("completion") or "")


def _row_at(file: Path, line: int) -> dict[str, Any] | None:
    """The row of a line of a file of rollouts, empty lines not counted; None if there is none."""
    filled = (data for _, _, data in lines(file) if data is None or data.strip())
    data = next(islice(filled, line, None), None)
    return None if data is None else parsed(data)


def recorded(run: Path) -> list[int]:
    """The steps with recorded rollouts, ascending."""
    return sorted(step for step, _ in step_entries(run / "rollouts"))


def choices(run: Path) -> tuple[list[str], list[str], list[str]]:
    """(tasks, statuses, sources) of the indexed rollouts; empty without an index."""
    with open_index(run) as db:
        if db is None:
            return [], [], []
        kinds = db.execute("SELECT name, value FROM kinds WHERE value != '' ORDER BY value").fetchall()
    tasks, statuses, sources = ([value for name, value in kinds if name == column] for column in ("task", "status", "source"))
    return tasks, statuses, sources


def _summary(db: sqlite3.Connection, wanted: Wanted) -> str:
    """The number of matching rollouts in words."""
    steps, rows, broken = db.execute("SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(broken), 0) FROM files").fetchone()
    if wanted.narrow:
        summary = f"{count(search.count(db, wanted), 'rollout')} of {rows:,}"
    else:
        summary = f"{count(rows, 'rollout')} of {count(steps, 'step')}"
    if steps < (recorded := index_value(db, "recorded")):
        summary += f"; {steps / recorded:.0%} of the steps are indexed so far"
    if broken:
        summary += f"; {count(broken, 'line')} could not be read"
    return f"{summary}."


def _has_newest(db: sqlite3.Connection) -> bool:
    """Whether the index contains the newest recorded step; False before the indexer's first pass."""
    return db.execute("SELECT 1 FROM files WHERE step = ?", (index_value(db, "newest"),)).fetchone() is not None


def _unindexed(run: Path, steps: Sequence[int], budget: Budget) -> list[list[Member]]:
    """The groups of the newest step, read from its file."""
    groups: dict[tuple[Any, Any], list[Member]] = {}
    for step in steps[-1:]:
        try:
            for line, (_, _, row) in enumerate(located(run / "rollouts" / f"step-{step:06d}.jsonl", budget)):
                if row is not None:
                    groups.setdefault((row.get("task"), row.get("group")), []).append((line, row))
        except FileNotFoundError:  # the run has just resumed at an earlier step
            return []
    return list(groups.values())[:PAGE]
