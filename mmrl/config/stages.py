"""What a stage may say: `[[stages]]` of every kind, and the tables inside them."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mmrl.config.values import Count, Free, Limit, Positive, Rate, Real, Section, Share, Weight

PARTS = ("vision", "projector", "language", "head", "value")
"""What the weights of a model are parts of; see `mmrl.config.parts`."""


class PartConfig(Section):
    """`[[stages.parts]]`: how some of the weights are trained. The first entry that matches a weight holds for it."""

    match: str
    """`vision`, `projector`, `language`, `head`, `value`, or a pattern of parameter names, such as `*.layers.0.*`."""
    freeze: bool = False
    """Leave these as they are, bit for bit."""
    learning_rate: Rate | None = None
    """Their own, with the stage's warm-up and schedule."""
    weight_decay: Weight | None = None
    """Their own."""

    @model_validator(mode="after")
    def _says_something(self) -> PartConfig:
        if not self.freeze and self.learning_rate is None and self.weight_decay is None:
            raise ValueError(f"parts match {self.match!r} changes nothing: give freeze = true, learning_rate or weight_decay")
        if self.freeze and (self.learning_rate is not None or self.weight_decay is not None):
            raise ValueError(f"parts match {self.match!r} is frozen and has a learning rate or weight decay: drop one of them")
        return self


class SelectConfig(Section):
    """`[stages.select]`: train on some prompts of the split, by what an evaluation saw their answers score."""

    path: str
    """What a run wrote that answered the stage's split several times, such as `runs/pilot/evaluations/step-000000.jsonl`."""
    rule: Literal["variance", "bell", "all"] = "variance"
    """Take those whose scores vary most (Temporal-R1), draw by a bell curve over their means (Time-R1), or draw evenly."""
    max_prompts: Positive | None = None
    """Prompts of each task, at most; all that are left when unset, which `bell` can't have."""
    above: Real | None = None
    """Leave out prompts whose mean is no higher."""
    up_to: Real | None = None
    """Leave out prompts whose mean is higher."""
    center: Real = 0.3
    """The mean score that `bell` draws most."""
    width: Rate = 0.2
    """The standard deviation of `bell`."""

    @model_validator(mode="after")
    def _rules_leave_some(self) -> SelectConfig:
        if self.rule == "bell" and self.max_prompts is None:
            raise ValueError('select.rule = "bell" draws n prompts: set select.max_prompts')
        if self.rule == "all" and self.max_prompts is None and self.above is None and self.up_to is None:
            raise ValueError('select.rule = "all" leaves everything: set select.max_prompts, above or up_to, or drop select')
        if self.above is not None and self.up_to is not None and self.above >= self.up_to:
            raise ValueError(f"no mean is above {self.above:g} and up to {self.up_to:g}: lower select.above, or raise up_to")
        return self


class Training(Section):
    """What all stages have."""

    kind: str
    """Which stage it is."""
    steps: Positive
    """Steps of the stage; each is one optimiser step (`epochs` times `minibatches` of them with `rl`)."""
    split: str = "train"
    """Which split of the tasks the prompts come from."""
    tasks: dict[str, Weight] = {}
    """Task -> its share of the prompts in this stage; tasks that are not named get none. `[[tasks]] weight` when empty."""
    order: Literal["shuffled", "easy-first"] = "shuffled"
    """Shuffled anew each epoch, or by the prompts' `meta["difficulty"]`, the lowest first."""
    select: SelectConfig | None = None
    """Train on some of the split's prompts, by what an evaluation saw them score."""
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop", "adafactor", "muon"] = "adamw"
    """torch's optimiser; `sgd` has a momentum of `beta1`. `muon` steps matrices between hidden states, and AdamW all else."""
    learning_rate: Rate = 1e-6
    """After the warm-up."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the gradient's running mean; not in `rmsprop` and `adafactor`."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the running mean of its square; not in `sgd` and `adafactor`."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on: stays, or falls to `min_lr_ratio` of itself at the end of the stage."""
    min_lr_ratio: Share = 0.0
    """What a falling learning rate ends at, as a share of the highest."""
    weight_decay: Weight = 0.0
    """Pull of the weights towards zero, relative to the learning rate (`adam`, `sgd`, `rmsprop`: added to the gradient)."""
    max_grad_norm: Limit = 1.0
    """A gradient longer than this is scaled down to it; inf never scales."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Evaluate and keep a running mean of the weights with this decay a step, such as 0.99; 0 keeps the weights themselves."""
    parts: list[PartConfig] = []
    """Parts of the model that are frozen or have a learning rate of their own."""

    @model_validator(mode="after")
    def _weights_add_up(self) -> Training:
        if self.tasks and not sum(self.tasks.values()):
            raise ValueError("the weights of tasks add up to 0: give at least one more than that")
        return self

    def smaller(self) -> Self:
        most = {"steps": 2, "batch_size": 4, "prompts_per_step": 2, "minibatches": 2, "group_size": 4, "epochs": 2}
        return self.at_most(warmup_steps=0, **{key: limit for key, limit in most.items() if key in type(self).model_fields})


