"""What a run file may say: every key with its type, default and meaning. Plain data, no heavy import.

What one key says about another is checked here too, so that a contradiction is refused when the file is read.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from mmrl.config.compute import ComputeConfig
from mmrl.config.policy import LoraConfig, PolicyConfig, VideoConfig
from mmrl.config.stages import (
    EXPERT,
    PARTS,
    STAGES,
    ConditionConfig,
    CriticConfig,
    DistillStage,
    ImitationConfig,
    LengthConfig,
    PartConfig,
    RlStage,
    RuleConfig,
    SelectConfig,
    SftStage,
    Stage,
    Training,
)
from mmrl.config.values import Count, Free, Positive, Rate, Real, Section, Share, Threshold, Weight

__all__ = [
    "EXPERT",
    "PARTS",
    "STAGES",
    "ComputeConfig",
    "ConditionConfig",
    "CriticConfig",
    "DistillStage",
    "ImitationConfig",
    "LengthConfig",
    "LoraConfig",
    "PartConfig",
    "PolicyConfig",
    "RlStage",
    "RuleConfig",
    "Section",
    "SelectConfig",
    "SftStage",
    "SimulateConfig",
    "SteeringConfig",
    "Training",
    "VideoConfig",
]


SMOKE = "-smoke"
"""What the name of a smoke run ends with, for people."""


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
    verifiers: dict[str, Real | tuple[Real, Real]] = {}
    """Verifier id -> weight in the reward; replaces the task's own. `[a, b]` goes from a to b over each stage."""
    prompt_template: str = ""
    """The text the policy is shown, with `{text}` where the task's own goes, such as `"{text} Think first."`."""
    group_size: Positive | None = None
    """Completions sampled for each of its prompts; the stage's when unset."""
    max_tokens: Positive | None = None
    """Longest completion of its prompts, in tokens; `generate.max_tokens` when unset, and never more."""

    @field_validator("verifiers", mode="before")
    @classmethod
    def _curves_go_from_one_weight_to_another(cls, verifiers: Any) -> Any:
        for name, weight in verifiers.items() if isinstance(verifiers, dict) else ():
            if isinstance(weight, list | tuple) and len(weight) != 2:
                raise ValueError(f"the weight of {name!r} is a list of {len(weight)}: give one number, or two: [first, last]")
        return verifiers

    @field_validator("prompt_template")
    @classmethod
    def _prompt_has_a_place_for_the_text(cls, prompt: str) -> str:
        if prompt and prompt.count("{text}") != 1:
            raise ValueError('must hold {text} once, where the task\'s own text goes, such as "{text} Think first."')
        return prompt

    def smaller(self) -> TaskConfig:
        """Few and short completions, where the entry says anything of them."""
        return self.at_most(**{key: most for key, most in (("group_size", 4), ("max_tokens", 16)) if getattr(self, key)})

    @property
    def label(self) -> str:
        """What the rest of the engine calls this entry."""
        return self.name or self.id


