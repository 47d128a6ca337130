"""The work of a stage's step, in tokens: what is sampled, and the update's micro-batches as
`mmrl.train.update.pack_conversations` would fill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mmrl.api.errors import UserError
from mmrl.config.sections import (
    DistillStage,
    PreferenceStage,
    RlStage,
    RunConfig,
    SftStage,
    Stage,
    TrainConfig,
    stage_limit,
    teacher_of,
)
from mmrl.train.plan.shapes import Shapes

MOST = 2**18
"""Maximal number of completions of a learner's step in a plan, which counts their micro-batches one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of prompts and completions, which a run file doesn't contain."""

    text: int = 128
    """Text tokens per prompt."""
    images: int = 1
    """Images per prompt."""
    pixels: int = 2**20
    """Pixels per image as the model sees it."""
    completion: int = 256
    """Tokens per completion."""
    steps: int = 0
    """Steps of an episode, for a policy that acts; 0 for one that writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """One forward pass of an update."""

    rows: int
    length: int
    """Tokens per row, with padding."""
    patches: int
    """Patches of all its images."""
    targets: int
    """Tokens whose log-probability is computed."""
    prompt: int = 0
    """Tokens of a row's prompt; 0 if a row is one sequence of `length`."""
    completion: int = 0
    """Tokens of a completion."""
    members: tuple[int, ...] = ()
    """Completions that share the prompt, in each row."""

    @property
    def tokens(self) -> int:
        return self.rows * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of one learner in a step of a stage."""

    kind: str
    prompts: int
    asked: int
    """Prompts of all learners; if they don't divide evenly, some learners have one less."""
    group: int
    prompt_tokens: int
    patches: int
    """Patches of one prompt's images."""
    picture_patches: int
    """Patches of one image, which attend to each other in the tower."""
    pixels: int
    """Pixels of one prompt's images."""
    completion: int
    sampled: bool
    """Whether the completions are sampled, by the policy or the teacher."""
    micro: tuple[Micro, ...]
    """Micro-batches of one pass over the step's rollouts."""
    epochs: int = 1
    """Passes with updates."""
    updates: int = 1
    """Optimiser steps."""
    reference: bool = False
    """Whether each pass needs the log-probabilities of a reference model."""
    calls: int = 1
    """Calls of the policy in an episode, each with its own prompt; 1 for a policy that writes."""
    passes: int = 1
    """Passes of the policy for each call that acts: more if it is guided, or samples candidates token by token."""
    watched: int = 0
    """Further calls that are looked at without gradients, by a frozen copy of the policy or for candidates."""
    looked_at: int = 0
    """Further passes without gradients: old log-probabilities, values, the teacher's log-probabilities."""

    @property
    def rollouts(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of all rollouts, each completion with its own prompt."""
        return self.rollouts * self.calls * (self.prompt_tokens + self.completion)


def workload(config: RunConfig, stage: Stage, shapes: Shapes, sizes: Sizes, learners: int = 1) -> Workload:
    """The work of one of `learners` in a step of the stage. Raises UserError for more than `MOST` completions."""
    sizes = replace(sizes, completion=min(sizes.completion, stage_limit(config, stage)))
    patches = shapes.patches_of(sizes.pixels)
    prompt_tokens = sizes.text + sizes.images * (shapes.tokens_of(sizes.pixels) + 2)  # with a token before and one after
    asked, group, sampled = _counts(stage)
    prompts = -(-asked // learners)
    if prompts * group > MOST:
        size = "prompts_per_step and group_size" if sampled else "batch_size"
        raise UserError(
            f"a step of the {stage.kind} stage has {prompts * group:,} completions per learner, more than the {MOST:,} that "
            f"mmrl plan supports: lower its {size}"
        )
    minibatches = stage.minibatches if isinstance(stage, RlStage) else 1
    shared = config.train.packing != "per-completion"
    groups = [prompts // minibatches + (k < prompts % minibatches) for k in range(min(minibatches, prompts))]
    micro = [m for n in groups for m in _packed(n, group, prompt_tokens, sizes, patches * sizes.images, shared, config.train)]
    rl = stage if isinstance(stage, RlStage) else None
    compares = isinstance(stage, PreferenceStage) and "reference" in stage.reads
    measured = isinstance(stage, DistillStage | PreferenceStage) or bool(teacher_of(stage))
    looked_at = int(minibatches > 1) + int(bool(rl and rl.critic)) + int(measured)
    return Workload(
        kind=stage.kind,
        prompts=prompts,
        asked=asked,
        group=group,
        prompt_tokens=prompt_tokens,
        patches=patches * sizes.images,
        picture_patches=patches,
        pixels=sizes.pixels * sizes.images,
        completion=sizes.completion,
        sampled=sampled,
        micro=tuple(micro),
        epochs=rl.epochs if rl else 1,
        updates=(rl.epochs if rl else 1) * len(groups),
        reference=bool(rl and rl.kl_coef) or compares,
        looked_at=looked_at,
    )


def _counts(stage: Stage) -> tuple[int, int, bool]:
    """(prompts, completions per prompt, whether they are sampled)."""
    if isinstance(stage, SftStage):
        return stage.batch_size, 1, False
    if isinstance(stage, PreferenceStage) and stage.pairs == "task":
        return stage.prompts_per_step, 2, False
    return stage.prompts_per_step, stage.group_size, True


def _packed(
    prompts: int, group: int, prompt: int, sizes: Sizes, patches: int, shared: bool, train: TrainConfig
) -> Iterator[Micro]:
    """Micro-batches as `mmrl.train.update.pack_conversations` fills them if all completions have maximal length: a row is a
    prompt and completions; a micro-batch is rows of similar length that fit the budget together."""
    budget = train.micro_batch_tokens
    at_once = min(group, max(1, (budget - prompt) // sizes.completion)) if shared else 1
    members = sorted(n for _ in range(prompts) for n in _split(group, at_once))
    rows: list[int] = []
    for n in members:
        if rows and (len(rows) + 1) * (prompt + n * sizes.completion) > budget:
            yield _micro(rows, prompt, sizes, patches)
            rows = []
        rows.append(n)
    if rows:
        yield _micro(rows, prompt, sizes, patches)


def _split(group: int, at_once: int) -> Iterator[int]:
    for start in range(0, group, at_once):
        yield min(at_once, group - start)


def _micro(rows: list[int], prompt: int, sizes: Sizes, patches: int) -> Micro:
    return Micro(
        rows=len(rows),
        length=prompt + max(rows) * sizes.completion,
        patches=len(rows) * patches,
        targets=sum(rows) * sizes.completion,
        prompt=prompt,
        completion=sizes.completion,
        members=tuple(rows),
    )
