"""Sounds made by code: beeps, bells, drums and the like, and what is put together from them.

Samples are rounded to 16 bits, so that they are the same on every machine and as a file.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from mmrl.api.media.sounds import Waveform

RATE = 16_000
"""Samples per second."""
SOUNDS = ("a beep", "a buzz", "a hiss", "a rising whistle", "a falling whistle", "a bell", "a drum")
EDGE_S = 0.005
"""Seconds in which a sound begins and ends, without a click."""
LOUD = 0.5
"""Largest amplitude of a sound."""


def sound(name: str, seconds: float, draw: random.Random) -> np.ndarray:
    """float64 [T]: a sound of `SOUNDS`, in a pitch that is drawn."""
    times_T = _times(seconds)
    if name == "a beep":
        return tone(draw.uniform(500, 1200), seconds)
    if name == "a buzz":
        return _edged(2 * (draw.uniform(90, 160) * times_T % 1) - 1)
    if name == "a hiss":
        noise = np.random.Generator(np.random.PCG64(draw.getrandbits(64)))
        return _edged(noise.random(len(times_T)) * 2 - 1)
    if name in ("a rising whistle", "a falling whistle"):
        low, high = draw.uniform(400, 700), draw.uniform(1400, 2400)
        first, last = (low, high) if name == "a rising whistle" else (high, low)
        return _edged(np.sin(2 * np.pi * (first * times_T + (last - first) * times_T**2 / (2 * seconds))))
    if name == "a bell":
        pitch, partials = draw.uniform(500, 900), (1.0, 2.76, 5.4)  # of a bar that rings
        rung = [np.sin(2 * np.pi * pitch * p * times_T) * np.exp(-5 * p * times_T / seconds) / p for p in partials]
        return _edged(np.sum(rung, 0) / 1.5)
    if name == "a drum":
        pitch = draw.uniform(60, 100)
        return _edged(np.sin(2 * np.pi * (pitch * times_T + 0.4 * np.sin(20 * times_T))) * np.exp(-9 * times_T / seconds))
    raise ValueError(f"there is no sound {name!r}")


def tone(hertz: float, seconds: float) -> np.ndarray:
    """float64 [T]: a sine."""
    return _edged(np.sin(2 * np.pi * hertz * _times(seconds)))


def placed(parts: Sequence[tuple[float, np.ndarray]], seconds: float, draw: random.Random, noise: float = 0.0) -> Waveform:
    """A sound of this length in which parts begin at their times, in seconds, in a loudness that is drawn for all of them.

    noise: amplitude of a hiss over all of it."""
    whole_T = np.zeros(round(seconds * RATE))
    for start_s, part_T in parts:
        start = round(start_s * RATE)
        there = part_T[: len(whole_T) - start]
        whole_T[start : start + len(there)] += there
    whole_T *= LOUD * draw.uniform(0.5, 1)
    if noise:
        more = np.random.Generator(np.random.PCG64(draw.getrandbits(64)))
        whole_T += noise * (more.random(len(whole_T)) * 2 - 1)
    return Waveform(samples_T=(np.round(np.clip(whole_T, -1, 1) * 32767) / 32768).astype(np.float32), rate=RATE)


def _times(seconds: float) -> np.ndarray:
    return np.arange(round(seconds * RATE)) / RATE


def _edged(samples_T: np.ndarray) -> np.ndarray:
    ramp = min(round(EDGE_S * RATE), len(samples_T) // 2)
    rise = np.linspace(0, 1, ramp, endpoint=False)
    gain_T = np.ones(len(samples_T))
    gain_T[:ramp], gain_T[len(samples_T) - ramp :] = rise, rise[::-1]
    return samples_T * gain_T
