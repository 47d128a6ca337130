"""All keys of a run file with their types, defaults and meanings. Plain data, no heavy import.

Contradictions between keys are checked here too, so that they are refused when the file is read.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from mmrl.api.sampling import COLDEST, is_temperature
from mmrl.config.compute import ComputeConfig
from mmrl.config.condition import ConditionConfig
from mmrl.config.experts import ExpertsConfig
from mmrl.config.generate import GenerateConfig
from mmrl.config.hg_dagger import HgDaggerStage
from mmrl.config.limits import Alarm, LimitsConfig
from mmrl.config.off_policy import OffPolicyStage
from mmrl.config.policy import LoraConfig, PolicyConfig, VideoConfig
from mmrl.config.preferences import PreferenceStage
from mmrl.config.recap import RecapStage
from mmrl.config.rl_sections import (
    AdaptiveEntropyConfig,
    ConsistencyConfig,
    CriticConfig,
    CurriculumConfig,
    EntropyConfig,
    EpochFilterConfig,
    ImitationConfig,
    LengthConfig,
    NoisyConfig,
    PerceptionConfig,
    ReweightConfig,
    RuleConfig,
)
from mmrl.config.simulate import SimulateConfig
from mmrl.config.stages import EXPERT, STAGES, DistillStage, PluginStage, RlStage, SftStage, Stage, teacher_of
from mmrl.config.training import PARTS, PartConfig, SampledTraining, SelectConfig, Training
from mmrl.config.turn_critic import TurnCriticConfig
from mmrl.config.values import Bound, Count, Free, Place, Positive, Rate, Real, Section, Share, Weight

__all__ = [
    "EXPERT",
    "PARTS",
    "STAGES",
    "AdaptiveEntropyConfig",
    "Alarm",
    "ComputeConfig",
    "ConditionConfig",
    "ConsistencyConfig",
    "CriticConfig",
    "CurriculumConfig",
    "DistillStage",
    "EntropyConfig",
    "EpochFilterConfig",
    "ExpertsConfig",
    "HgDaggerStage",
    "ImitationConfig",
    "LengthConfig",
    "LimitsConfig",
    "LoraConfig",
    "NoisyConfig",
    "OffPolicyStage",
    "PartConfig",
    "PerceptionConfig",
    "PluginStage",
    "PolicyConfig",
    "PreferenceStage",
    "RecapStage",
    "ReweightConfig",
    "RlStage",
    "RuleConfig",
    "SampledTraining",
    "Section",
    "SelectConfig",
    "SftStage",
    "SimulateConfig",
    "SteeringConfig",
    "Training",
    "TurnCriticConfig",
    "VideoConfig",
    "teacher_of",
]


SMOKE = "-smoke"
"""The end of a smoke run's name."""
SMOKE_STEPS = 16
"""Largest number of steps of an episode in a smoke run, for tasks whose option `max_steps` is set."""
LONGEST_NAME = 200
"""Characters of a run's name."""


class TaskConfig(Section):
    """`[[tasks]]`: one task of the run."""

    id: str
    """Id of the task, see `mmrl list tasks`."""
    name: str = ""
    """The task's label in metrics; by default the id. A task that is listed twice needs two names."""
    weight: Weight = 1.0
    """Share of the prompts, relative to the other tasks; 0: the task is only evaluated."""
    options: Free = {}
    """Keyword arguments of the task."""
    verifiers: dict[str, Real | tuple[Real, Real]] = {}
    """Verifier id -> weight in the reward; replaces the task's own. `[a, b]`: the weight goes from a to b over each stage."""
    prompt_template: str = ""
    """The prompt's text, with `{text}` for the task's own text, such as `"{text} Think first."`."""
    group_size: Positive | None = None
    """Number of completions per prompt of this task; by default the stage's."""
    max_tokens: Positive | None = None
    """Longest completion for this task, in tokens; by default, and at most, `generate.max_tokens`."""

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
            raise ValueError('must contain {text} once, for the task\'s own text, such as "{text} Think first."')
        return prompt

    def smaller(self) -> TaskConfig:
        """A copy with few and short completions and episodes, if the entry sets their number or length."""
        small = self.at_most(**{key: most for key, most in (("group_size", 4), ("max_tokens", 16)) if getattr(self, key)})
        steps = self.options.get("max_steps")
        if not isinstance(steps, int) or steps <= SMOKE_STEPS:
            return small
        return small.model_copy(update={"options": {**self.options, "max_steps": SMOKE_STEPS}})

    @property
    def label(self) -> str:
        """The name of this entry in messages, metrics and other sections."""
        return self.name or self.id


