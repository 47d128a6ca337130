"""Base of the small policies of LeRobot's: pictures and a state, no instruction, all in float32 and trained whole.

n calls, O moments of an episode that are seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.history import earlier, present
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.lerobot_cameras import PICTURES, NamedCameras
from mmrl.policies.acting.lerobot_config import ENVIRONMENT
from mmrl.policies.acting.lerobot_folder import Checkpoint, Layout
from mmrl.policies.acting.lerobot_processors import ACTION, STATE, Files, chosen_statistics
from mmrl.policies.acting.observed import cameras_of, state_of
from mmrl.policies.acting.options import Actions, CameraOptions, StatisticsOptions, Width
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.vlm.weights import check_files

PICTURE = "observation.image"
"""LeRobot's key of pictures where there is one camera."""


@dataclass(frozen=True, kw_only=True)
class LeRobotOptions(StatisticsOptions, CameraOptions):
    cameras: Sequence[str] = ()
    """The simulator's cameras that are looked through, in the order of the network's. Empty: those of the checkpoint's names;
    the first one for a checkpoint with a single camera that has no name."""
    dims: Actions | None = None
    """Numbers of an action. Unset: as the checkpoint says; 7 for a tiny one."""
    chunk: Actions | None = None
    """Actions of a call that are carried out. Unset: the checkpoint's `n_action_steps`; 8 for a tiny one."""
    state: Width | None = None
    """Numbers of the simulator's state at a moment: those of the robot, then those of LeRobot's `environment_state`. Unset: as
    the checkpoint says; a tiny one then reads none, or is refused where it can't do without."""


Options = TypeVar("Options", bound=LeRobotOptions)


