"""The cameras of a policy whose checkpoints are LeRobot's: those that it looks through, and what it writes of them."""

from __future__ import annotations

from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.policies.acting.lerobot_processors import ACTION, STATE
from mmrl.policies.acting.observed import cameras_of

PICTURES = "observation.images."
"""Beginning of LeRobot's keys of pictures."""


class NamedCameras:
    """A policy that looks through those of its cameras that are there."""

    checkpoint: Any
    """With `config`, that has `cameras` and `input_features`, and with `processors`, or None."""
    cameras: list[str]
    state: int
    dims: int

    def _names(self, seen: Observation | TrajectoryData) -> list[str]:
        """The simulator's cameras in the order of the checkpoint's: the option, or those with the checkpoint's names, or all
        where it names none. A camera of the checkpoint's that isn't there is left out, as LeRobot does it."""
        trained = self._trained()
        if self.cameras or not trained:
            return cameras_of(seen, self.cameras, list(seen.images))
        names = [name for name in trained if name in seen.images]
        if seen.images and not names:
            raise UserError(
                f"the policy was trained with the cameras {', '.join(trained)}, and the simulator has {', '.join(seen.images)}: "
                "set policy.options.cameras to the latter in the order of the former"
            )
        return cameras_of(seen, names, [])

    def _trained(self) -> dict[str, str]:
        """Name of a camera, as a simulator may have it -> the network's key."""
        renamed = self.checkpoint.processors.renamed if self.checkpoint.processors else {}
        before = {new: old for old, new in renamed.items()}
        return {before.get(key, key).rpartition(".")[2]: key for key in self.checkpoint.config.cameras}

    def described(self, height: int, width: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """LeRobot's `input_features`, `output_features`, and which keys of observations get which of the former. height, width:
        pixels of the pictures of cameras that the option names."""
        config, processors = self.checkpoint.config, self.checkpoint.processors
        inputs = {key: value for key, value in config.input_features.items() if key != STATE}
        renamed = dict(processors.renamed) if processors else {}
        if self.cameras:
            keys = [PICTURES + name for name in self.cameras]
            own = [*config.cameras, *keys[len(config.cameras) :]]
            renamed = {key: there for key, there in zip(keys, own, strict=False) if key != there}
            inputs = {key: {"type": "VISUAL", "shape": [3, height, width]} for key in own} | inputs
        if self.state:
            inputs[STATE] = {"type": "STATE", "shape": [self.state]}
        return inputs, {ACTION: {"type": "ACTION", "shape": [self.dims]}}, renamed
