"""Rows of rollouts as HTML cards: a prompt with its completions, rewards and advantages.

`group_card` and `rollout_card` take rows of a run folder and a `sources.Pictures` for their media. No element has a style
attribute, because the board's content security policy forbids it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from mmrl.api.tasks import overlays
from mmrl.api.tasks.overlays import Overlay
from mmrl.api.verifiers.parse import thought
from mmrl.ui.report import overlay, sounds, videos
from mmrl.ui.report.media_sources import PIXELATED, MediaSource, whole_multiple
from mmrl.ui.report.prompts import Placed, answer, asking, marked_picture, parts_of, picture, row_of, said_in, shown_of
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import count, esc

ROWS = 8
"""Maximal number of distinct completions shown per prompt: the best and the worst ones."""
ASKED, LONG, LONGEST = 1500, 300, 6000
"""Maximal characters of a prompt, of a collapsed completion and of an expanded one; longer texts lose their middle."""
WHOLE = 2_000_000
"""Maximal characters of a text where all of it is shown, and of all turns of an episode together."""
PARTS = 100
"""Maximal number of parts of a reward."""
WIDE = 448
"""Width in pixels of an image that a completion draws, before it is enlarged."""
COPY, LARGER = 150, 320
"""Side in pixels of a square with the area of the copy of the prompt's image beside a completion: in a group, and alone."""
_STATUS = {
    "truncated-length": "cut off: length limit",
    "truncated-turns": "cut off: turn limit",
    "truncated-time": "cut off: time limit",
    "environment-error": "environment error",
}
_SOURCE = {
    "gold": "gold completion",
    "hint": "sampled with a hint",
    "empty": "empty completion",
    "wrong": "wrong completion (of another prompt)",
    "answer": "the policy's answer",
}
"""Source of a completion -> its label, for sources other than the plain policy; the last three occur in previews."""


