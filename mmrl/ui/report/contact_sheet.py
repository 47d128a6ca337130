"""A contact sheet: prompts of a task as one image, each with its images as the model sees them, its sounds, its text and its
answer."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrl.api.interfaces import Task
from mmrl.api.media.decoding import recent_frames
from mmrl.api.media.filmstrip import TimeSpan, filmstrip
from mmrl.api.media.hearing import heard
from mmrl.api.media.images import load_image
from mmrl.api.media.spectrogram import sound_picture
from mmrl.api.tasks.overlays import Overlay
from mmrl.api.types import Prompt
from mmrl.ui.report.image_marks import draw_marks
from mmrl.ui.report.lettering import clip, draw_text, font, font_for, one_line, text_width, wrap
from mmrl.ui.report.text import visible

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from mmrl.api.media.clips import VideoFrames
    from mmrl.api.media.sounds import Waveform
    from mmrl.ui.report.survey_charts import Figure

    See = Callable[[Image], Image]

CARD, PICTURE = 340, 255
"""Width of a card and height of its image area, in pixels."""
GAP, MARGIN, PAD, HEADER = 22, 40, 18, 112
PROMPT_LINES, CHOICE_LINES, ANSWER_LINES = 8, 60, 6
"""Maximal lines of a prompt, of a prompt with a list of choices, and of an answer."""
PAPER, WHITE, EDGE, MAT = "#f2f3f5", "#ffffff", "#d9dce1", "#e6e8ec"
INK, FAINT, GREEN, LEAF = "#1a1d23", "#6a717c", "#0a6238", "#e2f3e9"
BLUE, PALE, BROWN = "#2a6fdb", "#b9cff3", "#8a3c00"
"""Colours of bars, of the range of a bar's single values, and of warnings."""
FACTS = 3
"""Minimal number of figures side by side."""
COLUMNS, SAID_LINES, NOTE_LINES = 56, 4, 5
"""Height of a histogram in pixels; maximal lines of the text above it, and of a warning."""
TAG = 20
"""Height in pixels of an image's name above it."""
INTERVALS = 3
"""Maximal number of intervals shown below a video."""
ORDER = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_CHOICE = re.compile(r"^\s*(?:[(\[]?(?:[A-Za-z]|[0-9]{1,2})[):\]]|[A-Za-z]\.)\s", re.MULTILINE)
"""The start of a line of a multiple-choice list; `1. ` is excluded, since it also numbers the steps of a text."""


