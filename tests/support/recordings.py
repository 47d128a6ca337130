"""Sound files for tests, whole and broken."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE


def tone(seconds: float = 0.5, rate: int = 16_000, hertz: float = 440.0) -> np.ndarray:
    """float64 [T]"""
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def header(kind: int, channels: int, rate: int, bits: int, length: int, *, extra: bytes = b"", before: bytes = b"") -> bytes:
    """Of a WAV file. length: bytes of samples. extra: more of the chunk of the form. before: chunks before it."""
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * block % 2**32, block % 2**16, bits) + extra
    chunks = before + b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", length)
    return b"RIFF" + struct.pack("<I", 4 + len(chunks) + min(length, 2**32 - 100 - len(chunks))) + b"WAVE" + chunks


def wav(samples_CT: np.ndarray, rate: int = 16_000, bits: int = 16, kind: int = PCM) -> bytes:
    """A WAV file of samples from -1 to 1, float64 [C, T]."""
    flat = samples_CT.T.reshape(-1)
    if kind == FLOAT:
        data = flat.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = np.round(flat * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(flat * (2 ** (bits - 1) - 1)).astype("<i8")
        data = whole.view(np.uint8).reshape(-1, 8)[:, : bits // 8].tobytes()
    return header(kind, len(samples_CT), rate, bits, len(data)) + data


def encoded(path: Path, samples_T: np.ndarray, codec: str, rate: int = 16_000) -> Path:
    """A file of another kind, by PyAV; its suffix says which."""
    import av

    with av.open(str(path), "w") as box:
        stream = box.add_stream(codec, rate=rate)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.round(samples_T * 32767).astype(np.int16)[None], format="s16", layout="mono")
        frame.rate = rate
        fitted = av.AudioResampler(format=stream.format.name, layout="mono", rate=rate, frame_size=stream.frame_size or 1024)
        for part in [*fitted.resample(frame), *fitted.resample(None)]:
            box.mux(stream.encode(part))
        box.mux(stream.encode())
    return path


def bad(folder: Path) -> dict[str, tuple[Path, str]]:
    """Name -> (a file that can't be heard, what is said about it)."""
    whole = wav(tone()[None])
    most = 2**32 - 1
    files = {
        "empty": (b"", "is empty, 0 bytes: download it again"),
        "cut off": (whole[:-1000], r"was cut off: 15,000 of 16,000 bytes of samples are there: download it again"),
        "no samples": (header(PCM, 1, 16_000, 16, 0)[:-8], "it has no samples"),
        "no form": (b"RIFF\x10\0\0\0WAVEdata\x04\0\0\0\0\0\0\0", "it doesn't say what its samples are"),
        "of length zero": (wav(np.zeros((1, 0))), "has no samples, 0 s: leave it out"),
        "too slow": (wav(tone()[None], rate=10), r"rate = 10 must be 1,000 to 192,000 samples per second"),
        "too fast": (wav(tone()[None], rate=10**6), r"rate = 1000000 must be 1,000 to 192,000"),
        "no channels": (header(PCM, 0, 16_000, 16, 4) + bytes(4), "has 0 channels: mix them to at most 32"),
        "many channels": (header(PCM, 40_000, 16_000, 16, 4) + bytes(4), "has 40000 channels: mix them to at most 32"),
        "odd bits": (header(PCM, 1, 16_000, 12, 4) + bytes(4), "samples of 12 bits in blocks of 1 bytes for 1 channels"),
        "not finite": (wav(np.full((1, 100), np.nan), bits=32, kind=FLOAT), "has samples that are no numbers: write it again"),
        "text": (b"a sound\n" * 100, "is broken or of an unknown kind"),
        "a playlist": (b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", "is broken or of an unknown kind"),
        "chunks without end": (b"RIFF\xff\0\0\0WAVE" + b"junk\0\0\0\0" * 2000, "it has more than 1000 chunks"),
        "an hour of channels": (
            header(PCM, 32, 192_000, 8, 32 * 192_000 * 100) + bytes(10),
            "was cut off",
        ),
        "a header that promises all": (header(PCM, 1, 16_000, 16, most - 1) + bytes(10), "was cut off"),
    }  # fmt: skip
    made = {}
    for name, (data, why) in files.items():
        path = folder / f"{name}.wav"
        path.write_bytes(data)
        made[name] = (path, why)
    return made
