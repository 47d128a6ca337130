"""What a prompt shows: its pictures and videos, with what is true on them, and its words."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.api.tasks.marks import Mark
from mmrl.ui.report import films, overlay
from mmrl.ui.report.sources import Pictures, Still
from mmrl.ui.report.text import esc, rounded

SMALL, MARKED = 224, 180
"""Pixels of width in which a picture is shown before it is enlarged, and one with marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A picture of the prompt that stands on the page, to be drawn again by reference."""

    still: Still
    id: str


def shown_of(
    messages: Sequence[Mapping[str, Any]], pictures: Pictures, true: Sequence[Mark], marked: Container[int], key: str
) -> tuple[str, dict[int, Placed]]:
    """(the prompt's pictures and videos with what is true on them, where those are that are marked). key: of the group."""
    parts = [part for message in messages for part in parts_of(message)]
    stills, moving = ([str(p.get("path", "")) for p in parts if p.get("type") == kind] for kind in ("image", "video"))
    shown: list[str] = []
    placed: dict[int, Placed] = {}
    for n, path in enumerate(stills):
        still = pictures.still(path, among=2 * len(stills))
        if isinstance(still, str) or n not in marked:
            shown.append(picture(still, "shown"))
            continue
        id = re.sub(r"\W", "", f"p{key}_{n}_{path}", flags=re.ASCII)
        placed[n] = Placed(still=still, id=id)
        here = [mark for mark in true if mark.image == n and mark.kind != "interval"]
        sizes = f'width="{still.width}" height="{still.height}" preserveAspectRatio="none"'
        image = f'<image id="{id}" href="{esc(still.src)}" {sizes}/>'
        drawn = image + overlay.over(here, true, (still.width, still.height), MARKED)
        shown.append(
            marked_picture(drawn, still, MARKED, f"shown, {size_of(still)}{overlay.told(here)}", "", "<small>shown</small>")
        )
    for n, path in enumerate(moving):
        times = overlay.bars([mark for mark in true if mark.image == n])
        shown.append(f'<div class="filmed">{films.film(pictures, path, "shown")}{times}</div>')
    return row_of(shown), placed


def asking(messages: Sequence[Mapping[str, Any]], limit: int) -> str:
    texts = []
    for message in messages:
        role, said = message.get("role"), said_in(message)
        who = "" if role == "user" and len(messages) == 1 else f"<b>{esc(role)}</b> "
        if said:
            texts.append(f'<div class="said" tabindex="0">{who}{esc(said, limit)}</div>')
    return "".join(texts)


def answer(answer: Any) -> str:
    """The truth, where there is one in words."""
    return "" if answer is None else f'<p class="answer"><span>Answer</span> <b>{esc(rounded(answer), 400)}</b></p>'


def parts_of(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def said_in(message: Mapping[str, Any]) -> str:
    return "\n".join(str(part.get("text", "")) for part in parts_of(message) if part.get("type") == "text")


def picture(still: Still | str, label: str, most: int = SMALL) -> str:
    """A picture with a word below it of where it comes from, or a word why there is none. most: pixels of its width."""
    if isinstance(still, str):
        return f'<span class="no-picture">{esc(still)}</span>'
    css = ' class="pixels"' if still.width < 100 else ""
    return (
        f'<button type="button" class="picture" title="enlarge">'
        f'<img{css} width="{_width(still, most):.0f}" alt="picture {esc(label)}, {size_of(still)}" '
        f'src="{esc(still.src)}"><small>{esc(label)}</small></button>'
    )


def marked_picture(inside: str, still: Still, wide: float, what: str, css: str, note: str) -> str:
    """A picture with marks on it. inside: of its SVG. wide: pixels. what: it shows, any text."""
    pixels = " pixels" if still.width < 100 else ""
    return (
        f'<button type="button" class="picture marked {css}" title="enlarge"><svg class="{pixels}" role="img" '
        f'aria-label="picture {esc(what)}" viewBox="0 0 {still.width} {still.height}" '
        f'width="{wide:.0f}" height="{wide * still.height / still.width:.0f}">{inside}</svg>{note}</button>'
    )


def row_of(shown: Sequence[str]) -> str:
    return f'<div class="pictures">{"".join(shown)}</div>' if shown else ""


def _width(still: Still, most: int) -> float:
    """Pixels on the page: digits of 8 pixels are for people, too."""
    return min(still.width * max(1, 112 // still.width), most)


def size_of(still: Still) -> str:
    return f"{still.width} by {still.height} pixels"
