"""What a run file may say: every key with its type, default and meaning. Plain data, no heavy import.

What one key says about another is checked here too, so that a contradiction is refused when the file is read.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Threshold = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Share = Annotated[float, Field(ge=0, le=1)]


def _without_nan(value: Any) -> Any:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for item in inner:
        _without_nan(item)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("nan is no number to work with: give another")
    return value


Free = Annotated[dict[str, Any], AfterValidator(_without_nan)]
"""Keyword arguments of something that a plugin brings."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


# -- the model --------------------------------------------------------------------------------------------------------------


class LoraConfig(Section):
    """`[policy.lora]`: train low-rank adapters (Hu et al., LoRA) and leave the model's own weights as they are."""

    rank: Positive = 16
    """Rank of the added matrices."""
    alpha: Rate = 32.0
    """The adapters' output is scaled by alpha / rank."""
    match: list[str] = ["language"]
    """Which linear layers get one: `vision`, `projector`, `language`, or patterns of their names, such as `*.q_proj`."""


class PolicyConfig(Section):
    """`[policy]`: the model that is trained."""

    model: str
    """A folder or hub name of a transformers checkpoint, or `tiny:FAMILY` (see `mmrl.policies.tiny`) for a small random one."""
    kind: str = "vlm"
    """Id of the policy, see `mmrl list policies`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations; log-probabilities and losses are float32 whatever this says."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """How attention is computed; `eager` is slow and transparent. Others can't express a shared prompt."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint. Off unless you know whose code it is."""
    min_pixels: Positive | None = None
    """Images below this are enlarged by the processor; its own limit when unset."""
    max_pixels: Positive | None = None
    """Images above this are shrunk by the processor; its own limit when unset."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of the model's own weights."""

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> PolicyConfig:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels = {self.min_pixels} is above max_pixels = {self.max_pixels}: lower it")
        return self


# -- the tasks --------------------------------------------------------------------------------------------------------------


class TaskConfig(Section):
    """`[[tasks]]`: one source of problems."""

    id: str
    """See `mmrl list tasks`."""
    name: str = ""
    """What figures and curves call it; the id when unset. A task that is listed twice needs two names."""
    weight: Weight = 1.0
    """Share of the prompts, relative to the other tasks; 0 only evaluates it."""
    options: Free = {}
    """Keyword arguments of the task."""
    verifiers: dict[str, float | tuple[float, float]] = {}
    """Verifier id -> weight in the reward; replaces the task's own. `[a, b]` goes from a to b over each stage."""
    prompt: str = ""
    """The text the policy is shown, with `{text}` where the task's own goes, such as `"{text} Think first."`."""
    group_size: Positive | None = None
    """Completions sampled for each of its prompts; the stage's when unset."""
    max_tokens: Positive | None = None
    """Longest completion of its prompts, in tokens; `generate.max_tokens` when unset, and never more."""

    @field_validator("prompt")
    @classmethod
    def _prompt_has_a_place_for_the_text(cls, prompt: str) -> str:
        if prompt and prompt.count("{text}") != 1:
            raise ValueError('must hold {text} once, where the task\'s own text goes, such as "{text} Think first."')
        return prompt

    @property
    def label(self) -> str:
        """What the rest of the engine calls this entry."""
        return self.name or self.id


# -- the stages -------------------------------------------------------------------------------------------------------------


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
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop", "adafactor"] = "adamw"
    """torch's optimiser; `sgd` has a momentum of `beta1`."""
    learning_rate: Rate = 1e-6
    """After the warm-up."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the gradient's running mean; not in `rmsprop` and `adafactor`."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the running mean of its square; not in `sgd` and `adafactor`."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on: stays, or falls to `final_share` of itself at the end of the stage."""
    final_share: Share = 0.0
    """What a falling learning rate ends at, as a share of the highest."""
    weight_decay: Weight = 0.0
    """Pull of the weights towards zero, relative to the learning rate (`adam`, `sgd`, `rmsprop`: added to the gradient)."""
    max_grad_norm: Limit = 1.0
    """A gradient longer than this is scaled down to it; inf never scales."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Evaluate and keep a running mean of the weights with this decay a step, such as 0.99; 0 keeps the weights themselves."""
    parts: list[PartConfig] = []
    """Parts of the model that are frozen or have a learning rate of their own."""

    @model_validator(mode="after")
    def _weights_add_up(self) -> Training:
        if self.tasks and not sum(self.tasks.values()):
            raise ValueError("the weights of tasks add up to 0: give at least one more than that")
        return self


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
    hidden: list[Positive] = []
    """Widths of the head's hidden layers; none is a linear head. RL4VLA has `[512, 128]`."""
    learning_rate: Rate = 1e-4
    """Of the head, and of a separate critic's copy of the model; with the stage's warm-up and schedule."""
    weight: Rate = 0.5
    """Weight of the value loss beside the policy's."""
    detach: bool = False
    """Keep the value loss's gradient out of a shared backbone."""
    warmup_steps: Count = 0
    """Steps at the beginning of the stage that train the critic alone."""
    clip: Weight = 0.2
    """A value may move this far from the old one before its loss is cut off; 0 never cuts."""
    huber: Limit = math.inf
    """Errors beyond this count linearly; inf is half the squared error."""
    max_grad_norm: Limit = 1.0
    """The critic's gradient is clipped apart from the policy's; with a shared backbone, the head's."""


