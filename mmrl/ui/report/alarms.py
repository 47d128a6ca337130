"""What went wrong or looked wrong in a run: each alarm once, with when, and the rollouts that show why."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl.registry import plugins
from mmrl.run_folder import excerpt
from mmrl.run_folder.bounded import Budget
from mmrl.run_folder.reader import RunData, step_of
from mmrl.run_folder.writer import ENDED
from mmrl.ui.report import overlay, videos
from mmrl.ui.report.gallery import fitting
from mmrl.ui.report.media_sources import Decoding
from mmrl.ui.report.text import count, esc

SHOWN = 2
"""Groups for each alarm."""
NEAR = 50
"""Recorded steps around an alarm that are searched for rollouts which show it."""
CARDS = 12
"""Alarms of a report that have a card each, with rollouts."""
LISTED = 50
"""Kinds of warnings of a report that are listed."""
BUDGET = 1_500_000
"""Bytes of HTML, the pictures included, for the rollouts of all alarms of a report together."""
READ, VALUES = 128 << 20, 1_000_000
"""Bytes and values of rollouts that are read for all alarms of a report together."""

Row = Mapping[str, Any]


Rank = Callable[[Sequence[Row]], Callable[[Row], Any]]
"""The rollouts of a step -> what they are sorted by: the lowest show an alarm best."""


@dataclass(frozen=True, slots=True)
class AlarmGuide:
    """What an alarm means, and which rollouts show it."""

    title: str
    shown: str
    """What is seen in these rollouts."""
    rank: Rank = lambda rows: lambda row: 0
    fits: Callable[[Row], bool] = lambda row: True


def _tokens(row: Row) -> float:
    return row["tokens"] if isinstance(row.get("tokens"), int | float) else 0.0


def _advantage(row: Row) -> float:
    return abs(row["advantage"]) if isinstance(row.get("advantage"), int | float) else 0.0


def _reward(row: Row) -> float:
    return row["reward"] if isinstance(row.get("reward"), int | float) else 0.0


def _paid(row: Row) -> bool:
    return isinstance(row.get("reward"), int | float)


def _unscored(row: Row) -> bool:
    return (row.get("score") or {}).get("status") in ("failed", "lost")


def _group(row: Row) -> tuple[str, Any]:
    return row.get("task", ""), row.get("group")


def _most_said(rows: Sequence[Row]) -> Callable[[Row], Any]:
    """What is answered to the most prompts first."""
    prompts: dict[Any, set[Any]] = {}
    for row in rows:
        prompts.setdefault(row.get("completion"), set()).add(_group(row))
    places = {said: n for n, said in enumerate(sorted(prompts, key=lambda said: -len(prompts[said])))}
    return lambda row: places[row.get("completion")]


def _longest(rows: Sequence[Row]) -> Callable[[Row], Any]:
    """Groups with the longest completions on average first."""
    lengths: dict[Any, list[float]] = {}
    for row in rows:
        lengths.setdefault(_group(row), []).append(_tokens(row))
    return lambda row: -statistics.fmean(lengths[_group(row)])


def _most_alike(rows: Sequence[Row]) -> Callable[[Row], Any]:
    """Groups whose completions differ least first."""
    kinds: dict[Any, set[Any]] = {}
    sizes = Counter(map(_group, rows))
    for row in rows:
        kinds.setdefault(_group(row), set()).add(row.get("completion"))
    return lambda row: len(kinds[_group(row)]) / sizes[_group(row)]


ALARM_GUIDES: Mapping[str, AlarmGuide] = {
    "answer_collapse": AlarmGuide("Different prompts are answered alike", "what most prompts get as an answer", _most_said),
    "length_growth": AlarmGuide("Completions have grown", "the longest groups", _longest),
    "entropy_fall": AlarmGuide("The policy tries nothing else any more", "the least varied groups", _most_alike),
    "clip_share": AlarmGuide(
        "Most of the update is clipped away", "the largest advantages", lambda rows: lambda row: -_advantage(row)
    ),
    "kl": AlarmGuide("The policy is far from its reference", "the largest advantages", lambda rows: lambda row: -_advantage(row)),
    "zero_std": AlarmGuide(
        "Groups teach nothing: most often all their completions earn the same",
        "groups without an advantage",
        lambda rows: lambda row: -_reward(row),
        lambda row: not _advantage(row),
    ),
    "blind": AlarmGuide(
        "It answers as well without the picture",
        "what earned most: can it be said without the picture?",
        lambda rows: lambda row: -_reward(row),
        _paid,
    ),
    "reward_hacking": AlarmGuide(
        "The reward rises while the held-out figure falls",
        "what earned most: is it what was asked for?",
        lambda rows: lambda row: -_reward(row),
        _paid,
    ),
    "logprob_gap": AlarmGuide(
        "Sampler and learner disagree", "the largest advantages", lambda rows: lambda row: -_advantage(row)
    ),
    "failure_limit": AlarmGuide("Scores failed", "what could not be scored", fits=_unscored),
}
"""By the name of the limit."""


def guide_of(name: str) -> AlarmGuide | None:
    """The guide of an alarm; None for what is no alarm. name: a key of `ALARM_GUIDES`, or the id of a plugin's alarm."""
    if name in ALARM_GUIDES or "/" not in name:
        return ALARM_GUIDES.get(name)
    spec = plugins.registry().specs("alarms").get(name)
    return AlarmGuide(spec.summary if spec and spec.summary else name, "rollouts of this step")


