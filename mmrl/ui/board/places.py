"""Which runs there are below a folder, and which of their files may be shown: nothing outside of it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmrl.api.errors import UserError
from mmrl.run_folder.reader import is_run

DEPTH = 4
"""Folders in folders that are looked through for runs."""
MEDIA = re.compile(
    r"(?:rollouts/media/[0-9a-zA-Z_-]{1,128}\.(?:png|webp)|episodes/step-\d{6,}/[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.webp)"
)
"""Files of a run folder that are pictures or videos, by the names that `record` makes."""


PARTS = ("rollouts", "rollouts/media", "evaluations", "episodes")
"""Folders of a run whose files are shown."""


class NotThere(Exception):
    """What was asked for is not among what may be shown. Says so in one line."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folder that the board was given: one of runs, or a run's own."""

    folder: Path
    """As it is without links."""

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Places:
        """Raises UserError when there is no such folder or it can't be read."""
        path = Path(folder)
        try:
            os.listdir(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}: give the folder that holds runs, such as runs/") from None
        return cls(path.resolve())

    def names(self) -> list[str]:
        """The runs, by their path below the folder; `.` where the folder itself is one's."""
        return sorted(name for name in self._found(self.folder, DEPTH) if _has_address(name))

    def _found(self, folder: Path, depth: int) -> Iterator[str]:
        if is_run(folder):
            yield folder.relative_to(self.folder).as_posix()
            return
        try:
            below = [
                entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            ]
        except OSError:  # a folder that vanished or that isn't ours to read holds no run that could be shown
            return
        if depth:
            for entry in below:
                yield from self._found(Path(entry.path), depth - 1)

    def run(self, name: str) -> Path:
        """The folder of a run. Raises NotThere for a name that isn't one's, however it is written."""
        parts = name.split("/")
        if name != "." and ("" in parts or ".." in parts or "." in parts or "\0" in name or "\\" in name):
            raise NotThere(f"{name!r:.200} is no name of a run")
        path = self.folder / name
        try:
            inside = path.resolve(strict=True) == path and is_run(path)
        except (OSError, ValueError):
            inside = False
        if not inside:
            raise NotThere(f"there is no run {name!r:.200} here; it may have been moved or removed")
        for part in PARTS:
            if (path / part).is_symlink():
                raise NotThere(f"{part}/ of {name} is a link, which is not followed: it may lead out of the runs")
        return path

    def media(self, name: str, path: str) -> Path:
        """A picture or video of a run. Raises NotThere for any other file, and for a link."""
        if not MEDIA.fullmatch(path):
            raise NotThere(f"{path!r:.200} is no picture or video of a run")
        file = self.run(name) / path
        try:
            if file.resolve(strict=True) == file and file.is_file():
                return file
        except OSError:
            pass
        raise NotThere(f"{path} is missing from {name}")


def _has_address(name: str) -> bool:
    """Whether a name can be told to a browser: not one whose bytes are no text."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def index_file(run: Path) -> Path:
    """Where the index of a run is kept: among the caches of whoever looks, since the run folder may not be theirs to write."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "mmrl" / "board" / f"{hashlib.sha256(os.fsencode(run)).hexdigest()[:24]}.sqlite"
