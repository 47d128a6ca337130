"""Data sets in LeRobot's format, versions 2 and 3: tables of steps in Parquet, with pictures in them or in videos.

The files in `meta` are checked at once; an episode is read when one of its steps is used, and its errors are UserErrors in one
line that name the file.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from mmrl import UserError
from mmrl.api.errors import display_path, shorten
from mmrl_robotics import columns
from mmrl_robotics.pictures import Pictures

INFO, TASKS, EPISODES = "meta/info.json", "meta/tasks", "meta/episodes"
INDICES = ("episode_index", "frame_index", "task_index", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The files of an episode."""

    index: int
    length: int
    """Number of steps."""
    table: Path
    shared: bool
    """Whether its file has other episodes too."""
    videos: Mapping[str, tuple[Path, float]]
    """Key of a camera -> its video, and the time in seconds at which the episode begins in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """States and actions of an episode of T steps."""

    state_TS: torch.Tensor | None
    actions_TA: torch.Tensor
    times_T: list[float]
    instructions_T: list[str]
    more: Mapping[str, torch.Tensor]
    """Key -> float32 [T], of `DataSet.more`."""

    @property
    def bytes(self) -> int:
        state = 0 if self.state_TS is None else self.state_TS.numel()
        return 4 * (state + self.actions_TA.numel() + len(self.more) * len(self.times_T)) + 64 * len(self.times_T)


class DataSet:
    """A folder with a data set, with a cache of bounded size."""

    def __init__(
        self,
        folder: str | Path,
        *,
        state: str,
        action: str,
        cameras: Mapping[str, str] | None,
        cache_mb: int,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """state, action: keys of the data set, state empty for none. cameras: name -> key; None for all, each under the last part
        of its key. cache_mb: size of the cache of numbers and undecoded pictures. more: option that names it -> key of a number
        or a bool of each step that is read, too."""
        self.folder = Path(folder).expanduser()
        self.info = _info(self.folder)
        self.version, self.features = _version(self.folder, self.info), self.info["features"]
        known = [key for key, feature in self.features.items() if feature.get("dtype") in ("image", "video")]
        self.cameras = {key.rpartition(".")[2]: key for key in known} if cameras is None else dict(cameras)
        if cameras is None and len(self.cameras) < len(known):
            raise UserError(
                f"{self._named(INFO)}: its cameras {', '.join(known)} have equal last parts: name them with the option cameras"
            )
        self.state, self.action, self.more = state, action, tuple(more.values())
        for option, key in [*([("state", state)] if state else []), ("action", action), *more.items()]:
            self._has(option, key, [k for k in self.features if k not in known and k not in (*INDICES, "index")])
        for name, key in self.cameras.items():
            self._has(f"cameras.{name}", key, known)
        self.tasks = self._tasks()
        self.episodes = list(self._episodes())
        if not self.episodes:
            raise UserError(f"{self._named(EPISODES)} lists no episode: record some first")
        self._cache: OrderedDict[tuple[int, str], tuple[int, Any]] = OrderedDict()
        self._free = cache_mb * 2**20

    # -- episodes ---------------------------------------------------------------------------------------------------------

    def steps(self, episode: Episode) -> Steps:
        """States and actions of an episode."""
        return self._kept((episode.index, ""), lambda: self._steps(episode), lambda steps: steps.bytes)

    def picture(self, episode: Episode, frame: int, key: str) -> torch.Tensor:
        """A camera's picture in one step, uint8 [H, W, 3]."""
        where = f"{self._named(episode.table)}: {key} of frame {frame} of episode {episode.index}"
        pictures = Pictures(self.folder, where, columns.size_of(self.features[key]))
        if key in episode.videos:
            path, start = episode.videos[key]
            return pictures.of_video(path, start + self.steps(episode).times_T[frame])
        held = self._kept(
            (episode.index, key),
            lambda: columns.read(episode.table, [key], self._filter(episode))[key].to_pylist(),
            lambda cells: sum(len(cell["bytes"] or b"") + 64 for cell in cells if isinstance(cell, Mapping)),
        )
        if frame >= len(held):
            raise UserError(f"{where} is missing: the file has {len(held)} frames of this episode")
        return pictures.of_cell(held[frame])

    def _steps(self, episode: Episode) -> Steps:
        wanted = [*INDICES, self.action, *([self.state] if self.state else []), *self.more]
        found = columns.read(episode.table, list(dict.fromkeys(wanted)), self._filter(episode))
        where = f"{self._named(episode.table)}: episode {episode.index}"
        frames = found["frame_index"].to_pylist()
        if frames != list(range(episode.length)):
            said = f"{len(frames)} frames" if len(frames) != episode.length else "frames out of order"
            raise UserError(f"{where} has {said}, and {EPISODES} says {episode.length}: record or convert it again")
        times = columns.numbers(found["timestamp"], 1, f"{where}: timestamp")
        return Steps(
            state_TS=self._numbers(found, self.state, where) if self.state else None,
            actions_TA=self._numbers(found, self.action, where),
            times_T=times[:, 0].tolist(),
            instructions_T=[self._instruction(index, where) for index in found["task_index"].to_pylist()],
            more={key: torch.from_numpy(columns.numbers(found[key], 1, f"{where}: {key}")[:, 0]).float() for key in self.more},
        )

    def _numbers(self, found: Mapping[str, Any], key: str, where: str) -> torch.Tensor:
        """float32 [T, width] of a key."""
        shape = self.features[key].get("shape")
        if not isinstance(shape, list) or len(shape) != 1 or not isinstance(shape[0], int):
            raise UserError(f"{self._named(INFO)}: {key} has the shape {shape!r:.60}: it must be a row of numbers")
        return torch.from_numpy(columns.numbers(found[key], shape[0], f"{where}: {key}")).float()

    def _instruction(self, index: int | None, where: str) -> str:
        if index not in self.tasks:
            known = f"{min(self.tasks)} to {max(self.tasks)}" if self.tasks else "none"
            raise UserError(f"{where}: task_index {index} is not in {TASKS}, which has {known}: correct one of them")
        if not self.tasks[index]:
            raise UserError(f"{where}: its task, task_index {index}, has no text in {TASKS}: add it")
        return self.tasks[index]

    def _filter(self, episode: Episode) -> int | None:
        return episode.index if episode.shared else None

    def _kept(self, key: tuple[int, str], read: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """A value from the cache, or read now; the oldest values are evicted if there is no room."""
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key][1]
        found = read()
        self._cache[key] = (size(found), found)
        self._free -= self._cache[key][0]
        while self._free < 0 and self._cache:
            self._free += self._cache.popitem(last=False)[1][0]
        return found

    # -- files in meta ----------------------------------------------------------------------------------------------------

    def _has(self, option: str, key: str, known: list[str]) -> None:
        if key not in known:
            have = ", ".join(known) or "none of that kind"
            raise UserError(f"{option} = {key!r} is not a key of the data set {display_path(self.folder)}: it has {have}")

    def _named(self, path: str | Path) -> str:
        return display_path(self.folder / path)

    def _tasks(self) -> dict[int, str]:
        """task_index -> the instruction; empty for one without a text, which is an error of the episodes that have it."""
        if self.version == 2:
            rows: Any = columns.lines(self.folder / f"{TASKS}.jsonl")
        else:
            table = columns.read(self.folder / f"{TASKS}.parquet", None)
            texts = next((c for c in ("task", "__index_level_0__") if c in table), None)
            if texts is None or "task_index" not in table:
                raise UserError(f"{self._named(TASKS)}.parquet has no task and task_index: it has {', '.join(table)[:200]}")
            pairs = zip(table["task_index"].to_pylist(), table[texts].to_pylist(), strict=True)
            rows = [{"task_index": index, "task": text} for index, text in pairs]
        for row in rows:
            if not isinstance(row.get("task_index"), int) or "task" not in row:
                raise UserError(f"{self._named(TASKS)}: {row!r:.100} has no task_index or no task: add them")
        return {row["task_index"]: str(row["task"] or "").strip() for row in rows}

    def _episodes(self) -> Iterator[Episode]:
        videos = [key for key in self.cameras.values() if self.features[key]["dtype"] == "video"]
        for row in self._listed(videos):
            index, length = row.get("episode_index"), row.get("length")
            if not isinstance(index, int) or not isinstance(length, int) or index < 0 or length < 1:
                raise UserError(f"{self._named(EPISODES)}: {row!r:.100} has no episode_index or no length: correct it")
            try:
                yield Episode(
                    index=index,
                    length=length,
                    table=self._path("data_path", row, "data"),
                    shared=self.version == 3,
                    videos={k: (self._path("video_path", row, f"videos/{k}", k), self._start(row, k)) for k in videos},
                )
            except KeyError as error:
                raise UserError(
                    f"{self._named(EPISODES)}: episode {index} has no {error.args[0]!r}, which its path in {INFO} needs"
                ) from error

    def _listed(self, videos: list[str]) -> list[dict[str, Any]]:
        """The entries of all episodes."""
        if self.version == 2:
            return columns.lines(self.folder / f"{EPISODES}.jsonl")
        wanted = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        wanted += [f"videos/{key}/{name}" for key in videos for name in ("chunk_index", "file_index", "from_timestamp")]
        files = sorted((self.folder / EPISODES).glob("*/*.parquet"))
        if not files:
            raise UserError(f"{self._named(EPISODES)} has no table: download the whole data set")
        rows: list[dict[str, Any]] = []
        for file in files:
            table = columns.read(file, wanted)
            rows += [dict(zip(wanted, row, strict=True)) for row in zip(*(table[c].to_pylist() for c in wanted), strict=True)]
        return sorted(rows, key=lambda row: row["episode_index"])

    def _path(self, which: str, row: Mapping[str, Any], part: str, key: str = "") -> Path:
        """The file of an episode, by the data set's pattern."""
        pattern = self.info.get(which)
        if not isinstance(pattern, str):
            raise UserError(f"{self._named(INFO)} has no {which}: download the whole data set")
        named = {"video_key": key, "episode_index": row["episode_index"]}
        if self.version == 2:
            named["episode_chunk"] = row["episode_index"] // int(self.info.get("chunks_size") or 1000)
        else:
            named |= {name: row[f"{part}/{name}"] for name in ("chunk_index", "file_index")}
        return self.folder / pattern.format(**named)

    def _start(self, row: Mapping[str, Any], key: str) -> float:
        return 0.0 if self.version == 2 else float(row[f"videos/{key}/from_timestamp"])


def _info(folder: Path) -> dict[str, Any]:
    path = folder / INFO
    if not path.is_file():
        raise UserError(
            f"{display_path(path)} does not exist: folder must contain a data set in LeRobot's format (convert RLDS first)"
        )
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{display_path(path)} is no JSON ({shorten(error, 100)}): download it again") from error
    features = found.get("features") if isinstance(found, dict) else None
    if not isinstance(features, dict) or not all(isinstance(f, dict) for f in features.values()):
        raise UserError(f"{display_path(path)} has no features: it is not a data set in LeRobot's format")
    return found


def _version(folder: Path, info: Mapping[str, Any]) -> int:
    """2 or 3."""
    said = str(info.get("codebase_version", ""))
    major = said.removeprefix("v").partition(".")[0]
    if major not in ("2", "3"):
        raise UserError(
            f"{display_path(folder / INFO)}: codebase_version {said!r:.40} can't be read, v2.0 to v3.0 can: convert it"
        )
    return int(major)
