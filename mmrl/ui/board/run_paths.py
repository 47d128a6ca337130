"""Finds the runs below a folder, and allows access only to their media, never to files outside the folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mmrl.api.errors import UserError
from mmrl.run_folder.reader import is_run

DEPTH = 4
"""Levels of subfolders that are searched for runs."""
FOLDERS, LISTED = 50_000, 1000
"""Largest number of folders that are searched for runs, and of runs that are listed."""
MEDIA = re.compile(
    r"(?:rollouts/media/[0-9a-zA-Z_-]{1,128}\.(?:png|webp|wav)|episodes/step-\d{6,}/[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.webp)"
)
"""Names of images, videos and sounds in a run folder, as `mmrl.run_folder.writer` writes them."""
PARTS = ("rollouts", "rollouts/media", "evaluations", "episodes")
"""Subfolders of a run whose files are shown."""


class NotFound(Exception):
    """The requested run or file does not exist or may not be shown; the message is one line."""


class NotShown(NotFound):
    """The requested run exists, and its folder is one that is not shown."""


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The board's folder, which contains runs or is a run folder itself."""

    folder: Path
    """Its resolved path."""

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> RunPaths:
        """The places below a folder. Raises UserError if it does not exist or is unreadable."""
        path = Path(folder)
        try:
            os.listdir(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}: give the folder that holds runs, such as runs/") from None
        return cls(path.resolve())

    def names(self) -> list[str]:
        """The runs that are listed, by their path below the folder, sorted; `.` if the folder itself is a run."""
        return self.listed()[0]

    def listed(self) -> tuple[list[str], str]:
        """(the runs that are listed, sorted; what is left out as a sentence, empty for nothing). Of more than `LISTED` runs these
        are the newest ones."""
        found, complete = self._found()
        names = [name for name in found if _has_address(name)]
        left = [] if complete else [f"Only the first {FOLDERS:,} folders were searched for runs."]
        if len(names) > LISTED:
            left.append(
                f"The newest {LISTED:,} of {len(names):,} runs are listed: open the board on a folder below to see others."
            )
            names = sorted(names, key=lambda name: _changed(self.folder / name), reverse=True)[:LISTED]
        return sorted(names), " ".join(left)

    def _found(self) -> tuple[list[str], bool]:
        """(the runs below the folder, whether all folders were searched), level by level."""
        names: list[str] = []
        level, searched = [self.folder], 0
        for _ in range(DEPTH + 1):
            below: list[Path] = []
            for folder in level:
                searched += 1
                if searched > FOLDERS:
                    return names, False
                if is_run(folder):
                    names.append(folder.relative_to(self.folder).as_posix())
                else:
                    below += islice(_folders(folder), FOLDERS + 1 - len(below))
            level = below
        return names, True

    def run(self, name: str) -> Path:
        """The folder of a run. Raises NotThere for any other name, such as one with `..`."""
        parts = name.split("/")
        if name != "." and ("" in parts or ".." in parts or "." in parts or "\0" in name or "\\" in name):
            raise NotFound(f"{name!r:.200} is not a run's name")
        path = self.folder / name
        try:
            inside = path.resolve(strict=True) == path and is_run(path)
        except (OSError, ValueError):
            inside = False
        if not inside:
            raise NotFound(f"there is no run {name!r:.200} here; it may have been moved or removed")
        for part in PARTS:
            if (path / part).is_symlink():
                raise NotShown(f"{part}/ of {name} is a symbolic link, which the board does not follow")
        return path

    def media(self, name: str, path: str) -> Path:
        """The file of an image, video or sound of a run. Raises NotThere for any other file, and for a symbolic link."""
        if not MEDIA.fullmatch(path):
            raise NotFound(f"{path!r:.200} is not an image, video or sound of a run")
        file = self.run(name) / path
        try:
            if file.resolve(strict=True) == file and file.is_file():
                return file
        except OSError:
            pass
        raise NotFound(f"{path} is missing from {name}")


def _folders(folder: Path) -> Iterator[Path]:
    """The subfolders of a folder; none if it has vanished or is unreadable."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield Path(entry.path)


def _changed(run: Path) -> float:
    """When a run last wrote metrics, or was made."""
    for file in (run / "metrics.jsonl", run):
        with contextlib.suppress(OSError):
            return os.lstat(file).st_mtime
    return 0.0


def _has_address(name: str) -> bool:
    """Whether a name is valid text, so that it can be part of an address."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def index_file(run: Path) -> Path:
    """The index file of a run, in the user's cache folder, since the run folder may not be writable."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "mmrl" / "board" / f"{hashlib.sha256(os.fsencode(run)).hexdigest()[:24]}.sqlite"
