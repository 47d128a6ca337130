"""The sections of an `rl` stage: `[stages.critic]`, `[stages.imitation]` and so on."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmrl.api.types import Status
from mmrl.config.values import Count, Free, Limit, Positive, Rate, Real, Section, Share, Weight


class CriticConfig(Section):
    """`[stages.critic]`: the value function of an algorithm that needs one, such as `ppo`."""

    backbone: Literal["shared", "separate"] = "shared"
    """`shared`: a value head on the policy's hidden states; `separate`: a second copy of the model with its own head."""
    hidden_sizes: list[Positive] = []
    """Widths of the head's hidden layers; by default a linear head. RL4VLA uses `[512, 128]`."""
    learning_rate: Rate = 1e-4
    """Learning rate of the head and of a separate critic's backbone, with the stage's warm-up and schedule."""
    value_coef: Rate = 0.5
    """Weight of the value loss, relative to the policy loss."""
    detach: bool = False
    """Don't propagate the value loss's gradient into a shared backbone."""
    warmup_steps: Count = 0
    """Steps at the beginning of the stage that train only the critic."""
    bootstrap: Literal["truncated", "always"] = "truncated"
    """Which episodes are bootstrapped with the critic's value of their last state. `truncated`: those that a limit of turns or
    time cut off; `always`: in simulators also those that terminated, as if they had gone on (RLinf, `bootstrap_type`; Zang et
    al., RLinf-VLA, arXiv 2510.06710)."""
    clip_range: Weight = 0.2
    """PPO's value clipping: the loss stops decreasing once a value is this far from the old value; 0: no clipping."""
    huber: Limit = math.inf
    """Threshold of the Huber loss: larger errors count linearly; inf: half the squared error."""
    bins: Annotated[int, Field(ge=0, le=4096)] = 0
    """Predict a distribution over this many bins of returns by cross-entropy instead of a number, such as 51, without
    `clip_range` and `huber` (HL-Gauss; Farebrother et al., Stop Regressing, arXiv 2403.03950); 0: a number."""
    low: Real = -1.0
    """Lowest return of the bins."""
    high: Real = 1.0
    """Highest return of the bins. The first value of all states is the middle of the two."""
    smoothing: Rate = 0.75
    """Standard deviation of the Gaussian around a return that the bins learn, in bins."""
    max_grad_norm: Limit = 1.0
    """Largest norm of the critic's gradient (with a shared backbone, of the head's), clipped separately from the policy's."""

    @model_validator(mode="after")
    def _bins_have_a_range(self) -> CriticConfig:
        if self.low >= self.high:
            raise ValueError(f"critic.low = {self.low:g} is not below critic.high = {self.high:g}: give the range of returns")
        if self.bins == 1:
            raise ValueError("critic.bins = 1 can't tell returns apart: give at least 2, such as 51, or 0 for a number")
        return self

    def bootstraps(self, end: Status) -> bool:
        """Whether the value of the last state follows an episode that ended like this."""
        return end.is_cut_off or (self.bootstrap == "always" and end is Status.FINISHED)

    def smaller(self) -> CriticConfig:
        return self.at_most(warmup_steps=1)


class ImitationConfig(Section):
    """`[stages.imitation]`: also train on gold completions, in the same loss or in separate steps."""

    rule: Literal["mixed", "sasr", "hpt", "relift"] = "mixed"
    """`mixed`: (1 - w) x RL + w x SFT in every step (Zhang et al., CHORD-mu); `sasr`: each step is RL or SFT, SFT with
    probability g / (g + gamma g0), where g and g0 are the gradient norms of SFT now and at first (Chen et al., SASR); `hpt`: SFT
    in place of RL for the prompts whose share of successes is at most `up_to` (Lv et al., HPT, arXiv 2509.04419); `relift`: RL in
    every step, and after it SFT as soon as `batch_size` prompts without a success have come together (Ma et al., ReLIFT, arXiv
    2506.07527)."""
    start_weight: Share = 0.9
    """w at the first step, for `mixed`."""
    end_weight: Share = 0.05
    """w after `decay_steps`, for `mixed`; linear in between."""
    decay_steps: Positive = 100
    """Steps from start to end, for `mixed`."""
    gamma: Rate = 1.0
    """Weight of the first gradient norm, for `sasr`."""
    up_to: Share = 0.0
    """Largest share of successes of a prompt that is imitated, for `hpt`."""
    batch_size: Positive = 16
    """Gold completions per step; of `hpt` as many as there are such prompts."""
    uncertainty_weighting: bool = False
    """Weight each gold token by p (1 - p), with p its probability, so that certain and very unlikely tokens count little
    (CHORD-phi)."""


