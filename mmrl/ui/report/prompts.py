"""A prompt as HTML: its images and videos with gold marks, its sounds, its text and its answer."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.api.tasks.overlays import Overlay
from mmrl.api.verifiers.parse import last_tag, thought
from mmrl.ui.report import overlay, sounds, videos
from mmrl.ui.report.media_sources import PIXELATED, MediaSource, Still, whole_multiple
from mmrl.ui.report.text import esc, rounded

SMALL, MARKED = 224, 180
"""Maximal width in pixels of an image before it is enlarged, and width of an image with marks."""
COLUMN = 140
"""Pixels for which the narrowest column of prompts has room (`.group` in page.css); small images become at most as wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An image of the prompt on the page, which copies reference by its id."""

    still: Still
    id: str
    """Id of its SVG element."""


def shown_of(
    messages: Sequence[Mapping[str, Any]], pictures: MediaSource, true: Sequence[Overlay], marked: Container[int], key: str
) -> tuple[str, dict[int, Placed]]:
    """(the prompt's images and videos with gold marks and its sounds as HTML, index of a marked image -> its place on the page).

    true: gold marks. marked: indexes of images with any mark. key: unique id of the group on the page.
    """
    parts = [part for message in messages for part in parts_of(message)]
    stills, moving, heard = (
        [str(p.get("path", "")) for p in parts if p.get("type") == kind] for kind in ("image", "video", "audio")
    )
    shown: list[str] = []
    placed: dict[int, Placed] = {}
    for n, path in enumerate(stills):
        still = pictures.still(path, among=2 * len(stills))
        if isinstance(still, str) or n not in marked:
            shown.append(picture(still, "prompt"))
            continue
        id = re.sub(r"\W", "", f"p{key}_{n}_{path}", flags=re.ASCII)
        placed[n] = Placed(still=still, id=id)
        here = [mark for mark in true if mark.image == n and mark.kind != "interval"]
        sizes = f'width="{still.width}" height="{still.height}" preserveAspectRatio="none"'
        image = f'<image id="{id}" href="{esc(still.src)}" {sizes}/>'
        wide = whole_multiple(still.width, COLUMN) if still.width < PIXELATED else MARKED
        drawn = image + overlay.overlay_svg(here, true, (still.width, still.height), wide)
        said = f"prompt, {size_of(still)}{overlay.describe_overlays(here)}"
        shown.append(marked_picture(drawn, still, wide, said, "", "<small>prompt</small>"))
    for n, path in enumerate(moving):
        times = overlay.interval_bars([mark for mark in true if mark.image == n])
        shown.append(f'<div class="filmed">{videos.video_html(pictures, path, "prompt")}{times}</div>')
    shown += [sounds.sound_html(pictures, path, "prompt") for path in heard]
    return row_of(shown), placed


def asking(messages: Sequence[Mapping[str, Any]], limit: int) -> str:
    """The texts of the messages as HTML, with roles if there are several. limit: maximal characters of each."""
    texts = []
    for message in messages:
        role, text = message.get("role"), said_in(message)
        label = "" if role == "user" and len(messages) == 1 else f"<b>{esc(role)}</b> "
        if text:
            texts.append(f'<div class="said" tabindex="0">{label}{esc(text, limit)}</div>')
    return "".join(texts)


def answer(row: Mapping[str, Any]) -> str:
    """The answer of a row as HTML, empty without one: the row's gold completion without its thinking if it has one, whose
    coordinates are those for which the prompt asks, or else the answer itself, whose coordinates are the task's own."""
    if row.get("answer") is None:
        return ""
    gold = str(row.get("gold") or "")
    text = (last_tag(gold) or thought(gold)[1]).strip()
    shown = esc(text, 400) if text else esc(rounded(row["answer"]), 400)
    return f'<p class="answer"><span>Answer</span> <b>{shown}</b></p>'


def parts_of(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The content parts of a message; a plain text is one text part."""
    content = message.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def said_in(message: Mapping[str, Any]) -> str:
    """The text of a message, without its media."""
    return "\n".join(str(part.get("text", "")) for part in parts_of(message) if part.get("type") == "text")


def picture(still: Still | str, label: str, most: int = SMALL) -> str:
    """An image with a label below it, or the reason why it is not shown. most: maximal width in pixels."""
    if isinstance(still, str):
        return f'<span class="no-picture">{esc(still)}</span>'
    small = still.width < PIXELATED
    css, wide = (' class="pixels"', whole_multiple(still.width, COLUMN)) if small else ("", min(still.width, most))
    return (
        f'<button type="button" class="picture" title="enlarge">'
        f'<img{css} width="{wide}" alt="image: {esc(label)}, {size_of(still)}" '
        f'src="{esc(still.src)}"><small>{esc(label)}</small></button>'
    )


def marked_picture(inside: str, still: Still, wide: float, what: str, css: str, note: str) -> str:
    """An image with marks. inside: content of its SVG. wide: width in pixels. what: label for screen readers, not escaped. css:
    further classes. note: HTML below it."""
    pixels = "pixels" if still.width < PIXELATED else ""
    return (
        f'<button type="button" class="picture marked {css}" title="enlarge"><svg class="{pixels}" role="img" '
        f'aria-label="image: {esc(what)}" viewBox="0 0 {still.width} {still.height}" '
        f'width="{wide:.0f}" height="{wide * still.height / still.width:.0f}">{inside}</svg>{note}</button>'
    )


def row_of(shown: Sequence[str]) -> str:
    """Images as one row of HTML; empty without any."""
    return f'<div class="pictures">{"".join(shown)}</div>' if shown else ""


def size_of(still: Still) -> str:
    return f"{still.width} by {still.height} pixels"