class SftStage(Training):
    """`[[stages]] kind = "sft"`: imitate the tasks' gold completions."""

    kind: Literal["sft"]
    """Which stage it is."""
    batch_size: Positive = 32
    """Examples a step."""
    learning_rate: Rate = 1e-5
    """After the warm-up."""


class CriticConfig(Section):
    """`[stages.critic]`: the value function of an algorithm that needs one, such as `ppo`."""

    backbone: Literal["shared", "separate"] = "shared"
    """A value head on the policy's own hidden states, or a second copy of the model with a head of its own."""
    hidden_sizes: list[Positive] = []
    """Widths of the head's hidden layers; none is a linear head. RL4VLA has `[512, 128]`."""
    learning_rate: Rate = 1e-4
    """Of the head, and of a separate critic's copy of the model; with the stage's warm-up and schedule."""
    value_coef: Rate = 0.5
    """Weight of the value loss beside the policy's."""
    detach: bool = False
    """Keep the value loss's gradient out of a shared backbone."""
    warmup_steps: Count = 0
    """Steps at the beginning of the stage that train the critic alone."""
    clip_range: Weight = 0.2
    """A value may move this far from the old one before its loss is cut off; 0 never cuts."""
    huber: Limit = math.inf
    """Errors beyond this count linearly; inf is half the squared error."""

    def smaller(self) -> CriticConfig:
        return self.at_most(warmup_steps=1)

    max_grad_norm: Limit = 1.0
    """The critic's gradient is clipped apart from the policy's; with a shared backbone, the head's."""


class ImitationConfig(Section):
    """`[stages.imitation]`: gold completions beside the sampled ones, in one loss or step by step."""

    rule: Literal["mixed", "sasr"] = "mixed"
    """`mixed`: (1 - w) x RL + w x SFT in every step (Zhang et al., CHORD-mu); `sasr`: each step is one or the other, SFT with the
    probability g / (g + gamma g0) of its gradient norms now and at first (Chen et al., SASR)."""
    start_weight: Share = 0.9
    """w at the first step, for `mixed`."""
    end_weight: Share = 0.05
    """w after `decay_steps`, for `mixed`; linear in between."""
    decay_steps: Positive = 100
    """Steps from start to end, for `mixed`."""
    gamma: Rate = 1.0
    """Weight of the first gradient norm, for `sasr`."""
    batch_size: Positive = 16
    """Gold completions a step."""
    uncertainty_weighting: bool = False
    """Weigh each gold token by p (1 - p) of its probability, so that neither certain nor hopeless ones count (CHORD-phi)."""


