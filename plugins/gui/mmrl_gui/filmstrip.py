"""An episode as a filmstrip: its screens side by side, each with its action, and the outcome at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mmrl import Message
from mmrl.api.media.images import load_image
from mmrl.api.simulators.gui import Element
from mmrl_gui.actions import read
from mmrl_gui.coordinates import Numbers, Size
from mmrl_gui.drawing import LEAST, SAID, TRUE, draw_action
from mmrl_gui.names import NoAction

if TYPE_CHECKING:
    from PIL.Image import Image

ELEMENTS = "elements"
"""The key of a picture's elements in a message."""
MOST = 12
"""Maximum of screens in a filmstrip; of a longer episode the last ones."""
GAP = 10
GROUND = (238, 240, 243)
"""Colour between the screens, many of which are white."""
SCREEN = (256, 456)
"""Maximal pixels of a screen."""
LARGEST = 480
"""Pixels of the longer side of a single screen."""
LINE = 22
"""Height of a line of text in pixels."""


class Seen(NamedTuple):
    """A screen in a message."""

    picture: Any
    """The message's picture; None without one."""
    elements: Sequence[Element] = ()
    """The elements that `click [3]` refers to."""


def showing(message: Message, elements: Sequence[Element]) -> Message:
    """A message with its picture's listed elements, for display; a policy reads only the picture and the text."""
    return {**message, "content": [{**p, ELEMENTS: elements} if p["type"] == "image" else p for p in message["content"]]}


def seen_in(messages: Sequence[Message]) -> Seen:
    """The last screen in some messages."""
    found = [p for m in messages if not isinstance(m["content"], str) for p in m["content"] if p["type"] == "image"]
    return Seen(found[-1]["image"], found[-1].get(ELEMENTS, ())) if found else Seen(None)


def filmstrip(turns: Sequence[tuple[Seen, str]], numbers: Numbers, tags: bool, outcome: Mapping[str, float]) -> Image | None:
    """turns: (screen, completion). None without a screen."""
    from PIL import Image, ImageDraw, ImageFont

    seen = [(number, shown, said) for number, (shown, said) in enumerate(turns, 1) if shown.picture is not None][-MOST:]
    if not seen:
        return None
    screens = [said_to(shown, said, numbers, tags, SCREEN) for _, shown, said in seen]
    width, height = max(s.width for s in screens), max(s.height for s in screens)
    columns = min(len(screens), max(2, math.ceil(math.sqrt(len(screens) * height / width))))  # about as wide as high
    rows = -(-len(screens) // columns)
    sheet = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + LINE + GAP) + LINE + GAP), GROUND)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=14)
    for place, ((number, _, said), screen) in enumerate(zip(seen, screens, strict=True)):
        x, y = GAP + place % columns * (width + GAP), GAP + place // columns * (height + LINE + GAP)
        draw.text((x, y), _fits(draw, f"{number}  {said}", width, font), fill="black", font=font)
        sheet.paste(screen, (x, y + LINE))
    if outcome:
        won = bool(outcome.get("success"))
        count = outcome.get("actions", outcome.get("steps", len(turns)))  # programs have several in a turn
        said = f"{'done' if won else 'not done'} after {count:.0f} actions"
        paid = f", paid {outcome['reward']:.3g}" if "reward" in outcome else ""
        draw.text((GAP, sheet.height - LINE), said + paid, fill=TRUE if won else SAID, font=font)
    return sheet


def said_to(shown: Seen, said: str, numbers: Numbers, tags: bool, size: Size | None = None) -> Image:
    """A screen with a completion's action; invalid actions are not drawn. size: of the result, in pixels."""
    from PIL.Image import Resampling

    picture = load_image(shown.picture)
    scale = min(size[0] / picture.width, size[1] / picture.height) if size else min(1.0, LARGEST / max(picture.size))
    if scale != 1:
        smooth = Resampling.LANCZOS if scale < 2 else Resampling.NEAREST  # keep the pixels of a tiny one visible
        picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), smooth)
    least = 0 if size else LEAST
    try:
        action = read(said, numbers, shown.elements, tags=tags)
    except NoAction:
        return draw_action(picture, least=least)
    at, to = (None if p is None else (p[0] * scale, p[1] * scale) for p in (action.at, action.to))
    return draw_action(picture, action=replace(action, at=at, to=to), least=least)


def _fits(draw: Any, text: str, width: int, font: Any) -> str:
    """A text cut to the width of one line."""
    line = "".join(c if c.isprintable() else " " for c in text[:400])
    if draw.textlength(line, font=font) <= width:
        return line
    while line and draw.textlength(line + "…", font=font) > width:
        line = line[:-1]
    return line + "…"
