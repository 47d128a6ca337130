"""Videos of a run folder as HTML. They play in a loop; while paused and in print, a sheet of a few frames replaces each."""

from __future__ import annotations

from mmrl.ui.report.media_sources import PIXELATED, SHOWN, MediaSource, whole_multiple
from mmrl.ui.report.text import esc

PAUSE = (
    '<button type="button" class="pause" hidden><span class="when-playing">Pause the videos</span>'
    '<span class="when-still">Play the videos</span></button>'
)
"""Button that pauses and plays all videos of a page; without scripts the reader's reduced-motion setting decides."""


def video_html(pictures: MediaSource, path: str, label: str) -> str:
    """The video as HTML, or the reason why it is not shown. label: its alternative text, not escaped."""
    video = pictures.film(path)
    if isinstance(video, str):
        return f'<span class="no-picture">{esc(video, 120)}</span>'
    small = video.width < PIXELATED
    css, wide = (" pixels", whole_multiple(video.width, SHOWN)) if small else ("", max(SHOWN, min(video.width, 2 * SHOWN)))
    alt = f"{esc(label, 300)}, {video.count} frames of {video.width} by {video.height} pixels"
    sizes = f'width="{wide}" alt="{alt}"'
    if video.frames:
        steps = f'data-src="{esc(video.frames)}" data-frames="{video.count}" data-ms="{",".join(map(str, video.ms))}"'
        return (
            f'<figure class="player" {steps}><img class="{css.strip()}" {sizes} src="{esc(video.src)}" loading="lazy"></figure>'
        )
    return (
        '<button type="button" class="picture film" aria-label="enlarge the video">'
        f'<img class="moving{css}" {sizes} src="{esc(video.src)}">'
        f'<img class="still{css}" {sizes} src="{esc(video.rest)}"></button>'
    )
