"""Algorithms by id: an advantage, a loss with its normalisation, and defaults of the stage."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from pydantic import ValidationError

from mmrl.algorithms.loss import MEASURED, LossFunction, measured_of
from mmrl.algorithms.selection import most_uncertain
from mmrl.algorithms.signals import SIGNALS, Signals
from mmrl.api.errors import PluginError, UserError, did_you_mean, is_finite, plugin_errors, shorten
from mmrl.api.specs import AlgorithmSpec, Bounds
from mmrl.api.tokens import DISCRETE, TokenKind, tokens_of
from mmrl.config.foreign import called_here
from mmrl.config.foreign_names import names_here
from mmrl.config.load import describe_error
from mmrl.config.sections import CriticConfig, RlStage, TurnCriticConfig
from mmrl.config.values import LARGEST
from mmrl.policies.batches import Credit
from mmrl.registry import plugins
from mmrl.registry.contract import is_number
from mmrl.registry.importing import check_options, load_target

Normalise = Literal["token", "sequence", "constant"]
OF_ALL = {
    "loss": "Id of the algorithm whose loss, with its settings and its average, takes the place of this one's.",
    "entropy_share": "Share of the step's trained tokens that have a gradient: those of the highest entropy under the policy "
    "before the update, from 0, the highest alone, to 1; the others still count in the mean (Wang et al., Beyond the 80/20 Rule, "
    "section 5, arXiv 2506.01939).",
}
"""Settings of every algorithm besides `normalise` and `constant`, and their meanings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An advantage and a loss, from an AlgorithmSpec and a run file's settings."""

    id: str
    advantage: Callable[..., Any]
    """Takes the signals in `needs`, in this order."""
    needs: tuple[str, ...]
    loss: LossFunction
    """The loss with its settings."""
    loss_needs: tuple[str, ...] = ()
    """What the loss takes besides the `LossInputs`, in this order; see `mmrl.algorithms.loss.MEASURED`."""
    normalise: Normalise
    constant: float
    tokens: frozenset[TokenKind] = frozenset(TokenKind)
    """The kinds of tokens on which it learns."""
    entropy_share: float = 1.0
    """See `OF_ALL`."""
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    """Setting -> its allowed values, see `check_bounds`."""

    @property
    def compares(self) -> bool:
        """Whether it compares the rollouts of a group with each other, so that a group of one teaches nothing."""
        return "groups_N" in self.needs

    @property
    def has_critic(self) -> bool:
        return "values_NT" in self.needs

    @property
    def values_answers(self) -> bool:
        """Whether its critic must be `[stages.turn_critic]`."""
        return "answer_values_NT" in self.needs

    def credit(self, signals: Signals) -> Credit:
        """Compute float32 advantages [N] or [N, T]. They are NaN for rollouts whose score failed, which the update leaves out.
        Raises PluginError if the advantage's result is no such tensor."""
        signals.expect(frozenset((*self.needs, "entropy_NT") if self.entropy_share < 1 else self.needs))
        inputs = [signals[name] for name in self.needs]
        unknown_N = torch.stack([i.isnan().flatten(1).any(1) if i.ndim > 1 else i.isnan() for i in inputs]).any(0)
        with plugin_errors(f"algorithm {self.id!r}: its advantage"):
            found = self.advantage(*inputs)
        n, t = signals.mask_NT.shape
        if isinstance(found, tuple):
            self._check(found, [(n, t)], f"a pair of tensors [N, T], credit and the critic's targets, for N = {n}, T = {t}", 2)
            if not self.has_critic:
                raise PluginError(f"algorithm {self.id!r}: its advantage gives targets of a critic but doesn't take values_NT")
            advantages, returns = (f.detach().float() for f in found)
            self._check_numbers(advantages, unknown_N)
            self._check_numbers(returns.where(~returns.isnan(), 0.0), unknown_N)  # NaN: no target
            return Credit(advantages=advantages, values_NT=signals.values_NT.float(), returns_NT=returns)
        self._check([found], [(n,), (n, t)], f"a tensor [N] or [N, T] for N = {n}, T = {t}")
        advantages = found.detach().float()
        self._check_numbers(advantages, unknown_N)
        return Credit(advantages=advantages)

    def selected(self, credit: Credit, signals: Signals) -> Credit:
        """The credit, 0 for tokens that `entropy_share` leaves out. Of rollouts whose credit is NaN no token counts."""
        if self.entropy_share == 1:
            return credit
        kept = most_uncertain(credit.advantages, signals.entropy_NT, signals.mask_NT, self.entropy_share)
        return replace(credit, advantages=kept)

    def _check_numbers(self, found: torch.Tensor, unknown_N: torch.Tensor) -> None:
        """Raise PluginError for infinite credit, and for NaN where every signal is a number, which would silently drop the
        rollout."""
        if found.isinf().any():
            raise PluginError(f"algorithm {self.id!r}: its advantage gives infinite credit: avoid division by 0")
        nowhere_N = found.isnan().flatten(1).any(1) if found.ndim > 1 else found.isnan()
        if (n := int((nowhere_N & ~unknown_N).sum())) > 0:
            raise PluginError(
                f"algorithm {self.id!r}: its advantage gives NaN for {n} of {len(nowhere_N)} rollouts whose signals are numbers: "
                "give 0 for no credit, and check how one failed score affects its group's mean"
            )

    def _check(self, found: Sequence[Any], shapes: list[tuple[int, ...]], wanted: str, number: int = 1) -> None:
        """Raise PluginError unless these are `number` dense CPU tensors of real numbers, each of one of the shapes."""
        if len(found) != number or not all(isinstance(f, torch.Tensor) and tuple(f.shape) in shapes for f in found):
            have = ", ".join(f"a tensor {list(f.shape)}" if isinstance(f, torch.Tensor) else f"{f!r:.60}" for f in found)
        elif odd := [f for f in found if f.device.type != "cpu" or f.layout != torch.strided or f.is_complex() or f.is_quantized]:
            have = f"one of {odd[0].dtype} on {odd[0].device}, {odd[0].layout}: give real numbers on the cpu, as the signals are"
        else:
            return
        raise PluginError(f"algorithm {self.id!r}: its advantage must give {wanted}, not {have}")


