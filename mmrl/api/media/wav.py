"""Sounds as WAV files, which browsers and endpoints play."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError, shorten

if TYPE_CHECKING:
    import numpy as np

LONGEST_S = 30.0
"""Of a longer sound the first so many seconds are kept in a run folder."""
RATE = 16_000
"""Most samples per second that are written."""
_WIDTH = 2
"""Bytes of a sample."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A sound of a file of `encode_wav`."""

    samples_T: np.ndarray
    """float32 [T], from -1 to 1."""
    rate: int

    @property
    def duration_s(self) -> float:
        return len(self.samples_T) / self.rate

    def peaks(self, count: int) -> list[tuple[float, float]]:
        """(lowest, highest) sample of each of `count` parts of the sound, of fewer for a very short one."""
        import numpy as np

        parts = np.array_split(self.samples_T, min(count, len(self.samples_T)))
        return [(float(part.min()), float(part.max())) for part in parts]


def encode_wav(sound: Any, most_s: float = LONGEST_S) -> bytes:
    """The bytes of a file of a sound with 16 bits, one channel and at most `RATE` samples a second; samples beyond 1 are cut.
    most_s: of a longer sound the first so many seconds are written."""
    import numpy as np

    from mmrl.api.media.hearing import heard, resampled

    found = heard(sound, most_s=most_s)
    found = resampled(found, min(found.rate, RATE))
    with wave.open(out := io.BytesIO(), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(_WIDTH)
        file.setframerate(found.rate)
        file.writeframes(np.round(np.clip(found.samples_T, -1, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def decode_wav(data: bytes, what: str = "sound") -> Recorded:
    """The samples of a file of `encode_wav`. what: its name, for errors. Raises UserError for any other file."""
    import numpy as np

    try:
        with wave.open(io.BytesIO(data)) as file:
            if file.getnchannels() != 1 or file.getsampwidth() != _WIDTH or not 0 < file.getframerate() <= RATE:
                raise wave.Error("another number of channels, bits or samples")
            samples = np.frombuffer(file.readframes(round(LONGEST_S * RATE) + 1), "<i2")
            if not 0 < len(samples) <= LONGEST_S * RATE:
                raise wave.Error("no samples, or too many")
            return Recorded(samples.astype(np.float32) / 32768, file.getframerate())
    except (wave.Error, EOFError, ValueError) as error:
        raise UserError(f"{what} is no sound of a run ({shorten(error, 80)}): remove it") from error
