"""Videos of a run folder on a page. They play round and round; at rest, and in print, a few moments stand for each."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from mmrl import video
from mmrl.errors import UserError
from mmrl.view.text import esc

if TYPE_CHECKING:
    from PIL.Image import Image

MOMENTS, COLUMNS = 4, 2
"""Of the picture that stands for a video at rest: how many, and how many beside each other."""
MISSING = '<span class="no-picture">video is missing</span>'
SHOWN = 192
"""Pixels of a video's width on the page, at least."""
PAUSE = (
    '<button type="button" class="pause" hidden><span class="when-playing">Pause the videos</span>'
    '<span class="when-still">Play the videos</span></button>'
)
"""What pauses all videos of a page, and lets them play; without scripts they do as the reader's system is set to."""


def film(file: Path, budget: int, label: str) -> str:
    """The video as HTML, or a word why it isn't shown. file: WebP. budget: characters. label: what it shows, any text."""
    if not file.is_file():
        return MISSING
    data = file.read_bytes()
    if len(data) * 4 / 3 > budget:
        return f'<span class="no-picture">left out for size: {esc(file.name, 120)}</span>'
    try:
        shown = video.pictures(data, file.name)
    except UserError:
        return f'<span class="no-picture">not a video: {esc(file.name, 120)}</span>'
    still = _still(shown)
    width, height = shown[0][0].size
    css = " pixels" if width < SHOWN else ""
    wide = max(SHOWN, min(width, 2 * SHOWN))
    sizes = f'width="{wide}" alt="{esc(label, 300)}, {len(shown)} pictures of {width} by {height} pixels"'
    return (
        '<button type="button" class="picture film" aria-label="enlarge the video">'
        f'<img class="moving{css}" {sizes} src="data:image/webp;base64,{base64.b64encode(data).decode()}">'
        f'<img class="still{css}" {sizes} src="data:image/webp;base64,{base64.b64encode(still).decode()}"></button>'
    )


def _still(shown: list[tuple[Image, int]]) -> bytes:
    """A few moments in rows, as one small picture."""
    from PIL import Image

    width, height = shown[0][0].size
    scale = min(1.0, SHOWN / 2 / width)
    cell = (max(1, round(width * scale)), max(1, round(height * scale)))
    chosen = sorted({round(i * (len(shown) - 1) / (MOMENTS - 1)) for i in range(MOMENTS)})
    sheet = Image.new("RGBA", (cell[0] * COLUMNS, cell[1] * (1 + (len(chosen) - 1) // COLUMNS)))
    for i, number in enumerate(chosen):
        sheet.paste(shown[number][0].resize(cell), (i % COLUMNS * cell[0], i // COLUMNS * cell[1]))
    sheet.save(out := io.BytesIO(), "WEBP", quality=video.QUALITY)
    return out.getvalue()
