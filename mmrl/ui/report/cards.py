"""Rows of rollouts as cards: a prompt with the completions that it got and what they earned.

`group_card` and `rollout_card` show rows of any run; where their pictures come from is `sources.Pictures`. No element has a style
of its own, so that pages which forbid that can show them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrl.api.tasks import marks
from mmrl.api.tasks.marks import Mark
from mmrl.ui.report import films, overlay
from mmrl.ui.report.prompts import Placed, answer, asking, marked_picture, parts_of, picture, row_of, said_in, shown_of
from mmrl.ui.report.sources import Pictures
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import count, esc, thought

ROWS = 8
"""Different completions shown per prompt, the best and the worst among them."""
ASKED, LONG, LONGEST = 1500, 300, 6000
"""Characters of a question, of a completion at once, and of one that is opened; the middle of longer ones is left out."""
WIDE = 448
"""Pixels of width in which a picture that a completion draws is shown before it is enlarged."""
COPY, LARGER = 150, 320
"""Pixels of the sides of a square with the area in which the prompt's picture stands beside a completion, and where one alone is
shown."""
_STATUS = {
    "truncated-length": "cut off: too long",
    "truncated-turns": "cut off: too many turns",
    "truncated-time": "cut off: too slow",
    "world-error": "the world failed",
}
_SOURCE = {
    "gold": "gold completion",
    "hint": "answered with a hint",
    "empty": "an empty completion",
    "wrong": "a wrong completion: right for another prompt",
}
"""What is said of a completion that the policy didn't write on its own; the last ones are those of previews."""