class LeRobotPolicy(NamedCameras, ActingPolicy):
    """A subclass names its `layout`, and calls `begin` in its `__init__`."""

    layout: ClassVar[Layout]
    trained_whole = True
    float32_only = True
    unread = ActingPolicy.unread | {"attn_implementation"}
    reads_text = False
    checkpoint: Checkpoint
    cameras: list[str]
    state: int
    """Numbers of the simulator's state."""
    robot: int
    """The first ones of them, which are the robot's."""
    scales: dict[str, list[torch.Tensor]]
    """See `Checkpoint.pixel_scales`."""

    def begin(
        self, config: PolicyConfig, asked: Options, device: str | torch.device, source: Path | None, **said: str
    ) -> tuple[Checkpoint, Options, Path]:
        """(the checkpoint, the options with what it says where one is unset, the folder from which settings are read). said: an
        option -> the attribute of the configuration that it is by default. Raises UserError for options that don't fit."""
        self.device, place = torch.device(device), source or Path(config.model)
        found = self.checkpoint = self.opened(str(source or config.model), asked)
        self.robot = found.config.numbers(STATE)
        numbers = {"dims": found.config.numbers(ACTION), "state": self.robot + found.config.numbers(ENVIRONMENT)}
        filled = {**numbers, **{name: getattr(found.config, of) for name, of in said.items()}}
        own = replace(asked, **{name: value for name, value in filled.items() if getattr(asked, name) in (None, "")})
        for name, size in numbers.items():
            if getattr(own, name) != size:
                raise UserError(f"policy.options.{name} = {getattr(own, name)}, and {found.name!r} has {size}: leave it out")
        self.dims, self.state, self.cameras = numbers["dims"], numbers["state"], list(own.cameras)
        if self.cameras and len(self.cameras) != (many := len(found.config.cameras)):
            raise UserError(
                f"policy.options.cameras names {len(self.cameras)} cameras, and the policy looks through {many}: name as many"
            )
        self.use_statistics(chosen_statistics(own.statistics, found.files, found.processors, place, self.dims, self.robot), own)
        self.check_state_statistics(self.robot)
        self.scales = {key: [x.to(self.device) for x in pair] for key, pair in found.pixel_scales().items()}
        return found, own, place

    @classmethod
    def opened(cls, name: str, asked: LeRobotOptions) -> Checkpoint:
        """The checkpoint of a name; that of a tiny one is made for the options."""
        if not name.startswith("tiny:"):
            return cls.layout.open(name)
        keys = [PICTURES + camera for camera in asked.cameras] or [PICTURE]
        config, table = cls.layout.tiny(name, keys, asked.state or 0, asked.dims or 7)
        return Checkpoint(name=name, table=table, config=config, files=Files(name))

    @classmethod
    def check(cls, config: PolicyConfig) -> None:  # type: ignore[override]  # called on the class
        """Raise UserError for a `model` that can't be loaded or lacks statistics, without loading it. A hub name is not looked
        up."""
        cls.layout.check(config.model)
        if Path(config.model).is_dir():
            if not (Path(config.model) / SETTINGS).is_file() and not config.options.get("statistics"):
                cls.layout.check_statistics(config.model)
            check_files(config.model, lambda: None)

    @property
    def takes_any_size(self) -> bool:
        """Whether pictures may have other sizes than those of its training, as it resizes them."""
        return False

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _names(self, seen: Observation | TrajectoryData) -> list[str]:
        """The simulator's cameras in the order of the network's, all of which are needed: the option, or those with the
        checkpoint's names. The single camera of a policy whose key names none is the first one."""
        trained, there = self._trained(), present(seen.images)
        if self.cameras or not trained:
            return cameras_of(seen, self.cameras, []) if trained else []
        if all(name in there for name in trained):
            return cameras_of(seen, list(trained), [])
        if list(trained.values()) == [PICTURE]:
            return cameras_of(seen, [], list(there)[:1])
        raise UserError(
            f"the policy was trained with the cameras {', '.join(trained)}, and the simulator has {', '.join(there) or 'none'}: "
            "set policy.options.cameras to the latter in the order of the former"
        )

    def _pictures(self, seen: Observation) -> list[torch.Tensor]:
        """Of each camera float32 [n, O, 3, H, W], normalised: O moments, the present one last."""
        found, config = [], self.checkpoint.config
        for name, key in zip(self._names(seen), config.cameras, strict=True):
            moments = [earlier(name, k) for k in range(self.history, -1, -1)]
            if moments[0] not in seen.images:
                raise UserError(f"the policy sees {self.history + 1} moments, and the observation has no earlier pictures")
            shown = torch.stack([seen.images[moment] for moment in moments], 1).to(self.device).movedim(-1, 2)
            if not self.takes_any_size and tuple(shown.shape[3:]) != config.shape_of(key):
                (high, wide), (have_high, have_wide) = config.shape_of(key), shown.shape[3:]
                raise UserError(
                    f"camera {name!r} shows {have_wide} x {have_high} pixels, and the policy was trained with {wide} x {high}: "
                    "make them equal"
                )
            pixels = shown.float() / 255
            if key in self.scales:
                less, by = self.scales[key]
                pixels = (pixels - less) / by
            found.append(pixels)
        return found

    def _states(self, seen: Observation) -> torch.Tensor:
        """float32 [n, O, state]: those of the robot are normalised if there are statistics of them."""
        moments = self.history + 1
        if not self.state:
            return torch.zeros(len(seen), moments, 0, device=self.device)
        state = state_of(seen, self.state, moments).to(self.device).float().unflatten(1, (moments, -1))
        if self.statistics is None or self.statistics.state is None:
            return state
        robot, rest = state.split([self.robot, self.state - self.robot], -1)
        return torch.cat([self.statistics.state.normalize(robot), rest], -1)

    # -- weights ----------------------------------------------------------------------------------------------------------

    def save_network(self, network: torch.nn.Module, folder: Path, **changed: Any) -> None:
        """Write a folder that LeRobot loads. changed: fields of config.json."""
        renamed: Mapping[str, str] = dict(self.checkpoint.processors.renamed) if self.checkpoint.processors else {}
        if self.cameras:
            pairs = zip(self.cameras, self.checkpoint.config.cameras, strict=True)
            renamed = {PICTURES + name: key for name, key in pairs if PICTURES + name != key}
        self.layout.save(network, folder, self.checkpoint, self.statistics, renamed, **changed)