class GenerateConfig(Section):
    """`[generate]`: how completions are sampled during training. The checkpoint's own generation settings are ignored."""

    max_tokens: Annotated[int, Field(ge=1, le=2**17)] = 256
    """Longest completion, in tokens."""
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    """Logits are divided by this, in the sampler and in the learner."""
    top_p: Annotated[Real, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest tokens that together have this probability; log-probabilities stay those of all tokens."""
    top_k: Count = 0
    """Sample from so many of the likeliest tokens; 0 from all."""
    max_turns: Positive = 8
    """After so many turns an episode with a world is cut off; a task without one has a single turn."""
    max_context: Positive | None = None
    """Tokens of a conversation with a world, the next answer included: where they would be more, the episode is cut off. By
    default the model's own limit."""
    batch_size: Positive = 256
    """Completions sampled at once, and episodes that worlds serve at once; a larger group is not divided."""

    def smaller(self) -> GenerateConfig:
        return self.at_most(max_tokens=16)


class SimulateConfig(Section):
    """`[simulate]`: the simulators of tasks that act."""

    num_envs: Annotated[int, Field(ge=1, le=2**20)] = 64
    """How many go on at once, of each task; an environment begins its next episode as soon as one has ended."""
    lanes: Annotated[int, Field(ge=1, le=64)] = 1
    """Parts that they are divided into: while the policy acts for one, the simulators of the others are stepped."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Where simulators that can run on a GPU do; `auto` is the policy's."""
    demonstration_cache_mb: Annotated[int, Field(ge=0, le=2**30)] = 4096
    """Memory for the expert's episodes that were played, the newest of them; others are played again when they are needed."""

    def smaller(self) -> SimulateConfig:
        return self.at_most(num_envs=4).model_copy(update={"device": "cpu"})


class SteeringConfig(Section):
    """`[evaluate.steering]`: how answers to videos are steered, with `evaluate.steer`."""

    learning_rate: Weight = 0.01
    """Adam's, of what is added to the last layer's values of the video's tokens; 0 leaves answers as they are."""
    interval: Positive = 2
    """Tokens from one step of it to the next."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay, a token, of the entropy's running mean: while that reaches new heights the entropy is raised, else lowered."""


class EvaluateConfig(Section):
    """`[evaluate]`: answers to held-out prompts, before, during and after the RL stages."""

    split: str = "test"
    """Which split of the tasks is held out."""
    num_prompts: Count = 200
    """Prompts per task; 0 switches evaluation off."""
    every: Count = 0
    """Also after every so many steps of an RL stage."""
    temperature: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """0 takes the likeliest token each time (greedy)."""
    num_samples: Positive = 1
    """Answers to each prompt; with more than one, pass@k and majority@k are reported beside the mean."""
    blank_images: bool = False
    """Also answer with every picture blanked: what is left was not seen."""
    shuffle_frames: bool = False
    """Also answer with the frames of every video in another order: what is left needs no time."""
    sparse_frames: list[Annotated[int, Field(ge=1, le=4096)]] = []
    """Also answer videos from so many frames, and where answers differ from the next number of them (Video-RTS)."""
    sparse_agreement: Annotated[int, Field(ge=1, le=64)] = 5
    """How many answers must be the same, for `sparse_frames`."""
    steer: bool = False
    """Also answer videos steered by the entropy of the answer while it is written (V-Reason)."""
    steering: SteeringConfig = SteeringConfig()
    """How, for `steer`."""

    def smaller(self) -> EvaluateConfig:
        fewer = sorted({min(frames, 8) for frames in self.sparse_frames})
        return self.at_most(num_prompts=4).model_copy(update={"sparse_frames": fewer})

    @model_validator(mode="after")
    def _samples_differ(self) -> EvaluateConfig:
        if self.sparse_frames != sorted(set(self.sparse_frames)):
            raise ValueError(f"sparse_frames = {self.sparse_frames} must rise, such as [32, 64, 128]")
        if self.num_samples > 1 and not self.temperature:
            raise ValueError(f"num_samples = {self.num_samples} greedy answers would be the same: set temperature, such as 1.0")
        return self


class JudgeConfig(Section):
    """`[judge]`: the processes in which verifiers run."""

    num_workers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Workers that score side by side; verifiers that are models have one more, together."""
    timeout_s: Rate | None = None
    """Seconds per case and verifier; each verifier's own limit when unset."""
    memory_mb: Annotated[int, Field(ge=16, le=1_000_000)] = 512
    """Megabytes that a worker's cases may take beyond what the imports took, on Linux; the case that needs more fails. Models
    have no limit."""
    failure_limit: Share = 0.1
    """The run stops when more than this share of a step's scores failed."""


class TrainConfig(Section):
    """`[train]`: how an update is computed; none of this changes its result beyond rounding."""

    micro_batch_tokens: Positive = 16384
    """Padded tokens per forward pass."""
    packing: Literal["auto", "shared-prefix", "per-completion"] = "auto"
    """`auto` shares a group's prompt where the model family can; `shared-prefix` refuses models that can't."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third more time."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of torch; 0 leaves torch's choice."""


class CheckpointConfig(Section):
    """`[checkpoint]`: what a resume needs."""

    every: Count = 0
    """Steps between checkpoints; the end of the run is always one."""
    shards: bool = False
    """Of several learners each writes its own part of the optimiser's state, where weights are spread over them; else the first
    gathers and writes all of it. Either goes on with any number of learners."""
    keep: Positive = 1
    """How many of the newest are kept beside the best."""


class RecordConfig(Section):
    """`[record]`: what is kept for people."""

    rollouts_every: Count = 10
    """Steps between recorded rollouts; 0 records none."""
    rollouts: Positive = 16
    """How many a recorded step keeps."""
    evaluation_prompts: Count = 16
    """Held-out prompts of each task, the first ones, whose pictures, text and answer an evaluation keeps beside what was said to
    them; of the others it keeps that and the score."""
    episodes: Annotated[int, Field(ge=0, le=100)] = 4
    """Successes and failures, so many of each, that an evaluation of a task that acts keeps as videos."""
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
    zero_std: Alarm = Alarm(warn=0.95)
    """Share of the groups that taught nothing, over the last ten steps."""
    blind: Alarm = Alarm(warn=0.9)
    """Figure on blanked pictures over the figure on the pictures themselves; needs `evaluate.blank_images`."""
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
    runs_dir: Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")] = "runs"
    """The folder that run folders are made in."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Fixes prompts, sampling and initial weights."""
    smoke: bool = False
    """Written by `mmrl train --smoke` into what it has cut short. By hand it cuts nothing short, and is refused."""
    policy: PolicyConfig
    """The model."""
    tasks: Annotated[list[TaskConfig], Field(min_length=1)]
    """What it is trained on and evaluated with."""
    verifiers: dict[str, Free] = {}
    """Verifier id -> its options, such as `verifiers = {"flags/judge" = {model = "..."}}`; of those that tasks here use."""
    stages: Annotated[list[Stage], Field(min_length=1)]
    """What is done, in order."""
    generate: GenerateConfig = GenerateConfig()
    simulate: SimulateConfig = SimulateConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    judge: JudgeConfig = JudgeConfig()
    train: TrainConfig = TrainConfig()
    compute: ComputeConfig = ComputeConfig()
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
    def _smoke_is_not_set_by_hand(self) -> RunConfig:
        if self.smoke and not self.name.endswith(SMOKE):
            raise ValueError(
                f"smoke = true marks a run file that `mmrl train --smoke` has cut short, and named NAME{SMOKE}: leave it out, "
                "and give --smoke"
            )
        return self

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
    def _frames_are_seen(self) -> RunConfig:
        most = self.policy.video.max_frames
        if (asked := max(self.evaluate.sparse_frames, default=0)) > most:
            raise ValueError(f"evaluate.sparse_frames asks for {asked} and policy.video.max_frames = {most}: raise that")
        return self

    @model_validator(mode="after")
    def _sampling_is_what_the_learner_assumes(self) -> RunConfig:
        filtered = [
            f"{k} = {v:g}" for k, v, off in (("top_p", self.generate.top_p, 1), ("top_k", self.generate.top_k, 0)) if v != off
        ]
        for i, stage in enumerate(self.stages):
            if filtered and isinstance(stage, RlStage) and stage.importance_sampling != "off":
                raise ValueError(
                    f'stages.{i}.importance_sampling = "{stage.importance_sampling}" compares with the probabilities '
                    "that were sampled from, which "
                    f'generate.{filtered[0]} changes: drop that, or set importance_sampling = "off"'
                )
        return self

    def smaller(self) -> RunConfig:
        """The run file of a smoke run, but for the models and trackers that `mmrl.train.smoke` chooses."""
        sections = ("policy", "generate", "simulate", "evaluate")
        found: dict[str, Any] = {name: getattr(self, name).smaller() for name in sections}
        found |= {name: [each.smaller() for each in getattr(self, name)] for name in ("tasks", "stages")}
        return self.model_copy(update={**found, "name": f"{self.name}{SMOKE}", "smoke": True})

    def weights(self, stage: Training) -> dict[str, float]:
        """Task -> its share of a stage's prompts, for those that have one."""
        return {t.label: w for t in self.tasks if (w := stage.tasks.get(t.label, 0.0) if stage.tasks else t.weight)}
