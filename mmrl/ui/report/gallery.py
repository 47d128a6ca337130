"""A report's section of rollouts: groups of a few recorded steps, within a size budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.run_folder import excerpt
from mmrl.run_folder.bounded import Budget
from mmrl.run_folder.reader import RunData, step_of
from mmrl.ui.report import overlay, videos
from mmrl.ui.report.cards import LONG, LONGEST, group_card
from mmrl.ui.report.media_sources import Decoding, EmbeddedMedia
from mmrl.ui.report.tabs import tabs
from mmrl.ui.report.text import count, esc

STEPS = 7
"""Maximal number of steps, spread evenly from the first to the last."""
GROUPS = 8
"""Maximal number of groups per step."""
BUDGET = 5_000_000
"""Maximal bytes of HTML for all steps together, embedded media included."""
READ, VALUES = 256 << 20, 2_000_000
"""Maximal bytes and values of rollouts that are read for all steps together."""


def gallery(run: RunData) -> str:
    """The section as HTML; empty if the run recorded no rollouts."""
    files = [path for path in _spread(run.rollout_files, STEPS)]
    panels, decoding = [], Decoding()
    for path in files:
        rows = excerpt.rows(path, Budget(size=READ // len(files), values=VALUES // len(files)), run.left_out)
        if panel := _panel(rows, path.parent, BUDGET // len(files), decoding):
            panels.append((step_of(path), panel))
    if not panels:
        return ""
    shown = [(str(step), f"Step {step}", panel) for step, panel in panels]  # the last step is open first
    pause = videos.PAUSE if any('class="moving' in panel for _, panel in panels) else ""
    arrows = any('title="advantage"' in panel for _, panel in panels)
    hint = "Advantages to the right encourage a completion, those to the left discourage it." if arrows else ""
    legend = overlay.legend("".join(panel for _, panel in panels))
    return (
        f'<section class="rollouts"><h2>Rollouts</h2><p class="hint">Completions with their rewards. Equal ones are counted '
        f"together. {hint}</p>"
        f"{pause}{tabs('r', 'Step', shown, len(shown) - 1)}{legend}</section>"
    )


def _spread(items: Sequence[Any], n: int) -> list[Any]:
    """At most `n` of the items, evenly spaced, including the first and the last."""
    if len(items) <= n:
        return list(items)
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]


def _panel(rows: Sequence[Mapping[str, Any]], folder: Path, budget: int, decoding: Decoding) -> str:
    """The first groups of one step as HTML. budget: maximal bytes. decoding: what may still be decoded."""
    groups: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row.get("task"), row.get("group")), []).append(row)
    cards: list[str] = []
    shown = list(groups.values())[:GROUPS]
    for n, members in enumerate(shown):
        if card := fitting(members, folder, budget, budget // (len(shown) - n), decoding=decoding):
            cards.append(card)
            budget -= len(card.encode())
    hidden = len(groups) - len(cards)
    more = f'<p class="hint">{count(hidden, "more prompt")} of this step in {esc(folder.name)}/.</p>' if hidden else ""
    return f'<div class="groups">{"".join(cards)}</div>{more}' if cards else ""


def fitting(
    members: Sequence[Mapping[str, Any]], folder: Path, budget: int, share: int, decoding: Decoding, place: str = ""
) -> str:
    """The card of a group in at most `budget` bytes, or empty. Expanded texts are dropped if the card without its media exceeds
    `share` bytes. folder: the folder of the rollouts. decoding: what may still be decoded. place: see `group_card`."""
    for longest in (LONGEST, LONG):
        pictures = EmbeddedMedia(folder, budget, decoding)
        card = group_card(members, pictures, place=place, longest=longest)
        size = len(card.encode())
        if size <= budget and (size - (budget - pictures.left) <= share or longest == LONG):
            return card
    return ""