class ImitationConfig(Section):
    """`[stages.imitation]`: gold completions beside the sampled ones, in one loss or step by step."""

    rule: Literal["mixed", "sasr"] = "mixed"
    """`mixed`: (1 - w) x RL + w x SFT in every step (Zhang et al., CHORD-mu); `sasr`: each step is one or the other, SFT with the
    probability g / (g + gamma g0) of its gradient norms now and at first (Chen et al., SASR)."""
    start: Share = 0.9
    """w at the first step, for `mixed`."""
    end: Share = 0.05
    """w after `steps`, for `mixed`; linear in between."""
    steps: Positive = 100
    """Steps from start to end, for `mixed`."""
    gamma: Rate = 1.0
    """Weight of the first gradient norm, for `sasr`."""
    batch_size: Positive = 16
    """Gold completions a step."""
    uncertain: bool = False
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


class RlStage(Training):
    """`[[stages]] kind = "rl"`: sample, score, reinforce."""

    kind: Literal["rl"]
    """Which stage it is."""
    prompts_per_step: Positive = 16
    """Prompts sampled in a step."""
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
    credit: Literal["token", "action", "chunk", "turn"] = "token"
    """What a critic's values belong to. A turn of a conversation and a chunk of actions are one call of the policy each."""
    entropy: Weight = 0.0
    """Weight of an entropy bonus, a token."""
    importance: Literal["off", "truncate", "mask"] = "off"
    """Correct for a sampler whose probabilities differ from the learner's: weigh tokens by their ratio, at most
    `importance_cap`, or leave those out that exceed it."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """See `importance`."""
    # the KL penalty
    kl: Weight = 0.0
    """Weight of the KL penalty against the reference policy; 0 has none."""
    kl_estimate: Literal["k1", "k2", "k3"] = "k3"
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
    success: float = 0.5
    """A completion with at least this reward has succeeded: for the rules below and for pass@k."""
    dynamic_sampling: Count = 0
    """Rounds in which groups that are left out (no spread, or by the rules below) are replaced by other prompts' (DAPO)."""
    success_low: Share = 0.0
    """Groups with a smaller share of successes are left out."""
    success_high: Share = 1.0
    """Groups with a larger share of successes are left out."""
    oversample: Annotated[float, Field(ge=1)] = 1.0
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
    hint_shares: list[Annotated[float, Field(gt=0, le=1)]] = [0.25, 0.5, 0.75]
    """How much of the gold completion a hint shows, tried in turn until one succeeds."""
    ground_truth: Literal["never", "when-failed", "always"] = "never"
    """Put the gold completion into the group as one more rollout; where a sampled one is as good, it counts nothing (ViSurf)."""
    ground_truth_without: list[str] = []
    """Verifiers that don't reward the gold completion, such as one for a thinking format that labels lack (ViSurf)."""
    labels: Literal["task", "majority", "ttrv", "co-reward"] = "task"
    """What is right: the task's answers, or without them the group's majority, its frequency less its entropy (TTRV), or the
    majority on a rephrased prompt (Co-Reward)."""
    # which prompts come
    adapt: Literal["none", "variance"] = "none"
    """Weigh tasks, within the stage, by the share of their groups that had spread lately."""
    replay: Share = 0.0
    """Share of the prompts taken from those that failed before."""
    replay_size: Positive = 256
    """How many failed prompts are remembered, the newest."""
    critic: CriticConfig | None = None
    """The value function; an algorithm that needs one gets the defaults."""
    imitation: ImitationConfig | None = None
    """Mix supervised learning in."""
    condition: ConditionConfig | None = None
    """Train with the prompt telling whether the completion was good."""

    @model_validator(mode="after")
    def _rules_leave_something(self) -> RlStage:
        if self.success_low > self.success_high:
            raise ValueError(
                f"success_low = {self.success_low:g} is above success_high = {self.success_high:g}, leaving nothing: swap them"
            )
        if self.success_low == self.success_high and self.success_low in (0.0, 1.0):
            raise ValueError(
                f"success_low = success_high = {self.success_low:g} leaves only groups without spread, which teach nothing: "
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
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"minibatches = {self.minibatches} is above prompts_per_step = {self.prompts_per_step}, whose groups stay whole: "
                "lower it"
            )
        return self

    @model_validator(mode="after")
    def _kl_has_what_it_needs(self) -> RlStage:
        if self.kl and self.reference == "none":
            raise ValueError(f'kl = {self.kl:g} needs something to compare with: drop reference = "none" or set kl = 0')
        if self.reference_every and self.reference == "adapter":
            raise ValueError(
                'reference = "adapter" is the model without its adapters, which never moves: drop it or reference_every'
            )
        return self


