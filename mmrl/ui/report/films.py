"""Videos of a run folder on a page. They play round and round; at rest, and in print, a few moments stand for each."""

from __future__ import annotations

from mmrl.ui.report.sources import SHOWN, Pictures
from mmrl.ui.report.text import esc

PAUSE = (
    '<button type="button" class="pause" hidden><span class="when-playing">Pause the videos</span>'
    '<span class="when-still">Play the videos</span></button>'
)
"""What pauses all videos of a page, and lets them play; without scripts they do as the reader's system is set to."""


def film(pictures: Pictures, path: str, label: str) -> str:
    """The video as HTML, or a word why it isn't shown. label: what it shows, any text."""
    found = pictures.film(path)
    if isinstance(found, str):
        return f'<span class="no-picture">{esc(found, 120)}</span>'
    css = " pixels" if found.width < SHOWN else ""
    wide = max(SHOWN, min(found.width, 2 * SHOWN))
    what = f"{esc(label, 300)}, {found.count} pictures of {found.width} by {found.height} pixels"
    sizes = f'width="{wide}" alt="{what}"'
    if found.frames:
        steps = f'data-src="{esc(found.frames)}" data-frames="{found.count}" data-ms="{",".join(map(str, found.ms))}"'
        return (
            f'<figure class="player" {steps}><img class="{css.strip()}" {sizes} src="{esc(found.src)}" loading="lazy"></figure>'
        )
    return (
        '<button type="button" class="picture film" aria-label="enlarge the video">'
        f'<img class="moving{css}" {sizes} src="{esc(found.src)}">'
        f'<img class="still{css}" {sizes} src="{esc(found.rest)}"></button>'
    )
