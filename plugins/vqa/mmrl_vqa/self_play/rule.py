"""The sampling rule `vqa/self-play`: the policy answers the questions that it proposed, and learns from both roles."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, cast

from mmrl import Case, Prompt, SamplingRule, Task, UserError
from mmrl.api.errors import is_finite
from mmrl.api.sampling import Group, StepLoad, StepSampler
from mmrl.api.seeds import derive
from mmrl.api.tasks.option_checks import check_choice, check_integer, check_type
from mmrl.api.types import Score
from mmrl.api.votes import majority
from mmrl_vqa.asking import MAYE
from mmrl_vqa.self_play.proposals import Proposal, agreement, canonical, cluster_shares, difficulty, read
from mmrl_vqa.table import Table
from mmrl_vqa.verifiers import given

TRAIN = ("both", "questioner", "solver")
DIFFICULTY, MAJORITY = "difficulty", "majority"
"""Parts of the reward: the questioner's and the solver's."""
PROPOSED, VOTES, AGREED = "self-play/proposed", "self-play/votes", "self-play/agreed"
"""Notes: of a group of proposals, the share that are questions; of a group of answers, these in the form in which they vote, and
the share of the most frequent one."""
FROM = 2**30
"""The groups of answers are numbered from here, as there are several for a prompt."""
NO_QUESTION = -1.0
"""What a proposal that isn't one is paid, before its cluster's share is taken off."""


class SelfPlay(SamplingRule):
    """Questions that the policy proposes of pictures are answered by it, several times each. A question pays the more, the less
    its answers agree, up to a half, less the share of the step's questions that are like it. An answer pays if it is the most
    frequent one. Questions on which too few or too many answers agree teach the solver nothing and are left out (VisPlay)."""

    phase: ClassVar[Literal["score", "select"]] = "select"
    rewards: ClassVar[bool] = True

    def __init__(
        self,
        questioner: str = "vqa/propose",
        solver: str = "vqa/table",
        train: str = "both",
        least: float = 0.3,
        most: float = 0.8,
        questions: int = 1,
        repetition: float = 1.0,
    ) -> None:
        """questioner: label of the task that proposes. solver: label of a task of questions, with `weight = 0`: its style, limit
        of tokens and group size are those of the answers, and its split `test` says how good they are. train: whose completions
        the step trains on, both, questioner or solver. least, most: shares of agreeing answers, 0 to 1, between which the solver
        is trained on a question. questions: at most so many of a picture's questions train it, drawn from those. repetition: how
        much of its cluster's share a question pays."""
        for name, label in (("questioner", questioner), ("solver", solver)):
            check_type(name, label, str)
        check_choice("train", train, TRAIN)
        if not (is_finite(least) and is_finite(most) and 0 <= least <= most <= 1):
            raise UserError(f"least = {least!r:.60} and most = {most!r:.60} must be shares from 0 to 1, the lower one first")
        check_integer("questions", questions, 1)
        if not is_finite(repetition) or repetition < 0:
            raise UserError(f"repetition = {repetition!r:.60} must be a number from 0")
        self.questioner, self.solver, self.train = questioner, solver, train
        self.least, self.most, self.questions, self.repetition = least, most, questions, repetition

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        solver = cast(Table, sample.task(self.solver))  # see check_tasks
        asking = [group for group in groups if group.prompt.task == self.questioner]
        others = [group for group in groups if group.prompt.task != self.questioner]
        proposals = [[read(rollout.completion) for rollout in group.rollouts] for group in asking]
        answered = self._answered(asking, proposals, solver, sample)
        self._pay_questioner(asking, proposals, answered)
        trained = asking if self.train != "solver" else []
        if self.train != "questioner":
            draw = random.Random(derive(sample.seed, "self-play"))
            for group in asking:
                fit = [other for other in group.others if AGREED in other.notes and self._fits(other)]
                trained = [*trained, *draw.sample(fit, min(self.questions, len(fit)))]
        return [*others, *trained]

    def adds(self, load: StepLoad) -> StepLoad:
        """Every completion is a question, and each picture has enough that fit."""
        asked = sum(groups * size for groups, size in load.trained)
        trained = 0 if self.train == "questioner" else min(load.groups * self.questions, asked)
        found = load.again(asked, self.solver, added=trained)
        return replace(found, groups=0) if self.train == "solver" else found

    def _fits(self, answers: Group) -> bool:
        """Whether the solver learns from these answers: enough of them agree, and not too many."""
        return bool(self.least <= answers.notes[AGREED] <= self.most)

    def check_tasks(self, tasks: Mapping[str, Task]) -> None:
        for name, label in (("questioner", self.questioner), ("solver", self.solver)):
            if label not in tasks:
                raise UserError(f"{name} = {label!r} is no task of the run: add it under [[tasks]]")
        task = tasks[self.solver]
        if not isinstance(task, Table) or task.style == MAYE:
            raise UserError(
                f"solver = {self.solver!r} must be a task of questions in a table, such as vqa/table, in a style but {MAYE}"
            )

    def _answered(
        self, asking: Sequence[Group], proposals: Sequence[Sequence[Proposal | None]], solver: Table, sample: StepSampler
    ) -> dict[tuple[int, int], Group]:
        """(place of the group, of the proposal) -> the group of its answers, scored by their majority."""
        asked = [
            (place, number, proposal)
            for place, row in enumerate(proposals)
            for number, proposal in enumerate(row)
            if proposal is not None and proposal.is_whole
        ]
        posed = [replace(asking[place], number=FROM + n, others=[], notes={}) for n, (place, _, _) in enumerate(asked)]

        def prompt_of(group: Group) -> Prompt:
            _, number, one = asked[group.number - FROM]
            prompt = solver.posed(f"{group.prompt.id}-{number}", one.question, one.kind, one.answer, group.prompt.images)
            return replace(prompt, task=self.solver, seed=group.prompt.seed)

        found = {}
        for (place, number, proposal), group in zip(asked, sample.again(posed, prompt_of), strict=True):
            votes = [_vote(rollout.completion, solver.style, proposal.kind) for rollout in group.rollouts]
            right = majority(votes)
            rewards = [float(vote == right != "") for vote in votes]
            group.scores = [Score(reward, {MAJORITY: reward}) for reward in rewards]
            group.notes[VOTES], group.notes[AGREED], group.is_added = votes, agreement(votes), True
            asking[place].others.append(group)
            found[place, number] = group
        return found

    def _pay_questioner(
        self, asking: Sequence[Group], proposals: Sequence[Sequence[Proposal | None]], answered: Mapping[tuple[int, int], Group]
    ) -> None:
        shares = iter(cluster_shares([one.question if one else "" for row in proposals for one in row]))
        for place, group in enumerate(asking):
            answers = [answered.get((place, number)) for number in range(len(group.rollouts))]
            hard = [NO_QUESTION if one is None else difficulty(one.notes[VOTES]) for one in answers]
            group.pay(DIFFICULTY, [paid - self.repetition * next(shares) for paid in hard])
            group.notes[PROPOSED] = sum(one is not None for one in answers) / len(answers)

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        proposed = [group.notes[PROPOSED] for group in groups if PROPOSED in group.notes]
        agreed = [group.notes[AGREED] for group in groups if AGREED in group.notes]
        fit = sum(self._fits(group) for group in groups if AGREED in group.notes)
        found = {"sampling/questions": float(len(agreed)), "sampling/questions_fit": float(fit)}
        if proposed:
            found["sampling/questions_share"] = statistics.fmean(proposed)
        if agreed:
            found["sampling/agreement"] = statistics.fmean(agreed)
        return found


def _vote(completion: str, style: str, kind: str) -> str:
    """The answer of a completion in the form in which it votes; blank if it has none."""
    said, _ = given(Case(completion=completion, answer="", meta={"style": style}))
    return "" if said is None else canonical(said, kind)