def load_algorithm(id: str, settings: Mapping[str, Any], max_tokens: int = 1) -> Algorithm:
    """The algorithm of an id, with some of its settings changed.

    max_tokens: the constant of `normalise = "constant"`, unless one is set.
    Raises UserError for an unknown id or setting, PluginError for an advantage with unknown signals.
    """
    return compose(plugins.registry().get("algorithms", id), settings, max_tokens)


def compose(spec: AlgorithmSpec, settings: Mapping[str, Any], max_tokens: int = 1) -> Algorithm:
    """The algorithm of a spec; see `load_algorithm`."""
    what, settings = f"algorithm {spec.id!r}", dict(settings)
    lender = _lender(spec, settings.pop("loss", spec.id))
    share = settings.pop("entropy_share", 1.0)
    advantage, loss = functions_of(spec)[0], functions_of(lender)[1]
    _check_arguments(what, advantage, loss)
    own = {name: {**lender.options, **settings}.get(name, getattr(lender, name)) for name in ("normalise", "constant")}
    both, lent = ((spec, advantage), (lender, loss)), lender is not spec
    options, bounds = ([_part(getattr(s, field), f, lent) for s, f in both] for field in ("options", "bounds"))
    accepted = [*settings_of(advantage), *settings_of(loss), *own]
    _check_names(what, {**options[0], **options[1]}, settings, accepted)
    if lent:
        _check_once(what, settings, advantage, loss, lender.id)
    of_advantage, of_loss = (
        _settings_for(what, function, {**usual, **settings}, limits)
        for (_, function), usual, limits in zip(both, options, bounds, strict=True)
    )
    constant = _constant(what, own["normalise"], own["constant"], max_tokens, "constant" in settings)
    needs, measured = signals_of(advantage), signals_of(loss)[1:]
    _check_share(what, share, measured)
    for name in needs:
        if name not in SIGNALS:
            raise PluginError(
                f"{what}: its advantage takes an unknown signal {name!r}.{did_you_mean(name, SIGNALS)} Known are: "
                f"{', '.join(SIGNALS)}"
            )
    return Algorithm(
        id=spec.id,
        advantage=partial(advantage, **of_advantage),
        needs=needs,
        loss=partial(loss, **of_loss),
        loss_needs=measured,
        tokens=frozenset.intersection(
            tokens_of(advantage), tokens_of(loss), *map(measured_of, measured), *([DISCRETE] if share < 1 else [])
        ),
        normalise=own["normalise"],
        constant=constant,
        entropy_share=float(share),
        bounds=bounds[1] | bounds[0],
    )