class ConditionConfig(Section):
    """`[stages.condition]`: train on every completion, told whether it was good, and sample as if told so (RECAP, pi*0.6)."""

    positive: str = "Advantage: positive"
    """Added to the prompts of completions that are among the best, and to those that are sampled or evaluated."""
    negative: str = "Advantage: negative"
    """Added to the prompts of the others."""
    top: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of a step's completions, by advantage, that are called positive."""
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the prompts that get neither, so that the policy also learns the unconditioned answer."""

    @model_validator(mode="after")
    def _texts_tell_good_from_bad(self) -> ConditionConfig:
        for key in ("positive", "negative"):
            if not getattr(self, key).strip():
                raise ValueError(f"condition.{key} is blank, so a prompt with it tells nothing: give a text")
        if self.positive.strip() == self.negative.strip():
            raise ValueError(f"condition.positive and negative are both {self.positive!r}: give two different texts")
        return self


class RuleConfig(Section):
    """`[[stages.rules]]`: a rule of sampling that a plugin brings."""

    id: str
    """See `mmrl list sampling_rules`."""
    options: Free = {}
    """Its options; see `mmrl list sampling_rules ID`."""


class LengthConfig(Section):
    """`[stages.length]`: pay right answers of some length, where the group has more than one (Feng et al., Video-R1)."""

    bonus: Weight = 0.2
    """Added to the reward of each right answer of that length, where at least two of the group are right."""
    min_tokens: Count = 320
    """Tokens of the shortest that are paid."""
    max_tokens: Positive = 512
    """Tokens of the longest that are paid."""
    correct_above: Real = 0.1
    """An answer is right whose verifier gives more."""
    verifier: str = ""
    """Which tells right from wrong; the whole reward when empty."""

    @model_validator(mode="after")
    def _some_length_is_paid(self) -> LengthConfig:
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"length.min_tokens = {self.min_tokens} is above length.max_tokens = {self.max_tokens}, so no length is "
                "paid: swap them"
            )
        return self


class RlStage(Training):
    """`[[stages]] kind = "rl"`: sample, score, reinforce."""

    kind: Literal["rl"]
    """Which stage it is."""
    prompts_per_step: Positive = 16
    """Prompts sampled in a step; with `labels = "co-reward"` their rephrased forms come on top."""
    group_size: Positive = 8
    """Completions sampled for each prompt."""
    algorithm: str = "grpo"
    """See `mmrl list algorithms`."""
    settings: Free = {}
    """Settings of the algorithm's advantage and loss, and `normalise` and `constant`; see `mmrl list algorithms ID`."""
    epochs: Positive = 1
    """Passes over each step's completions; from the second on the ratio is clipped."""
    minibatches: Positive = 1
    """Optimiser steps in a pass, each on its share of the prompts."""
    stop_kl: Rate | None = None
    """End a step's passes before the update whose mini-batch shows the policy further than this, in nats a unit of `ratio`, from
    the one that sampled."""
    credit: Literal["token", "action", "chunk", "turn"] = "token"
    """What a critic's values belong to. A turn of a conversation and a chunk of actions are one call of the policy each."""
    ratio: Literal["token", "action", "chunk"] = "token"
    """What has a probability ratio of its own in a policy that acts in a simulator: each token of an action, the action, or the
    whole chunk; their log-probabilities are summed. Words are always tokens."""
    entropy_coef: Weight = 0.0
    """Weight of an entropy bonus, a token."""
    importance_sampling: Literal["off", "truncate", "mask"] = "off"
    """Correct for a sampler whose probabilities differ from the learner's: weigh tokens by their ratio, at most
    `importance_sampling_cap`, or leave those out that exceed it."""
    importance_sampling_cap: Annotated[Real, Field(ge=1)] = 2.0
    """See `importance_sampling`."""
    # the KL penalty
    kl_coef: Weight = 0.0
    """Weight of the KL penalty against the reference policy; 0 has none."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How it is estimated from the sampled tokens (Schulman, Approximating KL). In the loss, k1 has no gradient on average."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add it to the loss, or take it off the rewards, token by token."""
    kl_target: Rate | None = None
    """Adapt the weight so that the KL stays near this, in nats a token (Ziegler et al. 2019); fixed when unset."""
    kl_horizon: Rate = 10.0
    """How slowly the weight adapts: by at most a fifth of 1 / kl_horizon of itself a step."""
    reference: Literal["auto", "frozen", "adapter", "none"] = "auto"
    """The policy of the KL penalty: a frozen copy from the stage's beginning, the model with its adapters off, or `auto`: the
    latter where there are adapters."""
    reference_every: Count = 0
    """Steps after which a frozen reference is set to the policy of the moment; 0 never."""
    # which completions are trained on
    success_threshold: Real = 0.5
    """A completion with at least this reward has succeeded: for the rules below and for pass@k."""
    dynamic_sampling: Count = 0
    """Rounds in which groups that are left out (no spread, or by the rules below) are replaced by other prompts' (DAPO)."""
    min_success_rate: Share = 0.0
    """Groups with a smaller share of successes are left out."""
    max_success_rate: Share = 1.0
    """Groups with a larger share of successes are left out."""
    oversample: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """Sample so many times the prompts and keep the groups whose rewards vary most."""
    overlong: Literal["keep", "mask"] = "keep"
    """Completions that were cut off: train on them, or leave them out (their rewards still count in their group)."""
    overlong_buffer: Share = 0.0
    """The last share of `max_tokens`, over which the reward falls linearly by `overlong_penalty` (DAPO)."""
    overlong_penalty: Weight = 1.0
    """See `overlong_buffer`."""
    hints: Literal["none", "guide", "ghpo"] = "none"
    """When a whole group fails, sample it again with a part of the gold completion in the prompt: train on the answers
    without the hint, weighted by importance (`guide`), or with it (`ghpo`)."""
    hint_shares: list[Annotated[Real, Field(gt=0, le=1)]] = [0.25, 0.5, 0.75]
    """How much of the gold completion a hint shows, tried in turn until one succeeds."""
    ground_truth: Literal["never", "when-failed", "always"] = "never"
    """Put the gold completion into the group as one more rollout; where a sampled one is as good, it counts nothing (ViSurf)."""
    ground_truth_without: list[str] = []
    """Verifiers that don't reward the gold completion, such as one for a thinking format that labels lack (ViSurf)."""
    labels: Literal["task", "majority", "ttrv", "co-reward"] = "task"
    """What is right: the task's answers, or without them the group's majority, its frequency less its entropy (TTRV), or the
    majority on a rephrased prompt (Co-Reward)."""
    # which prompts come
    adapt_task_weights: Literal["none", "variance"] = "none"
    """Weigh tasks, within the stage, by the share of their groups that had spread lately."""
    replay_share: Share = 0.0
    """Share of the prompts taken from those that failed before."""
    replay_buffer_size: Positive = 256
    """How many failed prompts are remembered, the newest."""
    critic: CriticConfig | None = None
    """The value function; an algorithm that needs one gets the defaults."""
    imitation: ImitationConfig | None = None
    """Mix supervised learning in."""
    condition: ConditionConfig | None = None
    """Train with the prompt telling whether the completion was good."""
    rules: list[RuleConfig] = []
    """Rules of sampling that plugins bring, in the order in which they are applied."""
    length: LengthConfig | None = None
    """Pay right answers of some length."""

    def smaller(self) -> RlStage:
        smaller = super().smaller()
        return smaller.model_copy(update={"critic": self.critic.smaller()}) if self.critic else smaller

    @model_validator(mode="after")
    def _rules_leave_something(self) -> RlStage:
        if self.min_success_rate > self.max_success_rate:
            raise ValueError(
                f"min_success_rate = {self.min_success_rate:g} is above max_success_rate = {self.max_success_rate:g}, "
                "leaving nothing: swap them"
            )
        if self.min_success_rate == self.max_success_rate and self.min_success_rate in (0.0, 1.0):
            raise ValueError(
                f"min_success_rate = max_success_rate = {self.min_success_rate:g} leaves only groups without spread, "
                "which teach nothing: "
                "widen the range"
            )
        if self.hints != "none" and not self.hint_shares:
            raise ValueError(f'hints = "{self.hints}" and hint_shares = [], so none is ever shown: give shares, such as [0.5]')
        if self.labels != "task":
            for key, off in (("hints", "none"), ("ground_truth", "never")):
                if (found := getattr(self, key)) != off:
                    raise ValueError(
                        f'{key} = "{found}" shows the gold completion and labels = "{self.labels}" does without it: drop one'
                    )
            if self.length and self.length.verifier:
                raise ValueError(f'length.verifier names one that labels = "{self.labels}" never asks: drop one of them')
        for key, changed in (("hints", self.hints == "ghpo"), ("labels", self.labels == "co-reward")):
            if self.condition and changed:
                raise ValueError(
                    f'condition shows prompts anew and {key} = "{getattr(self, key)}" trains on others than the task\'s: drop one'
                )
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"minibatches = {self.minibatches} is above prompts_per_step = {self.prompts_per_step}, whose groups stay whole: "
                "lower it"
            )
        return self

    @model_validator(mode="after")
    def _kl_has_what_it_needs(self) -> RlStage:
        if self.kl_coef and self.reference == "none":
            raise ValueError(
                f'kl_coef = {self.kl_coef:g} needs something to compare with: drop reference = "none" or set kl_coef = 0'
            )
        if self.reference_every and self.reference == "adapter":
            raise ValueError(
                'reference = "adapter" is the model without its adapters, which never moves: drop it or reference_every'
            )
        return self


EXPERT = "expert"
"""The teacher of a `distill` stage that is a simulator's own expert."""


class DistillStage(Training):
    """`[[stages]] kind = "distill"`: learn from a teacher on the policy's own completions."""

    kind: Literal["distill"]
    """Which stage it is."""
    teacher: str
    """A folder or hub name of a checkpoint with the same vocabulary; a run's are `runs/NAME/checkpoints/step-.../policy`. Or
    `expert`: the simulator's own, for a policy that acts."""
    divergence: Literal["reverse", "forward", "hard", "sampled"] = "reverse"
    """`reverse`, `forward`: KL(policy || teacher) or KL(teacher || policy) over the vocabulary at each token of the policy's
    completions; `sampled`: the reverse one, from the sampled tokens alone; `hard`: imitate the teacher's completions."""
    prompts_per_step: Positive = 16
    """Prompts a step."""
    group_size: Positive = 1
    """Completions sampled for each prompt."""
    learning_rate: Rate = 1e-5
    """After the warm-up."""


Stage = Annotated[SftStage | RlStage | DistillStage, Field(discriminator="kind")]
STAGES: dict[str, type[Training]] = {"sft": SftStage, "rl": RlStage, "distill": DistillStage}
