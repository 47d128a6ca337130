"""Files of videos that are broken, lie about themselves, or are no videos."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

import footages
from bad_images import encoded
from broken_bytes import broken

CODECS = {
    "a.mp4": "libx264",
    "old.mp4": "mpeg4",
    "a.mov": "libx264",
    "a.mkv": "libx264",
    "a.webm": "libvpx-vp9",
    "a.avi": "mpeg4",
    "a.ts": "mpeg2video",
    "a.flv": "flv",
}
"""Containers, and what codes their frames."""
CUTS = (0.01, 0.1, 0.5, 0.9)


def whole_videos(folder: Path) -> dict[str, bytes]:
    """Name -> a small video, one of each container."""
    pictures = footages.frames(12)
    made = {name: footages.write(folder / name, pictures, 8, codec).read_bytes() for name, codec in CODECS.items()}
    first, *others = [Image.fromarray(picture) for picture in pictures]
    return {**made, "a.gif": encoded(first, "GIF", save_all=True, append_images=others, duration=125)}


def video_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(name, file) of broken and lying videos. folder: for work."""
    whole = whole_videos(folder)
    for name, data in whole.items():
        for what, changed in broken(data, 40, name, CUTS):
            yield f"{what}, {name}", changed
    mp4, avi = whole["old.mp4"], whole["a.avi"]
    yield "an absurd duration.mp4", _patched(mp4, b"mvhd", 12, b"\0\0\0\1\xff\xff\xff\xff")
    yield "a duration of zero.mp4", _patched(mp4, b"mvhd", 12, bytes(8))
    yield "billions of times.mp4", _patched(mp4, b"stts", 8, b"\xff" * 8)
    yield "frames of 2 GB.mp4", _patched(mp4, b"stsz", 8, b"\x7f\xff\xff\xff" * 2)
    yield "65535 x 65535.mp4", _patched(mp4, b"mp4v", 28, b"\xff" * 4)
    yield "0 x 0.mp4", _patched(mp4, b"mp4v", 28, bytes(4))
    yield "an unknown codec.mp4", mp4.replace(b"mp4v", b"zzzz")
    yield "turned by nothing.mp4", _patched(mp4, b"tkhd", 44, bytes(36))
    yield "65535 x 65535.avi", _patched(avi, b"avih", 40, b"\xff\xff\0\0" * 2)
    yield "no time.avi", _patched(avi, b"avih", 8, bytes(4))
    yield "boxes in boxes.mp4", mp4[:32] + b"".join(struct.pack(">I", 8 * (3000 - n)) + b"moov" for n in range(3000))
    yield "100,000 boxes.mp4", mp4[:32] + (struct.pack(">I", 8) + b"free") * 100_000 + mp4[32:]
    yield "one frame.mp4", footages.write(folder / "one.mp4", footages.frames(1), 8, "mpeg4").read_bytes()
    yield "narrow.mkv", footages.write(folder / "narrow.mkv", footages.frames(2, 1024, 4), 8, "mpeg4").read_bytes()
    yield "fast.mkv", footages.write(folder / "fast.mkv", footages.frames(40), 65535, "mpeg4").read_bytes()
    yield "large.mkv", footages.write(folder / "large.mkv", np.zeros((1, 4200, 4200, 3), np.uint8), 8, "mpeg4").read_bytes()
    yield "only sound.mp4", _sound(folder / "sound.mp4")
    for name, text in {
        "a playlist": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        "a list of files": "ffconcat version 1.0\nfile '/etc/passwd'\n",
        "a list of addresses": "ffconcat version 1.0\nfile 'http://127.0.0.1:9/x'\n",
        "a session": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
        "a manifest": '<?xml version="1.0"?><MPD><Period><AdaptationSet><Representation><BaseURL>http://127.0.0.1:9/</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>",
        "subtitles": "1\n00:00:00,000 --> 00:00:01,000\nhi\n",
        "text": "x" * 1000,
        "nothing": "",
        "one letter": "x",
    }.items():
        yield f"{name}.mp4", text.encode()
        yield f"{name}.avi", text.encode()
    yield "noise.mp4", np.random.default_rng(0).bytes(50_000)


def odd_video_paths(folder: Path) -> Iterator[tuple[str, Any]]:
    """(what, path) of what is no file of a video: folders, pipes, devices, links, sparse files, odd values."""
    data = whole_videos(folder)["old.mp4"]
    os.mkfifo(folder / "pipe.mp4")
    yield "a pipe", folder / "pipe.mp4"
    yield "a folder", folder
    for name, target in {
        "zeros": "/dev/zero",
        "null": "/dev/null",
        "memory": "/proc/self/mem",
        "itself": "link itself.mp4",
    }.items():
        (folder / f"link {name}.mp4").symlink_to(target)
        yield f"a link to {name}", folder / f"link {name}.mp4"
    for name, size in {"3 GB": 3 * 2**30, "5 GB": 5 * 2**30}.items():
        for what, start in {"a video, then": data, "a video's start, then": data[:40], "": b""}.items():
            with open(folder / f"{what} {name}.mp4", "wb") as file:
                file.write(start)
                file.truncate(size)
            yield f"{what} zeros, {name}", folder / f"{what} {name}.mp4"
    (folder / "line\nbreak.mp4").write_bytes(b"x")
    yield "a line break", folder / "line\nbreak.mp4"
    yield "a line break, no file", str(folder / "line\nbroken.mp4")
    yield "a folder with a line break", _made(folder / "a\nb.mp4")
    for text in ("http://127.0.0.1:9/a.mp4", "file:/etc/passwd", "concat:/etc/passwd|/etc/hosts", "pipe:0", "-", "", "a\0.mp4"):
        yield repr(text), text
    yield "half a character", f"{folder}/\ud800.mp4"
    yield "a name that is too long", str(folder / ("n" * 300)) + ".mp4"
    yield "a URL with a line break", "http://127.0.0.1:9/a\nb.mp4"
    for value in (None, 7, float("nan"), b"a.mp4", ["a.mp4"], {}, np.zeros((2, 4, 4, 3), np.uint8)):
        yield f"a {type(value).__name__}", value


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _patched(data: bytes, box: bytes, after: int, value: bytes) -> bytes:
    """The file with a value some bytes after where a box's name begins."""
    at = data.index(box) + after
    return data[:at] + value + data[at + len(value) :]


def _sound(path: Path) -> bytes:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()