def _check_arguments(what: str, advantage: Callable[..., Any], loss: Callable[..., Any]) -> None:
    """Raise PluginError for an advantage without signals, or a loss with other arguments than a loss has."""
    if not signals_of(advantage):
        raise PluginError(f"{what}: its advantage takes no signal: name its arguments after signals, such as rewards_N, groups_N")
    if not signals_of(loss):
        raise PluginError(f"{what}: its loss must take one argument, the LossInputs, and keyword-only settings after *")
    for name in signals_of(loss)[1:]:
        if name not in MEASURED:
            raise PluginError(
                f"{what}: its loss must take one argument, the LossInputs, and keyword-only settings after *; besides it may "
                f"take {', '.join(MEASURED)}, but not {name!r}"
            )


def _check_names(what: str, options: Mapping[str, Any], settings: Mapping[str, Any], accepted: Sequence[str]) -> None:
    """Raise UserError for an option of a spec, or a setting of a run file, that isn't accepted."""
    for name in {**options, **settings}:
        if name not in accepted:
            known = [*accepted, *OF_ALL]
            theirs = "; ".join(called_here(name, "stages.settings", settings.get(name)))
            hint = f" W{theirs[1:]}." if theirs else did_you_mean(name, known)
            hint = " It is a key of the stage, not of settings." if name in RlStage.model_fields else hint
            raise UserError(f"{what} has no setting {name!r}.{hint} It accepts: {', '.join(known)}")


def _check_once(
    what: str, settings: Mapping[str, Any], advantage: Callable[..., Any], loss: Callable[..., Any], lender: str
) -> None:
    """Raise UserError for a setting that an advantage and the loss of another algorithm, the lender, both have."""
    for name in settings:
        if name in settings_of(advantage) and name in settings_of(loss):
            raise UserError(
                f"{what}: {name} is a setting of its advantage and another one of the loss of {lender!r}: leave it out, and "
                "each keeps its own"
            )


def _settings_for(
    what: str, function: Callable[..., Any], given: Mapping[str, Any], limits: Mapping[str, Bounds]
) -> dict[str, Any]:
    """Those of these settings that a function has. Raises UserError or PluginError for wrong ones. limits: their bounds."""
    known = settings_of(function)
    mine = {name: value for name, value in given.items() if name in known}
    check_options(what, function, mine, skip=len(signals_of(function)))
    for name, value in mine.items():
        _check_kind(what, name, value, known[name])
    for name, default in known.items():
        if name in limits and isinstance(default, str | bool):
            raise PluginError(
                f"{what}: its bounds are for numbers, and the setting {name!r} is {default!r} by default: drop them"
            )
    return mine


def _constant(what: str, normalise: Any, given: Any, max_tokens: int, named: bool) -> float:
    """What a loss is divided by with `normalise = "constant"`. Raises UserError for settings that can't be. given: None for
    max_tokens. named: whether the run file sets it."""
    if normalise not in get_args(Normalise):
        theirs = "; ".join(names_here(str(normalise)))
        choices = ", ".join(get_args(Normalise))
        raise UserError(f"{what}: normalise = {normalise!r} is not one of {choices}{f': {theirs}' if theirs else ''}")
    constant = max_tokens if given is None else given
    if not is_finite(constant) or not 0 < constant <= LARGEST:
        raise UserError(f"{what}: constant = {constant!r} must be a number above 0")
    if normalise != "constant" and named:
        raise UserError(f'{what}: constant = {given!r} has no effect without normalise = "constant": set that, or drop constant')
    return float(constant)


def _lender(spec: AlgorithmSpec, id: Any) -> AlgorithmSpec:
    """The spec of the algorithm of this id, whose loss, with its settings and its average, an algorithm takes. Raises UserError
    for an unknown id."""
    if id == spec.id:
        return spec
    if not isinstance(id, str):
        raise UserError(f"algorithm {spec.id!r}: loss = {id!r:.40} must be the id of an algorithm")
    try:
        found: AlgorithmSpec = plugins.registry().get("algorithms", id)
    except UserError as error:
        theirs = "; ".join(names_here(id, as_loss=True))
        raise UserError(f"algorithm {spec.id!r}: loss = {id!r}: {theirs or error}") from None
    return found


