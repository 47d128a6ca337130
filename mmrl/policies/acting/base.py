"""Base class of policies that act in simulators: observation -> hidden states -> head -> chunk of actions."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.simulators.history import in_track
from mmrl.api.simulators.layout import asked_until
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.specs import SimulatorSpec
from mmrl.api.tokens import TokenKind
from mmrl.compute.cuda_graphs import Found
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.policies.acting.call_graphs import CallGraphs
from mmrl.policies.acting.flow_noise import is_noise
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.heads import Flow, Head, Tokens
from mmrl.policies.acting.normalised import NormalisedPolicy
from mmrl.policies.acting.randomness import CallRandomness, several
from mmrl.policies.acting.saved_policy import SETTINGS, WEIGHTS
from mmrl.policies.acting.teachers import check_teacher, other_choices
from mmrl.policies.batches import ActionMicroBatch, ForwardOutputs
from mmrl.policies.shard import fill_like, shard, unsharded

if TYPE_CHECKING:
    from mmrl.api.interfaces import Simulator
    from mmrl.policies.acting.planned import Planned
    from mmrl.policies.critic import Critic


class ActingPolicy(NormalisedPolicy):
    """Base class of all policies that act. A subclass computes features; its head chooses actions.

    The network stays in evaluation mode, so that log-probabilities in updates are those of the sampler.
    """

    collector = "mmrl.rollout.collector:step_collector"
    packer = "mmrl.train.update.pack_trajectories:TrajectoryPacker"
    exact_sampler = True
    """Samples come from the same forward pass as updates, so before the first update log-probabilities need not be recomputed."""
    free: ClassVar[frozenset[str]] = frozenset()
    """Settings of image processing and sampling: they are saved, and a run file may change them."""
    choice_settings: ClassVar[frozenset[str]] = frozenset({"dims", "chunk"})
    """Settings that define a choice: a teacher must have the same."""
    device: torch.device
    model: nn.Module
    """All weights that may be trained."""
    head: Head
    chunk: int = 1
    """Number of actions chosen in a call."""
    history: int = 0
    """Number of earlier calls of an episode whose pictures it sees; see `mmrl.api.simulators.history`."""
    float32_only: ClassVar[bool] = False
    """Whether it computes in float32 whatever `policy.dtype` is, so that another type is refused."""
    unread: ClassVar[frozenset[str]] = frozenset({"chat_template", "min_pixels", "max_pixels"})
    """Keys of `[policy]` that change nothing in it, so that they are refused."""
    history_of_steps: bool = False
    """What it sees of the past is of earlier steps of the simulator, not of its own calls, and of the state, too."""
    width: int = 0
    """Width of the hidden states that a critic reads."""
    reads_text: bool = True
    """Whether an instruction changes what it does."""
    replays: ClassVar[bool] = False
    """Whether what follows a look is a run of `replayed`, so that `graphs` have an effect."""
    graphs: CallGraphs | None = None
    """By which `replayed` starts kernels; None without `generate.cuda_graphs`."""
    layered: ClassVar[bool] = False
    """With sharded weights, the layers of the language model are gathered one by one: the network calls them as modules."""
    _empty: ActingPolicy | None = None
    """With sharded weights, a copy of the policy whose weights are on torch's meta device."""

    @property
    def continuous_dims(self) -> int:
        return 0 if isinstance(self.head, Tokens) else self.dims

    @property
    def state_moments(self) -> int:
        """Moments whose states stand side by side in an observation's, the present one last."""
        return self.history + 1 if self.history_of_steps else 1

    @property
    def ahead(self) -> int:
        """Number of a demonstration's actions that it learns from at each step."""
        return self.chunk

    @property
    def behind(self) -> int:
        """Number of these that come before the step's own action."""
        return 0

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        """Tokens of the longest call of these episodes, as counted by `train.micro_batch_tokens`. It depends on the episodes
        alone, so that a resumed run makes the same passes."""
        return 1

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """[C, D]: the noise with which a flow of its actions begins, the use 0 of a call's normal numbers; None without one."""
        return (self.chunk, self.dims) if isinstance(self.head, Flow) else None

    # -- what a subclass defines ------------------------------------------------------------------------------------------

    def features(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        """(input of the head [n, K, ...], input of the critic [n, width])."""
        raise NotImplementedError

    def settings(self) -> Mapping[str, Any]:
        """Settings saved in a checkpoint, which a policy must share to load it: plain data."""
        raise NotImplementedError

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        """For `mmrl plan`: the network without weights, and its passes; see `Planned`. Raises UserError if it doesn't say."""
        raise UserError(
            f"policy.kind = {config.kind!r} has no planned(), which says what its passes are: mmrl plan can't count them"
        )

    # -- acting -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(
        self,
        seen: Observation,
        seeds_n: torch.Tensor,
        calls_n: torch.Tensor,
        temperature: float,
        critic: Critic | None = None,
        guidance: Guidance | None = None,
    ) -> ActionSample:
        """A chunk of actions for each row. It depends on the row, seeds_n and calls_n; temperature 0 takes the likeliest.
        guidance: for a policy that `guides`; log-probabilities are then of the guided distribution."""
        seen, draw = seen.on(self.device), CallRandomness(seeds_n=seeds_n, calls_n=calls_n).to(self.device)
        guided = () if guidance is None else (guidance.on(self.device),)
        actions, choices, logprobs, states = self.choose(seen, draw, temperature, *guided)
        if not torch.isfinite(actions).all():
            if odd := seen.not_finite():
                raise UserError(f"{odd}, and the policy's actions aren't finite either: mend the environment's reset()")
            raise UserError("the policy's actions are not finite: most likely a learning rate was too high; lower it")
        values = None
        if critic is not None:
            values = critic.of(states if critic.backbone is None else critic.backbone.states_of(seen, draw))
        return ActionSample(
            actions_nKA=self.simulated(actions, seen),
            choices=choices,
            logprobs_nKC=logprobs,
            values_nU=values,
            tokens_n=self.unsampled(choices)[1],
        )

    @property
    def guides(self) -> bool:
        """Whether it can be guided: `choose` then takes a `Guidance`."""
        return isinstance(self.head, Tokens | Flow)

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        """(actions_nKA, choices, logprobs_nKC, states [n, width])."""
        features, states = self.features(seen)
        if guidance is None:
            return (*self.replayed(self.head.sample, features, draw, temperature), states)
        assert isinstance(self.head, Tokens | Flow)
        plain = self.features(guidance.plain)[0]
        if isinstance(self.head, Tokens):
            return (*self.head.sample(guidance.mixed(features, plain), draw, temperature), states)
        velocity = guidance.velocity(self.head.seeing(features), self.head.seeing(plain))
        return (*self.head.follow(velocity, features.shape[1], draw, temperature), states)

    def replayed(self, run: Callable[..., Found], *given: Any) -> Found:
        """run(*given), by a graph if there are some and no gradient is wanted, see `CallGraphs`. For what the host decides
        nothing of: passes of the network over what a look has left, and random numbers of the calls."""
        if self.graphs is None or torch.is_grad_enabled():
            return run(*given)
        return self.graphs(run, *given)

    @torch.no_grad()
    def candidates(
        self, seen: Observation, seeds_n: torch.Tensor, calls_n: torch.Tensor, many: int, temperature: float = 1.0
    ) -> torch.Tensor:
        """float32 [n, M, K, A], in [-1, 1]: so many samples for each row, as the simulator takes them; see `act`."""
        draw = several(seeds_n, calls_n, many).to(self.device)
        each = seen.on(self.device).rows(torch.arange(len(seen)).repeat_interleave(many))
        return self.simulated(self.choose(each, draw, temperature)[0], each).clamp(-1, 1).unflatten(0, (-1, many))

    def choices_of(self, actions_nKA: torch.Tensor, seen: Observation) -> torch.Tensor:
        """[n, ...]: chunks of the simulator's actions, one for each observation, as choices to imitate."""
        return self.head.choices_of(self.in_own_terms(actions_nKA, track=seen))

    def unsampled(self, choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(log-probabilities of choices that nobody sampled, NaN [n, K, C], or [n, 1, C] where tokens say chunks; their
        `tokens_n`, None where each action has choices of its own)."""
        return torch.full((len(choices), self.chunk, self.head.slots), torch.nan, device=choices.device), None

    @torch.no_grad()
    def values(self, seen: Observation, seeds_n: torch.Tensor, calls_n: torch.Tensor, critic: Critic) -> torch.Tensor:
        """The critic's values of the observations before these calls, float32 [n, U]; see `act`."""
        reader, seen = critic.backbone or self, seen.on(self.device)
        return critic.of(reader.states_of(seen, CallRandomness(seeds_n=seeds_n, calls_n=calls_n).to(self.device)))

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        """The hidden states that a critic reads, [n, width]. draw: the calls' randomness, for a policy that remembers
        episodes."""
        return self.features(seen)[1]

    def chunked(self, track: TrajectoryData, physical: bool = False) -> TrajectoryData:
        """A demonstration with one action per call -> chunks in the policy's representation: at each step the next `ahead`
        actions, of which some are `behind`; the first one is repeated before the episode, and the last one after it, or after the
        part with one instruction. physical: see `in_own_terms`."""
        actions_TA = track.choices[:, 0].to(self.device)
        count = len(actions_TA)
        later = torch.arange(count, device=self.device)[:, None] + torch.arange(self.ahead, device=self.device) - self.behind
        ends_T1 = torch.tensor(asked_until(track), device=self.device)[:, None]
        valid_TK = later[:, self.behind : self.behind + self.chunk] < ends_T1
        chunks_TCA = actions_TA[later.clamp(min=0).minimum(ends_T1 - 1)]
        choices = self.head.choices_of(self.in_own_terms(chunks_TCA, physical, track))
        logprobs_TKC, tokens_T = self.unsampled(choices)
        return replace(
            track,
            choices=choices,
            logprobs_TKC=logprobs_TKC,
            tokens_T=tokens_T,
            valid_TK=valid_TK,
            rewards_TK=torch.zeros(count, self.chunk, device=self.device),
        )

    def with_history(self, track: TrajectoryData) -> TrajectoryData:
        """An episode, an action in each of its steps, with what the policy sees of the past at each."""
        return in_track(track, self.history, 1 if self.history_of_steps else self.chunk, self.history_of_steps)

    @property
    def follows(self) -> bool:
        """Whether it can learn from an expert's answers, one in each state, see `following`: what it learns at a time is one
        action, or the others can be left out."""
        return self.ahead == 1

    def following(self, rollout: Trajectory) -> Trajectory:
        """For DAgger (Ross et al., A Reduction of Imitation Learning to No-Regret Online Learning). Chunks must have one
        action."""
        track = rollout.data
        assert track is not None and track.expert_actions_TA is not None
        return replace(rollout, data=self.chunked(replace(track, choices=track.expert_actions_TA[:, None])))

    def fits(self, task: str, simulator: Simulator, spec: SimulatorSpec) -> None:
        """Raise UserError if the policy doesn't fit the simulator of a task."""
        action = getattr(simulator, "action", None) or spec.action
        if action is None:
            raise UserError(f"simulator {spec.id!r} doesn't say what an action is: its spec needs action=ActionSpec(...)")
        if action.dims != self.dims:
            raise UserError(
                f"task {task!r}: simulator {spec.id!r} takes actions of {action.dims} numbers, and policy.options.dims = "
                f"{self.dims}: make them equal"
            )
        self.take_units(task, spec.id, action)

    # -- learning ---------------------------------------------------------------------------------------------------------

    def outputs(
        self, calls: ActionMicroBatch, temperature: float, *, states: bool = False, entropy_gradient: bool = False
    ) -> ForwardOutputs:
        """One forward pass; see `VLM.outputs`."""
        calls = replace(calls, observation=calls.observation.on(self.device))

        def passed() -> tuple[torch.Tensor, ...]:
            logprobs_SKC, entropy_SKC, states_SH = self.scored(calls, temperature)
            if not entropy_gradient:
                entropy_SKC = entropy_SKC.detach()
            return calls.targets(logprobs_SKC), calls.targets(entropy_SKC), states_SH

        logprobs_L, entropy_L, states_SH = self._through(passed)
        return ForwardOutputs(logprobs_L=logprobs_L, entropy_L=entropy_L, states_QH=states_SH if states else None)

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(logprobs_SKC, entropy_SKC, states [S, width])."""
        features, states = self.features(calls.observation)
        return (*self.head.score(features, calls.choices, temperature), states)

    def states(self, calls: ActionMicroBatch) -> torch.Tensor:
        """The hidden states that a critic reads, [S, width]."""
        return self._through(lambda: (self.states_of(calls.observation.on(self.device)),))[0]

    @classmethod
    def token_kind(cls, config: PolicyConfig) -> TokenKind:
        """A subclass whose tokens are no actions says what they are: `CHUNK_WORD` and `DENOISING_STEP` go with `tokens_n` of
        `unsampled`."""
        return TokenKind.ACTION

    @classmethod
    def check_teacher(cls, config: PolicyConfig, teacher: str) -> None:
        """Raise UserError if the teacher of a distill stage can't score this policy's choices; loads nothing."""
        check_teacher(cls, config, teacher)

    def refuse_teacher(self, teacher: ActingPolicy, name: str) -> None:
        """Raise UserError if a loaded teacher can't score this policy's choices."""
        theirs = teacher.choice_terms()
        for term, here in self.choice_terms().items():
            if theirs.get(term) != here:
                raise other_choices(name, term, theirs.get(term), here)

    def choice_terms(self) -> dict[str, Any]:
        """The definition of a choice, as plain data; policies with equal terms can score each other's choices."""
        kept = self._kept()
        return {name: kept.get(name) for name in (*sorted(self.choice_settings), "statistics", "gripper")}

    # -- several learners -------------------------------------------------------------------------------------------------

    def spread(self) -> None:
        """Shard the weights over ranks. A copy without weights is kept, as sharded weights can't be copied (see `clone`)."""
        self._empty = None
        nothing = {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in self.model.parameters()}
        self._empty = copy.deepcopy(self, {**self.shared_by_copies(), **nothing})
        self.root = shard(self.model, self.layered)

    def clone(self, frozen: bool = False, spread: bool = True) -> ActingPolicy:
        """A second policy with a copy of the weights as they are now. spread: sharded if these are."""
        if self.root is None:
            other = copy.deepcopy(self, self.shared_by_copies())
        else:
            assert self._empty is not None
            other = copy.deepcopy(self._empty, self._empty.shared_by_copies())
            with unsharded(self.root):
                fill_like(other.model, self.model)
            other.units = self.units
        if frozen:
            other.model.requires_grad_(False)
        if self.root is not None and spread:
            other.spread()
        return other

    def shared_by_copies(self) -> dict[int, Any]:
        """id -> an object that is the same in every copy of the policy, such as a base that never changes."""
        return {}

    # -- checkpoints ------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """All weights and settings, so that `load` gives the same policy."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SETTINGS).write_text(json.dumps(self._kept(), indent=2))
        save_file({name: p.detach().contiguous() for name, p in self._own()}, folder / WEIGHTS)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote. Raises UserError if the saved policy has another shape."""
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
        # a flow may begin or cease to learn its noise
        if odd := sorted(name for name in tensors.keys() ^ own.keys() if not is_noise(name)):
            raise UserError(f"{folder / WEIGHTS} doesn't fit this policy: {odd[0]!r} is only in one of them")
        with torch.no_grad():
            for name, parameter in own.items():
                if name not in tensors:
                    continue
                if tensors[name].shape != parameter.shape:
                    there, here = list(tensors[name].shape), list(parameter.shape)
                    raise UserError(f"{folder / WEIGHTS}: {name!r} is {there}, and {here} in this policy")
                parameter.copy_(tensors[name])

    def _kept(self) -> dict[str, Any]:
        """All settings, including those of normalisation."""
        scales = {} if self.statistics is None else {"statistics": self.statistics.plain(), "gripper": self.gripper}
        return {**self.settings(), **scales}

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights that this class saves itself."""
        yield from self.model.named_parameters()
