"""The keys of `[[stages]] kind = "preference"`, besides those of `mmrl.config.training`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmrl.config.training import SampledTraining
from mmrl.config.values import Positive, Rate, Weight


class PreferenceStage(SampledTraining):
    """`[[stages]] kind = "preference"`: learn from pairs of completions of one prompt, of which one is preferred."""

    kind: Literal["preference"]
    """Kind of the stage."""
    pairs: Literal["task", "sampled"] = "task"
    """`task`: the pairs that the tasks have (`Task.pair`); `sampled`: the best and the worst of `group_size` sampled completions,
    by the tasks' rewards."""
    loss: Literal["dpo", "ipo", "kto", "simpo", "bradley-terry"] = "dpo"
    """`dpo`, `ipo`, `kto` and `simpo` train a policy; `bradley-terry` trains a reward model, `policy.kind = "reward"`."""
    prompts_per_step: Positive = 16
    """Prompts per step: pairs, or groups from which pairs are taken."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """Number of completions per prompt, for `pairs = "sampled"`."""
    beta: Rate | None = None
    """How strongly the policy is held to the reference model; for `simpo` the scale of the reward. By default 0.1, 2 for
    `simpo`."""
    margin: Weight | None = None
    """By how much the preferred reward is to be larger, for `simpo` and `bradley-terry`. By default 1 for `simpo`, else 0."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Share of the pairs that are taken to be the wrong way round, for `dpo`, `simpo` and `bradley-terry`."""
    desirable_weight: Weight = 1.0
    """Weight of the preferred completions' loss, for `kto`."""
    undesirable_weight: Weight = 1.0
    """Weight of the rejected completions' loss, for `kto`."""
    nll_weight: Weight = 0.0
    """Weight of the preferred completion's negative log-likelihood per token, which is added to the loss."""
    reference: Literal["auto", "frozen", "adapter"] = "auto"
    """The reference model: `frozen`, a copy from the beginning of the stage; `adapter`, the model with its adapters off; `auto`,
    the latter if there are adapters."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Those of the keys of single losses that this stage's loss reads."""
        return PAIR_SETTINGS[self.loss]

    @model_validator(mode="after")
    def _the_loss_reads_what_is_set(self) -> PreferenceStage:
        for key in dict.fromkeys(k for known in PAIR_SETTINGS.values() for k in known):
            default = type(self).model_fields[key].default
            if key not in self.reads and getattr(self, key) != default:  # a run folder's file has all keys
                raise ValueError(f'{key} has no effect with loss = "{self.loss}": drop it')
        if self.loss == "bradley-terry" and self.nll_weight:
            raise ValueError('nll_weight is for policies, and loss = "bradley-terry" trains a reward model: drop it')
        if self.loss == "bradley-terry" and self.pairs == "sampled":
            raise ValueError('loss = "bradley-terry" trains a reward model, which samples nothing: set pairs = "task"')
        if self.pairs == "task" and self.max_tokens is not None:
            raise ValueError('max_tokens is for sampled completions, and pairs = "task" samples none: drop it')
        if self.loss == "kto" and self.prompts_per_step < 2:
            raise ValueError('loss = "kto" estimates a KL from completions of other prompts: set prompts_per_step to at least 2')
        if self.loss == "kto" and not self.desirable_weight + self.undesirable_weight:
            raise ValueError("desirable_weight and undesirable_weight are both 0, so there is no loss: raise one")
        return self


PAIR_SETTINGS: dict[str, tuple[str, ...]] = {
    "dpo": ("beta", "label_smoothing", "reference"),
    "ipo": ("beta", "reference"),
    "kto": ("beta", "desirable_weight", "undesirable_weight", "reference"),
    "simpo": ("beta", "margin", "label_smoothing"),
    "bradley-terry": ("margin", "label_smoothing"),
}
"""`loss` of a preference stage -> the keys that it reads and others don't."""
