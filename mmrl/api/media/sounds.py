"""Sounds: which part of a file is heard, or samples that a task made. `mmrl.api.media.hearing` decodes them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    import numpy as np

MIN_RATE, MAX_RATE = 1000, 192_000
"""Least and largest number of samples per second."""
MAX_CHANNELS = 32
MAX_SECONDS = 600.0
"""Longest sound that is decoded, in seconds; of a longer file a part is."""
LOUDEST = 1e3
"""Largest absolute value of a sample; the loudest one of a file of whole numbers is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundClip:
    """A part of a sound file, or of the sound of a video file. It is decoded on use, and always gives the same samples."""

    path: str
    """Path of the file."""
    start_s: float = 0.0
    """Start, in seconds of the file."""
    end_s: float | None = None
    """End, in seconds of the file; by default the end of the file. A later end is an error."""
    channel: int | None = None
    """The channel that is heard, from 0; by default the mean of all."""
    silent: bool = False
    """Hear silence of the same length."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise UserError(f"sound {self.path!r:.60}: path must be a text, the path of a file")
        for name in ("start_s", "end_s", "channel"):
            value, whole = getattr(self, name), name == "channel"
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral if whole else Real)):
                raise UserError(f"sound {self.path}: {name} = {value!r:.60} must be a {'whole ' if whole else ''}number")
        if not 0 <= self.start_s < math.inf or (self.end_s is not None and not self.start_s < self.end_s < math.inf):
            raise UserError(
                f"sound {self.path}: start_s = {self.start_s!r}, end_s = {self.end_s!r}: give 0 <= start_s < end_s, in seconds"
            )
        if self.channel is not None and not 0 <= self.channel < MAX_CHANNELS:
            raise UserError(f"sound {self.path}: channel = {self.channel!r} must be 0 to {MAX_CHANNELS - 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waveform:
    """The samples of a sound with one channel: a decoded clip, or a sound that a task made."""

    samples_T: np.ndarray
    """float32 [T], from -1 to 1."""
    rate: int
    """Samples per second."""
    name: str = ""
    """Name of the file, for error messages."""

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return len(self.samples_T) / self.rate


def as_sound(sound: Any) -> SoundClip | Waveform:
    """The sound of a message as a `SoundClip` or `Waveform`; a path stands for the whole file. Raises UserError otherwise, and
    for samples that are no sound."""
    if isinstance(sound, str | os.PathLike):
        return SoundClip(path=os.fspath(sound))
    if isinstance(sound, SoundClip):
        return sound
    if not isinstance(sound, Waveform):
        raise UserError(f"{sound!r:.60} is no sound: give a path, or a SoundClip or Waveform of mmrl.api.media.sounds")
    check_samples(sound)
    return sound


def check_samples(sound: Waveform) -> None:
    """Raise UserError for samples that are no float32 [T], not finite, too many or none, or for an impossible rate."""
    import numpy as np

    name, found, rate = f"sound {sound.name}".rstrip(), sound.samples_T, sound.rate
    check_rate(name, rate)
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype != np.float32:
        shape = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise UserError(f"{name}: its samples are {shape}, not float32 [T] of numpy: convert them, and take one channel")
    if not len(found):
        raise UserError(f"{name} has no samples, 0 s: leave it out")
    if len(found) > MAX_SECONDS * rate:
        raise UserError(f"{name} is too long, {len(found) / rate:,.0f} s: cut it to at most {MAX_SECONDS:g} s")
    loudest = float(np.abs(found).max())
    if not loudest <= LOUDEST:
        raise UserError(f"{name}: its loudest sample is {loudest:.4g}, and samples are numbers from -1 to 1: scale them")


def check_rate(name: str, rate: Any) -> None:
    """Raise UserError for a number of samples per second that no sound has. name: of the sound, with its kind."""
    if isinstance(rate, bool) or not isinstance(rate, Integral) or not MIN_RATE <= int(rate) <= MAX_RATE:
        raise UserError(f"{name}: rate = {rate!r:.60} must be {MIN_RATE:,} to {MAX_RATE:,} samples per second: convert it")


def silence(sound: Any) -> SoundClip | Waveform:
    """A sound of the same length in which nothing is heard."""
    import numpy as np

    found = as_sound(sound)
    if isinstance(found, SoundClip):
        return replace(found, silent=True)
    return replace(found, samples_T=np.zeros_like(found.samples_T))