@dataclass(slots=True)
class Alarm:
    """What was told, once or many times."""

    name: str
    """Of the limit; empty for what is none."""
    title: str
    kind: str
    """`alarm`, `fault` for what ended the run, or `warning`."""
    place: str
    what: str
    """As it was told first."""
    task: str = ""
    """That it is about; empty for all."""
    times: int = 0
    steps: list[int] = field(default_factory=list)
    """Of those times that were in a step."""


def alarms(rows: Iterable[Row]) -> list[Alarm]:
    """The rows of `errors.jsonl`, alike ones together: what ended the run first, then the alarms, then the rest."""
    found: dict[tuple[str, str], Alarm] = {}
    for row in rows:
        place, what = str(row.get("where")), str(row.get("what"))
        name, task = str(row.get("alarm") or ""), str(row.get("task") or "")
        kind = "fault" if place == ENDED else "alarm" if name else "warning"
        title = "What ended the run" if kind == "fault" else guide.title if (guide := guide_of(name)) else place
        key = (name, f"{place} {task}") if name else (re.sub(r"\d+", "0", what), "" if kind == "warning" else place)
        alarm = found.setdefault(key, Alarm(name, title, kind, place, what, task))
        alarm.times += 1
        if isinstance(row.get("step"), int):
            alarm.steps.append(row["step"])
    order = ("fault", "alarm", "warning")
    return sorted(found.values(), key=lambda one: (order.index(one.kind), one.steps[:1]))


def witnesses(alarm: Alarm, steps: Iterable[int], rows_of: Callable[[int], Sequence[Row]]) -> list[tuple[str, int | None]]:
    """(task, group) of those that show an alarm best, of one step: the recorded one at it or nearest before it, else after it.

    steps: those with rollouts. rows_of: the rollouts of one, as the run folder keeps them or as much of that as ranks them.
    """
    way = guide_of(alarm.name)
    if way is None or not alarm.steps:
        return []
    at = alarm.steps[0]
    for step in sorted(steps, key=lambda step: (step > at, abs(step - at)))[:NEAR]:
        if fitting := [row for row in rows_of(step) if way.fits(row) and alarm.task in ("", row.get("task"))]:
            return list(dict.fromkeys(map(_group, sorted(fitting, key=way.rank(fitting)))))[:SHOWN]
    return []


# -- as HTML ------------------------------------------------------------------------------------------------------------


