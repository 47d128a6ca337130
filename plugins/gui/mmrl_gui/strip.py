"""An episode as a strip: its screens side by side, each with what was done to it, and at the end what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl import Message
from mmrl.media import load_image
from mmrl_gui.actions import NoAction, read
from mmrl_gui.frames import Numbers
from mmrl_gui.marks import SAID, TRUE, marked

if TYPE_CHECKING:
    from PIL.Image import Image

MOST = 12
"""Screens of a strip; of a longer episode the last ones."""
WIDE = 4
"""Screens in a row."""
GAP = 10
LARGEST = 480
"""Pixels of a screen's longer side."""
LINE = 22
"""Pixels of a line of text."""


def picture_in(messages: Sequence[Message]) -> Any:
    """The last picture in some messages, as they hold it; None without one."""
    found = [p["image"] for m in messages if not isinstance(m["content"], str) for p in m["content"] if p["type"] == "image"]
    return found[-1] if found else None


def strip(turns: Sequence[tuple[Any, str]], numbers: Numbers, tags: bool, outcome: Mapping[str, float]) -> Image | None:
    """turns: (the screen that was seen, what was said to it). None where no screen was seen."""
    from PIL import Image, ImageDraw, ImageFont

    seen = [(number, shown, said) for number, (shown, said) in enumerate(turns, 1) if shown is not None][-MOST:]
    if not seen:
        return None
    screens = [_screen(load_image(shown), said, numbers, tags) for _, shown, said in seen]
    width, height = max(s.width for s in screens), max(s.height for s in screens)
    columns = min(WIDE, len(screens))
    rows = -(-len(screens) // columns)
    sheet = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + LINE + GAP) + LINE + GAP), "white")
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


def _screen(picture: Image, said: str, numbers: Numbers, tags: bool) -> Image:
    """A screen with the action on it; what is no action is not drawn."""
    if max(picture.size) > LARGEST:
        picture = picture.copy()
        before = picture.size
        picture.thumbnail((LARGEST, LARGEST))
        scale = picture.width / before[0]
    else:
        scale = 1.0
    try:
        action = read(said, numbers, tags=tags)
    except NoAction:
        return marked(picture)
    at, to = (None if p is None else (p[0] * scale, p[1] * scale) for p in (action.at, action.to))
    return marked(picture, action=type(action)(kind=action.kind, at=at, to=to, text=action.text, direction=action.direction))


def _fits(draw: Any, text: str, width: int, font: Any) -> str:
    """As much of a text, in one line, as there is room for."""
    line = "".join(c if c.isprintable() else " " for c in text[:400])
    if draw.textlength(line, font=font) <= width:
        return line
    while line and draw.textlength(line + "…", font=font) > width:
        line = line[:-1]
    return line + "…"
