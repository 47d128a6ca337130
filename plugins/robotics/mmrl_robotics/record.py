"""Write episodes to a folder in LeRobot's format, version 3.0, with statistics for normalisation."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy

from mmrl import UserError
from mmrl.api.simulators.types import ActionSpec, Demonstration
from mmrl_robotics.record_files import CHUNK, TABLE, TABLE_MB, VIDEO, VIDEO_MB, Tables, Videos, pixel_format

EPISODES, TASKS = "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"
REWARD, DONE = "next.reward", "next.done"
"""What an action was paid, and whether nothing would have followed it; of episodes of which this is known."""
INDICES = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64", "task_index": "int64"}
SAMPLED = 2000
"""Maximum of a camera's pictures for statistics, evenly spread."""
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


def write(folder: Path, episodes: Iterable[Demonstration], *, fps: float, video: bool = False) -> int:
    """Write episodes as a data set into a new folder; returns their number. fps: steps per second. video: pictures as H.264 in
    MP4, which is slightly lossy, instead of PNG in the tables."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: name a new folder")
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    written = Written(folder, fps, video)
    with written.files():
        for shown in episodes:
            written.add(shown)
    if not written.listed:
        raise UserError("there is no episode to write")
    written.write_meta()
    return len(written.listed)


class Written:
    """A data set as far as it is written."""

    def __init__(self, folder: Path, fps: float, video: bool) -> None:
        self.folder, self.fps, self.video = folder, fps, video
        self.features: dict[str, Any] = {}
        self.tasks: dict[str, int] = {}
        self.listed: list[dict[str, Any]] = []
        """The rows of the table of episodes."""
        self.every: dict[str, list[numpy.ndarray]] = {}
        """Key -> what the statistics of all episodes are computed from."""
        self.total = 0
        self.tables: Tables | None = None
        self.videos: dict[str, Videos] = {}

    @contextlib.contextmanager
    def files(self) -> Iterator[None]:
        """Inside, episodes may be added; afterwards their files are closed."""
        import datasets

        datasets.disable_progress_bars()
        with contextlib.ExitStack() as opened:
            self.opened = opened
            yield

    def add(self, shown: Demonstration) -> None:
        number, length, values = len(self.listed), len(shown.actions_MA), _values(shown)
        own = _features(values, self.video, self.fps)
        if not self.features:
            self._begin(own)
        if own != self.features:
            raise UserError(f"episode {number} has other shapes than the ones before: record one kind at a time")
        texts = shown.instructions or (shown.instruction,) * length
        rows: dict[str, numpy.ndarray] = {
            **values,
            "timestamp": (numpy.arange(length) / self.fps).astype(numpy.float32),
            "frame_index": numpy.arange(length),
            "episode_index": numpy.full(length, number),
            "index": numpy.arange(self.total, self.total + length),
            "task_index": numpy.array([self.tasks.setdefault(text, len(self.tasks)) for text in texts]),
        }
        assert self.tables is not None
        listed: dict[str, Any] = {"episode_index": number, "tasks": list(dict.fromkeys(texts)), "length": length}
        listed |= {f"data/{name}": at for name, at in self.tables.add(rows).items()}
        listed |= {"dataset_from_index": self.total, "dataset_to_index": self.total + length}
        for key, files in self.videos.items():
            listed |= {f"videos/{key}/{name}": at for name, at in files.add(rows[key]).items()}
        for key, of in rows.items():
            listed |= {f"stats/{key}/{name}": value for name, value in statistics(of).items()}
            self.every.setdefault(key, []).append(of[:: max(1, length // 8)] if of.dtype == numpy.uint8 else of)
        self.listed.append(listed | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        self.total += length

    def _begin(self, features: dict[str, Any]) -> None:
        self.features = features
        self.tables = Tables(self.folder, features)
        self.opened.callback(self.tables.close)
        for key, feature in features.items():
            if feature["dtype"] == "video":
                self.videos[key] = Videos(self.folder, key, self.fps)
                self.opened.callback(self.videos[key].close)

    def write_meta(self) -> None:
        """The files in `meta`. info.json comes last: a folder without it was not finished."""
        import pandas
        import pyarrow
        import pyarrow.parquet

        path = self.folder / EPISODES
        path.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self.listed), path)
        tasks = pandas.DataFrame({"task_index": list(self.tasks.values())}, index=pandas.Index(list(self.tasks), name="task"))
        tasks.to_parquet(self.folder / TASKS)
        stats = {key: statistics(numpy.concatenate(rows)) for key, rows in self.every.items()}
        _write_json(self.folder / "meta" / "stats.json", stats)
        info = {
            "codebase_version": "v3.0",
            "robot_type": None,
            "total_episodes": len(self.listed),
            "total_frames": self.total,
            "total_tasks": len(self.tasks),
            "chunks_size": CHUNK,
            "data_files_size_in_mb": TABLE_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": int(self.fps) if self.fps == int(self.fps) else self.fps,
            "splits": {"train": f"0:{len(self.listed)}"},
            "data_path": TABLE,
            "video_path": VIDEO if self.videos else None,
            "features": self.features,
        }
        _write_json(self.folder / "meta" / "info.json", info)


def _values(shown: Demonstration) -> dict[str, numpy.ndarray]:
    """The values of an episode by LeRobot's keys."""
    found = {f"observation.images.{camera}": rows.numpy() for camera, rows in shown.images.items()}
    if shown.state is not None:
        found["observation.state"] = shown.state.numpy()
    found["action"] = shown.actions_MA.numpy()
    if shown.rewards_T is not None:
        found[REWARD] = shown.rewards_T.numpy()[:, None]
        ends = numpy.arange(len(shown.rewards_T)) == len(shown.rewards_T) - 1
        found[DONE] = (ends & shown.terminated)[:, None]
    return found


