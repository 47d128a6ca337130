"""The run file: TOML -> typed config. Unknown keys are refused with a suggestion; `--set a.b=c` overrides one value.

Everything here is plain data and costs no heavy import, so a run file can be checked on a laptop.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mmrl.errors import UserError

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


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

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> PolicyConfig:
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels = {self.min_pixels} is above max_pixels = {self.max_pixels}: lower it")
        return self


class TaskConfig(Section):
    """`[[tasks]]`: one source of problems."""

    id: str
    """See `mmrl list tasks`."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the prompts, relative to the other tasks."""
    options: dict[str, Any] = {}
    """Keyword arguments of the task."""
    verifiers: dict[str, float] = {}
    """Verifier id -> weight; replaces the task's own."""


class Training(Section):
    """What all stages have."""

    steps: Positive
    """Steps of the stage; each is one optimiser step (`epochs` of them with `rl`)."""
    split: str = "train"
    """Which split of the tasks the prompts come from."""
    learning_rate: Rate = 1e-6
    """Of AdamW, after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises linearly."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on: stays, or falls to zero at the end of the stage."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's pull of the weights towards zero, relative to the learning rate."""
    max_grad_norm: Limit = 1.0
    """A gradient longer than this is scaled down to it; inf never scales."""


class SftStage(Training):
    """`[[stages]] kind = "sft"`: imitate the tasks' gold completions."""

    kind: Literal["sft"]
    """Which stage it is."""
    batch_size: Positive = 32
    """Examples a step."""
    learning_rate: Rate = 1e-5
    """Of AdamW, after the warm-up."""


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
    settings: dict[str, Any] = {}
    """Keyword arguments of the algorithm's advantage."""
    epochs: Positive = 1
    """Passes over each step's completions; from the second on the ratio is clipped."""
    clip_low: Share = 0.2
    """The probability ratio counts down to 1 - clip_low."""
    clip_high: Annotated[float, Field(ge=0)] = 0.2
    """The probability ratio counts up to 1 + clip_high."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL penalty (k3) against the policy as it was when the stage began; 0 keeps no reference."""


Stage = Annotated[SftStage | RlStage, Field(discriminator="kind")]


class GenerateConfig(Section):
    """`[generate]`: how completions are sampled during training. The checkpoint's own generation settings are ignored."""

    max_tokens: Annotated[int, Field(ge=1, le=2**17)] = 256
    """Longest completion, in tokens."""
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0
    """Logits are divided by this, in the sampler and in the learner."""
    batch_size: Positive = 256
    """Completions sampled at once; a larger group is not divided."""


class EvaluateConfig(Section):
    """`[evaluate]`: greedy answers to held-out prompts, before, during and after the RL stages."""

    split: str = "test"
    """Which split of the tasks is held out."""
    n: Annotated[int, Field(ge=0)] = 200
    """Prompts per task; 0 switches evaluation off."""
    every: Annotated[int, Field(ge=0)] = 0
    """Also after every so many steps of an RL stage."""


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
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of torch; 0 leaves torch's choice."""


class CheckpointConfig(Section):
    """`[checkpoint]`: what a resume needs."""

    every: Annotated[int, Field(ge=0)] = 0
    """Steps between checkpoints; the end of the run is always one."""
    keep: Positive = 1
    """How many of the newest are kept beside the best."""


class RecordConfig(Section):
    """`[record]`: rollouts kept for people."""

    rollouts_every: Annotated[int, Field(ge=0)] = 10
    """Steps between recorded rollouts; 0 records none."""
    rollouts: Positive = 16
    """How many a recorded step keeps."""


