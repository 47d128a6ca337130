"""The report's section of rollouts: for a few steps of a run, groups of them as far as there is room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.run_folder import validated
from mmrl.run_folder.reader import RunData, step_of
from mmrl.ui.report import films, overlay
from mmrl.ui.report.cards import LONG, LONGEST, group_card
from mmrl.ui.report.sources import Embedded
from mmrl.ui.report.tabs import tabs
from mmrl.ui.report.text import count, esc

STEPS = 7
"""Steps shown, spread evenly from the first to the last."""
GROUPS = 8
"""Prompts shown per step."""
BUDGET = 5_000_000
"""Bytes of HTML, the pictures included, for all steps together."""


def gallery(run: RunData) -> str:
    """The section of rollouts; nothing when none were kept."""
    files = [path for path in _spread(run.rollout_files, STEPS)]
    panels = [
        (step_of(path), panel) for path in files if (panel := _panel(validated.rows(path), path.parent, BUDGET // len(files)))
    ]
    if not panels:
        return ""
    shown = [(str(step), f"Step {step}", panel) for step, panel in panels]  # at first the last: what the policy can do now
    pause = films.PAUSE if any('class="moving' in panel for _, panel in panels) else ""
    legend = overlay.legend("".join(panel for _, panel in panels))
    return (
        f'<section class="rollouts"><h2>Rollouts</h2><p class="hint">What the policy wrote and what it earned. Equal answers '
        f"are counted together; the advantage says what the update encouraged (right) and discouraged (left).</p>"
        f"{pause}{tabs('r', 'Step', shown, len(shown) - 1)}{legend}</section>"
    )


def _spread(items: Sequence[Any], n: int) -> list[Any]:
    """At most `n` of the items, evenly, the first and the last included."""
    if len(items) <= n:
        return list(items)
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]


def _panel(rows: Sequence[Mapping[str, Any]], folder: Path, budget: int) -> str:
    """One step: its first groups, as far as the budget goes."""
    groups: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row.get("task"), row.get("group")), []).append(row)
    cards: list[str] = []
    shown = list(groups.values())[:GROUPS]
    for n, members in enumerate(shown):
        if card := fitting(members, folder, budget, budget // (len(shown) - n)):
            cards.append(card)
            budget -= len(card.encode())
    hidden = len(groups) - len(cards)
    more = f'<p class="hint">{count(hidden, "more prompt")} of this step in {esc(folder.name)}/.</p>' if hidden else ""
    return f'<div class="groups">{"".join(cards)}</div>{more}' if cards else ""


def fitting(members: Sequence[Mapping[str, Any]], folder: Path, budget: int, share: int, place: str = "") -> str:
    """The card of a group in at most so many bytes, or nothing; without texts in full where these alone are more than its share.
    folder: of the rollouts. place: as `group_card` has it."""
    for longest in (LONGEST, LONG):
        pictures = Embedded(folder, budget)
        card = group_card(members, pictures, place=place, longest=longest)
        size = len(card.encode())
        if size <= budget and (size - (budget - pictures.left) <= share or longest == LONG):
            return card
    return ""
