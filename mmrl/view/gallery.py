"""Rollouts as pictures and text: for a few steps of a run, each prompt with the completions that it got and what they earned."""

from __future__ import annotations

import base64
import io
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.record import RunData, read_rows, step_of
from mmrl.view import films
from mmrl.view.svg import number
from mmrl.view.tabs import tabs
from mmrl.view.text import count, esc

STEPS = 7
"""Steps shown, spread evenly from the first to the last."""
GROUPS = 8
"""Prompts shown per step."""
ROWS = 8
"""Different completions shown per prompt, the best and the worst among them."""
LONG, LONGEST = 300, 6000
"""Characters of a completion that are shown at once, and when it is opened; the middle of longer ones is left out."""
BUDGET = 7_000_000
"""Characters of HTML, the pictures included, for all steps together."""
EMBEDDED = 30_000
"""Bytes from which a picture is embedded as JPEG of at most `EMBEDDED_PIXELS` a side; smaller ones stay exact."""
EMBEDDED_PIXELS = 448
DRAWN_PIXELS = (1600, 1120, 768)
"""What a side of a picture that a completion draws may have instead, as large as there is room for: it may be a whole episode."""
WIDE = {"drawn": 448}
"""Pixels in which a picture is shown before it is enlarged; others in 224."""
_PICTURE = re.compile(r"media/[0-9a-zA-Z_-]+\.png")
_VIDEO = re.compile(r"media/[0-9a-zA-Z_-]+\.webp")
_VIDEO = re.compile(r"media/[0-9a-zA-Z_-]+\.webp")
_STATUS = {
    "truncated-length": "cut off: too long",
    "truncated-turns": "cut off: too many turns",
    "truncated-time": "cut off: too slow",
    "world-error": "the world failed",
}
_SOURCE = {"gold": "gold completion", "hint": "answered with a hint"}
"""What is said of a completion that the policy didn't write on its own."""