def _features(values: Mapping[str, numpy.ndarray], video: bool, fps: float) -> dict[str, Any]:
    """The description of each key in info.json."""
    found: dict[str, Any] = {}
    for key, of in values.items():
        if of.ndim == 4:
            found[key] = {"dtype": "video" if video else "image", "shape": list(of.shape[1:])}
            found[key] |= {"names": ["height", "width", "channels"]} | ({"info": _encoded(of, fps)} if video else {})
        else:
            found[key] = {"dtype": str(of.dtype), "shape": [of.shape[1]], "names": None}
    return found | {key: {"dtype": kind, "shape": [1], "names": None} for key, kind in INDICES.items()}


def _encoded(pictures_THW3: numpy.ndarray, fps: float) -> dict[str, Any]:
    """What LeRobot says of a video."""
    height, width = pictures_THW3.shape[1:3]
    found = {"height": height, "width": width, "codec": "h264", "pix_fmt": pixel_format(height, width), "fps": fps, "channels": 3}
    return {**{f"video.{name}": value for name, value in found.items()}, "is_depth_map": False, "has_audio": False}


def statistics(rows: numpy.ndarray) -> dict[str, Any]:
    """min, max, mean, std, count and quantiles (q01, q10, ...) of each number, or of each channel of pictures in [0, 1]."""
    pictures = rows.dtype == numpy.uint8
    values = (rows[:: max(1, len(rows) // SAMPLED)] / 255.0).reshape(-1, 3) if pictures else rows.astype(numpy.float64)
    values = values.reshape(len(values), -1)
    found = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    found |= {f"q{round(q * 100):02d}": of for q, of in zip(QUANTILES, numpy.quantile(values, QUANTILES, axis=0), strict=True)}
    shaped = {name: of.reshape(3, 1, 1) if pictures else of for name, of in found.items()}
    return {name: of.tolist() for name, of in shaped.items()} | {"count": [len(rows)]}


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2), encoding="utf-8")


def physical(shown: Demonstration, action: ActionSpec | None) -> Demonstration:
    """A demonstration with its actions in the simulator's physical units; its gripper's are unchanged: -1 opens, 1 closes."""
    import torch

    if action is None or not action.units:
        raise UserError("the simulator doesn't give its actions' units (ActionSpec.units): leave out --physical")
    units, offsets = torch.tensor(action.units), torch.tensor(action.offsets or (0.0,) * action.dims)
    if action.gripper is not None:
        units[action.gripper], offsets[action.gripper] = 1.0, 0.0
    return replace(shown, actions_MA=shown.actions_MA * units + offsets, physical_units=True)