class LimitsConfig(Section):
    """`[limits]`: what stops a run, because its numbers can no longer be trusted."""

    logprob_gap: Limit = 0.1
    """Mean difference between the sampler's and the learner's log-probabilities, in nats."""


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
        ids = [t.id for t in self.tasks]
        if twice := [i for i in ids if ids.count(i) > 1]:
            raise ValueError(f"task {twice[0]!r} is listed twice; give one entry a larger weight instead")
        return self


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and check a run file.

    overrides: `a.b=value` strings; list items are addressed by number (`stages.0.steps=5`), values are TOML, or plain text.

    Raises UserError with the file, the key and what to do.
    """
    return parse_config(read_toml(path), overrides, where=str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the run file, for example {path / 'config.toml'}")
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"run file {path} does not exist: check the path, or write one (docs/run-files.md)") from None
    except OSError as err:
        raise UserError(f"run file {path} can't be read: {err.strerror}: check its permissions") from None
    except UnicodeDecodeError as err:
        raise UserError(f"run file {path} is not UTF-8 text (byte {err.start}): save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as err:
        raise UserError(f"run file {path} is not valid TOML: {err}: correct that line") from None


def parse_config(data: Mapping[str, Any], overrides: Sequence[str] = (), where: str = "run file") -> RunConfig:
    """Check plain data against the schema; see `load_config`."""
    tree = _copy(data)
    for text in overrides:
        _override(tree, text)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as err:
        raise UserError(f"{where}: {_explain(err)}") from None


def _copy(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {k: _copy(v) for k, v in tree.items()}
    return [_copy(v) for v in tree] if isinstance(tree, list) else tree


def parse_value(text: str) -> Any:
    """A value as it would stand in a TOML file; anything that isn't TOML is taken as text."""
    try:
        found = tomllib.loads(f"v = {text}")
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
    return found["v"] if found.keys() == {"v"} else text  # a line break could hide a second key


def _override(tree: dict[str, Any], text: str) -> None:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set {text!r} has no value: write --set key.path=value")
    *parents, last = key.strip().split(".")
    node: Any = tree
    for part in parents:
        node = node[_index(node, part, text)] if isinstance(node, list) else node.setdefault(part, {})
        if not isinstance(node, dict | list):
            raise UserError(f"--set {text!r}: {part!r} is a single value, it has no keys inside: drop what follows it")
    node[_index(node, last, text) if isinstance(node, list) else last] = parse_value(value)


def _index(node: list[Any], part: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", part) or not -len(node) <= int(part) < len(node):
        raise UserError(f"--set {text!r}: {part!r} is not an item of a list of {len(node)}: use 0 to {len(node) - 1}")
    return int(part)


def _explain(err: ValidationError) -> str:
    """The first fault in one line: where it is, what was expected, what was found."""
    fault = err.errors()[0]
    loc = fault["loc"]  # the third of a stage is its kind, which pydantic puts in
    path = [*loc[:2], *loc[3:]] if loc[:1] == ("stages",) and len(loc) > 2 else [*loc]
    where = ".".join(str(p) for p in path)
    if fault["type"] == "extra_forbidden":
        known = _known_keys(fault["loc"][:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        return f"unknown key {where!r}: " + (f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}")
    if fault["type"] == "missing":
        return f"{where!r} is missing: add it (docs/run-files.md)"
    if fault["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return f'{where!r} needs kind = "sft" or kind = "rl"'
    found = fault.get("input")
    message = fault["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{where!r}: {message[0].lower()}{message[1:]}; found {found!r}" if path else message


def _known_keys(loc: Sequence[int | str]) -> list[str]:
    model: Any = RunConfig
    for part in loc:
        if isinstance(part, int):
            continue
        if part in ("sft", "rl"):
            model = SftStage if part == "sft" else RlStage
        elif part == "stages":
            continue
        else:
            annotation = model.model_fields[part].annotation
            model = TaskConfig if part == "tasks" else annotation
    return list(model.model_fields)


def as_data(config: RunConfig) -> dict[str, Any]:
    """The resolved config as plain data, without unset values: what `config.toml` in the run folder holds."""
    return config.model_dump(mode="json", exclude_none=True)


def smoke(config: RunConfig) -> RunConfig:
    """The same run in seconds: a tiny model, two steps a stage, few prompts. It shows that it works, not that it learns."""
    data = as_data(config)
    if not config.policy.model.startswith("tiny:"):
        data["policy"] |= {"model": "tiny:qwen2_5_vl", "dtype": "float32", "trust_remote_code": False}
    data["policy"] |= {"device": "cpu", "max_pixels": min(config.policy.max_pixels or 12544, 12544)}
    data["policy"]["min_pixels"] = min(config.policy.min_pixels or 3136, 3136)
    for stage in data["stages"]:
        smaller = {"steps": 2, "batch_size": 4, "prompts_per_step": 2, "group_size": 4, "epochs": 2, "warmup_steps": 0}
        stage.update({k: min(stage[k], v) for k, v in smaller.items() if k in stage})
    data["generate"]["max_tokens"] = min(config.generate.max_tokens, 16)
    data["evaluate"]["n"] = min(config.evaluate.n, 4)
    data["name"] = f"{config.name}-smoke"
    return RunConfig.model_validate(data)
