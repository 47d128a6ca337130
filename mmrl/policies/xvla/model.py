"""X-VLA as a policy: it acts and learns as pi0 does, with a network, steps and checkpoints of its own.

n calls, M times, C actions that the network predicts, D numbers in each, K and A those that are executed, P tokens of the encoded
input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.transfer import upload_one
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import chains
from mmrl.policies.acting.flow_noise import add_noise, is_noise, with_noise
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.lerobot_cameras import NamedCameras
from mmrl.policies.acting.lerobot_processors import chosen_statistics, statistics_of
from mmrl.policies.acting.look import read_once
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS, read_settings
from mmrl.policies.acting.units import GRIPPERS
from mmrl.policies.lora import CONFIG, apply_adapters, is_adapter, save_adapters
from mmrl.policies.names import base_name
from mmrl.policies.pi0.model import Foreseen, Pi0
from mmrl.policies.vlm.weights import check_files
from mmrl.policies.xvla import tiny
from mmrl.policies.xvla.chains import Remixing
from mmrl.policies.xvla.config import check_length, picture_tokens
from mmrl.policies.xvla.loading import base_of, check_model, load_network, open_checkpoint, save_network, skeleton
from mmrl.policies.xvla.network import OF_DOMAIN, Scene
from mmrl.policies.xvla.options import XVLAOptions
from mmrl.policies.xvla.pictures import framed
from mmrl.policies.xvla.planned import planned_xvla
from mmrl.policies.xvla.poses import Robot
from mmrl.policies.xvla.sizes import sizes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated(Foreseen):
    """Of demonstrations whose actions are a robot's."""

    robot: Robot

    def choices_of(self, actions_nCA: torch.Tensor) -> torch.Tensor:
        """[n, 1, C, D]."""
        return self.robot.demonstrated(actions_nCA)[:, None]