class DistillStage(Training):
    """`[[stages]] kind = "distill"`: learn from a teacher on the policy's own completions."""

    kind: Literal["distill"]
    """Which stage it is."""
    teacher: str
    """A folder or hub name of a checkpoint with the same vocabulary; a run's are `runs/NAME/checkpoints/step-.../policy`."""
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


# -- everything else --------------------------------------------------------------------------------------------------------


class GenerateConfig(Section):
    """`[generate]`: how completions are sampled during training. The checkpoint's own generation settings are ignored."""

    max_tokens: Annotated[int, Field(ge=1, le=2**17)] = 256
    """Longest completion, in tokens."""
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    """Logits are divided by this, in the sampler and in the learner."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest tokens that together have this probability; log-probabilities stay those of all tokens."""
    top_k: Count = 0
    """Sample from so many of the likeliest tokens; 0 from all."""
    batch_size: Positive = 256
    """Completions sampled at once; a larger group is not divided."""


class EvaluateConfig(Section):
    """`[evaluate]`: answers to held-out prompts, before, during and after the RL stages."""

    split: str = "test"
    """Which split of the tasks is held out."""
    n: Count = 200
    """Prompts per task; 0 switches evaluation off."""
    every: Count = 0
    """Also after every so many steps of an RL stage."""
    temperature: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """0 takes the likeliest token each time (greedy)."""
    samples: Positive = 1
    """Answers to each prompt; with more than one, pass@k and majority@k are reported beside the mean."""
    blank: bool = False
    """Also answer with every picture blanked: what is left was not seen."""

    @model_validator(mode="after")
    def _samples_differ(self) -> EvaluateConfig:
        if self.samples > 1 and not self.temperature:
            raise ValueError(f"samples = {self.samples} greedy answers would be the same: set temperature, such as 1.0")
        return self


class JudgeConfig(Section):
    """`[judge]`: the processes in which verifiers run."""

    processes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Workers that score side by side."""
    deadline_s: Rate | None = None
    """Seconds per case and verifier; each verifier's own limit when unset."""
    failure_limit: Share = 0.1
    """The run stops when more than this share of a step's scores failed."""


class TrainConfig(Section):
    """`[train]`: how an update is computed; none of this changes its result beyond rounding."""

    micro_batch_tokens: Positive = 16384
    """Padded tokens per forward pass."""
    packing: Literal["auto", "shared-prefix", "per-completion"] = "auto"
    """`auto` shares a group's prompt where the model family can; `shared-prefix` refuses models that can't."""
    checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third more time."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of torch; 0 leaves torch's choice."""


class CheckpointConfig(Section):
    """`[checkpoint]`: what a resume needs."""

    every: Count = 0
    """Steps between checkpoints; the end of the run is always one."""
    keep: Positive = 1
    """How many of the newest are kept beside the best."""


class RecordConfig(Section):
    """`[record]`: what is kept for people."""

    rollouts_every: Count = 10
    """Steps between recorded rollouts; 0 records none."""
    rollouts: Positive = 16
    """How many a recorded step keeps."""
    trackers: list[str] = ["tensorboard"]
    """Where curves go besides the run folder: `tensorboard`, `wandb`, `trackio`, `mlflow`, or a plugin's."""
    project: str = "mmrl"
    """What wandb, trackio and mlflow file the run under."""