class SteeringConfig(Section):
    """`[evaluate.steering]`: steering of answers to videos, for `evaluate.steer`."""

    learning_rate: Weight = 0.01
    """Learning rate of Adam for the vector added to the last layer's values of video tokens; 0 doesn't change answers."""
    interval: Positive = 2
    """Tokens between two steps of Adam."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay per token of the running mean of the entropy: while the mean reaches new maxima, the entropy is raised, otherwise
    lowered."""


class EvaluateConfig(Section):
    """`[evaluate]`: evaluation on held-out prompts, before, during and after the RL stages."""

    split: str = "test"
    """The held-out split of the tasks."""
    num_prompts: Count = 200
    """Number of prompts per task; 0 switches evaluation off."""
    every: Count = 0
    """Also evaluate each time after this many steps of an RL stage; 0: never."""
    temperature: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """Sampling temperature; 0: greedy, the likeliest token each time."""
    num_samples: Positive = 1
    """Number of answers per prompt; with more than one, pass@k and majority@k are reported too."""
    blank_images: bool = False
    """Also evaluate with blanked images: the metric that remains doesn't depend on images."""
    shuffle_frames: bool = False
    """Also evaluate with the frames of videos in another order: the metric that remains doesn't depend on time."""
    sparse_frames: list[Annotated[int, Field(ge=1, le=4096)]] = []
    """Also answer videos from this many frames, and use the next number of frames if answers differ (Video-RTS)."""
    sparse_agreement: Annotated[int, Field(ge=1, le=64)] = 5
    """Number of answers that must be the same, for `sparse_frames`."""
    steer: bool = False
    """Also answer videos with steering by the entropy of the answer during generation (V-Reason)."""
    steering: SteeringConfig = SteeringConfig()
    """Settings of the steering, for `steer`."""

    def smaller(self) -> EvaluateConfig:
        fewer = sorted({min(frames, 8) for frames in self.sparse_frames})
        return self.at_most(num_prompts=4).model_copy(update={"sparse_frames": fewer})

    @model_validator(mode="after")
    def _samples_differ(self) -> EvaluateConfig:
        if self.sparse_frames != sorted(set(self.sparse_frames)):
            raise ValueError(f"sparse_frames = {self.sparse_frames} must rise, such as [32, 64, 128]")
        if self.num_samples > 1 and not self.temperature:
            raise ValueError(f"num_samples = {self.num_samples} greedy answers would be the same: set temperature, such as 1.0")
        if not is_temperature(self.temperature):
            raise ValueError(f"temperature = {self.temperature:g} must be 0 or at least {COLDEST:g}")
        return self


class JudgeConfig(Section):
    """`[judge]`: the processes in which verifiers run."""

    num_workers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of parallel worker processes of each plugin; its verifiers that are models share one further process."""
    timeout_s: Rate | None = None
    """Time limit in seconds per case and verifier; by default each verifier's own."""
    memory_mb: Annotated[int, Field(ge=16, le=1_000_000)] = 512
    """Memory limit in MB of a worker beyond its imports, on Linux; a case that needs more fails. Models have no limit."""
    isolation: Literal["process", "strict"] = "process"
    """`strict`: workers run in a sandbox (bubblewrap), without a network and with files that can only be read. See
    docs/isolation.md."""
    failure_limit: Share = 0.1
    """The run stops when more than this share of a step's scores failed."""


