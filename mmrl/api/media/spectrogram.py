"""A picture of a sound for people: its samples over time, and below them how loud which pitch is."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from mmrl.api.media.sounds import Waveform

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

WINDOW = 512
"""Samples of which the pitches are found at once."""
QUIET_DB = -70.0
"""Loudness, below the loudest of the picture, that has the colour of silence."""
LOW, HIGH = 60.0, 8000.0
"""Pitches at the lower and upper edge, in hertz; the scale is logarithmic."""
COLOURS = ((0.0, (250, 250, 252)), (0.35, (176, 205, 240)), (0.7, (42, 111, 219)), (1.0, (26, 29, 60)))
"""Share of the loudest -> RGB, with a straight line between two."""
WAVE = 0.3
"""Share of the height that the samples take."""


def sound_picture(sound: Waveform, width: int, height: int) -> Image:
    """An RGB image of this size. sound: not changed; a short one is filled up with silence."""
    import numpy as np
    from PIL import Image

    top = round(WAVE * height)
    whole = np.empty((height, width, 3), np.uint8)
    whole[:top], whole[top:] = _wave(sound.samples_T, width, top), _pitches(sound, width, height - top)
    return Image.fromarray(whole)


def _wave(samples_T: np.ndarray, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3]: lowest to highest sample of each column."""
    import numpy as np

    loudest = float(np.abs(samples_T).max()) or 1.0
    edges = np.linspace(0, len(samples_T), width + 1).astype(int)
    parts = [samples_T[a : max(b, a + 1)] for a, b in itertools.pairwise(edges)]
    high_W, low_W = (np.array([np.max(s * p) if len(p) else 0 for p in parts]) * s for s in (1, -1))
    places_H1 = np.linspace(1, -1, height)[:, None] * loudest
    inside = (places_H1 <= high_W + loudest / height) & (places_H1 >= low_W - loudest / height)
    return np.where(inside[..., None], COLOURS[2][1], (255, 255, 255)).astype(np.uint8)


def _pitches(sound: Waveform, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3]: a spectrogram with a logarithmic scale of pitches, the lowest below."""
    import numpy as np

    samples_T = np.pad(sound.samples_T, (WINDOW // 2, WINDOW // 2))
    starts_W = np.linspace(0, len(sound.samples_T), width).astype(int)
    frames_WN = samples_T[np.minimum(starts_W, len(samples_T) - WINDOW)[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW)
    power_WF = np.abs(np.fft.rfft(frames_WN)) ** 2
    pitches_H = np.geomspace(min(HIGH, sound.rate / 2), LOW, height)
    bins_H = np.clip(np.round(pitches_H * WINDOW / sound.rate).astype(int), 0, WINDOW // 2)
    loud_HW = 10 * np.log10(power_WF.T[bins_H] + 1e-12)
    share_HW = np.clip(1 - (loud_HW - max(loud_HW.max(), -60)) / QUIET_DB, 0, 1)
    shares = [share for share, _ in COLOURS]
    channels = [np.interp(share_HW, shares, [colour[k] for _, colour in COLOURS]) for k in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)