def _watched(members: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows with the videos of their episodes apart from the messages, which a group has in common. The clips of a prompt are
    the same for all and stay there."""
    if len({tuple(_videos(row)) for row in members}) == 1:
        return [*members]
    rows: list[Mapping[str, Any]] = []
    for row in members:
        asked = row.get("messages") or []
        messages = [{**m, "content": [part for part in parts_of(m) if part.get("type") != "video"]} for m in asked]
        rows.append({**row, "messages": messages, "film": next(iter(_videos(row)), None)})
    return rows


def _videos(row: Mapping[str, Any]) -> list[str]:
    parts = [part for message in row.get("messages") or [] for part in parts_of(message)]
    return [str(part.get("path", "")) for part in parts if part.get("type") == "video"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """What the rows of one prompt have in common."""

    asked: int
    """Messages that are the prompt's."""
    scale: float
    """The largest advantage, either way."""
    top: float
    """The largest reward; 1 at least."""
    true: Sequence[Mark]
    prompt: str
    """What was asked, as HTML."""
    placed: Mapping[int, Placed]
    """Number of a picture that somebody marks -> where it is on the page."""
    pictures: Pictures
    longest: int
    """Characters of a completion that is opened, 0 for all; also of what was asked."""

    @classmethod
    def of(cls, members: Sequence[Mapping[str, Any]], pictures: Pictures, place: str = "", longest: int = LONGEST) -> _Group:
        """place: where on the page, if it is there more than once."""
        first, asked = members[0], _asked(members)
        messages = (first.get("messages") or [])[:asked]
        known = [mark for row in members for mark in marks.read(row.get("marks"))]
        true = [mark for mark in marks.read(first.get("marks")) if mark.of == "true"]
        marked = {mark.image for mark in known if mark.kind != "interval"}
        shown, placed = shown_of(messages, pictures, true, marked, f"{place}_{first.get('step')}_{first.get('group')}")
        return cls(
            asked=asked,
            scale=max((abs(a) for a in map(_advantage, members) if a is not None), default=0.0),
            top=max([1.0, *(abs(v) for v in map(_value, members) if v is not None)]),
            true=true,
            prompt=(
                f"{shown}{asking(messages, min(longest, ASKED))}{answer(first.get('answer'))}"
                f'<p class="id">{esc(first.get("task", ""), 80)} {esc(first.get("prompt_id", ""), 80)}</p>'
            ),
            placed=placed,
            pictures=pictures,
            longest=longest,
        )


def group_card(
    members: Sequence[Mapping[str, Any]], pictures: Pictures, links: Sequence[str] = (), place: str = "", longest: int = LONGEST
) -> str:
    """A prompt with its completions, the best and the worst of them. members: the rows of one group. links: the address of each
    alone, where there are such. place: a word that tells it from the same group elsewhere on the page. longest: characters of a
    text that is opened."""
    members = _watched(members)
    link = dict(zip(map(id, members), links, strict=bool(links)))
    group = _Group.of(members, pictures, place=place, longest=longest)
    kinds = _kinds(members)
    shown = kinds if len(kinds) <= ROWS else [*kinds[: ROWS // 2], *kinds[-(ROWS // 2) :]]
    lines = [_line(row, times, group, len(shown), link=link.get(id(row), "")) for row, times in shown]
    if len(kinds) > len(shown):
        lines.insert(ROWS // 2, f'<li class="more">{len(kinds) - len(shown)} others between these</li>')
    wide = max(len(str(row.get("completion"))) for row in members) > LONG // 2
    return _card(group, lines, _lesson(members), wide)


def rollout_card(row: Mapping[str, Any], members: Sequence[Mapping[str, Any]], pictures: Pictures) -> str:
    """One rollout with everything that was kept of it: all turns, and texts in full. members: the rows of its group, which its
    reward and its advantage are compared with."""
    own, *others = _watched([row, *members])
    group = _Group.of(others or [own], pictures, longest=0)
    return _card(group, [_line(own, 1, group, 1)], _lesson(others), wide=True)


def prompt_card(row: Mapping[str, Any], pictures: Pictures) -> str:
    """A prompt alone, with its answer where it has one."""
    return f'<article class="card">{prompt(row, pictures)}</article>'


def prompt(row: Mapping[str, Any], pictures: Pictures, place: str = "") -> str:
    """What was asked, and its answer where it has one. place: as `group_card` has it."""
    return f'<div class="prompt">{_Group.of([row], pictures, place).prompt}</div>'


def _card(group: _Group, lines: Sequence[str], lesson: str, wide: bool) -> str:
    said = f'<p class="flat">{lesson}</p>' if lesson else ""
    return (
        f'<article class="card group{" wide" if wide else ""}"><div class="prompt">{group.prompt}</div>'
        f'<div class="answers"><ol>{"".join(lines)}</ol>{said}</div></article>'
    )


def _lesson(members: Sequence[Mapping[str, Any]]) -> str:
    """What a group taught by its recorded advantages, where a reader wouldn't expect it from the scores."""
    if not any("advantage" in row for row in members):
        return ""
    advantages = [a for a in map(_advantage, members) if a is not None]
    values = [v for v in map(_value, members) if v is not None]
    alike = len(values) > 1 and len(set(values)) == 1
    if not values:
        return "No score: nothing to learn here."
    if not advantages:
        return "All scored alike and left out of the update." if alike else "Left out of the update: nothing was learned here."
    if any(abs(a) > 1e-9 for a in advantages):
        return "All scored alike, but there are advantages: they compare with more than this group." if alike else ""
    if alike:
        return "All scored alike: nothing to learn here."
    return "Every advantage is zero" + (", though the scores differ" if len(values) > 1 else "") + ": nothing to learn here."


def _kinds(members: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """(row, how many are alike), the best first, failures last."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in members:
        advantage = _advantage(row)
        rounded = None if advantage is None else round(advantage, 4)
        said = [said_in(message) for message in row.get("messages") or [] if message.get("role") == "assistant"]
        key = (row.get("completion"), *said, _value(row), row.get("status"), _source(row), rounded)
        alike.setdefault(key, []).append(row)
    kinds = [(rows[0], len(rows)) for rows in alike.values()]
    return sorted(kinds, key=lambda kind: (_value(kind[0]) is None, -(_value(kind[0]) or 0.0), -kind[1]))


def _asked(members: Sequence[Mapping[str, Any]]) -> int:
    """How many messages of a group are the prompt's: those before the policy's first turn, where its episodes are not alike."""
    lists = [row.get("messages") or [] for row in members]
    common = next(
        (i for i, same in enumerate(zip(*lists, strict=False)) if any(m != same[0] for m in same)), min(map(len, lists))
    )
    if all(len(messages) == common for messages in lists):
        return common
    return next((i for i, message in enumerate(lists[0][:common]) if message.get("role") == "assistant"), common)


def _turns(row: Mapping[str, Any], group: _Group, among: int) -> str:
    """The turns of an episode before its last, and what was answered to each, folded unless all is shown; nothing where an answer
    was all."""
    later = (row.get("messages") or [])[group.asked :]
    turns = sum(message.get("role") == "assistant" for message in later)
    told: list[str] = []
    turn = 0
    for message in later:
        turn += message.get("role") == "assistant"
        name = (
            f"turn {turn}" if message.get("role") == "assistant" else f"after turn {turn}" if turn else str(message.get("role"))
        )
        paths = [str(part.get("path", "")) for part in parts_of(message) if part.get("type") == "image"]
        shown = [picture(group.pictures.still(path, among * len(later) * len(paths)), name) for path in paths]
        said = said_in(message)
        text = written(said, group.longest // 2) if said.strip() else ""
        told.append(f'<div class="turn"><b>{esc(name)}</b>{text}{row_of(shown)}</div>')
    summary = f"{count(turns, 'turn')} before this one" if turns else "what was said to it"
    opened = "" if group.longest else " open"
    return f'<details class="turns"{opened}><summary>{summary}</summary>{"".join(told)}</details>' if told else ""


def _drawn(row: Mapping[str, Any], pictures: Pictures, among: int) -> str:
    """The picture that a completion draws, where it draws one, or the video of an episode. among: completions that may."""
    path, film = row.get("shows"), row.get("film")
    if isinstance(film, str):
        return row_of([films.film(pictures, film, str(row.get("completion")))])
    return row_of([picture(pictures.still(path, 2 * among, large=True), "drawn", WIDE)]) if isinstance(path, str) else ""


def _beside(row: Mapping[str, Any], group: _Group, area: int) -> str:
    """What a completion says of places and times, on a small copy of the prompt's picture and beside what is true there."""
    own = marks.read(row.get("marks"))
    said = [mark for mark in own if mark.of == "said"]
    copies = []
    for n, placed in group.placed.items():
        here = [mark for mark in said if mark.image == n and mark.kind != "interval"]
        if here:
            copies.append(_copy(placed, [mark for mark in group.true if mark.image == n], here, area))
    times = [mark for mark in own if mark.kind == "interval"] if any(mark.kind == "interval" for mark in said) else []
    return row_of(copies) + overlay.bars(times)


def _copy(placed: Placed, true: Sequence[Mark], said: Sequence[Mark], area: int) -> str:
    """What is true is drawn without labels, and without the lines of a grid, in favour of what is said."""
    size = placed.still.width, placed.still.height
    shown = min(max(area * math.sqrt(size[0] / size[1]), area / 3), 2 * area)
    bare = [replace(mark, label="") for mark in true if mark.kind != "grid"]
    inside = f'<use href="#{placed.id}"/>{overlay.over([*bare, *said], true, size, shown)}'
    away = sum(map(overlay.off_picture, said))
    note = f"<small>{count(away, 'mark')} off the picture</small>" if away else ""
    return marked_picture(inside, placed.still, shown, f"with what is said{overlay.told(said)}", "copy", note)


def _line(row: Mapping[str, Any], times: int, group: _Group, among: int, link: str = "") -> str:
    """One completion: its reward as a bar, the turns before, what it draws, the text, then parts, length, status, advantage.
    among: so many share the room for pictures."""
    value, advantage, score = _value(row), _advantage(row), row.get("score") or {}
    if value is None:
        reward = '<div class="reward failed"><b>failed</b></div>'
    else:
        filled = min(max(value / group.top, 0.0), 1.0) * 100
        reward = f'<div class="reward"><b>{_reward(value)}</b>{_gauge(0, filled)}</div>'
    facts = [f"<span><b>{source}</b></span>"] if (source := _source(row)) else []
    facts += [f"<span>{esc(name, 60)} <b>{_part(part)}</b></span>" for name, part in (score.get("parts") or {}).items()]
    if isinstance(row.get("tokens"), int):
        facts.append(f"<span>{count(row['tokens'], 'token')}</span>")
    if row.get("status") in _STATUS:
        facts.append(f'<span class="warn">{_STATUS[row["status"]]}</span>')
    if score.get("detail"):
        detail = _merged(str(score["detail"]), score.get("parts") or {})
        facts.append(f'<span class="{"warn" if value is None else "detail"}">{esc(detail, 300)}</span>')
    if link:
        facts.append(f'<a href="{esc(link)}">open</a>')
    many = f'<span class="times" title="{times} times the same">&times;{times}</span>' if times > 1 else ""
    said = _completion(str(row.get("completion") or ""), group.longest)
    if beside := _beside(row, group, COPY if group.longest else LARGER):
        said = f'<div class="beside"><div class="says">{beside}</div><div class="text">{said}</div></div>'
    before = f"{_turns(row, group, 2 * among)}{_drawn(row, group.pictures, among)}"
    return (
        f'<li>{reward}<div class="wrote">{before}{said}<p class="facts">{"".join(facts)}</p></div>'
        f'<div class="side">{many}{_arrow(advantage, group.scale)}</div></li>'
    )


def _completion(text: str, longest: int) -> str:
    """What was written: the thinking folded, and unless all is shown the rest cut and once more in full, or nearly."""
    if not longest:
        return written(text)
    thinking, said = thought(text)
    body = esc(said, LONG) if said.strip() else "<em>nothing</em>"
    full = ""
    if len(said) > LONG and longest > LONG:
        full = f'<details><summary>all {len(said):,} characters</summary><pre tabindex="0">{esc(said, longest)}</pre></details>'
    return f"{_thinking(thinking, longest)}<pre>{body}</pre>{full}"


def written(text: str, limit: int = 0) -> str:
    """What somebody said, the thinking folded. limit: characters of each, 0 for all."""
    thinking, said = thought(text)
    return f'{_thinking(thinking, limit)}<pre tabindex="0">{esc(said, limit) if said.strip() else "<em>nothing</em>"}</pre>'


def _thinking(text: str, limit: int) -> str:
    if not text.strip():
        return ""
    return (
        f'<details class="thinking"><summary>thinking, {count(len(text.split()), "word")}</summary>'
        f'<pre tabindex="0">{esc(text.strip(), limit)}</pre></details>'
    )


def _merged(detail: str, names: Iterable[Any]) -> str:
    """The judge's "a: said; b: said; c: else", with what several verifiers say alike told once: "a, b: said; c: else"; without
    names where all say the same."""
    known = "|".join(re.escape(str(name)) for name in sorted(map(str, names), key=len, reverse=True))
    found = list(re.finditer(rf"(?:^|; )({known}): ", detail)) if known else []
    if not found or found[0].start():
        return detail
    ends = [*(one.start() for one in found[1:]), len(detail)]
    by_text: dict[str, list[str]] = {}
    for one, end in zip(found, ends, strict=True):
        by_text.setdefault(detail[one.end() : end], []).append(one[1])
    if len(found) > 1 and len(by_text) == 1:
        return next(iter(by_text))
    return "; ".join(f"{', '.join(whose)}: {text}" for text, whose in by_text.items())


def _arrow(advantage: float | None, scale: float) -> str:
    if advantage is None:
        return ""
    half = min(abs(advantage) / scale, 1.0) * 50 if scale else 0.0
    css, start = ("up", 50.0) if advantage >= 0 else ("down", 50 - half)
    return f'<div class="advantage" title="advantage"><b>{advantage:+.2f}</b>{_gauge(start, half, css)}</div>'


def _gauge(start: float, wide: float, css: str = "") -> str:
    """A bar from `start` on, in hundredths."""
    return (
        '<svg class="gauge" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{css}" x="{start:.0f}" width="{wide:.0f}" height="4"/></svg>'
    )


def _value(row: Mapping[str, Any]) -> float | None:
    value = row["reward"] if "reward" in row else (row.get("score") or {}).get("value")
    return float(value) if isinstance(value, int | float) else None


def _advantage(row: Mapping[str, Any]) -> float | None:
    value = row.get("advantage")
    return float(value) if isinstance(value, int | float) else None


def _source(row: Mapping[str, Any]) -> str:
    source = row.get("source")
    return _SOURCE.get(source, "") if isinstance(source, str) else ""


def _part(value: Any) -> str:
    return _reward(float(value)) if isinstance(value, int | float) else "failed"


def _reward(value: float) -> str:
    return f"{value:.2f}" if 0.005 <= abs(value) < 1000 or value == 0 else number(value)
