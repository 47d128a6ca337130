"""An algorithm by its id: how rewards become advantages, which loss, averaged how, and what its stage has by default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch

from mmrl import plugins
from mmrl.algorithms.loss import LossFunction
from mmrl.algorithms.signals import SIGNALS, Signals
from mmrl.errors import UserError
from mmrl.schema import CriticConfig, RlStage
from mmrl.specs import AlgorithmSpec
from mmrl.targets import PluginError, calling, check_options, load_target, suggest
from mmrl.types import Credit

Normalise = Literal["token", "sequence", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A named composition, resolved from its AlgorithmSpec and a run file's settings."""

    id: str
    advantage: Callable[..., Any]
    """Takes the signals that `needs` names, in this order."""
    needs: tuple[str, ...]
    loss: LossFunction
    """With its settings."""
    normalise: Normalise
    constant: float

    @property
    def compares(self) -> bool:
        """It compares the rollouts of a group with each other, so a group of one teaches nothing."""
        return "groups_N" in self.needs

    @property
    def has_critic(self) -> bool:
        return "values_NT" in self.needs

    def credit(self, signals: Signals) -> Credit:
        """float32 advantages [N] or [N, T]; NaN where the score failed, which keeps the rollout out of the update."""
        signals.expect(frozenset(self.needs))
        with calling(f"algorithm {self.id!r}: its advantage"):
            found = self.advantage(*(signals[name] for name in self.needs))
        advantages, returns = found if isinstance(found, tuple) else (found, None)
        n = len(signals.lengths_N)
        if not isinstance(advantages, torch.Tensor) or advantages.shape[:1] != (n,) or advantages.ndim > 2:
            raise PluginError(
                f"algorithm {self.id!r}: its advantage must give a tensor [N] or [N, T] for N = {n}, not {found!r:.60}"
            )
        values = None if returns is None else signals.values_NT.float()
        return Credit(advantages=advantages.float(), values_NT=values, returns_NT=None if returns is None else returns.float())


def load_algorithm(id: str, settings: Mapping[str, Any], max_tokens: int = 1) -> Algorithm:
    """The algorithm of an id with some of its settings changed.

    max_tokens: the constant of `normalise = "constant"` unless one is set.
    Raises UserError for an unknown id or setting, PluginError for an advantage that asks for what there isn't.
    """
    spec: AlgorithmSpec = plugins.registry().get("algorithms", id)
    what = f"algorithm {spec.id!r}"
    advantage = plugins.registry().target(spec)
    loss = load_target(spec.loss, f"loss of {what}")
    merged = {"normalise": spec.normalise, "constant": spec.constant, **spec.options, **settings}
    own = {"normalise": merged.pop("normalise"), "constant": merged.pop("constant")}
    accepted = {name: f for f in (advantage, loss) for name in settings_of(f)}
    for name in merged:
        if name not in accepted:
            known = [*accepted, *own]
            raise UserError(f"{what} has no setting {name!r}.{suggest(name, known)} It accepts: {', '.join(known)}")
    parts = []
    for function in (advantage, loss):
        mine = {k: v for k, v in merged.items() if k in settings_of(function)}
        check_options(what, function, mine, skip=len(signals_of(function)))
        parts.append(mine)
    if own["normalise"] not in get_args(Normalise):
        raise UserError(f"{what}: normalise = {own['normalise']!r} is not one of {', '.join(get_args(Normalise))}")
    constant = max_tokens if own["constant"] is None else own["constant"]
    if isinstance(constant, bool) or not isinstance(constant, int | float) or not constant > 0:
        raise UserError(f"{what}: constant = {constant!r} must be a number above 0")
    needs = signals_of(advantage)
    for name in needs:
        if name not in SIGNALS:
            raise PluginError(f"{what}: its advantage asks for {name!r}.{suggest(name, SIGNALS)} There are: {', '.join(SIGNALS)}")
    return Algorithm(
        id=spec.id,
        advantage=partial(advantage, **parts[0]),
        needs=needs,
        loss=partial(loss, **parts[1]),
        normalise=own["normalise"],
        constant=float(constant),
    )


def signals_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The positional parameters of an advantage (or a loss, where that is its inputs)."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds)


def settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only parameters of an advantage or a loss, with their defaults."""
    return {p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}


def with_defaults(stage: RlStage) -> RlStage:
    """The stage as its algorithm has it: keys that the run file doesn't set are the algorithm's, not the schema's."""
    spec: AlgorithmSpec = plugins.registry().get("algorithms", stage.algorithm)
    data = stage.model_dump(exclude_unset=True)
    added = {k: v for k, v in spec.stage.items() if k not in data}
    if stage.critic is None and "values_NT" in signals_of(plugins.registry().target(spec)):
        added["critic"] = CriticConfig()
    if unknown := [k for k in added if k not in RlStage.model_fields]:
        raise PluginError(f"algorithm {spec.id!r}: its stage sets {unknown[0]!r}, which is no key of an rl stage")
    return RlStage.model_validate({**data, **added})
