"""The work of a stage's step, in tokens: what is sampled, and the update's micro-batches as
`mmrl.train.update.pack_conversations` would fill them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from mmrl.api.errors import UserError
from mmrl.api.sampling import Rounds
from mmrl.config.sections import RunConfig, Stage, TrainConfig
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.step import per_learner, step_of

K = TypeVar("K")
CHUNK = 64
"""Tokens of a chunk of a gated delta net: `chunk_size` of `torch_chunk_gated_delta_rule` in transformers' modeling_qwen3_5.py."""
MOST = 2**18
"""Maximal number of completions of a learner's step in a plan."""


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
    members: tuple[tuple[int, int], ...] = ()
    """(completions that share the prompt of a row, number of such rows)."""

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """(number of sequences, their length) that layers with a state go through: the prompts of rows, and their completions,
        each from the state of its prompt."""
        if not self.members:
            return ((self.rows, self.length),)
        return (self.rows, self.prompt), (sum(n * rows for n, rows in self.members), self.completion)

    @property
    def chunks(self) -> int:
        """Chunks of linear attention in all sequences."""
        return sum(count * -(-length // CHUNK) for count, length in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of one learner in a step of a stage. Rounds are (prompts, completions of each)."""

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
    sampled: Rounds
    """What is sampled, by the policy or the teacher."""
    micro: Counter[Micro]
    """How often each micro-batch occurs in one pass over what the step trains on."""
    perhaps: Rounds = ()
    """What is sampled besides if groups fail or are left out."""
    trained: Rounds = ()
    """What is trained on."""
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
    decoded: bool = False
    """Whether a call's tokens are decoded one after the other."""
    watched: int = 0
    """Further calls that are looked at without gradients, by a frozen copy of the policy or for candidates."""
    looked_at: float = 0.0
    """Further passes without gradients: old log-probabilities, values, masked images, the teacher's log-probabilities."""
    states: float = 0.0
    """Those without logits: of the balance loss of experts."""
    twins: int = 1
    """Passes with gradients at a time: 2 if the policy that sees less of the images learns too."""
    shown: Counter[Micro] = field(default_factory=Counter)
    """Micro-batches of completions that are imitated beside."""
    shown_times: int = 0
    """Passes over them."""

    @property
    def alone(self) -> bool:
        """Whether each step of the optimiser has one backward pass, so that no gradient is there before it."""
        return not self.shown and self.micro.total() * self.epochs == self.updates

    @property
    def rollouts(self) -> int:
        """Completions or episodes that are sampled, or else that are trained on."""
        return total(self.sampled or self.trained)

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of all rollouts, each completion with its own prompt."""
        return self.rollouts * self.calls * (self.prompt_tokens + self.completion)


def total(rounds: Rounds) -> int:
    """Completions."""
    return sum(n * size for n, size in rounds)


def workload(config: RunConfig, stage: Stage, shapes: Shapes, sizes: Sizes, learners: int = 1) -> Workload:
    """The work of one of `learners` in a step of the stage. Raises UserError for more than `MOST` completions."""
    step = step_of(config, stage)
    most = max(step.longest, step.continued) if sizes.completion >= step.longest else sizes.completion
    sizes = replace(sizes, completion=most)
    patches, each = (shapes.patches_of(sizes.pixels), shapes.tokens_of(sizes.pixels)) if sizes.images else (0, 0)
    prompt_tokens = sizes.text + sizes.images * (each + 2)  # with a token before and one after
    sampled, perhaps, trained = (per_learner(rounds, learners) for rounds in (step.sampled, step.perhaps, step.trained))
    if (most := max(total(sampled), total(trained))) > MOST:
        size = "prompts_per_step and group_size" if sampled else "batch_size"
        raise UserError(
            f"a step of the {stage.kind} stage has {most:,} completions per learner, more than the {MOST:,} that "
            f"mmrl plan supports: lower its {size}"
        )
    shared = config.train.packing != "per-completion"
    parts = dealt(trained, step.minibatches)
    packed = partial(_packed, prompt_tokens, sizes, patches * sizes.images, config.train)
    updates = step.epochs * parts.total()
    return Workload(
        kind=stage.kind,
        prompts=-(-step.asked // learners),
        asked=step.asked,
        group=step.group,
        prompt_tokens=prompt_tokens,
        patches=patches * sizes.images,
        picture_patches=patches,
        pixels=sizes.pixels * sizes.images,
        completion=sizes.completion,
        sampled=sampled,
        perhaps=perhaps,
        trained=trained,
        micro=sum_of((packed(dict(part), shared), n) for part, n in parts.items()),
        epochs=step.epochs,
        updates=updates + step.shown_once,
        reference=step.reference,
        looked_at=step.looked_at,
        states=step.states,
        twins=step.twins,
        shown=packed({1: -(-step.shown // learners)}, shared),
        shown_times=1 if step.shown_once else updates,
    )


def dealt(rounds: Rounds, parts: int) -> Counter[tuple[tuple[int, int], ...]]:
    """Groups dealt out to mini-batches in turn: (completions of a group, number of such groups) in each -> number of mini-batches
    with the same; none for those that get nothing."""
    found: Counter[tuple[tuple[int, int], ...]] = Counter()
    for k in range(min(parts, sum(n for n, _ in rounds))):
        part: Counter[int] = Counter()
        before = 0
        for n, size in rounds:
            part[size] += (before + n - 1 - k) // parts - (before - 1 - k) // parts  # places of these that are k modulo parts
            before += n
        found[tuple(part.items())] += 1
    return found


def sum_of(counted: Iterable[tuple[Mapping[K, int], int]]) -> Counter[K]:
    """All of these, each as often as it is said behind it."""
    found: Counter[K] = Counter()
    for each, times in counted:
        for one, n in each.items():
            found[one] += n * times
    return found


def _packed(
    prompt: int, sizes: Sizes, patches: int, train: TrainConfig, groups: Mapping[int, int], shared: bool
) -> Counter[Micro]:
    """Micro-batches as `mmrl.train.update.pack_conversations` fills them if all completions have maximal length: a row is a
    prompt and completions; a micro-batch is rows of similar length that fit the budget together. groups: completions of a group
    -> number of such groups."""
    budget = train.micro_batch_tokens
    most = max(1, (budget - prompt) // sizes.completion) if shared else 1
    found: Counter[Micro] = Counter()
    rows: Counter[int] = Counter()  # of the micro-batch that is being filled
    for members, count in sorted(_rows(groups, most).items()):
        fit = max(1, budget // (prompt + members * sizes.completion))
        if rows and rows.total() >= fit:
            found[_micro(rows, prompt, sizes, patches)] += 1
            rows = Counter()
        rows[members] = taken = min(count, fit - rows.total())
        if left := count - taken:
            found[_micro(rows, prompt, sizes, patches)] += 1
            full, rest = divmod(left - 1, fit)  # the last one stays open
            found[_micro(Counter({members: fit}), prompt, sizes, patches)] += full
            rows = Counter({members: rest + 1})
    if rows:
        found[_micro(rows, prompt, sizes, patches)] += 1
    return +found


def _rows(groups: Mapping[int, int], most: int) -> Counter[int]:
    """Completions of a row -> number of such rows, with at most so many completions."""
    found: Counter[int] = Counter()
    for size, n in groups.items():
        found[min(size, most)] += n * (size // min(size, most))
        found[size % min(size, most)] += n
    found.pop(0, None)
    return +found


def _micro(rows: Counter[int], prompt: int, sizes: Sizes, patches: int) -> Micro:
    return Micro(
        rows=rows.total(),
        length=prompt + max(rows) * sizes.completion,
        patches=rows.total() * patches,
        targets=sum(n * many for n, many in rows.items()) * sizes.completion,
        prompt=prompt,
        completion=sizes.completion,
        members=tuple(rows.items()),
    )