class XVLA(NamedCameras, Pi0):
    """`policy.model` is a folder or hub name that LeRobot or X-VLA's authors saved, a folder that this class saved, or
    `tiny:xvla`.

    What is executed, its likelihood and demonstrations are `Pi0`'s; the steps from noise to actions are `Remixing`. A critic
    reads means of what Florence-2 says of the main picture with the text and of the other pictures, and the robot's state: all
    tokens of the transformer depend on noise.
    """

    options_class = XVLAOptions
    free = frozenset({"chunk", "steps", "noise_level", "noisy", "noise_range", "cameras", "resize"})
    choice_settings = Pi0.choice_settings | {"action_mode", "rotation"}

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        asked = XVLAOptions(**given)
        self.device, self.lora = torch.device(device), config.lora
        self.base = base_name(config.model, seed, tiny.full_name)
        adapters, name = base_of(str(source) if source and not config.lora else config.model)
        found = self.checkpoint = open_checkpoint(name, asked.tokenizer)
        said, place = found.config, source or Path(config.model)
        space, own = sizes_of(found, asked)
        self.space, self.domain = space, own["domain"]
        self.dims, self.chunk, self.state = own["dims"], own["chunk"], own["state"]
        self.text, self.cameras, self.crop = asked.prompt, list(asked.cameras), asked.crop
        usual = "published" if found.published else "lerobot"
        self.resize = asked.resize if asked.resize != "auto" else read_settings(place).get("resize", usual)
        self.chains = chains(asked, own["steps"], Remixing, space=space)
        statistics = chosen_statistics(asked.statistics, found.files, found.processors, place, self.dims, self.state)
        self.use_statistics(statistics, asked)
        self.check_state_statistics(self.state)
        self.robot = Robot(space=space, dims=self.dims, order=asked.rotation, scaled=self.statistics is None)
        self._check_numbers()
        self.tokenizer = found.tokenizer
        model: Any = load_network(found, space, seed, getattr(torch, config.dtype), config.dense_attention)
        apply_adapters(model, config.lora, adapters, source, seed)
        add_noise(model, self.chains, said.hidden_size, space.size, seed)
        self.model = model.to(self.device).eval()
        if config.lora:
            for _, weight in self._of_domain():
                weight.requires_grad_(True)
        self.numbers, self.head = space.size, Translated(numbers=space.size, robot=self.robot)
        self.width = 2 * found.florence.text_config.d_model + said.proprio
        self._read: dict[tuple[str, int], list[int]] = {}
        self._whole = bool(config.lora) or (place / CONFIG).is_file()
        """Whether `_of_domain` is saved beside adapters."""
        if (place / SETTINGS).is_file():
            self.load(place)
        self._whole = bool(config.lora)

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for a `model` that can't be loaded or lacks statistics, without loading it. A hub name is not looked
        up."""
        check_model(config.model)
        name = base_of(config.model)[1]
        if Path(name).is_dir() and not (Path(config.model) / SETTINGS).is_file() and not config.options.get("statistics"):
            found = open_checkpoint(name, words=False)
            _, own = sizes_of(found, XVLAOptions(**config.options))
            statistics_of(found.files, found.processors, own["dims"], own["state"])
        check_files(config.model, lambda: XVLA.skeleton(config))

    @staticmethod
    def skeleton(config: PolicyConfig) -> Any:
        """The model of a configuration with all its weights' names and shapes, on torch's meta device."""
        found = open_checkpoint(base_of(config.model)[1], words=False)
        return skeleton(found, sizes_of(found, XVLAOptions(**config.options))[0])

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        return planned_xvla(config)

    @property
    def ahead(self) -> int:
        return self.checkpoint.config.chunk_size

    def settings(self) -> Mapping[str, Any]:
        found = {"kind": "xvla", "dims": self.dims, "chunk": self.chunk, "state": self.state, "cameras": self.cameras}
        found |= self.chains.settings() | {"prompt": self.text, "crop": self.crop, "resize": self.resize}
        return found | {"action_mode": self.space.mode, "domain": self.domain, "rotation": self.robot.order}

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        """Each time passes the whole transformer."""
        config, moments, found = self.checkpoint.config, self._moments(tracks), 0
        for track in tracks:
            names = self._names(track)
            height, width = self.checkpoint.sides or tuple(track.images[names[0]].shape[1:3])
            read = self.checkpoint.words + max(config.views, len(names)) * picture_tokens(self.checkpoint.florence, height, width)
            found = max(found, read + moments * (read + self.ahead + config.len_soft_prompts))
        return found

    def _check_numbers(self) -> None:
        """Raise UserError for statistics or a convention by which the network's numbers can't be."""
        if self.robot.order == "rows" and not self.robot.hands:
            raise UserError(
                f'policy.options.rotation = "rows", and no turn of {self.dims} numbers of the action space {self.space.mode} is '
                "converted: leave it out"
            )
        if self.statistics is None:
            return
        normalised = [self.statistics.action.mask[i] for i in (range(self.dims) if self.robot.hands else self._coins())]
        if any(normalised) or (self.robot.hands and self.statistics.state is not None):
            raise UserError(
                f"policy.options.statistics normalise places, turns or grippers of the action space {self.space.mode}, whose "
                "numbers are metres, turns and probabilities: set statistics to 'none', or action_mode to 'auto'"
            )
        if self._coins() and self.gripper and min(GRIPPERS[self.gripper]) < 0:
            raise UserError(
                f"policy.options.gripper = {self.gripper!r}, and a gripper of the action space {self.space.mode} is 0 or 1: set "
                "it to open-high or close-high"
            )

    def _coins(self) -> list[int]:
        return self.robot.gripper_numbers if self.space.coins else []

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _names(self, seen: Observation | TrajectoryData) -> list[str]:
        """As of `NamedCameras`; the main one, which is read with the text, must be there."""
        found, trained = super()._names(seen), self._trained()
        if trained and not self.cameras and found[0] != next(iter(trained)):
            raise UserError(
                f"the policy's main camera is {next(iter(trained))}, and the simulator has {', '.join(seen.images)}: set "
                "policy.options.cameras to those in the order of the policy's"
            )
        return found

    def _pictures(self, seen: Observation) -> torch.Tensor:
        """float32 [n, cameras, 3, height, width], the main one first."""
        names, processors = self._names(seen), self.checkpoint.processors
        imagenet = processors is None or processors.imagenet
        found = [
            framed(seen.images[name].to(self.device), self.crop, self.checkpoint.sides, self.resize, imagenet) for name in names
        ]
        if len({one.shape for one in found}) > 1:
            raise UserError(
                f"the cameras {', '.join(names)} show pictures of several sizes, which this X-VLA doesn't scale: make them equal"
            )
        tokens = picture_tokens(self.checkpoint.florence, *found[0].shape[2:])
        check_length(self.checkpoint.config, self.checkpoint.words, tokens, self._views(len(names)))
        return torch.stack(found, 1)

    def _views(self, cameras: int) -> int:
        return max(self.checkpoint.config.views, cameras)

    def _ids(self, instruction: str, pictures: int = 0) -> list[int]:
        """The text, cut or filled up: the network sees the padding."""
        key = (instruction, 0)
        if key not in self._read:
            text = self.text.replace("{instruction}", instruction)
            found = self.tokenizer(text, truncation=True, max_length=self.checkpoint.words, padding="max_length")["input_ids"]
            self._read[key] = list(found)
        return self._read[key]

    def _state(self, seen: Observation) -> torch.Tensor:
        """float32 [n, numbers of a state as the network has it]."""
        size = self.checkpoint.config.proprio
        if not self.state or not size:
            return torch.zeros(len(seen), size, device=self.device)
        return self.robot.state(self.normalised_state(seen, self.state), size)

    @read_once
    def look(self, seen: Observation) -> Any:
        """One pass over pictures and instruction."""
        pixels = self._pictures(seen)
        ids_nL = upload_one(torch.tensor([self._ids(text) for text in seen.instructions]), self.device)
        return self.model.read(ids_nL, pixels, self._views(pixels.shape[1]), self._state(seen), self.domain)

    # -- acting -----------------------------------------------------------------------------------------------------------

    def velocity(
        self, scene: Any, x_nMCD: torch.Tensor, times_nM: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """float32 [n, M, C, D]: no velocity, but the actions that the network says; see `Remixing`."""
        hidden = self.model.hidden(scene, x_nMCD, times_nM, self.domain)
        found: torch.Tensor = with_noise(self.model, self.model.said(hidden, self.domain), hidden)
        return found

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        numbers, *rest = super().choose(seen, draw, temperature, guidance)
        return self.robot.carried_out(numbers), *rest

    def _carried_out(self, x_nCD: torch.Tensor) -> torch.Tensor:
        """The network's numbers of which an action is made."""
        return x_nCD[:, : self.chunk, : self.robot.used]

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        scene: Scene = self.look(seen)
        return scene.seen_nH

    # -- weights ----------------------------------------------------------------------------------------------------------

    def parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        beside = {name for name, _ in self._of_domain()}
        return (
            (name, p)
            for name, p in self.model.named_parameters()
            if not self.lora or is_adapter(name) or is_noise(name) or name in beside
        )

    def _of_domain(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The weights of domains, which are trained beside adapters."""
        return ((name, p) for name, p in self.model.named_parameters() if name.split(".")[1] in OF_DOMAIN)

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from super()._own()
        if self._whole:
            yield from self._of_domain()

    def save(self, folder: Path) -> None:
        """A folder that LeRobot loads, with the settings beside it; with `policy.lora`, its adapters and the weights of
        domains."""
        super(Pi0, self).save(folder)
        if self.lora:
            save_adapters(self.model, folder, self.base)
            return
        height, width = self.checkpoint.sides or (tiny.SIDE, tiny.SIDE)
        inputs, outputs, renamed = self.described(height, width)
        save_network(
            self.model,
            folder,
            self.checkpoint,
            self.space,
            None if self.robot.hands else self.statistics,  # the network's numbers are others than the robot's
            domain=self.domain,
            chunk=self.chunk,
            steps=self.chains.steps,
            inputs=inputs,
            outputs=outputs,
            renamed=renamed,
        )
