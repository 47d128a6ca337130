"""The keys of stages of every kind, and the tables inside them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mmrl.config.values import Count, Limit, Positive, Rate, Real, Section, Share, Source, Weight

EIGHT_BIT = ("adamw_8bit", "paged_adamw_8bit")
"""Optimisers with 8-bit states."""
PARTS = ("vision", "projector", "language", "head", "value")
"""The parts of a model's weights; see `mmrl.config.parts`."""


class PartConfig(Section):
    """`[[stages.parts]]`: training settings of some weights. The first entry that matches a weight applies to it."""

    match: str
    """`vision`, `projector`, `language`, `head`, `value`, or a pattern of parameter names, such as `*.layers.0.*`."""
    freeze: bool = False
    """Don't train these weights."""
    learning_rate: Rate | None = None
    """Learning rate of these weights, with the stage's warm-up and schedule."""
    weight_decay: Weight | None = None
    """Weight decay of these weights."""

    @model_validator(mode="after")
    def _says_something(self) -> PartConfig:
        if not self.freeze and self.learning_rate is None and self.weight_decay is None:
            raise ValueError(f"parts match {self.match!r} changes nothing: give freeze = true, learning_rate or weight_decay")
        if self.freeze and (self.learning_rate is not None or self.weight_decay is not None):
            raise ValueError(f"parts match {self.match!r} is frozen and has a learning rate or weight decay: drop one of them")
        return self


class SelectConfig(Section):
    """`[stages.select]`: train on some prompts of the split, chosen by their scores in an earlier evaluation."""

    path: Source
    """File of an evaluation with several answers per prompt of the stage's split, such as
    `runs/pilot/evaluations/step-000000.jsonl`."""
    rule: Literal["variance", "bell", "all"] = "variance"
    """`variance`: take the prompts whose scores vary most (Temporal-R1); `bell`: draw by a bell curve over mean scores (Time-R1);
    `all`: draw uniformly."""
    max_prompts: Positive | None = None
    """Largest number of prompts per task; by default all that are left. `bell` needs a number."""
    above: Real | None = None
    """Use only prompts with a mean score above this."""
    up_to: Real | None = None
    """Use only prompts with a mean score of at most this."""
    center: Real = 0.3
    """Center of the bell curve, a mean score."""
    width: Rate = 0.2
    """Standard deviation of the bell curve."""

    @model_validator(mode="after")
    def _rules_leave_some(self) -> SelectConfig:
        if self.rule == "bell" and self.max_prompts is None:
            raise ValueError('select.rule = "bell" needs a number of prompts to draw: set select.max_prompts')
        if self.rule == "all" and self.max_prompts is None and self.above is None and self.up_to is None:
            raise ValueError('select.rule = "all" selects everything: set select.max_prompts, above or up_to, or drop select')
        if self.above is not None and self.up_to is not None and self.above >= self.up_to:
            raise ValueError(f"no mean is above {self.above:g} and up to {self.up_to:g}: lower select.above, or raise up_to")
        return self


class Training(Section):
    """Keys of all stages."""

    kind: str
    """Kind of the stage."""
    steps: Positive
    """Number of steps; each is one optimiser step (with `rl`, `epochs` times `minibatches` optimiser steps)."""
    split: str = "train"
    """Split of the tasks that the prompts come from."""
    tasks: dict[str, Weight] = {}
    """Task -> its share of the prompts in this stage; tasks that are not listed get none. By default `[[tasks]] weight`."""
    order: Literal["shuffled", "easy-first"] = "shuffled"
    """Order of the prompts: shuffled in each epoch, or by their `meta["difficulty"]`, the lowest first."""
    select: SelectConfig | None = None
    """Train on some of the split's prompts, chosen by their scores in an earlier evaluation."""
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop", "adafactor", "muon", "adamw_8bit", "paged_adamw_8bit"] = "adamw"
    """torch's optimiser; `sgd` has momentum `beta1`. `muon` updates the matrices of hidden layers, and AdamW all other
    weights. `adamw_8bit` is bitsandbytes' AdamW, whose running means have 8 bits, those of embeddings 32; with
    `paged_adamw_8bit` a GPU that is full moves them to the host's memory."""
    learning_rate: Rate = 1e-6
    """Learning rate after the warm-up."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the running mean of the gradient; not used by `rmsprop` and `adafactor`."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the running mean of the squared gradient; not used by `sgd` and `adafactor`."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or falling to `min_lr_ratio` times its value at the end of the stage."""
    min_lr_ratio: Share = 0.0
    """Final learning rate of a falling schedule, as a share of the highest."""
    optimizer_every: Count = 0
    """Number of steps after which the optimiser forgets its running means, as ProRL does together with `reference_every`;
    0: never."""
    weight_decay: Weight = 0.0
    """Weight decay, decoupled and scaled by the learning rate (`adam`, `sgd`, `rmsprop`: added to the gradient)."""
    max_grad_norm: Limit = 1.0
    """Gradients with a larger norm are scaled down to this; inf: never."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Evaluate and save a running mean of the weights with this decay per step, such as 0.99; 0: the weights themselves."""
    parts: list[PartConfig] = []
    """Parts of the model that are frozen or have their own learning rate."""

    @model_validator(mode="after")
    def _weights_add_up(self) -> Training:
        if self.tasks and not sum(self.tasks.values()):
            raise ValueError("the weights of tasks add up to 0: give at least one a weight above 0")
        return self

    def smaller(self) -> Self:
        most = {"steps": 2, "batch_size": 4, "prompts_per_step": 2, "minibatches": 2, "group_size": 4, "epochs": 2}
        return self.at_most(warmup_steps=0, **{key: limit for key, limit in most.items() if key in type(self).model_fields})


class SampledTraining(Training):
    """Keys of all stages that sample completions."""

    max_tokens: Positive | None = None
    """Longest completion in this stage, in tokens; by default, and at most, `generate.max_tokens`. FastCuRL (Song et al., arXiv
    2503.17287) raises it from stage to stage."""

    def smaller(self) -> Self:
        small = super().smaller()
        return small.at_most(max_tokens=16) if small.max_tokens else small


class ComparedTraining(SampledTraining):
    """Keys of the stages that may have a reference model."""

    reference: Literal["auto", "frozen", "adapter", "none"] = "auto"
    """The reference model."""
    reference_every: Count = 0
    """Number of steps after which a frozen reference model is set to the current policy; 0: never. In a preference stage this is
    TR-DPO (Gorbatovski et al., arXiv 2404.09656, section 3)."""
    reference_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Every `reference_every` steps the reference model keeps this share of itself and takes the rest from the current policy, in
    float32 (GRPO-CARE, and the soft update of TR-DPO); 0: it is set to the policy."""

    @model_validator(mode="after")
    def _the_reference_moves(self) -> ComparedTraining:
        if self.reference_decay and not self.reference_every:
            raise ValueError(f"reference_decay = {self.reference_decay:g} has no effect without reference_every: set that to 10")
        if self.reference_every and self.reference == "adapter":
            raise ValueError(
                'reference = "adapter" is the model without its adapters, which never changes: drop it or reference_every'
            )
        return self