def contact_sheet(
    prompts: Sequence[Prompt],
    title: str,
    subtitle: str = "",
    see: See | None = None,
    marks: Sequence[Sequence[Overlay]] | None = None,
    facts: Sequence[Figure] = (),
    odd: Sequence[str] = (),
) -> Image:
    """The prompts as one RGB image, three or four in a row, each with its images, its text and its answer.

    see: resizes an image as the model's processor does; by default images are shown as decoded.
    marks: of each prompt; only gold marks are drawn. By default those of `Task.overlays`.
    facts: small figures below the prompts. odd: warnings about the task, shown at the end.

    Raises UserError for an image that cannot be decoded.
    """
    from PIL import Image, ImageDraw

    given = [Task().overlays(prompt, "") for prompt in prompts] if marks is None else marks
    cards = [
        _card(p, see, [mark for mark in of_prompt if mark.source == "true"]) for p, of_prompt in zip(prompts, given, strict=True)
    ]
    columns = max(1, len(cards)) if len(cards) < 4 else min((4, 3), key=lambda c: -len(cards) % c)  # fewest gaps at the end
    across = max(columns, min(len(facts), FACTS))
    width = 2 * MARGIN + across * (CARD + GAP) - GAP
    rows: list[Sequence[_Card | _Fact]] = [cards[i : i + columns] for i in range(0, len(cards), columns)]
    rows += [[_Fact.of(figure) for figure in facts[i : i + across]] for i in range(0, len(facts), across)]
    heights = [max(card.height for card in row) for row in rows]
    told = [*([] if prompts else ["There are no prompts."]), *(f"Warning: {note}" for note in odd)]
    notes = [line for note in told for line in wrap(visible(note), width - 2 * MARGIN, 16, NOTE_LINES)]
    notes_height = GAP + 22 * len(notes) if notes else 0
    sheet = Image.new("RGB", (width, HEADER + sum(heights) + GAP * len(rows) - GAP + notes_height + MARGIN), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw_text(draw, (MARGIN, 32), title, 28, INK, width - 2 * MARGIN)
    draw_text(draw, (MARGIN, 70), subtitle, 16, FAINT, width - 2 * MARGIN)
    y = HEADER
    for row, height in zip(rows, heights, strict=True):
        for column, card in enumerate(row):
            card.paint(sheet, draw, MARGIN + column * (CARD + GAP), y, height)
        y += height + GAP
    for number, line in enumerate(notes):
        draw.text((MARGIN, y + 22 * number), line, BROWN, font_for(line, 16))
    return sheet


def prompt_picture(prompt: Prompt, marks: Sequence[Overlay] = ()) -> Image:
    """All images, videos and sounds of a prompt on one image, as on the sheet. marks: only gold marks are drawn."""
    true = [mark for mark in marks if mark.source == "true"]
    films = [_strip(recent_frames(video), number, true) for number, video in enumerate(prompt.videos)]
    films += [_sounding(heard(sound)) for sound in prompt.sounds]
    return _mount(prompt, [load_image(image) for image in prompt.images], films, true)


@dataclass(frozen=True)
class _Card:
    """A prompt on the sheet."""

    picture: Image
    """All its images, videos and sounds with marks, CARD x PICTURE pixels."""
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
        sizes = text_width(self.sizes, 13)
        draw.text((x + CARD - PAD - sizes, y), self.sizes, FAINT, font(13))
        name = clip(one_line(self.id)[::-1], room - sizes - 12, 13)[::-1]  # keep the end of a long path
        draw.text((left, y), name, FAINT, font_for(name, 13))
        y += 28
        for line in self.prompt:
            draw.text((left, y), line, INK, font_for(line, 16))
            y += 22
        y += 12
        if not self.answer:
            return
        draw.rounded_rectangle((left, y, x + CARD - PAD - 1, y + 22 * len(self.answer) + 10), 6, fill=LEAF)
        draw.text((x + CARD - PAD - 10, y + 9), "answer", GREEN, font(12), anchor="ra")
        for line in self.answer:
            draw.text((left + 10, y + 6), line, GREEN, font_for(line, 16))
            y += 22


@dataclass(frozen=True)
class _Fact:
    """A figure on the sheet."""

    figure: Figure
    said: list[str]

    @classmethod
    def of(cls, figure: Figure) -> _Fact:
        return cls(figure, wrap(visible(figure.above), CARD - 2 * PAD, 13, SAID_LINES))

    @property
    def height(self) -> int:
        bars = 0 if not self.figure.bars else COLUMNS + 40 if self.figure.ends else 32 * len(self.figure.bars) + 8
        return PAD + 24 + 18 * len(self.said) + bars + 12

    def paint(self, sheet: Image, draw: ImageDraw, x: int, y: int, height: int) -> None:
        draw.rounded_rectangle((x, y, x + CARD - 1, y + height - 1), 10, fill=WHITE, outline=EDGE)
        left, room, y = x + PAD, CARD - 2 * PAD, y + PAD - 4
        draw_text(draw, (left, y), self.figure.title, 16, INK, room)
        y += 26
        for line in self.said:
            draw.text((left, y), line, FAINT, font_for(line, 13))
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
        half = text_width(bars[most].told, 12) // 2
        middle = min(max(left + (2 * most + 1) * room // (2 * len(bars)), left + half), left + room - half)
        draw.text((middle, floor - COLUMNS - 3), bars[most].told, FAINT, font(12), anchor="mb")
        draw.text((left, floor + 4), first, FAINT, font(12))
        draw.text((left + room, floor + 4), last, FAINT, font(12), anchor="ra")

    def _paint_lines(self, draw: ImageDraw, left: int, room: int, y: int) -> None:
        for bar in self.figure.bars:
            told = text_width(bar.told, 13)
            draw.text((left + room, y), bar.told, INK, font(13), anchor="ra")
            draw_text(draw, (left, y), bar.label, 13, INK, room - told - 12)
            draw.rounded_rectangle((left, y + 18, left + room, y + 24), 3, fill=MAT)
            if bar.reach:
                low, high = (left + round(room * end) for end in bar.reach)
                draw.rectangle((low, y + 18, max(high, low + 2), y + 24), fill=PALE)
            if bar.length:
                draw.rectangle(
                    (left, y + 18 + bool(bar.reach), left + round(room * bar.length), y + 24 - bool(bar.reach)), fill=BLUE
                )
            y += 32


def _card(prompt: Prompt, see: See | None, true: Sequence[Overlay] = ()) -> _Card:
    originals = [load_image(image) for image in prompt.images]
    seen = [see(image) if see else image for image in originals]
    drawn = _drawn(prompt)
    sizes = list(dict.fromkeys(f"{i.width} x {i.height}" for i, by_answer in zip(seen, drawn, strict=True) if not by_answer))
    footage = [recent_frames(video) for video in prompt.videos]
    sizes += [f"{len(f.times_s)} frames, {f.duration_s:.1f} s" for f in footage]
    sounds = [heard(sound) for sound in prompt.sounds]
    sizes += [f"sound, {sound.duration_s:.1f} s" for sound in sounds]
    films = [*(_strip(f, n, true) for n, f in enumerate(footage)), *map(_sounding, sounds)]
    text, answer = visible(prompt.text), visible(str(prompt.answer)) or "(empty)"
    return _Card(
        picture=_mount(prompt, seen, films, true),
        id=prompt.id or "no id",
        sizes=", ".join(sizes[:2]) + (", ..." if len(sizes) > 2 else ""),
        prompt=wrap(text, CARD - 2 * PAD, 16, CHOICE_LINES if len(_CHOICE.findall(text)) > 1 else PROMPT_LINES),
        answer=[] if prompt.answer is None else wrap(answer, CARD - 2 * PAD - 70, 16, ANSWER_LINES),
    )


def _strip(footage: VideoFrames, number: int, true: Sequence[Overlay]) -> Image:
    """Frames of a video with its intervals below them."""
    intervals = [mark.coordinates for mark in true if mark.kind == "interval" and mark.image == number][:INTERVALS]
    return filmstrip(
        footage, [TimeSpan(name="true", start_s=a, end_s=b) for a, b, _ in intervals], width=CARD - 8, most=9, across=3
    )


def _sounding(sound: Waveform) -> Image:
    return sound_picture(sound, CARD - 8, PICTURE - 8)


def _mount(prompt: Prompt, seen: Sequence[Image], films: Sequence[Image] = (), true: Sequence[Overlay] = ()) -> Image:
    """All images, videos and sounds of a prompt on one CARD x PICTURE image, with gold marks. films: pictures without marks."""
    from PIL import Image, ImageDraw

    mat = Image.new("RGB", (CARD, PICTURE), MAT)
    if not seen and not films:
        ImageDraw.Draw(mat).text((CARD // 2, PICTURE // 2), "no image", FAINT, font(16), anchor="mm")
        return mat
    drawn, shown_all = _drawn(prompt), [*films, *seen]
    names = _names(len(films), drawn) if any(drawn) else []  # name images only if the answer draws one, too
    head, edge = (TAG + 2, 8) if names else (0, 8 if len(shown_all) > 1 else 0)
    across = _columns([image.size for image in shown_all], head, edge)
    width, height = CARD // across, PICTURE // -(-len(shown_all) // across)
    for i, image in enumerate(shown_all):
        shown = _fit(image, width - edge, height - edge - head)
        left = i % across * width + (width - shown.width) // 2
        top = i // across * height + max((height - shown.height) // 2, head)
        if i >= len(films):
            draw_marks(shown, [mark for mark in true if mark.image == i - len(films)])
        mat.paste(shown, (left, top))
        if names:
            _tag(
                ImageDraw.Draw(mat),
                min(left, i % across * width + max(0, width - text_width(names[i], 12) - 12)),
                top - TAG,
                names[i],
            )
    return mat


def _drawn(prompt: Prompt) -> list[bool]:
    """For each image of a prompt, whether the answer draws it."""
    parts = [(message, part["type"]) for message in prompt.messages for part in _parts(message)]
    return [message["role"] == "assistant" for message, kind in parts if kind == "image"]


def _names(films: int, drawn: Sequence[bool]) -> list[str]:
    """The names of a prompt's videos, sounds and images: several of the prompt are numbered."""
    shown = films + len(drawn) - sum(drawn)
    numbered = ["prompt"] if shown == 1 else [*ORDER[:shown], *(str(n) for n in range(len(ORDER) + 1, shown + 1))]
    of_prompt = iter(numbered)
    return ["answer draws" if by_answer else next(of_prompt) for by_answer in [*[False] * films, *drawn]]


def _columns(sizes: Sequence[tuple[int, int]], head: int, edge: int) -> int:
    """The number of images side by side that maximises the geometric mean of their scales; of equal numbers the most square."""

    def scale(across: int) -> float:
        width, height = CARD // across - edge, PICTURE // -(-len(sizes) // across) - edge - head
        scales = [min(width / w, height / h) for w, h in sizes]
        return statistics.geometric_mean(
            int(s) if s >= 1 else max(s, 1e-6) for s in scales
        )  # of many images, one may have no room

    square = math.ceil(math.sqrt(len(sizes)))
    return max(range(1, len(sizes) + 1), key=lambda across: (round(scale(across), 3), -abs(across - square)))


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return () if isinstance(message["content"], str) else message["content"]


def _tag(draw: ImageDraw, x: int, y: int, text: str) -> None:
    draw.rounded_rectangle((x, y, x + text_width(text, 12) + 10, y + TAG - 2), 4, fill=WHITE, outline=EDGE)
    draw.text((x + 5, y + 2), text, INK, font(12))


def _fit(image: Image, width: int, height: int) -> Image:
    """The image at the largest size that fits: shrunk smoothly, or enlarged by a whole factor, so that pixels stay visible."""
    from PIL.Image import Resampling

    scale = min(width / image.width, height / image.height)
    if scale >= 2:
        return image.resize((image.width * int(scale), image.height * int(scale)), Resampling.NEAREST)
    if scale >= 1:
        return image.copy()
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), Resampling.LANCZOS)
