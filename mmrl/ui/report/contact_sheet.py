"""A contact sheet: some prompts of a task as one picture, each with what the model sees, is asked and should say."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrl.api.interfaces import Task
from mmrl.api.media.decoding import glimpse
from mmrl.api.media.images import load_image
from mmrl.api.media.strips import Span, strip
from mmrl.api.tasks.marks import Mark
from mmrl.api.types import Prompt
from mmrl.ui.report.text import visible

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from mmrl.api.media.clips import Footage
    from mmrl.ui.report.figures import Figure

    See = Callable[[Image], Image]

CARD, PICTURE = 340, 255
"""The width of a card and the height of its picture, in pixels."""
GAP, MARGIN, PAD, HEADER = 22, 40, 18, 112
PROMPT_LINES, CHOICE_LINES, ANSWER_LINES = 8, 60, 6
"""Lines of a prompt; of one that lists choices, which are never cut; of an answer."""
PAPER, WHITE, EDGE, MAT = "#f2f3f5", "#ffffff", "#d9dce1", "#e6e8ec"
INK, FAINT, GREEN, LEAF = "#1a1d23", "#6a717c", "#0a6238", "#e2f3e9"
ELLIPSIS = "..."
BLUE, PALE, BROWN = "#2a6fdb", "#b9cff3", "#8a3c00"
"""Of bars, of how far their single values reach, and of what is odd."""
FACTS = 3
"""Charts that have room beside each other, however few prompts there are."""
COLUMNS, SAID_LINES, NOTE_LINES = 56, 4, 5
"""Pixels of a histogram's height; lines of what is said above it, and of what is odd."""
MARKS = ("#009e73", "#1d6fe0", "#9b3fd1", "#e5383b", "#f2a900", "#12a150")
"""Colours of what is true, in turn: one mark alone is green, as in reports."""
TAG, AROUND = 20, 3
"""Pixels: of a picture's name above it, and of a box around what it holds."""
INTERVALS = 3
"""Of a video that are shown below it, at most."""
ORDER = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_CHOICE = re.compile(r"^\s*(?:[(\[]?(?:[A-Za-z]|[0-9]{1,2})[):\]]|[A-Za-z]\.)\s", re.MULTILINE)
"""The beginning of a line that is one of several choices; `1. ` is that of one thing after another."""
OTHER_FONTS = ("NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "DejaVuSans.ttf", "Arial Unicode.ttf", "msyh.ttc")
"""Tried for signs that Pillow's own font has not."""


def contact_sheet(
    prompts: Sequence[Prompt],
    title: str,
    subtitle: str = "",
    see: See | None = None,
    marks: Sequence[Sequence[Mark]] | None = None,
    facts: Sequence[Figure] = (),
    odd: Sequence[str] = (),
) -> Image:
    """The prompts as one RGB picture, three or four in a row, each with its images, its text and its answer.

    see: makes of an image what the model sees of it, such as its processor's resizing; by default the image as it is decoded.
    marks: of each prompt; those that are true are drawn. By default what `Task.marks` makes of any prompt.
    facts: small charts below. odd: what is to be told of the task besides, a line or a few each.

    Raises UserError for an image that does not decode.
    """
    from PIL import Image, ImageDraw

    given = [Task().marks(prompt, "") for prompt in prompts] if marks is None else marks
    cards = [_card(p, see, [mark for mark in own if mark.of == "true"]) for p, own in zip(prompts, given, strict=True)]
    columns = len(cards) if len(cards) < 4 else min((4, 3), key=lambda c: -len(cards) % c)  # the fewest gaps in the last row
    across = max(columns, min(len(facts), FACTS))
    width = 2 * MARGIN + across * (CARD + GAP) - GAP
    rows: list[Sequence[_Card | _Fact]] = [cards[i : i + columns] for i in range(0, len(cards), columns)]
    rows += [[_Fact.of(figure) for figure in facts[i : i + across]] for i in range(0, len(facts), across)]
    heights = [max(card.height for card in row) for row in rows]
    notes = [line for note in odd for line in wrap(f"Odd: {note}", width - 2 * MARGIN, 16, NOTE_LINES)]
    told = GAP + 22 * len(notes) if notes else 0
    sheet = Image.new("RGB", (width, HEADER + sum(heights) + GAP * len(rows) - GAP + told + MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    _line(draw, (MARGIN, 32), title, 28, INK, width - 2 * MARGIN)
    _line(draw, (MARGIN, 70), subtitle, 16, FAINT, width - 2 * MARGIN)
    y = HEADER
    for row, height in zip(rows, heights, strict=True):
        for column, card in enumerate(row):
            card.paint(sheet, draw, MARGIN + column * (CARD + GAP), y, height)
        y += height + GAP
    for number, line in enumerate(notes):
        draw.text((MARGIN, y + 22 * number), line, BROWN, _font_for(line, 16))
    return sheet


@dataclass(frozen=True)
class _Card:
    picture: Image
    """CARD x PICTURE, marks drawn."""
    id: str
    sizes: str
    prompt: list[str]
    answer: list[str]

    @property
    def height(self) -> int:
        return PICTURE + 42 + 22 * len(self.prompt) + 12 + (22 * len(self.answer) + 10 if self.answer else 0) + PAD

    def paint(self, sheet: Image, draw: ImageDraw, x: int, y: int, height: int) -> None:
        from PIL import Image, ImageDraw

        corners = Image.new("L", (CARD, PICTURE), 0)
        ImageDraw.Draw(corners).rounded_rectangle((0, 0, CARD - 1, PICTURE + 20), 10, fill=255)
        draw.rounded_rectangle((x, y, x + CARD - 1, y + height - 1), 10, fill=WHITE, outline=EDGE)
        sheet.paste(self.picture, (x, y), corners)
        draw.rounded_rectangle((x, y, x + CARD - 1, y + height - 1), 10, outline=EDGE)
        left, room, y = x + PAD, CARD - 2 * PAD, y + PICTURE + 14
        sizes = _width(self.sizes, 13)
        draw.text((x + CARD - PAD - sizes, y), self.sizes, FAINT, _font(13))
        name = _clip(self.id[::-1], room - sizes - 12, 13)[::-1]  # of a long path the end tells more
        draw.text((left, y), name, FAINT, _font_for(name, 13))
        y += 28
        for line in self.prompt:
            draw.text((left, y), line, INK, _font_for(line, 16))
            y += 22
        y += 12
        if not self.answer:
            return
        draw.rounded_rectangle((left, y, x + CARD - PAD - 1, y + 22 * len(self.answer) + 10), 6, fill=LEAF)
        draw.text((x + CARD - PAD - 10, y + 9), "answer", GREEN, _font(12), anchor="ra")
        for line in self.answer:
            draw.text((left + 10, y + 6), line, GREEN, _font_for(line, 16))
            y += 22


@dataclass(frozen=True)
class _Fact:
    figure: Figure
    said: list[str]

    @classmethod
    def of(cls, figure: Figure) -> _Fact:
        return cls(figure, wrap(visible(figure.hint or figure.said), CARD - 2 * PAD, 13, SAID_LINES))

    @property
    def height(self) -> int:
        bars = 0 if not self.figure.bars else COLUMNS + 40 if self.figure.ends else 32 * len(self.figure.bars) + 8
        return PAD + 24 + 18 * len(self.said) + bars + 12

    def paint(self, sheet: Image, draw: ImageDraw, x: int, y: int, height: int) -> None:
        draw.rounded_rectangle((x, y, x + CARD - 1, y + height - 1), 10, fill=WHITE, outline=EDGE)
        left, room, y = x + PAD, CARD - 2 * PAD, y + PAD - 4
        _line(draw, (left, y), visible(self.figure.title), 16, INK, room)
        y += 26
        for line in self.said:
            draw.text((left, y), line, FAINT, _font_for(line, 13))
            y += 18
        if self.figure.ends:
            self._paint_columns(draw, left, room, y + 22 + COLUMNS)
        else:
            self._paint_lines(draw, left, room, y + 10)

    def _paint_columns(self, draw: ImageDraw, left: int, room: int, floor: int) -> None:
        bars, (first, last) = self.figure.bars, self.figure.ends or ("", "")
        for i, bar in enumerate(bars):
            a, b = left + i * room // len(bars), left + (i + 1) * room // len(bars)
            if bar.length:
                draw.rectangle((a + 1, floor - max(1, round(COLUMNS * bar.length)), b - 2, floor - 1), fill=BLUE)
        draw.line((left, floor, left + room, floor), fill=EDGE)
        most = max(range(len(bars)), key=lambda i: bars[i].length)
        half = _width(bars[most].told, 12) // 2
        middle = min(max(left + (2 * most + 1) * room // (2 * len(bars)), left + half), left + room - half)
        draw.text((middle, floor - COLUMNS - 3), bars[most].told, FAINT, _font(12), anchor="mb")
        draw.text((left, floor + 4), first, FAINT, _font(12))
        draw.text((left + room, floor + 4), last, FAINT, _font(12), anchor="ra")

    def _paint_lines(self, draw: ImageDraw, left: int, room: int, y: int) -> None:
        for bar in self.figure.bars:
            told = _width(bar.told, 13)
            draw.text((left + room, y), bar.told, INK, _font(13), anchor="ra")
            _line(draw, (left, y), visible(bar.label), 13, INK, room - told - 12)
            draw.rounded_rectangle((left, y + 18, left + room, y + 24), 3, fill=MAT)
            if bar.reach:
                low, high = (left + round(room * end) for end in bar.reach)
                draw.rectangle((low, y + 18, max(high, low + 2), y + 24), fill=PALE)
            if bar.length:
                draw.rectangle(
                    (left, y + 18 + bool(bar.reach), left + round(room * bar.length), y + 24 - bool(bar.reach)), fill=BLUE
                )
            y += 32


def _card(prompt: Prompt, see: See | None, true: Sequence[Mark] = ()) -> _Card:
    originals = [load_image(image) for image in prompt.images]
    seen = [see(image) if see else image for image in originals]
    drawn = _drawn(prompt)
    sizes = list(dict.fromkeys(f"{i.width} x {i.height}" for i, own in zip(seen, drawn, strict=True) if not own))
    footage = [glimpse(video) for video in prompt.videos]
    sizes += [f"{len(f.times_s)} frames, {f.duration_s:.1f} s" for f in footage]
    answer = str(prompt.answer) or "(empty)"
    return _Card(
        picture=_mount(prompt, seen, [_strip(f, n, true) for n, f in enumerate(footage)], true),
        id=prompt.id or "no id",
        sizes=", ".join(sizes[:2]) + (", ..." if len(sizes) > 2 else ""),
        prompt=wrap(prompt.text, CARD - 2 * PAD, 16, CHOICE_LINES if len(_CHOICE.findall(prompt.text)) > 1 else PROMPT_LINES),
        answer=[] if prompt.answer is None else wrap(answer, CARD - 2 * PAD - 70, 16, ANSWER_LINES),
    )


def _strip(footage: Footage, number: int, true: Sequence[Mark]) -> Image:
    """A video with its intervals below it."""
    intervals = [mark.at for mark in true if mark.kind == "interval" and mark.image == number][:INTERVALS]
    return strip(footage, [Span(name="true", start_s=a, end_s=b) for a, b, _ in intervals], width=CARD - 8, most=9, across=3)


def _mount(prompt: Prompt, seen: Sequence[Image], films: Sequence[Image] = (), true: Sequence[Mark] = ()) -> Image:
    """All images and videos of a prompt on one mat, with what is true on them."""
    from PIL import Image, ImageDraw

    mat = Image.new("RGB", (CARD, PICTURE), MAT)
    if not seen and not films:
        ImageDraw.Draw(mat).text((CARD // 2, PICTURE // 2), "no picture", FAINT, _font(16), anchor="mm")
        return mat
    drawn, shown_all = _drawn(prompt), [*films, *seen]
    names = _names(len(films), drawn) if any(drawn) else []  # what the answer draws stands beside what it is asked about
    head, edge = (TAG + 2, 8) if names else (0, 8 if len(shown_all) > 1 else 0)
    across = _columns([image.size for image in shown_all], head, edge)
    width, height = CARD // across, PICTURE // -(-len(shown_all) // across)
    for i, image in enumerate(shown_all):
        shown = _fit(image, width - edge, height - edge - head)
        left = i % across * width + (width - shown.width) // 2
        top = i // across * height + max((height - shown.height) // 2, head)
        if i >= len(films):
            _mark(shown, [mark for mark in true if mark.image == i - len(films)])
        mat.paste(shown, (left, top))
        if names:
            _tag(
                ImageDraw.Draw(mat),
                min(left, i % across * width + max(0, width - _width(names[i], 12) - 12)),
                top - TAG,
                names[i],
            )
    return mat


def _drawn(prompt: Prompt) -> list[bool]:
    """Of each image, whether the answer draws it."""
    parts = [(message, part["type"]) for message in prompt.messages for part in _parts(message)]
    return [message["role"] == "assistant" for message, kind in parts if kind == "image"]


def _names(films: int, drawn: Sequence[bool]) -> list[str]:
    """What the pictures on a mat are called: of several, those of the prompt are numbered."""
    shown = films + len(drawn) - sum(drawn)
    numbered = ["shown"] if shown == 1 else [*ORDER[:shown], *(str(n) for n in range(len(ORDER) + 1, shown + 1))]
    of_prompt = iter(numbered)
    return ["answer draws" if own else next(of_prompt) for own in [*[False] * films, *drawn]]


def _columns(sizes: Sequence[tuple[int, int]], head: int, edge: int) -> int:
    """How many pictures stand side by side, so that they are as large as can be, each of them as the mean of the logarithms of
    their scales has it: none is lost beside a large one. As many as rows where that is all the same."""

    def scale(across: int) -> float:
        width, height = CARD // across - edge, PICTURE // -(-len(sizes) // across) - edge - head
        scales = [min(width / w, height / h) for w, h in sizes]
        return statistics.geometric_mean(int(s) if s >= 1 else max(s, 1e-6) for s in scales)  # of many, one may have no room

    square = math.ceil(math.sqrt(len(sizes)))
    return max(range(1, len(sizes) + 1), key=lambda across: (round(scale(across), 3), -abs(across - square)))


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return () if isinstance(message["content"], str) else message["content"]


def _tag(draw: ImageDraw, x: int, y: int, text: str) -> None:
    draw.rounded_rectangle((x, y, x + _width(text, 12) + 10, y + TAG - 2), 4, fill=WHITE, outline=EDGE)
    draw.text((x + 5, y + 2), text, INK, _font(12))


def _fit(image: Image, width: int, height: int) -> Image:
    """The image as large as it can be: shrunk smoothly, or enlarged in whole steps, so that its pixels stay to be seen."""
    from PIL.Image import Resampling

    scale = min(width / image.width, height / image.height)
    if scale >= 2:
        return image.resize((image.width * int(scale), image.height * int(scale)), Resampling.NEAREST)
    if scale >= 1:
        return image.copy()
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), Resampling.LANCZOS)


def _mark(shown: Image, true: Iterable[Mark]) -> None:
    """Draws marks on an image."""
    from PIL import ImageDraw

    draw = ImageDraw.Draw(shown)
    for mark, colour in zip(true, itertools.cycle(MARKS), strict=False):
        if mark.kind == "grid":
            _draw_grid(draw, mark, shown.size, colour)
        elif mark.kind != "interval":
            places = [v * side for v, side in zip(mark.at, itertools.cycle(shown.size), strict=False)]
            {"box": _draw_box, "point": _draw_point, "path": _draw_path}[mark.kind](draw, places, shown.size, colour)
            if mark.label:
                _draw_label(draw, mark.label, places, shown.size, colour)


def _draw_box(draw: ImageDraw, box: Sequence[float], size: tuple[int, int], colour: str) -> None:
    """Around what it holds, which stays free but at the image's edges."""
    x1, y1, x2, y2 = box
    for reach, line, thick in ((AROUND + 1, "white", 1), (AROUND, colour, AROUND)):
        low = (max(0, round(x1) - reach), max(0, round(y1) - reach))
        high = (min(size[0] - 1, round(x2) + reach), min(size[1] - 1, round(y2) + reach))
        draw.rectangle((*low, *(max(pair) for pair in zip(low, high, strict=True))), outline=line, width=thick)


def _draw_point(draw: ImageDraw, at: Sequence[float], size: tuple[int, int], colour: str) -> None:
    for reach, line, thick in ((7, "white", 2), (5, colour, 3)):
        draw.ellipse((at[0] - reach, at[1] - reach, at[0] + reach, at[1] + reach), outline=line, width=thick)


def _draw_path(draw: ImageDraw, numbers: Sequence[float], size: tuple[int, int], colour: str) -> None:
    """A line with an arrow's head at its end."""
    ends = list(zip(numbers[::2], numbers[1::2], strict=True))
    way = math.atan2(ends[-1][1] - ends[-2][1], ends[-1][0] - ends[-2][0])
    sides = [(ends[-1][0] - 10 * math.cos(way + turn), ends[-1][1] - 10 * math.sin(way + turn)) for turn in (0.5, -0.5)]
    for line, thick in (("white", 5), (colour, 3)):
        draw.line(ends, fill=line, width=thick)
        draw.line([sides[0], ends[-1], sides[1]], fill=line, width=thick)


def _draw_grid(draw: ImageDraw, mark: Mark, size: tuple[int, int], colour: str) -> None:
    """Lines between the cells, and what stands in them in a corner of each."""
    rows, columns = (int(v) for v in mark.at)
    width, height = size[0] / columns, size[1] / rows
    lines = [(column * width, 0.0, column * width, float(size[1])) for column in range(1, columns)]
    lines += [(0.0, row * height, float(size[0]), row * height) for row in range(1, rows)]
    for line in lines:
        draw.line(line, fill="white", width=3)
        draw.line(line, fill=colour, width=1)
    for place, label in enumerate(mark.labels):
        if label:
            left, top = place % columns * width, place // columns * height
            _draw_label(draw, label, (left, top + 20, left + width, top + height), size, colour)


def _draw_label(draw: ImageDraw, label: str, places: Sequence[float], size: tuple[int, int], colour: str) -> None:
    """Above its mark, or below it where there is no room."""
    line = _clip(label, size[0] - 8, 13)
    top, bottom = min(places[1::2]), max(places[1::2])
    left = max(0, min(*places[::2], size[0] - _width(line, 13) - 8))
    top = top - 19 if top >= 19 else min(bottom + 1, size[1] - 19)
    draw.rectangle((left, top, left + _width(line, 13) + 8, top + 18), fill=colour)
    draw.text((left + 4, top + 2), line, "white", _font_for(line, 13))


# -- text ---------------------------------------------------------------------------------------------------------------


def wrap(text: str, width: int, size: int, lines: int) -> list[str]:
    """The text in at most so many lines of `width` pixels at most; an ellipsis stands for what does not fit."""
    wrapped: list[str] = []
    for paragraph in text[: 100 * lines].strip().split("\n"):
        line = ""
        for word in (piece for whole in paragraph.split() for piece in _pieces(whole, width, size)):
            if line and _width(f"{line} {word}", size) > width:
                wrapped.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        wrapped.append(line)
    if len(wrapped) > lines or len(text.strip()) > 100 * lines:
        wrapped = [*wrapped[: lines - 1], _clip(" ".join(wrapped[lines - 1 :]) + ELLIPSIS, width, size)]
    return wrapped


def _pieces(word: str, width: int, size: int) -> list[str]:
    """A word, cut where it is wider than a line."""
    pieces, start = [], 0
    for end in range(1, len(word) + 1):
        if end - start > 1 and _width(word[start:end], size) > width:
            pieces.append(word[start : end - 1])
            start = end - 1
    return [*pieces, word[start:]]


def _clip(text: str, width: int, size: int) -> str:
    """The text, or as much of it as fits before an ellipsis."""
    if _width(text, size) <= width:
        return text
    end = max(bisect.bisect(range(len(text)), width, key=lambda n: _width(text[:n].rstrip() + ELLIPSIS, size)) - 1, 0)
    return text[:end].rstrip() + ELLIPSIS


def _line(draw: ImageDraw, place: tuple[int, int], text: str, size: int, colour: str, width: int) -> None:
    line = _clip(" ".join(text.split()), width, size)
    draw.text(place, line, colour, _font_for(line, size))


def _width(text: str, size: int) -> int:
    return round(_font_for(text, size).getlength(text))


@functools.cache
def _font(size: int, name: str = "") -> Any:
    from PIL import ImageFont

    basic = ImageFont.Layout.BASIC  # the other engine refuses some text
    return ImageFont.truetype(name, size, layout_engine=basic) if name else ImageFont.load_default(size)


def _font_for(text: str, size: int) -> Any:
    """Pillow's own font, or the first on this machine that has the signs that it lacks."""
    odd = frozenset(c for c in text if not c.isascii() and c != ELLIPSIS)
    return _font(size, _fallback(odd)) if odd else _font(size)


@functools.cache
def _fallback(signs: frozenset[str]) -> str:
    """The name of the font that has the most of these signs."""
    known = {}
    for name in ("", *OTHER_FONTS):
        try:
            font = _font(16, name)
        except OSError:  # not on this machine
            continue
        missing = bytes(font.getmask("\U0010fffe"))  # how the font draws a sign that it has not
        known[name] = sum(bytes(font.getmask(sign)) != missing for sign in signs)
    return max(known, key=lambda name: known[name])