class TrainConfig(Section):
    """`[train]`: the computation of an update; these keys don't change its result beyond rounding."""

    micro_batch_tokens: Positive = 16384
    """Padded tokens per forward pass."""
    packing: Literal["auto", "shared-prefix", "per-completion"] = "auto"
    """Sequence packing. `auto`: the completions of a group share their prompt if the model family supports it; `shared-prefix`:
    models that don't support it are refused; `per-completion`: each completion has its own copy of the prompt."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of storing them: less memory, about a third more time."""
    offload_activations: bool = False
    """With `gradient_checkpointing`, keep what goes into each layer in the host's memory until the backward pass."""
    offload_optimizer: bool = False
    """Keep the optimiser's running means and bfloat16 weights' float32 masters in the host's memory, but for those of the weights
    that are being stepped."""
    compile: bool = False
    """Run the layers of an update's models as code that torch compiles in the first steps. What can't be compiled runs as
    before, after a warning."""
    vision_cache_mb: Annotated[int, Field(ge=0, le=1 << 20)] = 1024
    """Megabytes of what a frozen vision tower saw that are kept within a step, so that it looks at each picture once; 0 keeps
    nothing."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of torch; 0: torch's default."""

    @model_validator(mode="after")
    def _inputs_of_layers_are_kept(self) -> TrainConfig:
        if self.offload_activations and not self.gradient_checkpointing:
            raise ValueError("offload_activations moves what goes into checkpointed layers: set gradient_checkpointing = true")
        return self


class CheckpointConfig(Section):
    """`[checkpoint]`: the checkpoints, from which a run can resume."""

    every: Count = 0
    """Steps between checkpoints; there is always one at the end of the run."""
    shards: bool = False
    """With sharded weights, each learner writes its own part of the optimiser state; otherwise the first gathers and writes all
    of it. A run can resume from either with any number of learners."""
    keep: Positive = 1
    """Number of newest checkpoints to keep besides the best."""


class RecordConfig(Section):
    """`[record]`: records of a run for people."""

    rollouts_every: Count = 10
    """Steps between recorded rollouts; 0 records none."""
    rollouts: Positive = 16
    """Number of rollouts of a recorded step."""
    evaluation_prompts: Count = 16
    """Of this many held-out prompts of each task, the first ones, an evaluation stores images, text and answer with the
    completions; of the others only the completions and scores."""
    episodes: Annotated[int, Field(ge=0, le=100)] = 4
    """An evaluation in a simulator stores this many successful and this many failed episodes as videos."""
    trackers: list[str] = ["tensorboard"]
    """Trackers that log metrics besides the run folder: `tensorboard`, `wandb`, `trackio`, `mlflow`, or a plugin's."""
    project: str = "mmrl"
    """Project of the run in wandb, trackio and mlflow."""


