"""The keys of `[[stages]] kind = "preference"`, besides those of `mmrl.config.training`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmrl.config.training import ComparedTraining
from mmrl.config.values import Positive, Rate, Share, Weight

PairLoss = Literal[
    "dpo",
    "dpo-norm",
    "robust",
    "hinge",
    "ipo",
    "exo",
    "discopop",
    "nca",
    "bco",
    "sppo",
    "apo-zero",
    "apo-down",
    "aot",
    "aot-unpaired",
    "kto",
    "simpo",
    "alphapo",
    "orpo",
    "bradley-terry",
]


class PreferenceStage(ComparedTraining):
    """`[[stages]] kind = "preference"`: learn from pairs of completions of one prompt, of which one is preferred."""

    kind: Literal["preference"]
    """Kind of the stage."""
    pairs: Literal["task", "sampled"] = "task"
    """`task`: the pairs that the tasks have (`Task.pair`); `sampled`: the best and the worst of `group_size` sampled completions,
    by the tasks' rewards."""
    loss: PairLoss = "dpo"
    """Loss of a pair, see [losses](preferences.md#losses). `bradley-terry` trains a reward model, `policy.kind = "reward"`, the
    others a policy."""
    losses: dict[PairLoss, Rate] = {}
    """Losses and their weights, whose sum takes the place of `loss`, such as `{dpo = 0.8, bco = 0.2}` (MPO)."""
    prompts_per_step: Positive = 16
    """Prompts per step: pairs, or groups from which pairs are taken."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Number of completions per prompt, for `pairs = "sampled"`."""
    beta: Rate | None = None
    """How strongly the policy is held to the reference model; for `simpo` and `alphapo` the scale of the reward, for `orpo` the
    weight of the odds. By default 0.1, 2 for `simpo` and `alphapo`."""
    margin: Weight | None = None
    """By how much the preferred reward is to be larger, for `simpo`, `alphapo` and `bradley-terry`. By default 1 for `simpo`, 0
    for others."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    """Share of the pairs that are taken to be the wrong way round, for `dpo`, `dpo-norm`, `robust`, `exo`, `aot`, `aot-unpaired`,
    `simpo`, `alphapo` and `bradley-terry`. By default 0.1 for `robust`, 0.001 for `exo`, else 0."""
    desirable_weight: Weight = 1.0
    """Weight of the preferred completions' loss, for `kto`."""
    undesirable_weight: Weight = 1.0
    """Weight of the rejected completions' loss, for `kto`."""
    reward_shift: bool = False
    """Count rewards from the mean reward of this stage so far, for `bco`: as in its paper and in MPO, and not in TRL."""
    discopop_tau: Annotated[float, Field(ge=1e-3, lt=1)] = 0.05
    """How sharply `discopop` changes from one of its losses to the other."""
    reward_alpha: Annotated[float, Field(ge=-10, le=10)] = 0.25
    """The shape of the reward of `alphapo`: above 0 it is steeper for unlikely completions, below 0 for likely ones, and at 0 it
    is that of `simpo`."""
    divergence: Literal["reverse-kl", "forward-kl", "jensen-shannon", "alpha"] = "reverse-kl"
    """What holds the policy to the reference model (f-DPO), for losses of the difference of two rewards: `dpo`, `dpo-norm`,
    `robust`, `hinge`, `ipo`, `exo` and `discopop`."""
    divergence_alpha: Annotated[float, Field(ge=1e-3, le=1)] = 0.5
    """For `divergence = "alpha"`: towards 0 it is the reverse KL, at 1 the forward one. In TRL it is 1 less this."""
    nll_weight: Weight = 0.0
    """Weight of the preferred completion's negative log-likelihood per token, which is added to the loss."""
    tail_weight: Share = 1.0
    """Weight of the log-probabilities of the tokens by which the longer side of a pair is longer (Liu et al., LD-DPO, arXiv
    2409.06411), for losses with a reference model but `kto`."""
    on_policy_weights: bool = False
    """Let pairs count by how likely the policy is to write both sides (Zhou et al., WPO, arXiv 2406.11827), for losses with a
    reference model but `kto`, `aot` and `aot-unpaired`. Takes one more pass."""
    reference: Literal["auto", "frozen", "adapter", "none"] = "auto"
    """The reference model: `frozen`, a copy from the beginning of the stage; `adapter`, the model with its adapters off; `auto`,
    the latter if there are adapters; `none`, no reference model, for losses that have `divergence` (CPO)."""

    @property
    def terms(self) -> dict[PairLoss, float]:
        """The losses that are added, with their weights."""
        return self.losses or {self.loss: 1.0}

    @property
    def rates(self) -> bool:
        """Whether this trains a reward model."""
        return "bradley-terry" in self.terms

    @property
    def reads(self) -> frozenset[str]:
        """Those of the keys of single losses that one of this stage's losses reads."""
        return frozenset(key for loss in self.terms for key in PAIR_SETTINGS[loss])

    @property
    def compares(self) -> bool:
        """Whether there is a reference model."""
        return "reference" in self.reads and self.reference != "none"

    @model_validator(mode="after")
    def _the_losses_read_what_is_set(self) -> PreferenceStage:
        named = f"losses = {{{', '.join(self.losses)}}}" if self.losses else f'loss = "{self.loss}"'
        for key in dict.fromkeys(k for known in PAIR_SETTINGS.values() for k in known):
            default = type(self).model_fields[key].default
            if getattr(self, key) == default:  # a run folder's file has all keys
                continue
            if key not in self.reads:
                raise ValueError(f"{key} has no effect with {named}: drop it")
            for loss in self.terms if key in WHOLE else ():
                if key not in PAIR_SETTINGS[loss]:
                    raise ValueError(f"{key} has no meaning for {loss}: drop one of the two")
        if self.label_smoothing == 0 and "exo" in self.terms:
            raise ValueError("the loss exo is infinite without label_smoothing: drop it, and it is 0.001")
        if self.divergence != "alpha" and self.divergence_alpha != 0.5:
            raise ValueError(f'divergence_alpha has no effect with divergence = "{self.divergence}": drop it')
        if self.reference == "none":
            self._without_reference()
        if self.reference_every and not self.compares:
            raise ValueError("reference_every moves the reference model, and there is none: drop it")
        return self

    def _without_reference(self) -> None:
        for loss in self.terms:
            if "divergence" not in PAIR_SETTINGS[loss]:
                raise ValueError(f'the loss {loss} measures each side against the reference model: drop reference = "none"')
        if self.divergence != "reverse-kl":
            raise ValueError('divergence is one from the reference model, and reference = "none": drop one of the two')

    @model_validator(mode="after")
    def _the_losses_go_together(self) -> PreferenceStage:
        if self.losses and self.loss != "dpo":
            raise ValueError("losses takes the place of loss: drop one of the two")
        if len(self.losses) == 1:
            raise ValueError(f'losses has one loss: write loss = "{next(iter(self.losses))}"')
        if self.losses and self.rates:
            raise ValueError("bradley-terry trains a reward model, and the other losses a policy: drop it or them")
        if self.rates and self.nll_weight:
            raise ValueError('nll_weight is for policies, and loss = "bradley-terry" trains a reward model: drop it')
        if self.rates and self.pairs == "sampled":
            raise ValueError('loss = "bradley-terry" trains a reward model, which samples nothing: set pairs = "task"')
        if self.pairs == "task" and self.max_tokens is not None:
            raise ValueError('max_tokens is for sampled completions, and pairs = "task" samples none: drop it')
        for loss, why in ALONE.items():
            if loss in self.terms and self.prompts_per_step < 2:
                raise ValueError(f'loss = "{loss}" {why}: set prompts_per_step to at least 2')
        if "kto" in self.terms and not self.desirable_weight + self.undesirable_weight:
            raise ValueError("desirable_weight and undesirable_weight are both 0, so there is no loss: raise one")
        return self