class Alarm(Section):
    """Thresholds of a figure; a plain number is `stop`."""

    warn: Threshold | None = None
    """From here on a person is told, once."""
    stop: Threshold | None = None
    """From here on the run stops."""

    @model_validator(mode="after")
    def _warns_first(self) -> Alarm:
        if self.warn is not None and self.stop is not None and self.warn > self.stop:
            raise ValueError(f"warn = {self.warn:g} is above stop = {self.stop:g}, so nobody would be warned: lower it")
        return self


class LimitsConfig(Section):
    """`[limits]`: what is said, and what stops a run, when its numbers can no longer be trusted. Each is
    `{warn = ..., stop = ...}`; a plain number stops."""

    logprob_gap: Alarm = Alarm(warn=0.02, stop=0.1)
    """Mean difference between the sampler's and the learner's log-probabilities, in nats a token."""
    answer_collapse: Alarm = Alarm(warn=0.9)
    """Share of a step's completions that are the same text although their answers differ."""
    length_growth: Alarm = Alarm(warn=4.0)
    """Mean length over that of the stage's first steps."""
    entropy_fall: Alarm = Alarm(warn=0.98)
    """Share of the first steps' entropy that is gone."""
    clip_share: Alarm = Alarm(warn=0.5)
    """Share of the tokens whose gradient the loss's bounds cut off."""
    zero_spread: Alarm = Alarm(warn=0.95)
    """Share of the groups that taught nothing, over the last ten steps."""
    blind: Alarm = Alarm(warn=0.9)
    """Figure on blanked pictures over the figure on the pictures themselves; needs `evaluate.blank`."""
    reward_hacking: Alarm = Alarm(warn=0.05)
    """Fall of the held-out figure below its best while a part of the reward is higher than it was then."""

    @field_validator("*", mode="before")
    @classmethod
    def _a_number_stops(cls, value: Any) -> Any:
        return {"stop": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class RunConfig(Section):
    """A whole run file."""

    name: str
    """Names the run folder."""
    runs: Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")] = "runs"
    """The folder that run folders are made in."""
    seed: int = 0
    """Fixes prompts, sampling and initial weights."""
    policy: PolicyConfig
    """The model."""
    tasks: Annotated[list[TaskConfig], Field(min_length=1)]
    """What it is trained on and evaluated with."""
    stages: Annotated[list[Stage], Field(min_length=1)]
    """What is done, in order."""
    generate: GenerateConfig = GenerateConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    judge: JudgeConfig = JudgeConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    record: RecordConfig = RecordConfig()
    limits: LimitsConfig = LimitsConfig()

    @field_validator("name")
    @classmethod
    def _name_is_a_folder_name(cls, name: str) -> str:
        if not re.fullmatch(r"[^\s/\\-]([^/\\]{0,198}[^\s/\\])?", name) or not name.isprintable() or name.strip(".") == "":
            raise ValueError("must be usable as a folder name: no slashes, no blanks or dash in front, at most 200 characters")
        return name

    @model_validator(mode="after")
    def _tasks_are_distinct(self) -> RunConfig:
        labels = [t.label for t in self.tasks]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"task {twice[0]!r} is listed twice: give each entry a name, or one of them a larger weight")
        if not sum(t.weight for t in self.tasks):
            raise ValueError("the weights of [[tasks]] add up to 0: give at least one more than that")
        for i, stage in enumerate(self.stages):
            if unknown := [name for name in stage.tasks if name not in labels]:
                raise ValueError(f"stages.{i}.tasks names {unknown[0]!r}, which is none of [[tasks]]: {', '.join(labels)}")
        for task in self.tasks:
            if task.max_tokens and task.max_tokens > self.generate.max_tokens:
                raise ValueError(
                    f"task {task.label!r} has max_tokens = {task.max_tokens}, above generate.max_tokens = "
                    f"{self.generate.max_tokens}: raise that"
                )
        return self

    @model_validator(mode="after")
    def _sampling_is_what_the_learner_assumes(self) -> RunConfig:
        filtered = [
            f"{k} = {v:g}" for k, v, off in (("top_p", self.generate.top_p, 1), ("top_k", self.generate.top_k, 0)) if v != off
        ]
        for i, stage in enumerate(self.stages):
            if filtered and isinstance(stage, RlStage) and stage.importance != "off":
                raise ValueError(
                    f'stages.{i}.importance = "{stage.importance}" compares with the probabilities that were sampled from, which '
                    f'generate.{filtered[0]} changes: drop that, or set importance = "off"'
                )
        return self

    def weights(self, stage: Training) -> dict[str, float]:
        """Task -> its share of a stage's prompts, for those that have one."""
        return {t.label: w for t in self.tasks if (w := stage.tasks.get(t.label, 0.0) if stage.tasks else t.weight)}
