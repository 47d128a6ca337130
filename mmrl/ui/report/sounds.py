"""Sounds of a run folder as HTML: their loudness over time as SVG, and a player."""

from __future__ import annotations

from mmrl.ui.report.media_sources import MediaSource
from mmrl.ui.report.text import esc

HIGH, LEAST = 40, 1.0
"""Height of the drawing and least height of a column, in its own units; a column is one wide."""


def sound_html(pictures: MediaSource, path: str, label: str) -> str:
    """The sound as HTML, or the reason why it is not shown. label: what it is, not escaped."""
    sound = pictures.sound(path)
    if isinstance(sound, str):
        return f'<span class="no-picture">{esc(sound, 120)}</span>'
    loudest = max((max(-low, high) for low, high in sound.peaks), default=0.0) or 1.0
    columns = []
    for at, (low, high) in enumerate(sound.peaks):
        top, bottom = (HIGH / 2 * (1 - value / loudest) for value in (high, low))
        middle, tall = (top + bottom) / 2, max(bottom - top, LEAST)
        columns.append(f"M{at} {middle - tall / 2:.1f}h1v{tall:.1f}h-1z")
    seconds = f"{sound.duration_s:.1f} s"
    drawn = (
        f'<svg role="img" aria-label="sound: {esc(label, 300)}, {seconds}" viewBox="0 0 {len(sound.peaks)} {HIGH}" '
        f'preserveAspectRatio="none"><path d="{"".join(columns)}"/></svg>'
    )
    player = f'<audio controls preload="none" src="{esc(sound.src)}"></audio>' if sound.src else ""
    note = "" if sound.src else ", left out for size"
    return f'<figure class="sound">{drawn}{player}<figcaption>{esc(label, 300)}, {seconds}{note}</figcaption></figure>'
