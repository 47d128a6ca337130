"""What a plan knows of vision-language-action models (`policy.kind = "vla"`): their shapes, and the work of a step in episodes.

A call of the policy is a row: the prompt with a picture of each camera, and its slots. Episodes are assumed to be of full length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mmrl.api.errors import UserError
from mmrl.config.policy import PolicyConfig
from mmrl.config.sections import (
    DistillStage,
    HgDaggerStage,
    OffPolicyStage,
    RecapStage,
    RlStage,
    RunConfig,
    SftStage,
    Stage,
    teacher_of,
)
from mmrl.registry import plugins
from mmrl.train.plan.critics import policy_updates
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.step import per_learner, step_of
from mmrl.train.plan.workload import MOST, Micro, Sizes, Workload, sum_of, total

TEXT = 24
"""Default of text tokens: an instruction in its prompt."""
STEPS = 100
"""Default of an episode's steps, where neither the task nor its simulator says."""


def option(config: PolicyConfig, name: str, default: Any, family: str = "") -> Any:
    """An option of the policy, as `mmrl.policies.acting.vla` would fill it for a checkpoint without files of its own."""
    given = config.options.get(name)
    if given is not None:
        return given
    return {"decoding": "one-by-one", "size": 224}.get(name, default) if family == "openvla" else default


def slots(config: PolicyConfig, family: str) -> int:
    """Tokens behind the prompt in a call."""
    dims, chunk = config.options.get("dims", 7), config.options.get("chunk", 1)
    each = option(config, "head", "tokens") == "tokens" or option(config, "decoding", "parallel", family) == "oft"
    return int(dims * chunk if each else chunk)


def cameras(config: PolicyConfig) -> int:
    """Pictures of a call."""
    return max(1, len(config.options.get("cameras", ()))) * (1 + int(config.options.get("history", 0)))


def with_actions(shapes: Shapes, config: PolicyConfig) -> Shapes:
    """The shapes of a model that acts, with its head."""
    return replace(shapes, own=tuple(_own(config, shapes)))


