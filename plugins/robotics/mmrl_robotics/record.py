"""Write episodes to a folder in LeRobot's format, version 2.1, with statistics for normalisation."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy

from mmrl import UserError
from mmrl.api.simulators.types import ActionSpec, Demonstration

CHUNK = 1000
"""Episodes per folder."""
TABLE = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
INDICES = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64", "task_index": "int64"}
SAMPLED = 2000
"""Maximum of a camera's pictures for statistics, evenly spread."""


def write(folder: Path, episodes: Iterable[Demonstration], *, fps: float, video: bool = False) -> int:
    """Write episodes as a data set into a new folder; returns their number. fps: steps per second. video: pictures as H.264 in
    MP4, which is slightly lossy, instead of PNG in the tables."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: name a new folder")
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    features: dict[str, Any] = {}
    tasks: dict[str, int] = {}
    listed: list[dict[str, Any]] = []
    every: dict[str, list[numpy.ndarray]] = {}
    total = 0
    for number, shown in enumerate(episodes):
        values = _values(shown)
        own = _features(values, shown, video)
        if own != (features := features or own):
            raise UserError(f"episode {number} has other shapes than the ones before: record one kind at a time")
        task = tasks.setdefault(shown.instruction, len(tasks))
        length = len(shown.actions_MA)
        rows: dict[str, Any] = {
            **values,
            "timestamp": (numpy.arange(length) / fps).astype(numpy.float32),
            "frame_index": numpy.arange(length),
            "episode_index": numpy.full(length, number),
            "index": numpy.arange(total, total + length),
            "task_index": numpy.full(length, task),
        }
        _write_episode(folder, number, rows, features, fps)
        listed.append({"episode_index": number, "tasks": [shown.instruction], "length": length})
        own_stats = {key: statistics(of, quantiles=False) for key, of in rows.items()}
        _add_line(folder / "meta" / "episodes_stats.jsonl", {"episode_index": number, "stats": own_stats})
        for key, of in rows.items():
            every.setdefault(key, []).append(of[:: max(1, length // 8)] if of.dtype == numpy.uint8 else of)
        total += length
    if not listed:
        raise UserError("there is no episode to write")
    _write_meta(folder, features, tasks, listed, total, fps, every)
    return len(listed)


def _values(shown: Demonstration) -> dict[str, numpy.ndarray]:
    """The values of an episode by LeRobot's keys."""
    found = {f"observation.images.{camera}": rows.numpy() for camera, rows in shown.images.items()}
    if shown.state is not None:
        found["observation.state"] = shown.state.numpy()
    return found | {"action": shown.actions_MA.numpy()}


def _features(values: Mapping[str, numpy.ndarray], shown: Demonstration, video: bool) -> dict[str, Any]:
    """The description of each key in info.json."""
    found: dict[str, Any] = {}
    for key, of in values.items():
        if of.ndim == 4:
            found[key] = {
                "dtype": "video" if video else "image",
                "shape": list(of.shape[1:]),
                "names": ["height", "width", "channels"],
            }
        else:
            found[key] = {"dtype": "float32", "shape": [of.shape[1]], "names": None}
    return found | {key: {"dtype": kind, "shape": [1], "names": None} for key, kind in INDICES.items()}