class EntropyConfig(Section):
    """`[stages.entropy_control]`: hold the policy's entropy at a target by imitating its own right answers at another temperature
    (Wang et al., AEPO, arXiv 2510.08141)."""

    target: Rate = 0.5
    """Entropy per token that is aimed at, in nats."""
    low: Annotated[float, Field(ge=1e-3, le=1e3)] = 0.8
    """Temperature of these answers while the last update's entropy is at least the target."""
    high: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.2
    """Their temperature while it is below."""
    weight: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Weight of their likelihood in the loss; the algorithm's has 1 - `weight`."""
    prompts: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the step's prompts that are answered again at this temperature."""

    @model_validator(mode="after")
    def _temperatures_are_apart(self) -> EntropyConfig:
        if self.low >= self.high:
            raise ValueError(
                f"entropy_control.low = {self.low:g} is not below entropy_control.high = {self.high:g}: the two steer the entropy"
            )
        return self


class AdaptiveEntropyConfig(Section):
    """`[stages.adaptive_entropy]`: an entropy bonus whose weight, `entropy_coef` at first, grows while the entropy is at most a
    target and else shrinks; it counts only in the steps after those at most there (He et al., Skywork-OR1, section on adaptive
    entropy control, arXiv 2505.22312; TRL, `use_adaptive_entropy`)."""

    target: Rate = 0.2
    """Entropy per token in nats, under which it isn't to fall. A low one is an insurance against a collapse: see the metric
    `entropy` of the first steps."""
    delta: Rate = 0.005
    """How much the weight changes in each step."""
    least: Weight = 0.0
    """Smallest weight."""
    most: Weight = 1.0
    """Largest weight."""

    @model_validator(mode="after")
    def _weights_are_ordered(self) -> AdaptiveEntropyConfig:
        if self.least >= self.most:
            raise ValueError(
                f"adaptive_entropy.least = {self.least:g} is not below adaptive_entropy.most = {self.most:g}: the weight lies "
                "between"
            )
        return self


class PerceptionConfig(Section):
    """`[stages.perception]`: compare what the policy says with what it would say if it saw less: of the same tokens, with black
    squares over the prompt's images (Wang et al., PAPO, arXiv 2507.06448). All completions of a prompt have the same squares."""

    masked: Annotated[float, Field(gt=0, le=1)] = 0.6
    """The chance of each square to be black."""
    patch: Positive = 14
    """Side of a square, in pixels of the image as the task gives it."""
    coef: Weight = 0.0
    """Weight of the divergence between the two, which the loss makes larger (PAPO, `kl_prcp_coef`); 0: it is only a signal of
    the algorithm, such as `vppo`."""
    gradient: Literal["seen", "both"] = "seen"
    """What learns to make it larger: the policy that sees the images, with the other's log-probabilities as they were before the
    update (PAPO's code); or also the one that sees less, which costs a second pass with gradients (the formula of its paper)."""
    entropy_penalty: Weight = 0.0
    """The stage's `entropy_penalty` for the policy that sees less; needs `gradient = "both"`, as without a gradient it is a
    constant."""

    @model_validator(mode="after")
    def _has_a_gradient(self) -> PerceptionConfig:
        if self.entropy_penalty and self.gradient != "both":
            raise ValueError(
                f'perception.entropy_penalty = {self.entropy_penalty:g} has no gradient with perception.gradient = "seen": '
                'drop it, or set gradient = "both"'
            )
        if self.gradient == "both" and not self.coef:
            raise ValueError('perception.gradient = "both" has no effect with perception.coef = 0: set coef, such as 0.01')
        return self


class ConsistencyConfig(Section):
    """`[stages.consistency]`: a bonus for right answers that follow from their thoughts: those to which the reference model gives
    at least the mean probability of the group's right answers (Chen et al., GRPO-CARE, arXiv 2506.16141)."""

    bonus: Annotated[Real, Field(gt=0)] = 0.5
    """The bonus, times what the answer is paid for being right."""
    margin: Weight = 0.0
    """How far below the mean an answer's probability may be. A token's probability is the geometric mean over the answer's."""
    cap: Annotated[Real, Field(gt=0, le=1)] = 0.95
    """Higher probabilities count as this."""
    correct_above: Real = 0.1
    """An answer is right if its verifier gives more than this, and at least the mean of its group."""
    verifier: str = ""
    """Id of the verifier that decides; by default the whole reward."""
    opening: Annotated[str, Field(min_length=1)] = "<answer>"
    """What the answer follows, such as `\\boxed{`; the last one counts. A completion without it has no bonus."""
    closing: Annotated[str, Field(min_length=1)] = "</answer>"
    """What ends the answer; without it the completion's end does."""


