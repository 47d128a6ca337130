"""Options of GR00T."""

from __future__ import annotations

from dataclasses import dataclass

from mmrl.policies.acting.options import Actions, CameraOptions, NoiseOptions, StatisticsOptions, Steps, Width


@dataclass(frozen=True, kw_only=True)
class Gr00tOptions(StatisticsOptions, CameraOptions, NoiseOptions):
    embodiment: str = ""
    """Which robot of the checkpoint it is. Empty: the only one with statistics."""
    dims: Actions = 7
    """Numbers of an action, the embodiment's."""
    chunk: Actions = 8
    """Actions of a call that are carried out, the first of those that the network predicts."""
    state: Width | None = None
    """Numbers of the robot's state, which must be the simulator's. Unset: as many as the embodiment has, and none without
    statistics."""
    steps: Steps = 4
    """Steps of the flow from noise to actions."""
    processor: str = ""
    """Folder or hub name of a Qwen3-VL with its tokenizer and image processor, such as `Qwen/Qwen3-VL-2B-Instruct`; for N1.6 of a
    Qwen3 with its tokenizer. Empty: the one that config.json names; for N1.6 `Qwen/Qwen3-1.7B`."""
    statistics: str = ""
    """A file with statistics of your data, for an embodiment without, such as `new_embodiment`; `none` where the policy's numbers
    are the simulator's. Empty: the checkpoint's."""
