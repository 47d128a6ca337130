"""A policy that acts: what is seen -> hidden states -> a head -> a chunk of actions. It learns like a policy that writes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.specs import SimulatorSpec
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting import options
from mmrl.policies.acting.heads import Head
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS, WEIGHTS, check_same_kind
from mmrl.policies.acting.units import Statistics, Units, check_gripper, check_range, load_statistics, simulator_units
from mmrl.policies.batches import ActionMicroBatch, ForwardOutputs
from mmrl.policies.policy import Policy

if TYPE_CHECKING:
    from mmrl.api.interfaces import Simulator
    from mmrl.policies.critic import Critic


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSample:
    """What a policy chose for n environments."""

    actions_nKA: torch.Tensor
    """float32, in [-1, 1]."""
    choices: torch.Tensor
    """[n, ...], in the policy's own terms."""
    logprobs_nKC: torch.Tensor
    values_nU: torch.Tensor | None = None
    """What the critic says, of each action or of the whole."""
    expert_actions_nA: torch.Tensor | None = None
    """What an expert would do, where one is asked."""


class ActingPolicy(Policy):
    """What all policies that act share. A subclass sees; the head decides.

    The network stays in evaluation mode, so that log-probabilities in updates are those of the sampler.
    """

    collector = "mmrl.rollout.collector:step_collector"
    packer = "mmrl.train.update.pack_trajectories:TrajectoryPacker"
    exact_sampler = True
    """Samples come from this very forward pass: before the first update they need not be computed again."""
    free: ClassVar[frozenset[str]] = frozenset()
    """Settings that say how it looks and samples, not what it is: they are saved, and a run file may say others."""
    choice_settings: ClassVar[frozenset[str]] = frozenset({"dims", "chunk"})
    """Settings that say what a choice is: a teacher needs the policy's own."""
    device: torch.device
    model: nn.Module
    """All weights that may be trained."""
    head: Head
    chunk: int = 1
    """Actions that are chosen in a call."""
    dims: int
    """Numbers of an action."""
    width: int = 0
    """Of the states that a critic reads."""
    statistics: Statistics | None = None
    """Of the data that it was trained on, for a policy whose numbers are normalised; see `mmrl.policies.acting.units`."""
    gripper: str = ""
    """What that data's numbers for a gripper mean."""
    units: Units | None = None
    """Of the simulator, for such a policy; known when it first met one."""

    @property
    def ahead(self) -> int:
        """Actions of a demonstration that it learns from at each moment."""
        return self.chunk

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        """What a call of these episodes counts in `train.micro_batch_tokens`: the most of them. It depends on nothing else, so
        that a run which goes on after a stop makes the same passes."""
        return 1

    # -- what a subclass says ---------------------------------------------------------------------------------------------

    def features(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        """(what the head reads [n, K, ...], the states that a critic reads [n, width])."""
        raise NotImplementedError

    def settings(self) -> Mapping[str, Any]:
        """What a checkpoint must be read with: plain data."""
        raise NotImplementedError

    # -- scales -----------------------------------------------------------------------------------------------------------

    def use_statistics(self, given: str | Mapping[str, Any], key: str, kind: str, gripper: str) -> None:
        """The policy's numbers are those of a data set; nothing where nothing is given. given: see `units.load_statistics`.
        Raises UserError for statistics that don't fit it."""
        if not isinstance(given, str | Mapping):
            raise UserError(f"policy.options.statistics = {given!r:.60} must be a file or a folder with one")
        for option, value in (("statistics_key", key), ("statistics_kind", kind), ("gripper", gripper)):
            options.check_text(option, value)
        check_gripper(gripper)
        if not given:
            for option, value in (("statistics_key", key), ("statistics_kind", kind), ("gripper", gripper)):
                if value:
                    raise UserError(
                        f"policy.options.{option} = {value!r} says what statistics mean, and policy.options.statistics names none"
                    )
            return
        statistics = load_statistics(given, key, kind)
        if len(statistics.action) != self.dims:
            raise UserError(
                f"policy.options.statistics are of actions of {len(statistics.action)} numbers, and policy.options.dims = "
                f"{self.dims}: make them equal"
            )
        self.statistics, self.gripper = statistics, gripper

    def simulated(self, actions: torch.Tensor) -> torch.Tensor:
        """The policy's own numbers [..., A] -> the simulator's, in [-1, 1]."""
        if self.statistics is None:
            return actions.clamp(-1, 1)
        return self._units().simulated(self.statistics.action.unnormalize(actions))

    def in_own_terms(self, actions: torch.Tensor, physical: bool = False) -> torch.Tensor:
        """The inverse of `simulated`. physical: from metres, radians and the data set's own convention for a gripper."""
        if self.statistics is None:
            if physical:
                raise UserError(
                    "the actions are physical, and the policy has no statistics of such actions: give policy.options.statistics"
                )
            return actions
        return self.statistics.action.normalize(actions if physical else self._units().physical(actions))

    def _units(self) -> Units:
        if self.units is None:
            raise UserError("a policy with statistics needs a simulator that says its units, and has met none: call fits() first")
        return self.units

    # -- acting -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(
        self, seen: Observation, seeds_n: torch.Tensor, calls_n: torch.Tensor, temperature: float, critic: Critic | None = None
    ) -> ActionSample:
        """A chunk for each row. What is drawn depends on seeds_n and calls_n alone; temperature 0 takes the likeliest."""
        draw = CallRandomness(seeds_n=seeds_n, calls_n=calls_n).to(self.device)
        actions, choices, logprobs, states = self.choose(seen, draw, temperature)
        if not torch.isfinite(actions).all():
            raise UserError("the policy's actions are not finite: most likely a learning rate was too high; lower it")
        values = None
        if critic is not None:
            values = critic.of(states if critic.backbone is None else critic.backbone.states_of(seen, draw))
        return ActionSample(actions_nKA=self.simulated(actions), choices=choices, logprobs_nKC=logprobs, values_nU=values)

    def choose(self, seen: Observation, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
        """(actions_nKA, choices, logprobs_nKC, states [n, width])."""
        features, states = self.features(seen)
        return (*self.head.sample(features, draw, temperature), states)

    @torch.no_grad()
    def values(self, seen: Observation, seeds_n: torch.Tensor, calls_n: torch.Tensor, critic: Critic) -> torch.Tensor:
        """What the critic says of what is seen before these calls, float32 [n, U]; see `act`."""
        reader = critic.backbone or self
        return critic.of(reader.states_of(seen, CallRandomness(seeds_n=seeds_n, calls_n=calls_n).to(self.device)))

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        """The states that a critic reads, [n, width]. draw: of the calls, for a policy with a memory of its episodes."""
        return self.features(seen)[1]

    def chunked(self, track: TrajectoryData, physical: bool = False) -> TrajectoryData:
        """A demonstration, one action a call, as chunks in the policy's terms: at each moment the next actions, `ahead` of them,
        the last one again where the episode is over. physical: they are not the simulator's, see `in_own_terms`."""
        actions_TA = self.in_own_terms(track.choices[:, 0].to(self.device), physical)
        count = len(actions_TA)
        later = torch.arange(count)[:, None] + torch.arange(self.ahead)
        valid_TK = (later[:, : self.chunk] < count).to(self.device)
        return replace(
            track,
            choices=self.head.choices_of(actions_TA[later.clamp_max(count - 1).to(self.device)]),
            logprobs_TKC=torch.full((count, self.chunk, self.head.slots), torch.nan, device=self.device),
            valid_TK=valid_TK,
            rewards_TK=torch.zeros(count, self.chunk, device=self.device),
        )

    def following(self, rollout: Trajectory) -> Trajectory:
        """DAgger (Ross et al., A Reduction of Imitation Learning to No-Regret Online Learning). A chunk has one action."""
        track = rollout.data
        assert track is not None and track.expert_actions_TA is not None
        return replace(rollout, data=self.chunked(replace(track, choices=track.expert_actions_TA[:, None])))

    def fits(self, task: str, simulator: Simulator, spec: SimulatorSpec) -> None:
        """UserError where the policy doesn't fit the simulator of a task."""
        action = getattr(simulator, "action", None) or spec.action
        if action is None:
            raise UserError(f"simulator {spec.id!r} doesn't say what an action is: its spec needs action=ActionSpec(...)")
        if action.dims != self.dims:
            raise UserError(
                f"task {task!r}: simulator {spec.id!r} takes actions of {action.dims} numbers, and policy.options.dims = "
                f"{self.dims}: make them equal"
            )
        if self.statistics is not None:
            units = simulator_units(f"task {task!r}: simulator {spec.id!r}", action, self.gripper)
            if units.gripper is not None:
                check_range(self.statistics.action, units.gripper, self.gripper)
            if self.units not in (None, units):
                raise UserError(
                    f"task {task!r}: an action of simulator {spec.id!r} has units {list(units.sizes)}, and that of another task "
                    "has others: a policy with statistics takes tasks of equal units"
                )
            self.units = units

    # -- learning ---------------------------------------------------------------------------------------------------------

    def outputs(
        self, calls: ActionMicroBatch, temperature: float, *, states: bool = False, entropy_gradient: bool = False
    ) -> ForwardOutputs:
        """One forward pass; see `VLM.outputs`."""
        logprobs_SKC, entropy_SKC, states_SH = self.scored(calls, temperature)
        if not entropy_gradient:
            entropy_SKC = entropy_SKC.detach()
        return ForwardOutputs(
            logprobs_L=calls.targets(logprobs_SKC), entropy_L=calls.targets(entropy_SKC), states_QH=states_SH if states else None
        )

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(logprobs_SKC, entropy_SKC, states [S, width])."""
        features, states = self.features(calls.observation)
        return (*self.head.score(features, calls.choices, temperature), states)

    def states(self, calls: ActionMicroBatch) -> torch.Tensor:
        """What a critic reads, [S, width]."""
        return self.states_of(calls.observation)

    @classmethod
    def check_teacher(cls, config: PolicyConfig, teacher: str) -> None:
        """Refuse the teacher of a distill stage that can't say how likely this policy's choices are; loads nothing."""
        check_teacher(cls, config, teacher)

    def refuse_teacher(self, teacher: ActingPolicy, name: str) -> None:
        """Refuse one that can't say how likely this policy's choices are."""
        theirs = teacher.choice_terms()
        for term, here in self.choice_terms().items():
            if theirs.get(term) != here:
                raise _other_choices(name, term, theirs.get(term), here)

    def choice_terms(self) -> dict[str, Any]:
        """What a choice is, in plain data: a policy that says the same of its own can score it."""
        kept = self._kept()
        return {name: kept.get(name) for name in (*sorted(self.choice_settings), "statistics", "gripper")}

    # -- checkpoints ------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """All weights and settings, so that `load` gives the same policy."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SETTINGS).write_text(json.dumps(self._kept(), indent=2))
        save_file({name: p.detach().contiguous() for name, p in self._own()}, folder / WEIGHTS)

    def load(self, folder: Path) -> None:
        """What `save` wrote. Raises UserError where it is of a policy of another shape."""
        saved = json.loads((folder / SETTINGS).read_text())
        if "statistics" in saved and self.statistics is None:
            raise UserError(
                f"{folder} holds a policy with statistics of its data, and the run file has none: set policy.options.statistics"
            )
        for name, value in self._kept().items():
            if name not in self.free and saved.get(name, value) != value:
                raise UserError(
                    f"{folder} holds a policy with {name} = {saved.get(name)!r}, and the run file says {value!r}: "
                    f"set policy.options.{name} = {saved.get(name)!r}, or begin from another model"
                )
        tensors, own = load_file(folder / WEIGHTS), dict(self._own())
        if tensors.keys() != own.keys():
            odd = sorted(tensors.keys() ^ own.keys())
            raise UserError(f"{folder / WEIGHTS} doesn't fit this policy: {odd[0]!r} is only in one of them")
        with torch.no_grad():
            for name, parameter in own.items():
                if tensors[name].shape != parameter.shape:
                    there, here = list(tensors[name].shape), list(parameter.shape)
                    raise UserError(f"{folder / WEIGHTS}: {name!r} is {there}, and {here} in this policy")
                parameter.copy_(tensors[name])

    def _kept(self) -> dict[str, Any]:
        """All settings, those of the scales among them."""
        scales = {} if self.statistics is None else {"statistics": self.statistics.plain(), "gripper": self.gripper}
        return {**self.settings(), **scales}

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights that this class keeps itself."""
        yield from self.model.named_parameters()


def check_teacher(kind: type[ActingPolicy], config: PolicyConfig, teacher: str) -> None:
    """Refuse a saved teacher that can't say how likely the policy's choices are. Loads nothing, so that what neither the run file
    nor a folder says is left to `ActingPolicy.refuse_teacher`."""
    taught = check_same_kind(Path(teacher), config.kind)
    parameters = inspect.signature(kind).parameters.values()
    ways = {p.name: p.default for p in parameters if p.default is not p.empty}
    ways |= check_same_kind(Path(config.model), config.kind) | dict(config.options)
    for name in sorted(kind.choice_settings):
        there = config.options.get(name, taught.get(name)) if name in kind.free else taught.get(name)
        if there is not None and ways.get(name) is not None and there != ways[name]:
            raise _other_choices(teacher, name, there, ways[name])


def _other_choices(teacher: str, name: str, there: Any, here: Any) -> UserError:
    return UserError(
        f"teacher {teacher!r} has {name} = {there!r:.80}, and the policy {here!r:.80}, so it can't say how likely the policy's "
        f"choices are: take one with the same {name}"
    )
