"""Open sound files safely: WAV by its own header, others by PyAV.

Sound files are untrusted input: what reading costs is checked on their headers first, only containers that hold their own samples
are opened, and every error becomes one line that names the file.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mmrl.api.errors import UserError, check_path, display_path, shorten
from mmrl.api.media.sounds import MAX_CHANNELS, MAX_SECONDS, SoundClip, check_rate
from mmrl.api.media.video_files import FORMATS as VIDEO_FORMATS
from mmrl.api.media.video_files import MAX_BYTES

if TYPE_CHECKING:
    import numpy as np

FORMATS = (*VIDEO_FORMATS, "wav", "w64", "flac", "mp3", "aac", "aiff", "au", "caf")
"""Containers that are opened, besides WAV. Not playlists and lists of files, which load other files."""
MAX_READ = 2**28
"""Most bytes of samples of all channels, as float32, that are read of one file."""
MAX_CHUNKS = 1000
"""Most chunks of a WAV file before its samples."""
SHORT_S = 0.1
"""A part may end so many seconds behind the file's end, since times of data sets are rounded."""
MAX_CPU = 60.0
"""Most processor time that decoding one file may take, in seconds."""
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN = (0, 0xFFFFFFFF)
"""Sizes of the samples in the header of a WAV file that a program wrote while it recorded."""


@dataclass(frozen=True, slots=True)
class _Wav:
    """The header of a WAV file."""

    floats: bool
    channels: int
    rate: int
    width: int
    """Bytes of a sample of one channel."""
    start: int
    """Place of the first sample in the file."""
    frames: int
    """Samples of each channel."""


def read_samples(clip: SoundClip, most_s: float) -> tuple[np.ndarray, int]:
    """(float32 [channels, T], samples per second) of a clip, of which the first `most_s` seconds are read.

    Raises UserError, which names the file, if it is missing, broken, cut off, too large, or if the clip names times that the file
    doesn't have."""
    where = _checked(clip.path)
    name = display_path(clip.path)
    try:
        with open(where, "rb") as file:
            head = file.read(12)
            if head[:4] == b"RIFF" and head[8:] == b"WAVE" and (wav := _header(file, name)):
                found = _wav_samples(file, name, wav, clip, most_s), wav.rate
            else:
                file.seek(0)
                found = _decoded(file, name, clip, most_s)
    except PermissionError:
        raise UserError(f"sound {name} can't be read: check its permissions") from None
    except OSError as error:
        raise _broken(name, error.strerror or type(error).__name__) from error
    import numpy as np

    if not np.isfinite(found[0]).all():
        raise UserError(f"sound {name} has samples that are no numbers: write it again")
    return found


def _checked(path: str) -> Path:
    if "://" in path:
        raise UserError(f"sound {path} is a URL: download it first, nothing is fetched while training")
    where = Path(path)
    try:
        there = where.exists()
    except (OSError, ValueError) as error:  # such as a name that is too long
        raise UserError(f"sound {path!r:.80} can't be looked up: {shorten(error, 60)}: check the path") from error
    name = display_path(path)
    if not there:
        raise UserError(f"sound {name} does not exist: {check_path(path)}")
    if not where.is_file():
        raise UserError(f"sound {name} is no file: give the path of one sound")
    size = where.stat().st_size
    if not size:
        raise UserError(f"sound {name} is empty, 0 bytes: download it again, or leave it out")
    if size > MAX_BYTES:
        raise UserError(f"sound {name} is too large, {size:,} bytes: at most {MAX_BYTES:,}")
    return where


def _broken(name: str, why: str) -> UserError:
    return UserError(f"sound {name} is broken or of an unknown kind ({why}): replace it by a WAV or FLAC file")


# -- WAV -----------------------------------------------------------------------------------------------------------------


def _header(file: BinaryIO, name: str) -> _Wav | None:
    """The header of a file that stands behind the name of its kind; None for a compressed one, which PyAV reads."""
    size = file.seek(0, 2)
    place, form = 12, b""
    for _ in range(MAX_CHUNKS):
        file.seek(place)
        head = file.read(8)
        if len(head) < 8:
            raise _broken(name, "it has no samples")
        kind, length = head[:4], struct.unpack("<I", head[4:])[0]
        if kind == b"fmt ":
            form = file.read(min(length, 40))
        elif kind == b"data":
            return _wav(form, name, place + 8, size, length)
        place += 8 + length + length % 2
    raise _broken(name, f"it has more than {MAX_CHUNKS} chunks")


