"""GR00T N1.7 and N1.6 as policies that act: pictures and an instruction are encoded once per call, and a diffusion transformer
turns noise into a chunk of actions (NVIDIA, GR00T N1: An Open Foundation Model for Generalist Humanoid Robots).

n calls, M times of a flow, C actions that the network predicts, D numbers in each, K and A those that are executed, P tokens of
the encoded input. `Chains` has time from noise at 1 to actions at 0, the network the other way round: its velocity is negated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import chains
from mmrl.policies.acting.flow_noise import add_noise, is_noise, with_noise
from mmrl.policies.acting.flow_policy import FlowPolicy
from mmrl.policies.acting.look import read_once
from mmrl.policies.acting.observed import state_of
from mmrl.policies.acting.options import check_sizes
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.acting.units import Normalizer
from mmrl.policies.gr00t import tiny
from mmrl.policies.gr00t.backbone import Network
from mmrl.policies.gr00t.config import N1_6
from mmrl.policies.gr00t.eagle_reading import EagleReader
from mmrl.policies.gr00t.head import Context
from mmrl.policies.gr00t.loading import check_model, load_model, prepare, skeleton
from mmrl.policies.gr00t.network import OWN_BACKBONE, save_network
from mmrl.policies.gr00t.options import Gr00tOptions
from mmrl.policies.gr00t.planned import planned_gr00t
from mmrl.policies.gr00t.reading import Reader
from mmrl.policies.lora import adapter_chain, apply_adapters, is_adapter, save_adapters
from mmrl.policies.names import base_name
from mmrl.policies.vlm.weights import check_files

EMPHASIS = 1.5
"""`Chains.emphasis`: it was trained at times from Beta(1.5, 1) (`noise_beta_alpha` and `noise_beta_beta` of its config.json)."""
ROUNDING = 1e-6
"""Added to times, which are then rounded down, so that 1 - 0.8 is the bucket of 0.2 in float32 too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The encoded inputs of a call: everything but the actions."""

    context: Context
    seen_nH: torch.Tensor
    """What a critic reads: the mean of the tokens that the head reads, and its encoding of the robot's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """The part of a head that `ActingPolicy` needs for demonstrations."""

    steps: int
    """C."""
    numbers: int
    """D."""
    slots: int = 1

    def choices_of(self, actions: torch.Tensor) -> torch.Tensor:
        """[n, 1, C, D]: a chain of its end alone. Steps and numbers that the robot doesn't have are 0, as in training."""
        steps, numbers = actions.shape[1:]
        return pad(actions, (0, self.numbers - numbers, 0, self.steps - steps))[:, None]


