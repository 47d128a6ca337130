"""A small policy that corrects a frozen one: its actions are those of the base plus a small correction (Ankile et al., Residual
Off-Policy RL for Finetuning Behavior Cloning Policies, ResFiT; here the residual learns on-policy)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import torch

from mmrl import SimulatorSpec, UserError
from mmrl.api.interfaces import Simulator
from mmrl.api.policies import (
    ActingPolicy,
    ActionMicroBatch,
    CallRandomness,
    Normal,
    Planned,
    PolicyConfig,
    check_beneath,
    errors_of_base,
    frozen_of,
    options,
    planned_base,
    policy_beneath,
    present_state_of,
    read_settings,
)
from mmrl.api.simulators.types import Observation
from mmrl.api.specs import Bounds
from mmrl_robotics.small import NetworkOptions, Small

PLANS = 65_536
"""Maximum of episodes whose planned actions are cached: more than are ever active at a time."""


@dataclass(frozen=True, kw_only=True)
class ResidualOptions(NetworkOptions):
    base: str | Mapping[str, Any]
    """The frozen policy whose likeliest actions are corrected. Its folder, or for one that mmrl didn't save a table with its
    kind, model and options."""
    scale: Annotated[float, Bounds(above=0, high=2)] = 0.2
    """Maximal correction of a number of an action."""
    hidden: Sequence[options.Layer] = (256, 256)
    spread: options.Spread = 0.3


class Plan(NamedTuple):
    """The actions that the base chose for an episode."""

    text: str
    """The instruction for which they are."""
    begin: int
    """The call with the first of them."""
    actions_KA: torch.Tensor


class Residual(ActingPolicy):
    """`model` is `cnn` or `mlp`, the network of the correction, or a folder that this class saved. The base is neither trained
    nor saved with it.

    If the base chooses chunks, it is called when its last chunk is used up, and each action of the chunk is corrected by the
    observation at its step. A choice is the correction and the base's action, [1, 2 A]: the update computes only the correction's
    likelihood.
    """

    options_class = ResidualOptions
    trained_whole = True
    unread: ClassVar[frozenset[str]] = frozenset()  # the base may read them all
    free = frozenset({"camera"})
    choice_settings = frozenset({"base", "scale"})

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        own = ResidualOptions(**given)
        state = own.state
        self.base = policy_beneath(own.base, config, device)
        self.history, self.history_of_steps = self.base.history, self.base.history_of_steps
        _check_history(0 if self.history_of_steps else self.history, self.base.chunk)
        self.device, self.dims, self.chunk, self.scale, self.where = torch.device(device), self.base.dims, 1, own.scale, own.base
        self._plans: OrderedDict[int, Plan] = OrderedDict()
        place = source or (Path(config.model) if Path(config.model).is_dir() else None)
        kept = read_settings(place) if place else {}
        inner = config.model_copy(update={"model": kept.get("model", config.model)})
        # the base's action is appended to the state
        shared = {name: getattr(own, name) for name in ("size", "camera", "hidden", "spread")}
        self.small = Small(inner, device=device, seed=seed, dims=self.dims, state=state + self.dims, **shared)
        self.state, self.model, self.head, self.width = state, self.small.model, self.small.head, self.small.width
        assert isinstance(self.head, Normal)
        torch.nn.init.zeros_(self.head.mean[-1].weight)  # type: ignore[arg-type]  # initial corrections are 0
        if place:
            self.load(place)

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for a base that can't be loaded, without loading it."""
        check_beneath(config)

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        """A call is one of the base, and a correction of each of its actions."""
        own = ResidualOptions(**config.options)
        base, place = planned_base(own.base, config), Path(config.model)
        _check_history(int(base.computed.options.get("history", 0)) if base.computed else 0, base.chunk)
        kept, dims = read_settings(place) if place.is_dir() else {}, base.dims
        shared = {name: getattr(own, name) for name in ("size", "camera", "hidden", "spread")} | {"state": own.state + dims}
        model = str(kept.get("model", config.model))
        small = Small.planned(config.model_copy(update={"model": model, "options": shared | {"dims": dims}}))

        def act(rows: int, text: int) -> None:
            base.call(rows, text)
            small.act(rows, text)

        return replace(
            small,
            chunk=base.chunk,
            steps=base.chunk,
            pictures=max(base.pictures, small.pictures),
            pixels=max(base.pixels, small.pixels),
            tokens=lambda text, demonstrated: base.chunk,
            act=act,
            step=small.act,
            learn=lambda rows, text, demonstrated: small.learn(rows * base.chunk, text, demonstrated),
            frozen=frozen_of(base),
            computed=base.computed,
            reads_text=base.reads_text,
        )

    def settings(self) -> Mapping[str, Any]:
        own = self.small.settings()
        found = {"kind": "robotics/residual", "model": own["model"], "base": self.where, "scale": self.scale, "state": self.state}
        return found | {name: own[name] for name in ("hidden", "size", "camera") if name in own}

    def choose(self, seen: Observation, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
        base_n1A = self._planned(seen, draw)
        features, states = self._features(seen, base_n1A)
        _, moved, logprobs = self.head.sample(features, draw, temperature)
        actions = (base_n1A + self.scale * moved.clamp(-1, 1)).clamp(-1, 1)
        return actions, torch.cat([moved, base_n1A], -1), logprobs, states

    def _asked(self, seen: Observation, draw: CallRandomness) -> torch.Tensor:
        """[n, K, A]: the base's actions, for the simulator."""
        with errors_of_base(self.where):
            return self.base.simulated(self.base.choose(seen, draw, 0.0)[0], seen)

    def _planned(self, seen: Observation, draw: CallRandomness) -> torch.Tensor:
        """[n, 1, A]: the base's actions in these calls of these episodes; it is called once per chunk, and where the
        instruction changes, as if it played alone."""
        if self.base.chunk == 1:
            return self._asked(seen, draw)
        seeds, calls = draw.seeds_n.tolist(), draw.calls_n.tolist()
        plans = [self._plan_for(*one) for one in zip(seeds, calls, seen.instructions, strict=True)]
        if asked := [i for i, plan in enumerate(plans) if plan is None]:
            rows = torch.tensor(asked)
            of = rows.to(draw.seeds_n.device)
            own = CallRandomness(seeds_n=draw.seeds_n[of], calls_n=draw.calls_n[of])
            shown = seen.rows(rows)
            planned_nKA = self._asked(shown, own)
            for i, plan_KA in zip(asked, planned_nKA, strict=True):
                self._plans[seeds[i]] = plans[i] = Plan(seen.instructions[i], calls[i], plan_KA)
                self._plans.move_to_end(seeds[i])
        while len(self._plans) > max(PLANS, len(seeds)):
            self._plans.popitem(last=False)
        return torch.stack([plan.actions_KA[call - plan.begin][None] for plan, call in zip(plans, calls, strict=True) if plan])

    def _plan_for(self, seed: int, call: int, text: str) -> Plan | None:
        """The plan of an episode, if it has an action for this call that isn't its first: one for another instruction is
        dropped."""
        plan = self._plans.get(seed)
        goes_on = plan is not None and plan.text == text and 0 < call - plan.begin < self.base.chunk
        return plan if goes_on else None

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        moved, base_S1A = calls.choices.split(self.dims, -1)
        features, states = self._features(calls.observation, base_S1A)
        return (*self.head.score(features, moved, temperature), states)

    def states(self, calls: ActionMicroBatch) -> torch.Tensor:
        return self._through(lambda: self.scored(calls, 1.0))[2]

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        assert draw is not None
        return self._features(seen, self._planned(seen, draw))[1]

    def _features(self, seen: Observation, base_n1A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = [base_n1A[:, 0]]
        if self.state:
            known.append(present_state_of(seen, self.state, self.state_moments).to(self.device))
        return self.small.features(Observation(images=seen.images, state=torch.cat(known, 1), instructions=seen.instructions))

    def shared_by_copies(self) -> dict[int, Any]:
        """The base, because it never changes."""
        return {id(self.base): self.base}

    def fits(self, task: str, simulator: Simulator, spec: SimulatorSpec) -> None:
        super().fits(task, simulator, spec)
        with errors_of_base(self.where):
            self.base.fits(task, simulator, spec)

    def chunked(self, data: Any, physical: bool = False) -> Any:
        raise UserError("a residual policy corrects another and can't imitate: train its base by imitation")


def _check_history(calls: int, chunk: int) -> None:
    """Raise UserError for a base with chunks that sees so many earlier calls of its own."""
    if calls and chunk > 1:
        raise UserError(
            f"the base looks at earlier calls and chooses {chunk} actions in each, and its correction is called at each step: "
            "give a base with chunk = 1, or without history",
            key="policy.options.base",
        )
