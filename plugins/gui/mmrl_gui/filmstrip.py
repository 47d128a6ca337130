"""An episode as a filmstrip: its screens side by side, each with what was done to it, and at the end what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mmrl import Message
from mmrl.api.media.images import load_image
from mmrl.api.simulators.gui import Element
from mmrl_gui.actions import NoAction, read
from mmrl_gui.coordinates import Numbers, Size
from mmrl_gui.drawing import LEAST, SAID, TRUE, draw_action

if TYPE_CHECKING:
    from PIL.Image import Image

ELEMENTS = "elements"
"""The key of a picture in a message under which its elements stand."""
MOST = 12
"""Screens of a filmstrip; of a longer episode the last ones."""
GAP = 10
GROUND = (238, 240, 243)
"""Between the screens, of which many are white."""
SCREEN = (256, 456)
"""Pixels that a screen fills at most."""
LARGEST = 480
"""Pixels of the longer side of a screen that is shown alone."""
LINE = 22
"""Pixels of a line of text."""


class Seen(NamedTuple):
    """A screen as a message shows it."""

    picture: Any
    """As the message holds it; None without one."""
    elements: Sequence[Element] = ()
    """What `click [3]` counts."""


def showing(message: Message, elements: Sequence[Element]) -> Message:
    """A message whose picture knows what is listed of it, for people: a policy reads the picture and the text."""
    return {**message, "content": [{**p, ELEMENTS: elements} if p["type"] == "image" else p for p in message["content"]]}


def seen_in(messages: Sequence[Message]) -> Seen:
    """The last screen in some messages."""
    found = [p for m in messages if not isinstance(m["content"], str) for p in m["content"] if p["type"] == "image"]
    return Seen(found[-1]["image"], found[-1].get(ELEMENTS, ())) if found else Seen(None)


def filmstrip(turns: Sequence[tuple[Seen, str]], numbers: Numbers, tags: bool, outcome: Mapping[str, float]) -> Image | None:
    """turns: (the screen that was seen, what was said to it). None where no screen was seen."""
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
        said = f"{'done' if won else 'not done'} after {outcome.get('steps', len(turns)):.0f} actions"
        paid = f", paid {outcome['reward']:.3g}" if "reward" in outcome else ""
        draw.text((GAP, sheet.height - LINE), said + paid, fill=TRUE if won else SAID, font=font)
    return sheet


def said_to(shown: Seen, said: str, numbers: Numbers, tags: bool, size: Size | None = None) -> Image:
    """A screen with the action that is said to it; what is no action is not drawn. size: pixels that it is to fill."""
    from PIL.Image import Resampling

    picture = load_image(shown.picture)
    scale = min(size[0] / picture.width, size[1] / picture.height) if size else min(1.0, LARGEST / max(picture.size))
    if scale != 1:
        smooth = Resampling.LANCZOS if scale < 2 else Resampling.NEAREST  # the pixels of a tiny one stay to be seen
        picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))), smooth)
    least = 0 if size else LEAST
    try:
        action = read(said, numbers, shown.elements, tags=tags)
    except NoAction:
        return draw_action(picture, least=least)
    at, to = (None if p is None else (p[0] * scale, p[1] * scale) for p in (action.at, action.to))
    return draw_action(picture, action=replace(action, at=at, to=to), least=least)


def _fits(draw: Any, text: str, width: int, font: Any) -> str:
    """As much of a text, in one line, as there is room for."""
    line = "".join(c if c.isprintable() else " " for c in text[:400])
    if draw.textlength(line, font=font) <= width:
        return line
    while line and draw.textlength(line + "…", font=font) > width:
        line = line[:-1]
    return line + "…"