_RATIOS = ("beta", "reference", "tail_weight")
_SIDES = (*_RATIOS, "on_policy_weights")
_GAPS = (*_SIDES, "divergence", "divergence_alpha")
PAIR_SETTINGS: dict[str, tuple[str, ...]] = {
    "dpo": (*_GAPS, "label_smoothing"),
    "dpo-norm": (*_GAPS, "label_smoothing"),
    "robust": (*_GAPS, "label_smoothing"),
    "hinge": _GAPS,
    "ipo": _GAPS,
    "exo": (*_GAPS, "label_smoothing"),
    "discopop": (*_GAPS, "discopop_tau"),
    "nca": _SIDES,
    "bco": (*_SIDES, "reward_shift"),
    "sppo": _SIDES,
    "apo-zero": _SIDES,
    "apo-down": _SIDES,
    "aot": (*_RATIOS, "label_smoothing"),
    "aot-unpaired": (*_RATIOS, "label_smoothing"),
    "kto": ("beta", "desirable_weight", "undesirable_weight", "reference"),
    "simpo": ("beta", "margin", "label_smoothing"),
    "alphapo": ("beta", "margin", "label_smoothing", "reward_alpha"),
    "orpo": ("beta",),
    "bradley-terry": ("margin", "label_smoothing"),
}
"""`loss` of a preference stage -> the keys that it reads and others don't."""

WHOLE = ("tail_weight", "on_policy_weights", "divergence", "divergence_alpha")
"""Keys that change what all of a stage's losses read, and so are refused if one of them can't have it."""

_SORTS = "compares the distributions of a step's pairs"
ALONE = {"kto": "estimates a KL from completions of other prompts", "aot": _SORTS, "aot-unpaired": _SORTS}
"""Loss that means nothing for a single pair -> why."""
