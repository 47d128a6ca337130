"""Decode sounds into samples of one channel at a model's rate, and cache them. `mmrl.api.media.sound_files` opens the file."""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError, display_path
from mmrl.api.media.sound_files import read_samples
from mmrl.api.media.sounds import MAX_SECONDS, SoundClip, Waveform, as_sound, check_rate

if TYPE_CHECKING:
    import numpy as np

ZEROS, ROLLOFF = 6, 0.99
"""Zero crossings of the filter's sinc on either side, and its edge as a share of the lower of two Nyquist frequencies: the
defaults of torchaudio.transforms.Resample (`lowpass_filter_width`, `rolloff`)."""
BLOCK = 2**16
"""Samples that are computed at once."""
KEPT_BYTES = 2**26
"""Size of the cache of decoded sounds, in bytes."""


class Count:
    """Counter of decoded files."""

    files = 0
    """Files that this process has decoded so far."""


_KEPT: OrderedDict[Any, Waveform] = OrderedDict()
_LOCK = threading.Lock()


def heard(sound: Any, rate: int | None = None, most_s: float = MAX_SECONDS) -> Waveform:
    """The samples of a sound. Recently decoded files are cached, up to `KEPT_BYTES`.

    sound: a path, `SoundClip` or `Waveform`. rate: samples per second; by default the file's own. most_s: of a longer sound the
    first so many seconds are given.

    Raises UserError, which names the file, if it is missing, broken, cut off, too large, or of a kind that can't be read; also if
    the clip names times or a channel that the file doesn't have.
    """
    found = as_sound(sound)
    if rate is not None:
        check_rate("a model", rate)
    if isinstance(found, Waveform):
        kept = found.samples_T[: max(1, round(most_s * found.rate))]
        return resampled(found if len(kept) == len(found.samples_T) else replace(found, samples_T=kept), rate or found.rate)
    key = (found, rate, most_s, _stamp(found.path))
    with _LOCK:
        if key in _KEPT:
            _KEPT.move_to_end(key)
            return _KEPT[key]
    made = _decoded(found, rate, most_s)
    with _LOCK:
        _KEPT[key] = made
        while sum(w.samples_T.nbytes for w in _KEPT.values()) > KEPT_BYTES and len(_KEPT) > 1:
            _KEPT.popitem(last=False)
    return made


def clear_cache() -> None:
    """Empty the cache of decoded sounds."""
    with _LOCK:
        _KEPT.clear()


def _decoded(clip: SoundClip, rate: int | None, most_s: float) -> Waveform:
    import numpy as np

    samples_CT, own = read_samples(clip, most_s)
    Count.files += 1
    name = display_path(clip.path)
    if clip.channel is not None and clip.channel >= len(samples_CT):
        raise UserError(f"sound {name} has {len(samples_CT)} channels: there is no channel {clip.channel}")
    samples_T = samples_CT.mean(0) if clip.channel is None else samples_CT[clip.channel]
    if clip.silent:
        samples_T = np.zeros_like(samples_T)
    made = resampled(Waveform(samples_T=np.ascontiguousarray(samples_T), rate=own, name=name), rate or own)
    made.samples_T.flags.writeable = False
    return made


def resampled(sound: Waveform, rate: int) -> Waveform:
    """The sound at another rate, by a windowed sinc: a filter of `ZEROS` zero crossings under a Hann window, as torchaudio has it
    by default. Samples beyond the ends count as 0."""
    import numpy as np

    if rate == sound.rate:
        return sound
    common = math.gcd(rate, sound.rate)
    new, old = rate // common, sound.rate // common
    count = -(-len(sound.samples_T) * new // old)
    edge = ROLLOFF * min(new, old)  # twice the filter's edge, in cycles per `old` samples
    reach = math.ceil(ZEROS * old / edge)
    padded = np.pad(sound.samples_T, (reach, reach + 1))
    taps_K = np.arange(-reach, reach + 1)
    phases_P = np.arange(min(new, count))
    filter_PK = _windowed_sinc((taps_K - (phases_P * old % new)[:, None] / new) * edge / old) * (edge / old)
    filter_PK = filter_PK.astype(np.float32)
    made = np.empty(count, np.float32)
    for start in range(0, count, BLOCK):
        places_T = np.arange(start, min(start + BLOCK, count))
        near_TK = padded[(places_T * old // new)[:, None] + np.arange(2 * reach + 1)]
        made[start : start + BLOCK] = np.einsum("tk,tk->t", near_TK, filter_PK[places_T % new])
    return Waveform(samples_T=made, rate=rate, name=sound.name)


def _windowed_sinc(times: np.ndarray) -> np.ndarray:
    """times: in zero crossings from the filter's middle."""
    import numpy as np

    return np.sinc(times) * np.cos(np.clip(times, -ZEROS, ZEROS) * np.pi / ZEROS / 2) ** 2


def _stamp(path: str) -> tuple[int, int]:
    """(modification time in ns, size in bytes) of the file, a part of its key in the cache."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError for a path with NUL
        return (0, 0)  # opening the file raises the error
    return status.st_mtime_ns, status.st_size