def card(alarm: Alarm, groups: Sequence[str], step: int | None, address: str = "", level: int = 2) -> str:
    """An alarm with the rollouts that show it. groups: their cards. step: theirs. address: where the curves of its first step
    are. level: of its heading."""
    first = f"step {alarm.steps[0]:,}" if alarm.steps else "before the first step"
    when = f'<a href="{esc(address)}">{first}</a>' if address else first
    if alarm.times > 1:
        last = f", last at step {alarm.steps[-1]:,}" if alarm.steps[1:] else ""
        when = f"{alarm.times:,} times, first at {when}{last}"
    sub = f"h{level + 1}"
    guide = guide_of(alarm.name)
    seen = f"Step {step:,}: {guide.shown}" if guide and groups else ""
    shown = f'<{sub}>{seen}</{sub}><div class="groups">{"".join(groups)}</div>' if groups else ""
    key = f'alarms."{alarm.name}"' if "/" in alarm.name else alarm.name
    limit = f" (limits.{esc(key)})" if key and key != "failure_limit" else ""
    return (
        f'<section class="alarm {alarm.kind}"><h{level}>{esc(alarm.title, 200)}</h{level}>'
        f'<p class="hint">{when}, {esc(alarm.task or alarm.place, 200)}{limit}</p>'
        f'<p class="card what">{esc(alarm.what, 2000)}</p>{shown}</section>'
    )


def section(run: RunData) -> str:
    """Of a report: what ended the run and its alarms with rollouts, then a table of the other warnings."""
    found = alarms(run.errors)
    told = [alarm for alarm in found if alarm.kind != "warning"][:CARDS]
    rest = [alarm for alarm in found if alarm not in told]
    files = {step_of(path): path for path in run.rollout_files}
    reading = _Reading(files, run.left_out)
    cards = "".join(_card(alarm, n, reading, BUDGET // len(told)) for n, alarm in enumerate(told))
    pause = videos.PAUSE if 'class="moving' in cards else ""
    shown = f'<section class="alarms"><h2>Alarms</h2>{pause}{cards}{overlay.legend(cards)}</section>' if cards else ""
    return f'<div id="errors">{shown}{_table(rest)}</div>' if found else ""


@dataclass(slots=True)
class _Reading:
    """The rollouts of a run, of which all alarms together read some."""

    files: Mapping[int, Path]
    left_out: list[str]
    budget: Budget = field(default_factory=lambda: Budget(size=READ, values=VALUES))
    decoding: Decoding = field(default_factory=Decoding)


def _card(alarm: Alarm, number: int, reading: _Reading, html: int) -> str:
    """html: maximal bytes of HTML for the alarm's rollouts."""
    step = 0
    rows: Sequence[Row] = ()

    def rows_of(of: int) -> Sequence[Row]:
        nonlocal step, rows
        step, rows = of, excerpt.rows(reading.files[of], reading.budget, reading.left_out)
        return rows

    groups = []
    for task, group in witnesses(alarm, reading.files, rows_of):
        members = [row for row in rows if _group(row) == (task, group)]
        folder = reading.files[step].parent
        if shown := fitting(members, folder, html // SHOWN, html // SHOWN, reading.decoding, f"a{number}"):
            groups.append(shown)
    return card(alarm, groups, step, level=3)


def _table(warnings: Sequence[Alarm]) -> str:
    if not warnings:
        return ""
    rows = []
    for alarm in sorted(warnings, key=lambda one: -one.times)[:LISTED]:
        steps = alarm.steps or [0]
        span = f"{steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else "")
        cells = (f"{alarm.times:,}", span, esc(alarm.place, 200), f"<code>{esc(alarm.what, 1000)}</code>")
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    hidden = len(warnings) - len(rows)
    more = f'<p class="hint">{count(hidden, "more kind")} in errors.jsonl.</p>' if hidden else ""
    whole = ' style="white-space:nowrap"'  # a cell may break within a word
    heads = "".join(f"<th{whole}>{name}</th>" for name in ("Times", "Steps", "Where", "What"))
    return (
        '<section><h2>Warnings</h2><p class="hint">From errors.jsonl; alike ones are counted together, and the first '
        f'of them is shown.</p><div class="card scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{more}</section>"
    )