def _with_films(members: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows with each episode's video moved from the messages to the key `film`, so that the messages of a group are alike.
    Videos that all rows share belong to the prompt and stay in the messages."""
    if len({tuple(_videos(row)) for row in members}) == 1:
        return [*members]
    rows: list[Mapping[str, Any]] = []
    for row in members:
        given = row.get("messages") or []
        messages = [{**m, "content": [part for part in parts_of(m) if part.get("type") != "video"]} for m in given]
        rows.append({**row, "messages": messages, "film": next(iter(_videos(row)), None)})
    return rows


def _videos(row: Mapping[str, Any]) -> list[str]:
    parts = [part for message in row.get("messages") or [] for part in parts_of(message)]
    return [str(part.get("path", "")) for part in parts if part.get("type") == "video"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Data shared by the rows of one prompt."""

    asked: int
    """Number of messages that belong to the prompt."""
    scale: float
    """The largest absolute advantage; 0 without any."""
    top: float
    """The largest absolute reward, at least 1."""
    true: Sequence[Overlay]
    """Marks of the gold answer."""
    prompt: str
    """The prompt as HTML."""
    placed: Mapping[int, Placed]
    """Index of a marked image of the prompt -> its place on the page."""
    pictures: MediaSource
    longest: int
    """Maximal characters of an expanded completion; 0 for no limit."""

    @classmethod
    def of(cls, members: Sequence[Mapping[str, Any]], pictures: MediaSource, place: str = "", longest: int = LONGEST) -> _Group:
        """place: makes element ids unique when the group is on the page more than once."""
        first, asked = members[0], _asked(members)
        messages = (first.get("messages") or [])[:asked]
        known = [mark for row in members for mark in overlays.from_json(row.get("overlays"))]
        true = [mark for mark in overlays.from_json(first.get("overlays")) if mark.source == "true"]
        marked = {mark.image for mark in known if mark.kind != "interval"}
        shown, placed = shown_of(messages, pictures, true, marked, f"{place}_{first.get('step')}_{first.get('group')}")
        return cls(
            asked=asked,
            scale=max((abs(a) for a in map(_advantage, members) if a is not None), default=0.0),
            top=max([1.0, *(abs(v) for v in map(_value, members) if v is not None)]),
            true=true,
            prompt=(
                f"{shown}{asking(messages, min(longest, ASKED) or WHOLE)}{answer(first)}"
                f'<p class="id">{esc(first.get("task", ""), 80)} {esc(first.get("prompt_id", ""), 80)}</p>'
            ),
            placed=placed,
            pictures=pictures,
            longest=longest,
        )


def group_card(
    members: Sequence[Mapping[str, Any]],
    pictures: MediaSource,
    links: Sequence[str] = (),
    place: str = "",
    longest: int = LONGEST,
) -> str:
    """A prompt with its best and worst completions as HTML.

    members: the rows of one group. links: the address of each row's own page, or empty. place: makes element ids unique when the
    group is on the page more than once. longest: maximal characters of an expanded text.
    """
    members = _with_films(members)
    link = dict(zip(map(id, members), links, strict=bool(links)))
    group = _Group.of(members, pictures, place=place, longest=longest)
    kinds = _kinds(members)
    shown = kinds if len(kinds) <= ROWS else [*kinds[: ROWS // 2], *kinds[-(ROWS // 2) :]]
    lines = [_line(row, times, group, len(shown), link=link.get(id(row), "")) for row, times in shown]
    if len(kinds) > len(shown):
        lines.insert(ROWS // 2, f'<li class="more">{len(kinds) - len(shown)} others between these</li>')
    wide = max(len(str(row.get("completion"))) for row in members) > LONG // 2
    return _card(group, lines, _lesson(members), wide)


def rollout_card(row: Mapping[str, Any], members: Sequence[Mapping[str, Any]], pictures: MediaSource) -> str:
    """One rollout as HTML, with all its turns and full texts. members: the rows of its group, which set the scale of its reward
    and advantage."""
    rollout, *others = _with_films([row, *members])
    group = _Group.of(others or [rollout], pictures, longest=0)
    return _card(group, [_line(rollout, 1, group, 1)], _lesson(others), wide=True)


def prompt_card(row: Mapping[str, Any], pictures: MediaSource) -> str:
    """A prompt as a card, with its answer if it has one."""
    return f'<article class="card">{prompt(row, pictures)}</article>'


def prompt(row: Mapping[str, Any], pictures: MediaSource, place: str = "") -> str:
    """A prompt as HTML, with its answer if it has one. place: see `group_card`."""
    return f'<div class="prompt">{_Group.of([row], pictures, place).prompt}</div>'


def _card(group: _Group, lines: Sequence[str], lesson: str, wide: bool) -> str:
    note = f'<p class="flat">{lesson}</p>' if lesson else ""
    return (
        f'<article class="card group{" wide" if wide else ""}"><div class="prompt">{group.prompt}</div>'
        f'<div class="answers"><ol>{"".join(lines)}</ol>{note}</div></article>'
    )


def _lesson(members: Sequence[Mapping[str, Any]]) -> str:
    """A note on the group's advantages where they differ from what its scores suggest; empty without one."""
    if not any("advantage" in row for row in members):
        return ""
    advantages = [a for a in map(_advantage, members) if a is not None]
    values = [v for v in map(_value, members) if v is not None]
    alike = len(values) > 1 and len(set(values)) == 1
    if not values:
        return "No scores: this group adds nothing to the update."
    if not advantages:
        return "Equal scores: this group was left out of the update." if alike else "This group was left out of the update."
    if any(abs(a) > 1e-9 for a in advantages):
        return "Equal scores, but nonzero advantages: the baseline includes other groups." if alike else ""
    if alike:
        return "Equal scores, zero advantages: this group adds nothing to the update."
    return (
        "Zero advantages"
        + (" in spite of different scores" if len(values) > 1 else "")
        + ": this group adds nothing to the update."
    )


def _kinds(members: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], int]]:
    """(row, number of equal rows), the best reward first, failures last."""
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
    """Number of messages that all rows of a group share; if their episodes differ, those before the policy's first turn."""
    lists = [row.get("messages") or [] for row in members]
    common = next(
        (i for i, same in enumerate(zip(*lists, strict=False)) if any(m != same[0] for m in same)), min(map(len, lists))
    )
    if all(len(messages) == common for messages in lists):
        return common
    return next((i for i, message in enumerate(lists[0][:common]) if message.get("role") == "assistant"), common)


def _turns(row: Mapping[str, Any], group: _Group, among: int) -> str:
    """The turns of an episode before the last one and the replies to them, collapsed if `group.longest` limits texts; empty for a
    single-turn episode. among: completions on the card, which share the room for images."""
    later = (row.get("messages") or [])[group.asked :]
    turns = sum(message.get("role") == "assistant" for message in later)
    parts: list[str] = []
    turn = 0
    for message in later:
        turn += message.get("role") == "assistant"
        name = (
            f"turn {turn}" if message.get("role") == "assistant" else f"after turn {turn}" if turn else str(message.get("role"))
        )
        paths = [str(part.get("path", "")) for part in parts_of(message) if part.get("type") == "image"]
        shown = [picture(group.pictures.still(path, among * len(later) * len(paths)), name) for path in paths]
        heard = [str(part.get("path", "")) for part in parts_of(message) if part.get("type") == "audio"]
        shown += [sounds.sound_html(group.pictures, path, name) for path in heard]
        said = said_in(message)
        text = written(said, group.longest // 2 or WHOLE // len(later)) if said.strip() else ""
        parts.append(f'<div class="turn"><b>{esc(name)}</b>{text}{row_of(shown)}</div>')
    summary = f"{count(turns, 'turn')} before this one" if turns else "messages to the policy"
    opened = "" if group.longest else " open"
    return f'<details class="turns"{opened}><summary>{summary}</summary>{"".join(parts)}</details>' if parts else ""


def _drawn(row: Mapping[str, Any], pictures: MediaSource, among: int) -> str:
    """The image that a completion draws, or the video of its episode; empty without either. among: completions on the card."""
    path, film = row.get("drawing"), row.get("film")
    if isinstance(film, str):
        return row_of([videos.video_html(pictures, film, str(row.get("completion")))])
    return row_of([picture(pictures.still(path, 2 * among, large=True), "drawn", WIDE)]) if isinstance(path, str) else ""


def _beside(row: Mapping[str, Any], group: _Group, area: int) -> str:
    """A completion's marks with the gold marks: on small copies of the prompt's images, and as bars for intervals. area: see
    `_copy`."""
    all_marks = overlays.from_json(row.get("overlays"))
    said = [mark for mark in all_marks if mark.source == "said"]
    copies = []
    for n, placed in group.placed.items():
        here = [mark for mark in said if mark.image == n and mark.kind != "interval"]
        if here:
            copies.append(_copy(placed, [mark for mark in group.true if mark.image == n], here, area))
    times = [mark for mark in all_marks if mark.kind == "interval"] if any(mark.kind == "interval" for mark in said) else []
    return row_of(copies) + overlay.interval_bars(times)


def _copy(placed: Placed, true: Sequence[Overlay], said: Sequence[Overlay], area: int) -> str:
    """A copy of an image with the completion's marks over the gold ones, which lose their labels and grids. area: side in pixels
    of a square with the area of the copy."""
    size = placed.still.width, placed.still.height
    shown = min(max(area * math.sqrt(size[0] / size[1]), area / 3), 2 * area)
    shown = whole_multiple(size[0], shown) if size[0] < PIXELATED else shown
    bare = [replace(mark, label="") for mark in true if mark.kind != "grid"]
    inside = f'<use href="#{placed.id}"/>{overlay.overlay_svg([*bare, *said], true, size, shown)}'
    away = sum(map(overlay.is_off_picture, said))
    note = f"<small>{count(away, 'mark')} outside the image</small>" if away else ""
    return marked_picture(
        inside, placed.still, shown, f"with the completion's marks{overlay.describe_overlays(said)}", "copy", note
    )


def _line(row: Mapping[str, Any], times: int, group: _Group, among: int, link: str = "") -> str:
    """One completion as a list item: reward bar, earlier turns, drawn image, text, reward parts, length, status, advantage.
    times: number of equal completions. among: completions on the card, which share the room for images."""
    value, advantage, score = _value(row), _advantage(row), row.get("score") or {}
    if value is None:
        reward = f'<div class="reward failed"><b>{"lost" if score.get("status") == "lost" else "failed"}</b></div>'
    else:
        filled = min(max(value / group.top, 0.0), 1.0) * 100
        reward = f'<div class="reward"><b>{_reward(value)}</b>{_gauge(0, filled)}</div>'
    facts = [f"<span><b>{source}</b></span>"] if (source := _source(row)) else []
    parts = score.get("parts") or {}
    facts += [f"<span>{esc(name, 60)} <b>{_part(part)}</b></span>" for name, part in islice(parts.items(), PARTS)]
    if len(parts) > PARTS:
        facts.append(f"<span>and {len(parts) - PARTS:,} more parts of the reward</span>")
    if isinstance(row.get("tokens"), int):
        facts.append(f"<span>{count(row['tokens'], 'token')}</span>")
    if row.get("status") in _STATUS:
        facts.append(f'<span class="warn">{_STATUS[row["status"]]}</span>')
    if score.get("detail"):
        detail = _merged(str(score["detail"])[:LONGEST], list(parts)[:PARTS])
        facts.append(f'<span class="{"warn" if value is None else "detail"}">{esc(detail, 300)}</span>')
    if link:
        facts.append(f'<a href="{esc(link)}">open</a>')
    many = f'<span class="times" title="{times} equal completions">&times;{times}</span>' if times > 1 else ""
    text = _completion(str(row.get("completion") or ""), group.longest)
    if beside := _beside(row, group, COPY if group.longest else LARGER):
        text = f'<div class="beside"><div class="says">{beside}</div><div class="text">{text}</div></div>'
    before = f"{_turns(row, group, 2 * among)}{_drawn(row, group.pictures, among)}"
    return (
        f'<li>{reward}<div class="wrote">{before}{text}<p class="facts">{"".join(facts)}</p></div>'
        f'<div class="side">{many}{_return(row)}{_arrow(advantage, group.scale)}</div></li>'
    )


def _completion(text: str, longest: int) -> str:
    """A completion as HTML: its thinking collapsed, its answer cut to `LONG` characters and again, collapsed, to `longest`; a
    `longest` of 0 shows all."""
    if not longest:
        return written(text)
    thinking, rest = thought(text)
    body = esc(rest, LONG) if rest.strip() else "<em>empty</em>"
    full = ""
    if len(rest) > LONG and longest > LONG:
        full = f'<details><summary>all {len(rest):,} characters</summary><pre tabindex="0">{esc(rest, longest)}</pre></details>'
    return f"{_thinking(thinking, longest)}<pre>{body}</pre>{full}"


def written(text: str, limit: int = 0) -> str:
    """The text of a message as HTML, its thinking collapsed. limit: maximal characters of either part, 0 for `WHOLE`."""
    limit = limit or WHOLE
    thinking, rest = thought(text)
    return f'{_thinking(thinking, limit)}<pre tabindex="0">{esc(rest, limit) if rest.strip() else "<em>empty</em>"}</pre>'


def _thinking(text: str, limit: int) -> str:
    if not text.strip():
        return ""
    return (
        f'<details class="thinking"><summary>thinking, {count(len(text.split()), "word")}</summary>'
        f'<pre tabindex="0">{esc(text.strip(), limit)}</pre></details>'
    )


def _merged(detail: str, names: Iterable[Any]) -> str:
    """The judge's detail "a: x; b: x; c: y" with equal texts merged: "a, b: x; c: y"; just "x" if all verifiers have it."""
    known = "|".join(re.escape(str(name)) for name in sorted(map(str, names), key=len, reverse=True))
    heads = list(re.finditer(rf"(?:^|; )({known}): ", detail)) if known else []
    if not heads or heads[0].start():
        return detail
    ends = [*(head.start() for head in heads[1:]), len(detail)]
    by_text: dict[str, list[str]] = {}
    for head, end in zip(heads, ends, strict=True):
        by_text.setdefault(detail[head.end() : end], []).append(head[1])
    if len(heads) > 1 and len(by_text) == 1:
        return next(iter(by_text))
    return "; ".join(f"{', '.join(verifiers)}: {text}" for text, verifiers in by_text.items())


def _arrow(advantage: float | None, scale: float) -> str:
    if advantage is None:
        return ""
    half = min(abs(advantage) / scale, 1.0) * 50 if scale else 0.0
    css, start = ("up", 50.0) if advantage >= 0 else ("down", 50 - half)
    return f'<div class="advantage" title="advantage"><b>{advantage:+.2f}</b>{_gauge(start, half, css)}</div>'


def _return(row: Mapping[str, Any]) -> str:
    """The return, of an episode without an advantage."""
    value = row.get("return")
    if not isinstance(value, int | float):
        return ""
    return f'<div class="advantage"><small>return</small><b>{_reward(float(value))}</b></div>'


def _gauge(start: float, wide: float, css: str = "") -> str:
    """A bar as SVG; start and wide are percentages of its width."""
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