def _part(given: Mapping[str, Any], function: Callable[..., Any], lent: bool) -> dict[str, Any]:
    """What a spec gives for a function's settings; where one of another spec stands beside it (`lent`), only what it has."""
    return {name: value for name, value in given.items() if not lent or name in settings_of(function)}


def _check_share(what: str, share: Any, measured: Sequence[str]) -> None:
    """Raise UserError for an `entropy_share` that is none, or that the loss has no use for."""
    if not is_finite(share) or not 0 <= share <= 1:
        raise UserError(f"{what}: entropy_share = {share!r:.40} must be a number from 0 to 1")
    if share < 1 and set(measured) - {"through_call_L"}:
        raise UserError(f"{what}: entropy_share = {share:g}: its loss looks at tokens without an advantage too: leave it out")


def check_bounds(where: str, settings: Mapping[str, Any], bounds: Mapping[str, Bounds]) -> None:
    """Raise UserError for a setting outside the bounds of its algorithm's spec. settings: those of a run file, accepted by
    `load_algorithm`. where: their key."""
    for name in [name for name in settings if name in bounds]:
        value, bound, key = settings[name], bounds[name], f"{where}.{name}"
        if not is_number(value):
            raise UserError(f"{key} = {value!r:.40} must be a number")
        if LARGEST < value < math.inf:
            raise UserError(f"{key} = {value!r:.40} must be at most {LARGEST:g}, or inf")
        if not bound.allows(value):
            raise UserError(f"{key} = {value!r} must be {bound}")


def _check_kind(what: str, name: str, value: Any, default: Any) -> None:
    """Raise UserError unless a setting has the type of its default."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    if isinstance(default, bool) and not isinstance(value, bool):
        raise UserError(f"{what}: {name} = {value!r} must be true or false")
    if isinstance(default, int | float) and not isinstance(default, bool) and not is_number:
        raise UserError(f"{what}: {name} = {value!r} must be a number")


def functions_of(spec: AlgorithmSpec) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The advantage and the loss of a spec. Raises PluginError for one whose parameters can't be read."""
    advantage, loss = plugins.registry().target(spec), load_target(spec.loss, f"loss of algorithm {spec.id!r}")
    for part, function, place in (("advantage", advantage, spec.target), ("loss", loss, spec.loss)):
        try:
            inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise PluginError(
                f"algorithm {spec.id!r}: its {part} {place!r} must be a Python function with named parameters: {shorten(error)}"
            ) from None
    return advantage, loss


def signals_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The positional parameters of an advantage, which are its signals, or of a loss, which is its inputs."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds)


def settings_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only parameters of an advantage or a loss, with their defaults."""
    return {p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}


def with_defaults(stage: RlStage, spec: AlgorithmSpec | None = None) -> RlStage:
    """The stage with its algorithm's defaults in keys that the run file doesn't set. spec: the algorithm's; looked up here if
    None."""
    spec = spec or plugins.registry().get("algorithms", stage.algorithm)
    data = stage.model_dump(exclude_unset=True)
    added = {k: v for k, v in spec.stage_defaults.items() if k not in data}
    needs = signals_of(functions_of(spec)[0])
    if stage.critic is None and stage.turn_critic is None:
        if "answer_values_NT" in needs:
            added.setdefault("turn_critic", TurnCriticConfig())
        elif "values_NT" in needs:
            added.setdefault("critic", CriticConfig())
    what, known = f"algorithm {spec.id!r}", RlStage.model_fields
    if unknown := [k for k in added if k not in known]:
        raise PluginError(
            f"{what}: its stage_defaults set {unknown[0]!r}, which is no key of an rl stage.{did_you_mean(unknown[0], known)}"
        )
    try:
        return RlStage.model_validate({**data, **added})
    except ValidationError as error:
        fault, given = error.errors()[0], ", ".join(f"{k} = {v!r}" for k, v in added.items())
        where = "".join(f"{part}: " for part in fault["loc"])
        raise UserError(f"{what} sets {given}: {where}{describe_error(fault)}") from error