class NoisyConfig(Section):
    """`[stages.noisy]`: add completions to each group that were sampled from noisy images, and train on them as completions of
    the clean ones (Liu et al., NoisyRollout, arXiv 2504.13055)."""

    share: Annotated[Real, Field(gt=0, le=16)] = 1.0
    """These completions, as a share of the group's size; at least one."""
    level: Annotated[int, Field(ge=1, lt=1000)] = 500
    """Noise at first: the number of steps of diffusion, of 1,000, that a picture has gone through."""
    schedule: Literal["sigmoid", "linear", "constant"] = "sigmoid"
    """How the level falls over the stage, in shares x of its steps: `level` times 1 - sigmoid(steepness (x - middle)), or
    times 1 - x, or not."""
    steepness: Rate = 30.0
    """See `schedule`."""
    middle: Share = 2 / 3
    """See `schedule`."""
    ratio: Literal["sampled", "clean"] = "sampled"
    """What the probability ratio of these completions divides by: their probability when they were sampled, from the noisy image;
    or that of the policy before the update for the clean image, as if they had been sampled from it (NoisyRollout's code)."""


class RuleConfig(Section):
    """`[[stages.rules]]`: a plugin's sampling rule."""

    id: str
    """Id of the rule, see `mmrl list sampling_rules`."""
    options: Free = {}
    """Options of the rule, see `mmrl list sampling_rules ID`."""


class LengthConfig(Section):
    """`[stages.length]`: a bonus for correct answers of a certain length (Feng et al., Video-R1)."""

    bonus: Weight = 0.2
    """Bonus on the reward of each correct answer of this length, if at least two answers of the group are correct."""
    min_tokens: Count = 320
    """Shortest completion with a bonus, in tokens."""
    max_tokens: Positive = 512
    """Longest completion with a bonus, in tokens."""
    correct_above: Real = 0.1
    """An answer is correct if its verifier gives more than this."""
    verifier: str = ""
    """Id of the verifier that decides; by default the whole reward."""

    def smaller(self) -> LengthConfig:
        return self.at_most(min_tokens=1)

    @model_validator(mode="after")
    def _some_length_is_paid(self) -> LengthConfig:
        low, high = self.min_tokens, self.max_tokens
        if low > high:
            raise ValueError(
                f"length.min_tokens = {low} is above length.max_tokens = {high}, so no length has a bonus: swap them"
            )
        return self


class EpochFilterConfig(Section):
    """`[stages.epoch_filter]`: at the end of each epoch leave prompts out of all later ones, by the mean value of their
    completions in it (Wang et al., Time-R1, arXiv 2503.13377)."""

    above: Real = 0.0
    """Leave out prompts whose mean isn't above this."""
    up_to: Real = 0.7
    """Leave out prompts whose mean is above this."""
    verifier: str = ""
    """Id of the verifier whose values decide; by default the whole reward."""

    @model_validator(mode="after")
    def _something_stays(self) -> EpochFilterConfig:
        if self.above >= self.up_to:
            low, high = self.above, self.up_to
            raise ValueError(f"epoch_filter.above = {low:g} is not below epoch_filter.up_to = {high:g}, so none stays: swap them")
        return self


class ReweightConfig(Section):
    """`[stages.reweight]`: weigh the verifiers of all tasks anew in each step: those whose losses still fall little or vary much
    get more, and those that have converged less (Beyond Reasoning Gains, arXiv 2510.21978). The loss of a verifier is its highest
    value minus its mean in a step, as a share of its range."""

    window: Annotated[int, Field(ge=2, le=10_000)] = 10
    """Steps over which a loss is averaged: the newest are compared with as many before them. Until then the weights are those of
    the run file."""
    temperature: Rate = 5.0
    """Temperature of the softmax over the verifiers; the larger, the more alike their weights."""


class CurriculumConfig(Section):
    """`[stages.curriculum]`: draw prompts from a Gaussian over the order of their angle concentration, whose centre moves on as
    they are solved (Wang et al., GAIN-RL, arXiv 2506.02281). The angle concentration of a prompt is the mean cosine between the
    hidden states of its question's tokens, and with those of the tokens before."""

    width: Rate = 1000.0
    """Standard deviation of the Gaussian, in prompts."""
    step: Rate = 500.0
    """In each step the centre moves by this, in prompts, times tanh(sensitivity (successes - target)) + tanh(sensitivity angle),
    where successes is the share of successes of the step's completions and angle the mean angle concentration of its prompts. It
    never moves back."""
    sensitivity: Rate = 2.0
    """See `step`."""
    target: Share = 0.5
    """See `step`."""
    max_step: Rate = 1000.0
    """Prompts by which the centre moves at most in a step."""
