"""Before the first step: check that gold completions fit into the token limit and get the highest reward.

A verifier that reads another format than the task asks for, or a limit that cuts off every answer, otherwise looks like a model
that doesn't learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mmrl.api.errors import NoGold, PluginError, UserError
from mmrl.api.interfaces import Task
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Rollout
from mmrl.data.prompts import Indexable, Splits, gold_completion, prompt_at
from mmrl.judge import Judge, build_cases

if TYPE_CHECKING:  # previews import this module too, without torch
    from mmrl.algorithms.presets import Algorithm
    from mmrl.config.sections import RlStage, RunConfig, TaskConfig
    from mmrl.rollout.collector import Collector

PROMPTS = 4
"""Gold completions checked per task, spread over the split."""
QUOTED = 80
"""Maximal characters of a quoted completion."""


def gold_warnings(
    tasks: Mapping[str, Task],
    prompts: Mapping[str, Indexable],
    verifiers: Mapping[str, Mapping[str, VerifierSpec]],
    collector: Collector,
    judge: Judge,
    limits: Mapping[str, tuple[int, str]],
    entries: Mapping[str, TaskConfig],
    smoke: bool = False,
) -> Iterator[str]:
    """Warnings of one sentence each. All mappings are by task. limits: the longest completion in tokens, and the key that says
    so. smoke: don't warn of it, since a smoke run lowers it."""
    for task, items in prompts.items():
        if tasks[task].simulation is not None:  # its episodes have no completions
            continue
        rollouts = list(_gold(tasks[task], task, items, collector, entries[task].prompt_template))
        if not rollouts:  # the task has no gold completions
            continue
        shortest = min(r.length for r in rollouts)
        most, key = limits[task]
        if shortest > most and not smoke:
            yield f"{task}: {key} = {most} cuts off even gold completions of {shortest} tokens: raise it"
        for name, spec in verifiers[task].items():
            scored = zip(judge.run(name, build_cases(rollouts)), rollouts, strict=True)
            low = [(s.value, r.completion, s.detail) for s, r in scored if s.value is not None and is_below_high(spec, s.value)]
            if low:
                yield f"{task}: {describe_gold_loss(spec, entries[task].id, low, len(rollouts))}"


def check_answers_known(
    config: RunConfig, number: int, stage: RlStage, algorithm: Algorithm, tasks: Mapping[str, Task], splits: Splits
) -> None:
    """Refuse an algorithm that tells the policy the answer where the first prompt of no task has one. number: the stage's
    index."""
    if "told_logprobs_NT" not in algorithm.needs:
        return
    for label in config.weights(stage):
        try:
            gold_completion(tasks[label], prompt_at(splits(label, stage.split), 0, label))
        except NoGold:
            continue
        return
    labels = ", ".join(config.weights(stage))
    raise UserError(
        f"stages.{number}.algorithm: {stage.algorithm} tells the policy the gold completion, and no prompt of {labels} has one: "
        "write gold(), or use grpo"
    )


def is_below_high(spec: VerifierSpec, value: float) -> bool:
    """Whether a value is less than the verifier's highest one, by more than rounding of a sum of parts."""
    return value < spec.high - slack(spec)


def slack(spec: VerifierSpec) -> float:
    """The tolerance in which two values of a verifier count as equal."""
    return 1e-6 * max(1.0, abs(spec.high))


def describe_gold_loss(spec: VerifierSpec, task: str, low: Sequence[tuple[float, str, str]], tried: int) -> str:
    """The warning about a verifier that gives gold completions less than its highest value. task: the task's id. low: (value,
    completion, detail of the score) of each such completion, at least one. tried: number of gold completions checked."""
    value, completion, detail = low[0]
    why = f", saying {detail!r}" if detail else ""
    less, most = _apart(value, spec.high)
    published = "as published, " if "@" in spec.id else ""
    cut = completion if len(completion) <= QUOTED else f"{completion[:QUOTED]}..."
    return (
        f"{published}{spec.id} gives {less}, not {most}, to the gold completion {cut!r} ({len(low)} of {tried} tried get less)"
        f"{why}: does it read what the task asks for, see `mmrl list tasks {task}`?"
    )


def _apart(a: float, b: float) -> tuple[str, str]:
    """Two different numbers as text, with just enough digits to differ."""
    for digits in range(6, 17):
        if (texts := (f"{a:.{digits}g}", f"{b:.{digits}g}"))[0] != texts[1]:
            break
    return texts


def _gold(task: Task, name: str, items: Indexable, collector: Collector, template: str) -> Iterator[Rollout]:
    """The gold completions of a few prompts, as finished rollouts. Skips prompts without one and prompts with broken images,
    which the run reports itself."""
    for i in range(0, len(items), -(-len(items) // PROMPTS)):
        try:
            prompt = prompt_at(items, i, name, template)
            inputs = collector.encode([prompt])
        except PluginError:
            raise
        except UserError:
            continue
        try:
            gold = gold_completion(task, prompt)
        except NoGold:
            continue
        yield from collector.try_answers([prompt], inputs, [gold])
