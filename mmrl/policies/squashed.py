"""A small policy with a gradient from its actions to its weights, as off-policy learning needs it. It reads what doesn't change
while it learns: the simulator's state, and the hidden states of a frozen policy that sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.specs import Bounds, SimulatorSpec
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.observed import present_state_of
from mmrl.policies.acting.options import Actions, Correction, Layer, PolicyOptions, Width
from mmrl.policies.acting.planned import META, Planned
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS, read_settings
from mmrl.policies.actors import Actor, NoisyTanh, SquashedNormal
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.eyes import features_of
from mmrl.policies.load import check_beneath, errors_of_base, policy_beneath
from mmrl.policies.planned_base import frozen_of, planned_base

if TYPE_CHECKING:
    from mmrl.api.interfaces import Simulator


@dataclass(frozen=True, kw_only=True)
class SquashedOptions(PolicyOptions):
    dims: Actions = 7
    """Numbers of an action; the simulator's."""
    state: Width = 0
    """Numbers of the simulator's state that is read; 0 reads none."""
    base: str | Mapping[str, Any] = ""
    """A frozen policy of any kind that acts, whose hidden states it reads: with it, it sees. Its folder, or for one that mmrl
    didn't save a table with its kind, model and options."""
    residual: Correction = 0.0
    """The action is the base's likeliest one, and at most this much more or less in each number (ResFiT); 0: an action of its
    own."""
    noise: Annotated[float, Bounds(low=0, high=2)] = 0.0
    """Standard deviation of an action around tanh, in units of an action, for TD3; 0: it is learned, before tanh."""
    hidden: Sequence[Layer] = (256, 256)
    """Widths of its hidden layers; `stages.hidden` has those of the critics."""
    gripper_choices: Literal[0, 2, 3] = 0
    """Choices of the last number, the gripper's, by a critic of its own: 3: open, stay and close; 2: open and close; 0: it is
    drawn as the others are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise UserError("policy.options.hidden = [] must be a list of widths, such as [256, 256]")
        if not self.base and not self.state:
            raise UserError("policy.options.state = 0 and base is empty, so it would see nothing: set one of them")
        if self.residual and not self.base:
            raise UserError(f"policy.options.residual = {self.residual:g} corrects a base: set policy.options.base")
        if self.gripper_choices:
            for name in ("residual", "noise"):
                if value := getattr(self, name):
                    raise UserError(
                        f"policy.options.gripper_choices: {name} = {value:g} is of policies all of whose numbers are drawn: set "
                        f"{name} = 0, or gripper_choices = 0"
                    )
            if self.dims == 1:
                raise UserError("policy.options.gripper_choices leaves no number to draw of dims = 1: set it to 0, or raise dims")


class Squashed(ActingPolicy):
    """A perceptron whose action is tanh of a normal number (`SquashedNormal`), or with `noise` tanh and fixed noise
    (`NoisyTanh`), of features that nothing trains.

    Features [n, F] are, in this order: the base's hidden states, the simulator's state, and with `residual` the base's likeliest
    action, to which a correction is added. A choice is the features and what the perceptron chose, [n, 1, F + A]: whoever learns
    from an episode needs no second pass of the base. With `gripper_choices` the last number of a choice is the gripper's action.
    """

    options_class: ClassVar[type[Any]] = SquashedOptions
    trained_whole = True
    unread = frozenset()  # the base may read them all
    reads_text = False
    remembers: ClassVar[bool] = True
    """An off-policy stage can learn it from what a memory keeps."""
    imitates: ClassVar[bool] = True
    """What another does can be among its choices."""
    noise_of: str = ""
    """Whose noise its actions are, and how large, where they are noise."""
    choice_settings = frozenset({"dims", "state", "base", "residual", "noise", "gripper_choices"})

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        own = SquashedOptions(**given)
        dims, state, base, residual, noise = own.dims, own.state, own.base, own.residual, own.noise
        self.device, self.dims, self.state, self.where = torch.device(device), dims, state, base
        self.residual, self.noise, self.hidden = float(residual), float(noise), list(own.hidden)
        self.base = policy_beneath(base, config, device) if base else None
        if residual and self.base and (self.base.chunk != 1 or self.base.dims != dims):
            raise UserError(
                f"policy.options.residual corrects one action of {dims} numbers, and the base chooses {self.base.chunk} of "
                f"{self.base.dims}: take another base, or set residual = 0"
            )
        if self.base:
            self.history, self.history_of_steps = self.base.history, self.base.history_of_steps
        self.reads_text = self.base is not None and self.base.reads_text
        self.width = (self.base.width if self.base else 0) + state + (dims if residual else 0)
        self.begin(config, lambda: _actor_of(own, self.width), seed, source)

    def begin(self, config: PolicyConfig, make: Callable[[], Actor], seed: int, source: Path | None) -> None:
        """Make the perceptron, whose weights are those of this seed, of the folder `source`, or of `policy.model`."""
        place = source or (Path(config.model) if _check_model(config.model) else None)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            actor = make()
        self.actor = actor.to(self.device)
        self.model, self.head = self.actor, self.actor  # type: ignore[assignment]  # its methods are called here alone
        if place:
            self.load(place)

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for an invalid `model` or base, without making it."""
        _check_model(config.model)
        check_beneath(config)

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        own = cls.options_class(**config.options)
        base = planned_base(own.base, config) if own.base else None
        width = (base.width if base else 0) + own.state + (own.dims if own.residual else 0)
        return planned_actor(lambda: _actor_of(own, width), width, base, own.dims)

    def settings(self) -> Mapping[str, Any]:
        found = {"kind": "squashed", "model": "mlp", "dims": self.dims, "state": self.state, "base": self.where}
        found |= {"residual": self.residual, "noise": self.noise, "hidden": self.hidden}
        return found | {"gripper_choices": 0 if self.actor.gripper is None else self.actor.gripper.choices}

    def fits(self, task: str, simulator: Simulator, spec: SimulatorSpec) -> None:
        super().fits(task, simulator, spec)
        if self.base is not None:
            with errors_of_base(self.where):
                self.base.fits(task, simulator, spec)
        action = getattr(simulator, "action", None) or spec.action
        if self.actor.gripper is not None and action is not None and action.gripper != self.dims - 1:
            has = "no gripper" if action.gripper is None else f"its gripper as number {action.gripper} of 0 to {self.dims - 1}"
            raise UserError(
                f"task {task!r}: an action of simulator {spec.id!r} has {has}, and policy.options.gripper_choices = "
                f"{self.actor.gripper.choices} is of a gripper that is the last number: set it to 0"
            )

    def shared_by_copies(self) -> dict[int, Any]:
        """The base, because it never changes."""
        return {id(self.base): self.base}

    @property
    def numbers(self) -> int:
        """Numbers of what a memory keeps of an action."""
        return self.actor.numbers

    # -- what it sees -----------------------------------------------------------------------------------------------------

    def remembered(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        """float32 [n, F]: the features of observations, which a memory keeps. draw: the calls' randomness, for a base that
        begins from noise; zeros if None."""
        return self.reading(seen.on(self.device), draw)

    @torch.no_grad()
    def reading(self, seen: Observation, draw: CallRandomness | None) -> torch.Tensor:
        """`remembered`, of observations on its device."""
        found = []
        if self.base is not None:
            if draw is None:
                nothing_n = torch.zeros(len(seen), dtype=torch.int64, device=self.device)
                draw = CallRandomness(seeds_n=nothing_n, calls_n=nothing_n)
            with errors_of_base(self.where):
                if self.residual:
                    actions_n1A, _, _, states = self.base.choose(seen, draw, 0.0)
                else:  # a flow's steps, or tokens one by one, would be for nothing
                    states = self.base.states_of(seen, draw)
            found.append(states)
        if self.state:
            found.append(present_state_of(seen, self.state, self.state_moments))
        if self.base is not None and self.residual:
            found.append(self.base.simulated(actions_n1A, seen)[:, 0])
        return torch.cat([x.float() for x in found], 1)

    def remembered_of(self, track: TrajectoryData) -> torch.Tensor:
        """float32 [T + 1, F]: the features of an episode's observations, that of the last state included."""
        return features_of(self, track)

    def features(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.remembered(seen)
        return found[:, None], found

    # -- what it does -----------------------------------------------------------------------------------------------------

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        assert guidance is None  # it reads no text that could guide
        features = self.reading(seen, draw)
        mean, spread = self.actor.terms(features)
        noise = draw.normal(0, self.actor.dims) if temperature else torch.zeros_like(mean)
        spread = spread * (temperature or 1.0)
        chosen = mean + spread * noise
        logprobs = self.actor.density(chosen, noise, spread)
        if self.actor.gripper is not None:
            chosen = torch.cat([chosen, self.actor.gripper.best(features)], 1)
        choices = torch.cat([features, chosen], 1)[:, None]
        return self.played(seen, draw, self._action(features, chosen)), choices, logprobs[:, None, None], features

    def _action(self, features: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """[n, A] in [-1, 1]: the action of what was chosen, of which a gripper's number is its own action."""
        if self.actor.gripper is None:
            return self.actor.action(features, chosen)
        return torch.cat([self.actor.action(features, chosen[..., :-1]), chosen[..., -1:]], -1)

    def played(self, seen: Observation, draw: CallRandomness, actions_nA: torch.Tensor) -> torch.Tensor:
        """[n, K, A]: what the simulator gets where the perceptron chose these actions, in [-1, 1]."""
        return actions_nA[:, None]

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The entropy is that of the normal number that is chosen. Raises UserError for a gripper, whose number has no
        density."""
        self._refuse_gripper()
        features, chosen = calls.choices[:, 0].split([self.width, self.actor.dims], -1)
        mean, spread = self.actor.terms(features)
        spread = spread * temperature
        logprobs = self.actor.density(chosen, (chosen - mean) / spread, spread)
        entropy = torch.distributions.Normal(mean, spread).entropy().sum(-1)
        return logprobs[:, None, None], entropy[:, None, None], features

    def states(self, calls: ActionMicroBatch) -> torch.Tensor:
        return calls.choices[:, 0, : self.width]

    def choices_of(self, actions_nKA: torch.Tensor, seen: Observation) -> torch.Tensor:
        return self.imitated(self.remembered(seen), actions_nKA[:, 0])

    def imitated(self, features: torch.Tensor, actions_nA: torch.Tensor) -> torch.Tensor:
        """[n, 1, F + A]: actions in [-1, 1] as choices where these features were seen. Raises UserError for a policy that can't
        imitate."""
        self._refuse_gripper()
        if self.residual:
            raise UserError("a residual policy corrects another and can't imitate: train its base by imitation")
        return torch.cat([features, self.actor.chosen(actions_nA)], 1)[:, None]

    def _refuse_gripper(self) -> None:
        if self.actor.gripper is not None:
            raise UserError(
                'policy.options.gripper_choices: only kind = "off-policy" learns which is best: set it to 0 for other stages'
            )

    def chunked(self, track: TrajectoryData, physical: bool = False) -> TrajectoryData:
        """A demonstration with its features, and what must be chosen for its actions."""
        actions_TA = self.in_own_terms(track.choices[:, 0].to(self.device), physical, track)
        features = self.remembered_of(track)[:-1]
        count = len(actions_TA)
        return replace(
            track,
            choices=self.imitated(features, actions_TA),
            logprobs_TKC=torch.full((count, 1, 1), torch.nan, device=self.device),
            valid_TK=torch.ones(count, 1, dtype=torch.bool, device=self.device),
            rewards_TK=torch.zeros(count, 1, device=self.device),
        )

    def transitions(self, track: TrajectoryData) -> tuple[torch.Tensor, torch.Tensor]:
        """(features [T + 1, F], actions [T, A] in [-1, 1]) of an episode that it played. Where another acted, the actions are
        theirs."""
        features, chosen = track.choices[:, 0].split([self.width, self.actor.numbers], -1)
        actions = self._action(features, chosen).detach()
        if track.corrected_T is not None and track.actions_TKA is not None:
            carried_out = track.actions_TKA[:, 0].to(actions).clamp(-1, 1)
            actions = torch.where(track.corrected_T.to(actions.device)[:, None], carried_out, actions)
        return self.seen_in(track), actions

    def seen_in(self, track: TrajectoryData) -> torch.Tensor:
        """float32 [T + 1, F]: the features of an episode that it played. Only the last state takes a pass."""
        last = Observation(
            images={camera: rows[-1:] for camera, rows in track.images.items()},
            state=None if track.state is None else track.state[-1:],
            instructions=[track.told[-1]],
        )
        return torch.cat([track.choices[:, 0, : self.width], self.remembered(last)])


def planned_actor(make: Callable[[], Actor], width: int, base: Planned | None, dims: int, chunk: int = 1) -> Planned:
    """That of a perceptron on a base. width: of its features. dims: of an action. chunk: actions of a call."""
    with META:
        actor = make()

    def learn(rows: int, text: int, demonstrated: bool) -> torch.Tensor:
        return torch.cat(actor.terms(torch.empty(rows, width, device=META)), -1)

    def act(rows: int, text: int) -> None:
        if base:
            base.call(rows, text)
        learn(rows, text, False)
        if actor.gripper is not None:
            actor.gripper(torch.empty(rows, width, device=META))

    return Planned(
        model=actor,
        width=width,
        chunk=chunk,
        dims=dims,
        steps=1,
        pictures=base.pictures if base else 0,
        pixels=base.pixels if base else 0,
        prefix=lambda text: 0,
        tokens=lambda text, demonstrated: 1,
        act=act,
        learn=learn,
        frozen=frozen_of(base) if base else None,
        computed=base.computed if base else None,
        reads_text=bool(base and base.reads_text),
    )


def _actor_of(own: SquashedOptions, width: int) -> NoisyTanh | SquashedNormal:
    """The perceptron. width: of the features."""
    sizes: dict[str, Any] = {"hidden": list(own.hidden), "residual": float(own.residual)}
    if own.noise:
        return NoisyTanh(width, own.dims, noise=own.noise, **sizes)
    return SquashedNormal(width, own.dims - bool(own.gripper_choices), gripper_choices=own.gripper_choices, **sizes)


def _check_model(model: str) -> bool:
    """Whether the model is a folder with such a policy. Raises UserError if it is neither that nor a new one."""
    if Path(model).is_dir():
        if not read_settings(Path(model)):
            raise UserError(f"{model!r} has no {SETTINGS}: it is not a policy that acts", key="policy.model")
        return True
    if model != "mlp":
        raise UserError(f"{model!r} is no squashed policy: use mlp, or a folder with one", key="policy.model")
    return False
