"""The form of Vision-SR1's answers, and what its policy rewards itself for: a description of the picture from which it finds the
answer without the picture (github.com/zli12321/Vision-SR1, commit 4480e08:
`train_examples/reward_function/see_think_selfReward.py`, `verl/trainer/ray_trainer.py`).

Li et al., "Self-Rewarding Vision-Language Model via Reasoning Decomposition", arXiv 2508.19652.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeGuard

from mmrl import Case, SamplingRule, Score, Task, UserError
from mmrl.api.errors import is_finite
from mmrl.api.sampling import Group, StepLoad, StepSampler
from mmrl.api.types import verifier_value
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag
from mmrl_vqa.asking import DESCRIBED
from mmrl_vqa.easyr1 import BOX, unspaced
from mmrl_vqa.table import Table

FROM = 2**30
"""The groups of answers from descriptions are numbered from here: by the completion's place, times this, and its group."""
PART = "description"
"""The part of the reward, and the note of a group: how often its descriptions were enough."""


def form(case: Case) -> float:
    """1 for a completion that is a description in its tag, a thought in its tag and then a box, and nothing else but blanks;
    blanks around `<`, `>` and `/` don't count.

    Known exploits, as published: all three may be empty, and anything may stand within them, such as further tags.
    """
    text = unspaced(case.completion[:MAX_LENGTH]).strip()
    start, turn, box = "<description>", "</description><think>", f"</think>{BOX}"
    thought = text.find(turn, len(start))
    answer = text.find(box, thought + len(turn)) if thought >= 0 else -1
    return float(text.startswith(start) and answer >= 0 and text.endswith("}") and len(text) > answer + len(box))


def description_of(completion: str) -> str:
    """What is in the first description tag, without blanks around it; the whole completion without one."""
    text = completion[:MAX_LENGTH]
    found = first_tag(text, "description")
    return text if found is None else found.strip()


class SelfReward(SamplingRule):
    """Each completion's description of the picture is read by the policy without the picture, with the question. If its answer is
    right, the completion earns more (Vision-SR1)."""

    phase: ClassVar[Literal["score", "select"]] = "score"

    def __init__(self, weight: float = 1.0, verifier: str = "vqa/answer") -> None:
        """weight: what a description earns from which the answer was found. verifier: the one that says whether it was."""
        if not is_finite(weight) or weight <= 0:
            raise UserError(f"weight = {weight!r:.60} must be a number above 0")
        self.weight, self.verifier = weight, verifier

    def check(self, verifiers: Collection[str]) -> None:
        if self.verifier not in verifiers:
            known = ", ".join(sorted(verifiers)) or "none"
            raise UserError(f"verifier = {self.verifier!r:.60} rewards nothing in this stage: choose one of {known}")

    def check_tasks(self, tasks: Mapping[str, Task]) -> None:
        if not any(map(_describes, tasks.values())):
            raise UserError(
                f"no task of the run asks for descriptions: take one of questions in a table, such as vqa/table, with style = "
                f'"{DESCRIBED}"'
            )

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        asked = [(group, task) for group in groups if _describes(task := sample.task(group.prompt.task))]
        copies, prompts = [], []
        for group, task in asked:
            for place, rollout in enumerate(group.rollouts):
                copies.append(replace(group, number=FROM * (1 + place) + group.number, others=[], notes={}))
                prompts.append(task.described(group.prompt, description_of(rollout.completion)))
        answered = sample.complete(copies, prompts, share=0.0)
        sample.score(answered)
        found = iter(answered)
        for group, _ in asked:
            own = [next(found) for _ in group.rollouts]
            group.others += own
            self._pay(group, [other.scores[0] for other in own])
        return groups

    def _pay(self, group: Group, answered: Sequence[Score]) -> None:
        """Pay each completion for the score of the answer from its description; without one, what it earns is unknown."""
        right = [verifier_value(score, self.verifier) or 0.0 for score in answered]
        group.pay(PART, [self.weight * value for value in right])
        group.scores = [
            replace(score, value=None, detail=f"of its description: {other.detail}") if other.failed else score
            for score, other in zip(group.scores, answered, strict=True)
        ]
        if known := [value for value, score in zip(right, answered, strict=True) if not score.failed]:
            group.notes[PART] = statistics.fmean(known)

    def adds(self, load: StepLoad) -> StepLoad:
        """An answer from each description; those are prompts of their own."""
        answers = (load.groups * load.size, 1)
        return replace(load.completing(1.0), sampled=(*load.sampled, answers))

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        noted = [group.notes[PART] for group in groups if PART in group.notes]
        return {"sampling/description_right": statistics.fmean(noted)} if noted else {}


def _describes(task: Task) -> TypeGuard[Table]:
    return isinstance(task, Table) and task.style == DESCRIBED