class RunConfig(Section):
    """A whole run file."""

    name: str
    """Name of the run folder."""
    runs_dir: Annotated[Place, Field(min_length=1, pattern=r"^[^\x00]*$")] = "runs"
    """The folder for run folders."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Seed of prompts, sampling and initial weights."""
    smoke: bool = False
    """Written by `mmrl train --smoke` into the run files that it shortens. It must not be set by hand."""
    smoke_shows: list[Bound] = []
    """What a smoke run should show, each a figure, `<`, `>` or `!=` and a number: a metric, such as `votes/agreement > 0.3`, a
    part of the reward, such as `part overlong < 0`, or `moved_share`. At its end a smoke run says which of these some step
    showed."""
    policy: PolicyConfig
    """The model."""
    tasks: Annotated[list[TaskConfig], Field(min_length=1)]
    """The tasks for training and evaluation."""
    verifiers: dict[str, Free] = {}
    """Options of the tasks' verifiers: verifier id -> options, such as `verifiers = {"flags/judge" = {model = "..."}}`."""
    stages: Annotated[list[Stage], Field(min_length=1)]
    """The training stages, in order."""
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
        usable = re.fullmatch(r"[^\s/\\-]([^/\\]*[^\s/\\])?", name) and name.isprintable() and name.strip(".")
        if not usable or len(name) > LONGEST_NAME:
            raise ValueError(
                f"must be usable as a folder name: no slashes, no blanks or dash in front, at most {LONGEST_NAME} characters"
            )
        return name

    @model_validator(mode="after")
    def _smoke_is_not_set_by_hand(self) -> RunConfig:
        if self.smoke and not self.name.endswith(SMOKE):
            raise ValueError(
                f"smoke = true is only for run files that `mmrl train --smoke` shortens and names NAME{SMOKE}: leave it out, and "
                "give --smoke"
            )
        return self

    @model_validator(mode="after")
    def _tasks_are_distinct(self) -> RunConfig:
        labels = [t.label for t in self.tasks]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"task {twice[0]!r} is listed twice: give each entry a name, or one of them a larger weight")
        if not sum(t.weight for t in self.tasks):
            raise ValueError("the weights of [[tasks]] add up to 0: give at least one a weight above 0")
        for i, stage in enumerate(self.stages):
            if unknown := [name for name in stage.tasks if name not in labels]:
                raise ValueError(f"stages.{i}.tasks names {unknown[0]!r}: choose from [[tasks]], {', '.join(labels)}")
        for task in self.tasks:
            if task.max_tokens and task.max_tokens > self.generate.max_tokens:
                raise ValueError(
                    f"task {task.label!r} has max_tokens = {task.max_tokens}, above generate.max_tokens = "
                    f"{self.generate.max_tokens}: raise the latter"
                )
        for i, stage in enumerate(self.stages):
            if isinstance(stage, SampledTraining) and (stage.max_tokens or 0) > self.generate.max_tokens:
                raise ValueError(
                    f"stages.{i}.max_tokens = {stage.max_tokens} is above generate.max_tokens = {self.generate.max_tokens}: "
                    "raise the latter"
                )
        return self

    @model_validator(mode="after")
    def _frames_are_seen(self) -> RunConfig:
        most = self.policy.video.max_frames
        if (largest := max(self.evaluate.sparse_frames, default=0)) > most:
            raise ValueError(f"evaluate.sparse_frames has {largest}, above policy.video.max_frames = {most}: raise the latter")
        return self

    @model_validator(mode="after")
    def _sampling_is_what_the_learner_assumes(self) -> RunConfig:
        filtered = [
            f"{k} = {v:g}" for k, v, off in (("top_p", self.generate.top_p, 1), ("top_k", self.generate.top_k, 0)) if v != off
        ]
        for i, stage in enumerate(self.stages):
            for key, off in (("importance_sampling", "off"), ("ratio_to", "learner")):
                if filtered and isinstance(stage, RlStage) and (found := getattr(stage, key)) != off:
                    raise ValueError(
                        f'stages.{i}.{key} = "{found}" needs the probabilities that tokens were sampled with, which '
                        f'generate.{filtered[0]} changes: drop that key, or set {key} = "{off}"'
                    )
        return self

    def smaller(self) -> RunConfig:
        """The run file of a smoke run, except for models and trackers, which `mmrl.train.smoke` chooses."""
        sections = ("policy", "generate", "simulate", "evaluate")
        found: dict[str, Any] = {name: getattr(self, name).smaller() for name in sections}
        found |= {name: [each.smaller() for each in getattr(self, name)] for name in ("tasks", "stages")}
        return self.model_copy(update={**found, "name": f"{self.name[: LONGEST_NAME - len(SMOKE)]}{SMOKE}", "smoke": True})

    def weights(self, stage: Training) -> dict[str, float]:
        """Task -> its weight in a stage, for tasks with a weight above 0."""
        return {t.label: w for t in self.tasks if (w := stage.tasks.get(t.label, 0.0) if stage.tasks else t.weight)}


def stage_limit(config: RunConfig, stage: Training) -> int:
    """The longest completion of a stage, in tokens; a task may have a smaller limit."""
    return (isinstance(stage, SampledTraining) and stage.max_tokens) or config.generate.max_tokens


def limit_of(config: RunConfig, number: int, entry: TaskConfig | None) -> tuple[int, str]:
    """The longest completion in a stage, in tokens, and the key that says so. number: the stage's index. entry: the task, None
    for no task in particular."""
    found = [(stage_limit(config, config.stages[number]), f"stages.{number}.max_tokens")]
    if found[0][0] == config.generate.max_tokens:
        found = [(config.generate.max_tokens, "generate.max_tokens")]
    if entry and entry.max_tokens:
        found.insert(0, (entry.max_tokens, f"tasks {entry.label!r} max_tokens"))
    return min(found, key=lambda one: one[0])
