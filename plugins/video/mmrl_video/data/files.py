"""The files of clips, and what is known of them before decoding."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mmrl.api.errors import display_path, shorten
from mmrl.api.media.clips import FASTEST, SLOWEST
from mmrl.api.media.picture_folders import folder_info
from mmrl.api.media.video_files import probe
from mmrl.api.tasks.tables import resolve_image
from mmrl_video.pretext.sources import SUFFIXES

KEPT = 2**16
"""Maximum of files whose duration is cached."""


class Known(NamedTuple):
    """Facts from a file's packets."""

    duration_s: float
    frames: int


@dataclass
class Folder:
    """A folder of clips. Names are looked up in it; a bare name also in its subfolders."""

    path: str
    _below: dict[str, list[str]] | None = field(default=None, init=False)

    def find(self, name: Any) -> str:
        """The file, or the folder of pictures, of a name, with or without its suffix: `AO8RW`, `1106/401.mp4`.

        Raises ValueError for an invalid name, and if there is no such clip, or more than one.
        """
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"its clip is {name!r:.60} and not the name of a file")
        if "://" in name:
            raise ValueError(f"its clip {name!r:.80} is a URL: download it first, nothing is fetched while training")
        direct = resolve_image("", name, self.path)
        try:
            for path in (direct, *(f"{direct}{suffix}" for suffix in SUFFIXES)):
                if os.path.exists(path):
                    return str(path)
            found = self._elsewhere(name)
        except (OSError, ValueError) as error:  # too long a name, a NUL
            raise ValueError(f"its clip {name!r:.60} can't be looked up: {shorten(error, 60)}") from error
        if len(found) > 1:
            raise ValueError(f"its clip {name!r:.60} exists several times, as {' and '.join(map(display_path, found[:2]))}")
        if not found:
            raise ValueError(f"there is no clip {name!r:.80} in {display_path(self.path)}")
        return found[0]

    def _elsewhere(self, name: str) -> list[str]:
        if "/" in name:
            return []
        if self._below is None:
            self._below = {}
            for parent, _, names in os.walk(Path(self.path).expanduser()):
                for one in names:
                    stem, suffix = os.path.splitext(one)
                    if suffix.lower() in SUFFIXES:
                        for known in (one, stem):
                            self._below.setdefault(known, []).append(os.path.join(parent, one))
        return self._below.get(name, [])


def rate_of(value: Any) -> float | None:
    """A number of pictures per second; None for anything else."""
    is_rate = isinstance(value, int | float) and not isinstance(value, bool) and SLOWEST <= value <= FASTEST
    return float(value) if is_rate else None


def known(path: str, rate: float | None = None) -> Known:
    """How long a clip is. Its packets are read once, as long as the file stays the same. rate: pictures per second of a folder.

    Raises UserError, which names the file, for one that can't be read or has no pictures.
    """
    if rate is not None:
        facts = folder_info(path, rate)
        return Known(facts.duration_s, facts.frames)
    try:
        stat = os.stat(path)
    except OSError:
        return _probed(path, 0, 0)  # opening it reports the error
    return _probed(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=KEPT)
def _probed(path: str, changed: int, size: int) -> Known:
    facts = probe(path)
    return Known(facts.duration_s, facts.frames)