def _own(config: PolicyConfig, shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the head, and of the projector of the robot's state."""
    import torch

    from mmrl.policies.acting.heads import own_modules

    wide, dims, kind = shapes.text.hidden, int(config.options.get("dims", 7)), option(config, "head", "tokens")
    features = wide * (dims if option(config, "decoding", "parallel", shapes.family) == "oft" else 1)
    network = option(config, "scale", "number") == "network"
    with torch.device("meta"):
        made = own_modules(kind, features, dims, wide, network=network, state=option(config, "state", 0))
    yield from ((f"own.{name}", tuple(p.shape)) for name, p in made.named_parameters())


def vla_sizes(config: RunConfig, text: int, pixels: int, steps: int) -> Sizes:
    """The assumed sizes of calls. steps: of an episode; 0: the longest that a task or its simulator says."""
    return Sizes(text=text, images=cameras(config.policy), pixels=pixels, steps=steps or longest_episode(config))


def longest_episode(config: RunConfig) -> int:
    """The largest number of steps of an episode that a task of the run has."""
    found = []
    for entry in config.tasks:
        steps = entry.options.get("max_steps")
        if not steps and isinstance(name := entry.options.get("simulator"), str):
            try:
                steps = plugins.registry().get("simulators", name).max_steps
            except UserError:  # of a plugin that isn't on this machine
                steps = 0
        found.append(int(steps or 0))
    return max(found) or STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of the policy."""

    prompt: int
    """Tokens that its actions follow."""
    behind: int
    """Tokens of its actions."""
    chunk: int
    """Actions that are carried out."""
    picture: int = 0
    """Patches of a picture."""
    alone: bool = False
    """Each candidate of a row takes passes of its own."""


def vla_call(policy: PolicyConfig, shapes: Shapes, sizes: Sizes) -> Call:
    one = option(policy, "decoding", "parallel", shapes.family) == "one-by-one"
    return Call(
        prompt=sizes.text + sizes.images * (shapes.tokens_of(sizes.pixels) + 2) + bool(option(policy, "state", 0)),
        behind=slots(policy, shapes.family),
        chunk=int(policy.options.get("chunk", 1)),
        picture=shapes.patches_of(sizes.pixels),
        alone=one and option(policy, "head", "tokens") == "tokens",
    )


def vla_workload(config: RunConfig, stage: Stage, shapes: Shapes, sizes: Sizes, learners: int) -> Workload:
    """See `acting_workload`."""
    return acting_workload(config, stage, vla_call(config.policy, shapes, sizes), sizes, learners)


def acting_workload(config: RunConfig, stage: Stage, call: Call, sizes: Sizes, learners: int) -> Workload:
    """The work of one of `learners` in a step of the stage. Raises UserError for more calls than a plan counts."""
    rl, prompt, behind, picture = stage if isinstance(stage, RlStage) else None, call.prompt, call.behind, call.picture
    length, step = prompt + behind, step_of(config, stage)
    # a row of an sft stage is a step of a demonstration, or a whole one
    per_episode = 1 if isinstance(stage, SftStage) else math.ceil(sizes.steps / call.chunk)
    sampled, perhaps, trained = (per_learner(rounds, learners) for rounds in (step.sampled, step.perhaps, step.trained))
    offline = isinstance(stage, OffPolicyStage) and stage.offline_steps == stage.steps  # else a step that plays is counted
    if offline:
        sampled = perhaps = trained = ()
    episodes, parts = total(trained), step.minibatches
    calls = episodes * per_episode
    if (most := max(episodes, total(sampled)) * per_episode) > MOST:
        raise UserError(f"a step of the {stage.kind} stage has {most:,} calls per learner, more than the {MOST:,} of a plan")
    at_once = max(1, config.train.micro_batch_tokens // length)
    remembered = _remembering(stage, episodes, calls, call.alone)
    each, longer = divmod(calls, parts)
    dealt = {remembered.batch: parts} if remembered.batch else {each + 1: longer, each: parts - longer}
    rows = sum_of((_split(many, at_once), n) for many, n in dealt.items())
    micro = Counter({Micro(rows=n, length=length, patches=n * sizes.images * picture, targets=n * behind): rows[n] for n in rows})
    updates = remembered.updates or (rl.epochs if rl else 1) * min(parts, max(1, calls))
    measured = isinstance(stage, DistillStage) or bool(teacher_of(stage))
    return Workload(
        kind=stage.kind,
        prompts=-(-step.asked // learners),
        asked=0 if offline else step.asked,
        group=step.group,
        prompt_tokens=prompt,
        patches=sizes.images * picture,
        picture_patches=picture,
        pixels=sizes.pixels * sizes.images,
        completion=behind,
        sampled=sampled,
        perhaps=perhaps,
        trained=trained,
        micro=micro,
        epochs=remembered.updates or (rl.epochs if rl else 1),
        updates=updates,
        reference=bool(rl and rl.kl_coef),
        looked_at=int(measured),  # the sampler's log-probabilities and values are the learner's
        calls=per_episode,
        passes=remembered.passes,
        decoded=call.alone,
        watched=remembered.watched,
    )


@dataclass(frozen=True, slots=True)
class _Remembering:
    """What a stage that learns from a memory does in a step; zeros of any other."""

    batch: int = 0
    """Calls in an update of the policy."""
    updates: int = 0
    """Updates of the policy."""
    passes: int = 1
    """See `Workload`."""
    watched: int = 0
    """See `Workload`."""


def _remembering(stage: Stage, episodes: int, calls: int, alone: bool) -> _Remembering:
    """Once critics have warmed up, and while the memory has more calls than a step draws, so that each is looked at once. calls:
    of the episodes; without any, the updates are offline."""
    if isinstance(stage, OffPolicyStage) and not calls:
        calls = stage.offline_updates
    if isinstance(stage, OffPolicyStage) and stage.improve is None:
        return _Remembering(stage.batch_size, calls * policy_updates(stage))
    if isinstance(stage, RecapStage):  # a frozen copy sees each observation, that after the last call too
        guided = 1 if stage.guidance == 1 else 2
        return _Remembering(stage.batch_size, stage.updates, guided, calls + episodes)
    if isinstance(stage, HgDaggerStage):
        return _Remembering(stage.batch_size, stage.updates)
    if not isinstance(stage, OffPolicyStage) or stage.improve is None:
        return _Remembering()
    how = stage.improve
    updates = max(1, round(calls * how.updates))
    each = 2 if stage.conservative else 0 if how.expectile else 1  # Cal-QL also asks where the transition begins
    drawn = min(calls * stage.updates * stage.batch_size * each + updates * how.batch_size, stage.capacity)
    many = how.candidates if alone else 1
    seen = calls * (2 if how.acts else 1) + episodes if episodes else 0  # when it chooses, and when what it played is kept
    return _Remembering(how.batch_size, updates, many if how.acts else 1, seen + drawn * many)


def _split(calls: int, at_once: int) -> Counter[int]:
    """Rows of a pass -> number of such passes."""
    full, rest = divmod(calls, at_once)
    return +Counter({at_once: full, rest: 1 if rest else 0})


def bins_only(work: Workload, config: PolicyConfig, shapes: Shapes) -> Workload:
    """The work with as few targets as a head over the vocabulary would need for the operations of the head over the bins."""
    bins = int(option(config, "bins", 256)) if option(config, "head", "tokens") == "tokens" else 1
    fewer = {replace(m, targets=math.ceil(m.targets * bins / shapes.text.vocabulary)): n for m, n in work.micro.items()}
    return replace(work, micro=Counter(fewer))
