"""LeRobot's own data sets, read and written. `peer_pythons` calls these functions by a Python with lerobot 0.6.1, which imports
nothing of mmrl."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from safetensors.torch import save_file

SIDE, STATE, FPS = 64, 5, 10


def read(folder: str, place: str) -> None:
    """Write every frame of a data set, its statistics and those of its episodes, as LeRobot gives them."""
    data = LeRobotDataset("someone/demos", root=folder, video_backend="pyav", delta_timestamps={"action": [0.0, 0.2]})
    frames = [data[i] for i in range(len(data))]
    found = {key: torch.stack([frame[key] for frame in frames]) for key in frames[0] if torch.is_tensor(frames[0][key])}
    for key, stats in data.meta.stats.items():
        found |= {f"stats/{key}/{name}": torch.as_tensor(value).float() for name, value in stats.items()}
    save_file({key: value.contiguous() for key, value in found.items()}, place)
    episodes = [{name: row[name] for name in ("length", "tasks", "dataset_from_index")} for row in data.meta.episodes]
    said = {"tasks": [frame["task"] for frame in frames], "fps": data.fps, "episodes": episodes}
    Path(place).with_suffix(".json").write_text(json.dumps(said))


def grow(folder: str) -> None:
    """Go on with a data set by an episode of one step more, as a teleoperator does."""
    data = LeRobotDataset.resume("someone/demos", root=folder)
    features = {key: feature for key, feature in data.meta.features.items() if key.startswith(("observation.", "action"))}
    kinds = {key: np.uint8 if key in data.meta.camera_keys else np.float32 for key in features}
    for _ in range(2):
        nothing = {key: np.zeros(feature["shape"], kinds[key]) for key, feature in features.items()}
        data.add_frame({**nothing, "task": "stand still"})
    data.save_episode()
    data.finalize()


def write(folder: str, video: str) -> None:
    """A data set of three episodes as LeRobot writes it, in files of next to no size, and what is in it."""
    camera = {
        "dtype": "video" if video == "video" else "image",
        "shape": (SIDE, SIDE, 3),
        "names": ["height", "width", "channels"],
    }
    features = {
        "observation.images.front": camera,
        "observation.state": {"dtype": "float32", "shape": (STATE,), "names": list("abcde")},
        "action": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    }
    data = LeRobotDataset.create(
        "someone/made", FPS, features, root=folder, use_videos=video == "video", data_files_size_in_mb=1, video_files_size_in_mb=1
    )
    draw = np.random.default_rng(0)
    ramp = np.linspace(0, 200, SIDE)
    held: dict[str, list[np.ndarray]] = {"pictures": [], "state": [], "action": []}
    for episode in range(3):
        for step in range(4 + episode):
            picture = np.stack([ramp[:, None] + 0 * ramp, 0 * ramp[:, None] + ramp, np.full((SIDE, SIDE), 40 * step)], -1)
            picture = picture.astype(np.uint8)
            state, action = draw.random(STATE, np.float32), draw.random(3, np.float32) * 2 - 1
            data.add_frame(
                {"observation.images.front": picture, "observation.state": state, "action": action, "task": f"do {episode % 2}"}
            )
            for name, value in (("pictures", picture), ("state", state), ("action", action)):
                held[name].append(value)
        data.save_episode()
    data.finalize()
    save_file({name: torch.from_numpy(np.stack(rows)) for name, rows in held.items()}, Path(folder) / "held.safetensors")
