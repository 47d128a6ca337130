"""The sampling rule `judge/recycle`: a step also trains on judgements and reflections about its own rollouts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from mmrl import Prompt, SamplingRule, UserError, user_message
from mmrl.api.errors import is_finite
from mmrl.api.sampling import Group, StepLoad, StepSampler, portion
from mmrl.api.seeds import derive
from mmrl.api.tasks.option_checks import check_type
from mmrl_judge.spark.recycling import Answered, Recycled, recycled

KIND = "recycled"
"""Note of a group: the kind of prompt that it was made of."""


class Recycle(SamplingRule):
    """Adds groups of prompts that are made of the step's rollouts: is an answer right, which of two is, and think again
    (SPARK). They are sampled with the weights of this step and trained on with the others."""

    phase: ClassVar[Literal["score", "select"]] = "select"

    def __init__(self, judge: str = "judge/recycled", share: float = 0.5, right_from: float = 1.0) -> None:
        """judge: label of the task whose verifiers reward the judgements, as a rule `judge/recycled` with `weight = 0`;
        reflections are rewarded as their question is. share: at most so many judgements, and so many reflections, by group of
        the step. right_from: a rollout with at least this reward is right."""
        check_type("judge", judge, str)
        if not is_finite(share) or not 0 < share <= 1:
            raise UserError(f"share = {share!r:.60} must be a number above 0, at most 1")
        if not is_finite(right_from):
            raise UserError(f"right_from = {right_from!r:.60} must be a number")
        self.judge, self.share, self.right_from = judge, share, right_from

    def check(self, verifiers: Collection[str]) -> None:
        if "judge/boxed" not in verifiers:
            raise UserError(
                f'judgements need a reward: add [[tasks]] id = "judge/recycled", weight = 0, verifiers = {{"judge/boxed" = 1.0}}'
                f" (now: {', '.join(sorted(verifiers))[:100]})"
            )

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        try:
            sample.task(self.judge)
        except KeyError:
            raise UserError(f"judge = {self.judge!r} is no task of the run: add it under [[tasks]] with weight = 0") from None
        draw = random.Random(derive(sample.seed, "recycle"))
        answered = [self._answered(group, sample) for group in groups]
        made = recycled(answered, draw, portion(len(groups), self.share))
        added = [
            *self._sampled([one for one in made if one.kind != "reflection"], groups, sample),
            *self._sampled([one for one in made if one.kind == "reflection"], groups, sample),
        ]
        return [*groups, *added]

    def adds(self, load: StepLoad) -> StepLoad:
        most = portion(load.groups, self.share)
        return load.again(most, self.judge, added=most).again(most, added=most)

    def _sampled(self, made: Sequence[Recycled], groups: Sequence[Group], sample: StepSampler) -> list[Group]:
        """The scored groups of these prompts, at most one of each group. `Group.others` of that group has it, to be counted."""
        asked = {groups[one.number].number: one for one in made}
        homes = {groups[one.number].number: groups[one.number] for one in made}
        found = sample.again(list(homes.values()), lambda group: self._prompt(group, asked[group.number]))
        for group in found:
            group.notes[KIND], group.is_added = asked[group.number].kind, True
            homes[group.number].others.append(group)
        return found

    def _answered(self, group: Group, sample: StepSampler) -> Answered:
        """What is known of a group in every learner process."""
        answers = [sample.task(group.prompt.task).extract_answer(r.completion) or None for r in group.rollouts]
        right = [
            s.value is not None and s.value + r.environment_reward >= self.right_from
            for r, s in zip(group.rollouts, group.scores, strict=True)
        ]
        completions = [r.completion for r in group.rollouts]
        return Answered(question=group.prompt.text, completions=completions, answers=answers, right=right)

    def _prompt(self, group: Group, one: Recycled) -> Prompt:
        prompt = group.prompt
        messages = [user_message(one.text, *prompt.images, *prompt.videos)]
        if one.kind == "reflection":
            return replace(prompt, id=f"{prompt.id}-reflection", messages=messages)
        meta = {"kind": one.kind, "wrong": one.wrong}
        return Prompt(
            id=f"{prompt.id}-{one.kind}", messages=messages, answer=one.verdict, task=self.judge, seed=prompt.seed, meta=meta
        )

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        kinds = Counter(group.notes[KIND] for group in groups if KIND in group.notes)
        return {f"sampling/{kind}": float(kinds[kind]) for kind in ("pointwise", "pairwise", "reflection")}