def _wav(form: bytes, name: str, start: int, size: int, length: int) -> _Wav | None:
    """form: the chunk that says what the samples are. start: place of the samples. size: of the file. length: of the samples, as
    the header says."""
    if len(form) < 16:
        raise _broken(name, "it doesn't say what its samples are")
    kind, channels, rate, _, block, bits = struct.unpack("<HHIIHH", form[:16])
    if kind == _EXTENSIBLE and len(form) >= 26:
        kind = struct.unpack("<H", form[24:26])[0]
    widths = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}.get(kind)
    if widths is None:
        return None
    check_rate(f"sound {name}", rate)
    if not 1 <= channels <= MAX_CHANNELS:
        raise UserError(f"sound {name} has {channels} channels: mix them to at most {MAX_CHANNELS}")
    if bits not in widths or block != channels * bits // 8:
        raise _broken(name, f"samples of {bits} bits in blocks of {block} bytes for {channels} channels")
    if length in _UNKNOWN:
        length = size - start
    if start + length > size:
        raise UserError(f"sound {name} was cut off: {size - start:,} of {length:,} bytes of samples are there: download it again")
    return _Wav(kind == _FLOAT, channels, rate, bits // 8, start, length // block)


def _span(name: str, clip: SoundClip, rate: int, total: int | None, most_s: float) -> tuple[int, int]:
    """(first sample, one past the last) of a clip. total: samples of the file, None if unknown."""
    first = round(clip.start_s * rate)
    last = total if clip.end_s is None else round(clip.end_s * rate)
    if total is not None and (first >= total or (last or 0) > total + SHORT_S * rate):
        end = "its end" if clip.end_s is None else f"{clip.end_s:g} s"
        raise UserError(f"sound {name} has {total / rate:.2f} s: there is no part from {clip.start_s:g} s to {end}")
    most = first + max(1, round(min(most_s, MAX_SECONDS) * rate))
    if last is None:
        last = most
    return first, min(last, most, last if total is None else total)


def _wav_samples(file: BinaryIO, name: str, wav: _Wav, clip: SoundClip, most_s: float) -> np.ndarray:
    import numpy as np

    if not wav.frames:
        raise UserError(f"sound {name} has no samples, 0 s: leave it out")
    first, last = _span(name, clip, wav.rate, wav.frames, most_s)
    _refuse_size(name, (last - first) * wav.channels)
    block = wav.width * wav.channels
    file.seek(wav.start + first * block)
    data = np.frombuffer(file.read((last - first) * block), np.uint8)
    if wav.floats:
        values: Any = data.view("<f4" if wav.width == 4 else "<f8").astype(np.float32)
    elif wav.width == 1:
        values = (data.astype(np.float32) - 128) / 128
    elif wav.width == 3:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = data.reshape(-1, 3)
        values = (wide.reshape(-1).view("<i4") / 2**31).astype(np.float32)
    else:
        values = (data.view(f"<i{wav.width}") / 2 ** (8 * wav.width - 1)).astype(np.float32)
    return np.ascontiguousarray(values.reshape(-1, wav.channels).T)


def _refuse_size(name: str, values: int) -> None:
    if 4 * values > MAX_READ:
        raise UserError(f"sound {name} is too much memory, {values:,} samples of all channels: cut it, or mix its channels")


# -- other files, by PyAV ------------------------------------------------------------------------------------------------


def _decoded(file: BinaryIO, name: str, clip: SoundClip, most_s: float) -> tuple[np.ndarray, int]:
    try:
        import av
    except ModuleNotFoundError:
        raise UserError('sounds other than WAV need av: pip install "multimodal-rl[train]"') from None

    try:
        with av.open(file, options={"format_whitelist": ",".join(FORMATS)}) as container:
            if not container.streams.audio:
                raise UserError(f"sound {name} holds no sound{', only pictures' * bool(container.streams.video)}: leave it out")
            stream = container.streams.audio[0]
            if stream.codec_context is None:
                raise _broken(name, "coded in a way that can't be read")
            check_rate(f"sound {name}", stream.codec_context.sample_rate)
            return _of_stream(container, stream, name, clip, most_s), stream.codec_context.sample_rate
    except UserError:
        raise
    except (av.FFmpegError, ValueError, OverflowError, MemoryError) as error:
        raise _broken(name, getattr(error, "strerror", None) or type(error).__name__) from error


def _of_stream(container: Any, stream: Any, name: str, clip: SoundClip, most_s: float) -> np.ndarray:
    """The samples of a clip, all from the file's first one on decoded: seeking is not exact in all formats."""
    import av
    import numpy as np

    rate = stream.codec_context.sample_rate
    stream.codec_context.options = {"err_detect": "explode"}
    first, last = _span(name, clip, rate, None, most_s)
    planes, deadline, there, channels = av.AudioResampler(format="fltp"), time.thread_time() + MAX_CPU, 0, 0
    kept: list[np.ndarray] = []
    for frame in container.decode(stream):
        if time.thread_time() > deadline:
            raise UserError(f"sound {name} takes more than {MAX_CPU:g} s to decode: cut it")
        channels = channels or frame.layout.nb_channels
        if frame.layout.nb_channels != channels or channels > MAX_CHANNELS or frame.sample_rate != rate:
            raise UserError(f"sound {name} has {frame.layout.nb_channels} channels at {frame.sample_rate} Hz: encode it again")
        for one in planes.resample(frame):
            values_CT = one.to_ndarray()
            kept.append(values_CT[:, max(0, first - there) : max(0, last - there)].copy())
            there += values_CT.shape[1]
        _refuse_size(name, max(0, min(there, last) - first) * channels)
        if there >= last:
            break
    else:  # all of the file was decoded, so that its length is known
        if not there:
            raise UserError(f"sound {name} has no samples, 0 s: leave it out")
        _span(name, clip, rate, there, most_s)
    return np.concatenate(kept, 1)