class Gr00t(FlowPolicy):
    """`policy.model` is a folder or hub name of a GR00T N1.7 or N1.6 as NVIDIA publishes it, a folder that this class saved, or
    `tiny:gr00t`.

    The network predicts C actions of D numbers; the first K are executed, A numbers of each, and log-probabilities are those of
    their chain alone (as pi0's, see `mmrl.policies.pi0.model.Pi0`). What an action's numbers mean, which cameras are looked
    through, and how pictures are framed, the files beside the weights say.

    A critic reads what the head reads: all tokens of the head's own transformer attend to the noise, so none of them would do.
    """

    options_class = Gr00tOptions
    free = frozenset({"chunk", "steps", "noise_level", "noisy", "noise_range", "cameras"})
    choice_settings = frozenset({"dims", "chunk", "steps", "noise_level", "noisy", "noise_range"})
    head: Any
    model: Network

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        own = Gr00tOptions(**given)
        self.device, self.lora, self.dims, self.chunk = torch.device(device), config.lora, own.dims, own.chunk
        self.cameras, self.gripper = list(own.cameras), own.gripper
        self.chains = chains(own, own.steps, emphasis=EMPHASIS)
        self.base = base_name(config.model, seed, tiny.full_name)
        adapters, name = adapter_chain(str(source) if source and not config.lora else config.model)
        place = source or Path(config.model)
        found = prepare(name, place, own)
        self.plan, self.files, self.embodiment = found.plan, found.files, found.embodiment.on(self.device)
        self.state, framed = self._checked_sizes(own.state), self.plan.framing(self.files.settings)
        network, reads = load_model(config, name, self.plan, own.processor, seed)
        plain_text = bool(self.files.settings.get("formalize_language", True))
        kind = EagleReader if self.plan.version is N1_6 else Reader
        self.reader = kind(reads, framed, self.embodiment, own.cameras, plain_text=plain_text)
        apply_adapters(network, config.lora, adapters, source, seed)
        sizes = self.plan.head
        self.numbers, self.width = sizes.max_action_dim, sizes.backbone_embedding_dim + sizes.input_embedding_dim
        add_noise(network, self.chains, sizes.hidden_size, self.numbers, seed)
        self.model = network.to(self.device).eval()
        self.head = Foreseen(steps=sizes.action_horizon, numbers=self.numbers)
        if (place / SETTINGS).is_file():
            self.load(place)

    def _checked_sizes(self, state: int | None) -> int:
        """The numbers of the state that are read. Raises UserError for options that contradict the embodiment or the network."""
        own, sizes = self.embodiment, self.plan.head
        if sizes.state_history_length != 1:
            raise UserError(
                f"config.json: state_history_length = {sizes.state_history_length}, and only the newest state is known"
            )
        most = {"chunk": (self.chunk, own.ahead), "dims": (self.dims, sizes.max_action_dim)}
        check_sizes("GR00T", most | {"state": (state or 0, sizes.max_state_dim)})
        if not own.scaled:
            if self.gripper:
                raise UserError(
                    f"policy.options.gripper = {self.gripper!r} says what statistics mean, and there are none of {own.name!r}"
                )
            return state or 0
        wanted = {"dims": (self.dims, own.action_size, own.actions), "state": (state, own.state_size, own.states)}
        for name, (value_given, size, groups) in wanted.items():
            if value_given is not None and value_given != size:
                listed = ", ".join(f"{group.name} {group.size}" for group in groups) or "none"
                what = "actions" if name == "dims" else "states"
                raise UserError(
                    f"policy.options.{name} = {value_given}, and {what} of the embodiment {own.name!r} have {size} numbers "
                    f"({listed}): make them equal"
                )
        if self.cameras and own.cameras and len(self.cameras) != len(own.cameras):
            raise UserError(
                f"policy.options.cameras = {', '.join(self.cameras)}, and the embodiment {own.name!r} looks through "
                f"{', '.join(own.cameras)}: name one for each, in this order"
            )
        return own.state_size

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for a `model` that can't be loaded, without loading it."""
        check_model(config)
        check_files(config.model, lambda: Gr00t.skeleton(config))

    @staticmethod
    def skeleton(config: PolicyConfig) -> Any:
        """The network of a configuration with all its weights' names and shapes, on torch's meta device."""
        return skeleton(adapter_chain(config.model)[1])

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        return planned_gr00t(config)

    @property
    def ahead(self) -> int:
        """All actions that the embodiment was trained to foresee: those that are not executed are learned as well."""
        return self.embodiment.ahead

    def choice_terms(self) -> dict[str, Any]:
        found = super().choice_terms() | {"actions foreseen": self.head.steps, "numbers of an action": self.numbers}
        return found | {"statistics": self.embodiment.plain(), "gripper": self.gripper}

    def settings(self) -> Mapping[str, Any]:
        found = {"kind": "gr00t", "embodiment": self.embodiment.name, "dims": self.dims, "chunk": self.chunk}
        found |= {"state": self.state, "cameras": self.cameras, "gripper": self.gripper}
        return found | self.chains.settings()

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        read = {(text, self.reader.sizes(track)) for track in tracks for text in track.told}
        return max((len(self.reader.ids(*one)) for one in read), default=0) + self._moments(tracks) * (1 + self.head.steps)

    # -- scales -----------------------------------------------------------------------------------------------------------

    @property
    def action_statistics(self) -> Normalizer | None:
        return self.embodiment.ends() if self.embodiment.scaled else None

    def simulated(self, actions: torch.Tensor, seen: Observation | None = None) -> torch.Tensor:
        if not self.embodiment.scaled:
            return super().simulated(actions, seen)
        assert seen is not None
        return self._units().simulated(self.embodiment.physical(actions, self._known_state(seen)))

    def in_own_terms(
        self, actions: torch.Tensor, physical: bool = False, track: TrajectoryData | Observation | None = None
    ) -> torch.Tensor:
        if not self.embodiment.scaled:
            return super().in_own_terms(actions, physical, track)
        assert track is not None
        state = self._known_state(track)
        state = state[torch.arange(len(actions)).clamp_max(len(state) - 1)]  # there may be more actions than observations
        return self.embodiment.normalised(actions if physical else self._units().physical(actions), state)

    def _known_state(self, seen: Observation | TrajectoryData) -> torch.Tensor:
        """float32 [n, S]: the robot's own numbers. Raises UserError if there are more or fewer than the embodiment has."""
        if not self.state:
            return torch.zeros(1, 0, device=self.device)
        there = 0 if seen.state is None else seen.state.shape[1]
        if self.embodiment.scaled and there != self.state:
            listed = ", ".join(f"{group.name} {group.size}" for group in self.embodiment.states)
            raise UserError(
                f"a state of the embodiment {self.embodiment.name!r} has {self.state} numbers ({listed}), and the simulator "
                f"shows {there}: choose another embodiment, or a checkpoint for this robot"
            )
        return state_of(seen, self.state).to(self.device).float()

    def _state(self, seen: Observation) -> torch.Tensor:
        """float32 [n, numbers of a state in the network]: normalised if there are statistics, padded with zeros."""
        most = self.plan.head.max_state_dim
        if not self.state or self.embodiment.blind:
            return torch.zeros(len(seen), most, device=self.device)
        state = self._known_state(seen)
        if self.embodiment.scaled:
            state = self.embodiment.normalised_state(state)
        return pad(state, (0, most - state.shape[1]))

    # -- reading ----------------------------------------------------------------------------------------------------------

    @read_once
    def look(self, seen: Observation) -> Scene:
        """One pass over pictures and instruction."""
        embodiment_n = torch.full((len(seen),), self.embodiment.number, device=self.device)
        context = self.model.encode(self.reader.inputs(seen, self.device), self._state(seen), embodiment_n)
        real_nP1 = (context.text_nP | context.images_nP)[..., None]
        mean = torch.where(real_nP1, context.read_nPF.float(), 0.0).sum(1) / real_nP1.sum(1)
        return Scene(context=context, seen_nH=torch.cat([mean, context.state_n1W[:, 0].float()], -1))

    # -- acting and learning ----------------------------------------------------------------------------------------------

    def velocity(
        self, scene: Scene, x_nMCD: torch.Tensor, times_nM: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """float32 [n, M, C, D]: noise minus actions, see `Velocity`. The M times of a call share what is read and don't see each
        other."""
        times, head = 1 - times_nM.flatten() + ROUNDING, self.model.action_head
        context = scene.context.repeated(times_nM.shape[1])
        hidden = head.hidden(context, x_nMCD.flatten(0, 1).float(), times)
        found = -head.action_decoder(hidden, context.embodiment_n).float()
        return with_noise(self.model, found.view_as(x_nMCD), hidden.unflatten(0, x_nMCD.shape[:2]))

    @property
    def noise_shape(self) -> tuple[int, int]:
        return self.head.steps, self.numbers

    def _learned(self, x_nCD: torch.Tensor) -> torch.Tensor:
        """All actions and numbers of the embodiment: no other was trained."""
        return x_nCD[:, : self.ahead, : self.dims]

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        return self.look(seen).seen_nH

    # -- weights ----------------------------------------------------------------------------------------------------------

    def parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.model.named_parameters() if not self.lora or is_adapter(name) or is_noise(name))

    def save(self, folder: Path) -> None:
        """A folder in NVIDIA's layout, or in LeRobot's if it was read from such a one, with the settings and the backbone's
        processor beside it; with `policy.lora`, its adapters in place of the weights."""
        super().save(folder)
        lerobot = self.plan.lerobot if self.files.own and not self.lora else {}
        if self.lora:
            save_adapters(self.model, folder, self.base)
        else:
            save_network(self.model, self.plan.table, folder, lerobot)
        if not lerobot:
            self.files.write(folder)
        self.reader.processor.save_pretrained(folder / OWN_BACKBONE)