def _write_episode(folder: Path, number: int, rows: Mapping[str, numpy.ndarray], features: Mapping[str, Any], fps: float) -> None:
    import datasets

    datasets.disable_progress_bars()
    kinds: dict[str, Any] = {}
    columns: dict[str, Any] = {}
    for key, feature in features.items():
        if feature["dtype"] == "video":
            _write_video(
                folder / VIDEO.format(episode_chunk=number // CHUNK, video_key=key, episode_index=number), rows[key], fps
            )
        elif feature["dtype"] == "image":
            kinds[key] = datasets.Image()
            columns[key] = [{"bytes": _png(of), "path": None} for of in rows[key]]
        else:
            width, value = feature["shape"][0], datasets.Value(feature["dtype"])
            kinds[key] = value if key in INDICES else datasets.Sequence(value, length=width)
            columns[key] = rows[key].tolist()
    path = folder / TABLE.format(episode_chunk=number // CHUNK, episode_index=number)
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(columns, features=datasets.Features(kinds)).to_parquet(str(path))


def _png(picture: numpy.ndarray) -> bytes:
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(picture).save(held, "PNG")
    return held.getvalue()


def _write_video(path: Path, pictures: numpy.ndarray, fps: float) -> None:
    """H.264 with a key frame every second frame, as in LeRobot, for quick access."""
    import av

    height, width = pictures.shape[1:3]
    if height % 2 or width % 2:
        raise UserError(f"pictures of {width} x {height} pixels can't be encoded as H.264: use even sides, or no video")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as video:
        stream: Any = video.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000), options={"crf": "12", "g": "2"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv444p" if min(height, width) < 128 else "yuv420p"
        for picture in pictures:
            video.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        video.mux(stream.encode())


# -- meta data of all -------------------------------------------------------------------------------------------------------


def statistics(rows: numpy.ndarray, *, quantiles: bool = True) -> dict[str, Any]:
    """min, max, mean, std, count and, with `quantiles`, q01 and q99 of each number, or of each channel of pictures in [0, 1]."""
    pictures = rows.dtype == numpy.uint8
    values = (rows[:: max(1, len(rows) // SAMPLED)] / 255.0).reshape(-1, 3) if pictures else rows.astype(numpy.float64)
    values = values.reshape(len(values), -1)
    found = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    if quantiles:
        found |= {"q01": numpy.quantile(values, 0.01, axis=0), "q99": numpy.quantile(values, 0.99, axis=0)}
    shaped = {name: of.reshape(3, 1, 1) if pictures else of for name, of in found.items()}
    return {name: of.tolist() for name, of in shaped.items()} | {"count": [len(rows)]}


def _write_meta(
    folder: Path,
    features: Mapping[str, Any],
    tasks: Mapping[str, int],
    listed: Sequence[Mapping[str, Any]],
    total: int,
    fps: float,
    every: Mapping[str, list[numpy.ndarray]],
) -> None:
    meta = folder / "meta"
    for instruction, index in tasks.items():
        _add_line(meta / "tasks.jsonl", {"task_index": index, "task": instruction})
    for row in listed:
        _add_line(meta / "episodes.jsonl", row)
    stats = {key: statistics(numpy.concatenate(rows)) for key, rows in every.items()}
    _write_json(meta / "stats.json", stats)
    videos = [key for key, feature in features.items() if feature["dtype"] == "video"]
    info = {
        "codebase_version": "v2.1",
        "robot_type": None,
        "total_episodes": len(listed),
        "total_frames": total,
        "total_tasks": len(tasks),
        "total_videos": len(videos) * len(listed),
        "total_chunks": -(-len(listed) // CHUNK),
        "chunks_size": CHUNK,
        "fps": int(fps) if fps == int(fps) else fps,
        "splits": {"train": f"0:{len(listed)}"},
        "data_path": TABLE,
        "video_path": VIDEO if videos else None,
        "features": features,
    }
    _write_json(meta / "info.json", info)  # last: a folder without it was not finished


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2), encoding="utf-8")


def _add_line(path: Path, row: Any) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def physical(shown: Demonstration, action: ActionSpec | None) -> Demonstration:
    """A demonstration with its actions in the simulator's physical units; its gripper's are unchanged: -1 opens, 1 closes."""
    import torch

    if action is None or not action.units:
        raise UserError("the simulator doesn't give its actions' units (ActionSpec.units): leave out --physical")
    units = torch.tensor(action.units)
    if action.gripper is not None:
        units[action.gripper] = 1.0
    return replace(shown, actions_MA=shown.actions_MA * units, physical_units=True)