def gallery(run: RunData) -> str:
    """The section of rollouts; nothing when none were kept."""
    files = [path for path in _spread(run.rollout_files, STEPS)]
    panels = [(step_of(path), panel) for path in files if (panel := _panel(read_rows(path), path.parent, BUDGET // len(files)))]
    if not panels:
        return ""
    shown = [(str(step), f"Step {step}", panel) for step, panel in panels]  # at first the last: what the policy can do now
    pause = films.PAUSE if any('class="moving' in panel for _, panel in panels) else ""
    return (
        f'<section class="rollouts"><h2>Rollouts</h2><p class="hint">What the policy wrote and what it earned. Equal answers '
        f"are counted together; the advantage says what the update encouraged (right) and discouraged (left).</p>"
        f"{pause}{tabs('r', 'Step', shown, len(shown) - 1)}</section>"
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
    for members in list(groups.values())[:GROUPS]:
        card = _group(_watched(members), folder, budget)
        cards.append(card)
        budget -= len(card)
    hidden = len(groups) - len(cards)
    more = f'<p class="hint">{count(hidden, "more prompt")} of this step in {esc(folder.name)}/.</p>' if hidden else ""
    return f'<div class="groups">{"".join(cards)}</div>{more}' if cards else ""


def _watched(members: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows with the videos of their episodes apart from the messages, which a group has in common. The clips of a prompt are
    the same for all and stay there."""
    if len({tuple(_videos(row)) for row in members}) == 1:
        return [*members]
    rows: list[Mapping[str, Any]] = []
    for row in members:
        asked = row.get("messages") or []
        messages = [{**m, "content": [part for part in _parts(m) if part.get("type") != "video"]} for m in asked]
        rows.append({**row, "messages": messages, "film": next(iter(_videos(row)), None)})
    return rows


def _videos(row: Mapping[str, Any]) -> list[str]:
    parts = [part for message in row.get("messages") or [] for part in _parts(message)]
    return [str(part.get("path", "")) for part in parts if part.get("type") == "video"]


def _group(members: Sequence[Mapping[str, Any]], folder: Path, budget: int) -> str:
    first = members[0]
    kinds = _kinds(members)
    shown = kinds if len(kinds) <= ROWS else [*kinds[: ROWS // 2], *kinds[-(ROWS // 2) :]]
    scale = max((abs(a) for a in map(_advantage, members) if a is not None), default=0.0)
    values = [v for v in map(_value, members) if v is not None]
    top = max([1.0, *map(abs, values)])
    asked = _asked(members)
    room = budget // (2 * len(shown))
    lines = [
        _line(row, times, scale, top, _drawn(row, folder, budget // 2, room), _turns(row, asked, folder, room))
        for row, times in shown
    ]
    if len(kinds) > len(shown):
        lines.insert(ROWS // 2, f'<li class="more">{len(kinds) - len(shown)} others between these</li>')
    lesson = f'<p class="flat">{said}</p>' if (said := _lesson(members)) else ""
    wide = " wide" if max(len(str(row.get("completion"))) for row in members) > LONG // 2 else ""
    prompt = _messages((first.get("messages") or [])[:asked], folder, budget)
    return (
        f'<article class="card group{wide}"><div class="prompt">{prompt}'
        f"{_answer(first.get('answer'))}"
        f'<p class="id">{esc(first.get("task", ""), 80)} {esc(first.get("prompt_id", ""), 80)}</p></div>'
        f'<div class="answers"><ol>{"".join(lines)}</ol>{lesson}</div></article>'
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
        said = [_said(message) for message in row.get("messages") or [] if message.get("role") == "assistant"]
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


def _turns(row: Mapping[str, Any], asked: int, folder: Path, budget: int) -> str:
    """The turns of an episode before its last, and what was answered to each, folded; nothing where an answer was all."""
    later = (row.get("messages") or [])[asked:]
    turns = sum(message.get("role") == "assistant" for message in later)
    told: list[str] = []
    turn = 0
    for message in later:
        turn += message.get("role") == "assistant"
        name = (
            f"turn {turn}" if message.get("role") == "assistant" else f"after turn {turn}" if turn else str(message.get("role"))
        )
        said = _said(message)
        pictures = _pictures(message, folder, budget // max(1, len(later)), name)
        text = f'<pre tabindex="0">{esc(said, LONGEST // 2)}</pre>' if said.strip() else ""
        told.append(f'<div class="turn"><b>{esc(name)}</b>{text}{pictures}</div>')
    summary = f"{count(turns, 'turn')} before this one" if turns else "what was said to it"
    return f'<details class="turns"><summary>{summary}</summary>{"".join(told)}</details>' if told else ""


def _drawn(row: Mapping[str, Any], folder: Path, budget: int, room: int = 0) -> str:
    """The picture that a completion draws, where it draws one, or the video of an episode. room: for one that is larger than
    others are."""
    path, film = row.get("shows"), row.get("film")
    if isinstance(film, str):
        known = _VIDEO.fullmatch(film)
        shown = films.film(folder / film, budget, str(row.get("completion"))) if known else films.MISSING
        return f'<div class="pictures">{shown}</div>'
    return f'<div class="pictures">{_picture(path, folder, budget, "drawn", room)}</div>' if isinstance(path, str) else ""


def _line(row: Mapping[str, Any], times: int, scale: float, top: float, drawn: str = "", turns: str = "") -> str:
    """One completion: its reward as a bar, the turns before, what it draws, the text, then parts, length, status, advantage."""
    value, advantage, score = _value(row), _advantage(row), row.get("score") or {}
    if value is None:
        reward = '<div class="reward failed"><b>failed</b></div>'
    else:
        filled = min(max(value / top, 0.0), 1.0) * 100
        reward = f'<div class="reward"><b>{_reward(value)}</b><i><u style="width:{filled:.0f}%"></u></i></div>'
    text = str(row.get("completion") or "")
    facts = [f"<span><b>{source}</b></span>"] if (source := _source(row)) else []
    facts += [f"<span>{esc(name, 60)} <b>{_part(part)}</b></span>" for name, part in (score.get("parts") or {}).items()]
    if isinstance(row.get("tokens"), int):
        facts.append(f"<span>{count(row['tokens'], 'token')}</span>")
    if row.get("status") in _STATUS:
        facts.append(f'<span class="warn">{_STATUS[row["status"]]}</span>')
    if score.get("detail"):
        detail = _merged(str(score["detail"]), score.get("parts") or {})
        facts.append(f'<span class="{"warn" if value is None else "detail"}">{esc(detail, 300)}</span>')
    body, full = esc(text, LONG) if text.strip() else "<em>nothing</em>", ""
    if len(text) > LONG:
        full = f'<details><summary>all {len(text):,} characters</summary><pre tabindex="0">{esc(text, LONGEST)}</pre></details>'
    many = f'<span class="times" title="{times} times the same">&times;{times}</span>' if times > 1 else ""
    return (
        f'<li>{reward}<div class="wrote">{turns}{drawn}<pre>{body}</pre>{full}<p class="facts">{"".join(facts)}</p></div>'
        f'<div class="side">{many}{_arrow(advantage, scale)}</div></li>'
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
    half = abs(advantage) / scale * 50 if scale else 0.0
    side = f"left:50%;width:{half:.0f}%" if advantage >= 0 else f"right:50%;width:{half:.0f}%"
    return (
        f'<div class="advantage" title="advantage"><b>{advantage:+.2f}</b>'
        f'<i><u class="{"up" if advantage >= 0 else "down"}" style="{side}"></u></i></div>'
    )


def _messages(messages: Sequence[Mapping[str, Any]], folder: Path, budget: int) -> str:
    pictures: list[str] = []
    texts: list[str] = []
    for message in messages:
        said = _said(message)
        for part in _parts(message):
            if part.get("type") == "image":
                pictures.append(_picture(str(part.get("path", "")), folder, budget, "shown"))
                budget -= len(pictures[-1])
            if part.get("type") == "video":
                pictures.append(_film(str(part.get("path", "")), folder, budget))
                budget -= len(pictures[-1])
        role = message.get("role")
        who = "" if role == "user" and len(messages) == 1 else f"<b>{esc(role)}</b> "
        if said:
            texts.append(f'<div class="said" tabindex="0">{who}{esc(said, 1500)}</div>')
    return (f'<div class="pictures">{"".join(pictures)}</div>' if pictures else "") + "".join(texts)


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _said(message: Mapping[str, Any]) -> str:
    return "\n".join(str(part.get("text", "")) for part in _parts(message) if part.get("type") == "text")


def _pictures(message: Mapping[str, Any], folder: Path, budget: int, label: str) -> str:
    found = [str(part.get("path", "")) for part in _parts(message) if part.get("type") == "image"]
    shown = "".join(_picture(path, folder, budget // len(found), label) for path in found)
    return f'<div class="pictures">{shown}</div>' if found else ""


def _picture(path: str, folder: Path, budget: int, label: str, room: int = 0) -> str:
    """An image of the run folder as a data URI, with a word below it of where it comes from; only names that `record` makes are
    followed."""
    file = folder / path
    if not _PICTURE.fullmatch(path) or not file.is_file():
        return '<span class="no-picture">picture is missing</span>'
    kind, data = "png", file.read_bytes()
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return '<span class="no-picture">not a PNG</span>'
    width, height = struct.unpack(">II", data[16:24])
    if len(data) > EMBEDDED:
        large = (jpeg for side in DRAWN_PIXELS if room and len(jpeg := _jpeg(data, side)) * 4 / 3 <= room)
        jpeg = next(large, None) or _jpeg(data)
        kind, data = min((kind, data), ("jpeg", jpeg), key=lambda one: len(one[1]))
    if len(data) * 4 / 3 > budget:
        return f'<span class="no-picture">left out for size: {esc(path)}</span>'
    shown = width * max(1, 112 // max(width, 1))  # digits of 8 pixels are for people, too
    css = ' class="pixels"' if width < 100 else ""
    return (
        f'<button type="button" class="picture" aria-label="enlarge the picture">'
        f'<img{css} width="{min(shown, WIDE.get(label, 224))}" alt="picture {esc(label)}, {width} by {height} pixels" '
        f'src="data:image/{kind};base64,{base64.b64encode(data).decode()}"><small>{esc(label)}</small></button>'
    )


def _film(path: str, folder: Path, budget: int) -> str:
    """A video of the run folder, which plays; only names that `record` makes are followed."""
    return films.film(folder / path, budget, "shown") if _VIDEO.fullmatch(path) else films.MISSING


def _jpeg(png: bytes, side: int = EMBEDDED_PIXELS) -> bytes:
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        small = image.convert("RGB")
    small.thumbnail((side, side))
    small.save(out := io.BytesIO(), "JPEG", quality=82)
    return out.getvalue()


def _answer(answer: Any) -> str:
    """The truth, where there is one in words."""
    return "" if answer is None else f'<p class="answer"><span>Answer</span> <b>{esc(answer, 400)}</b></p>'


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
