"""Which completions a step trains on: sample groups, score them, and the rules that replace, leave out, hint and add."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmrl.algorithms.labels import co_reward, frequency_entropy
from mmrl.algorithms.shaping import overlong_penalty
from mmrl.collect.turns import TurnCollector
from mmrl.data.source import Outcome, Place, gold_of
from mmrl.errors import UserError
from mmrl.generate.local import Sampling
from mmrl.interfaces import Task
from mmrl.judge import Judge, cases_of
from mmrl.policies.vlm import PromptInputs
from mmrl.schema import RlStage
from mmrl.targets import calling
from mmrl.types import Prompt, Rollout, Score, replace

Taken = tuple[Place, Prompt, PromptInputs]
HINT = "\n\nHint: "


@dataclass(kw_only=True)
class Group:
    """A prompt, its rollouts and their scores, side by side."""

    place: Place
    prompt: Prompt
    inputs: PromptInputs
    rollouts: list[Rollout]
    scores: list[Score]

    @property
    def rewards(self) -> list[float]:
        """Of the rollouts whose score didn't fail."""
        return [s.value for s in self.scores if s.value is not None]

    @property
    def spread(self) -> float:
        """Standard deviation of the rewards."""
        return statistics.pstdev(self.rewards) if self.rewards else 0.0

    def successes(self, threshold: float) -> float:
        """Share of the rewards that reach the threshold."""
        return statistics.fmean(r >= threshold for r in self.rewards) if self.rewards else 0.0


@dataclass(kw_only=True)
class Gathered:
    """What a step trains on, and all that was sampled for it."""

    groups: list[Group]
    """Numbered by `Rollout.group`, from 0."""
    sampled: list[Group]
    """These and the ones that were left out."""
    counts: dict[str, float] = field(default_factory=dict)
    """Metrics of the rules at work."""
    idle: bool = False
    """The rules left nothing: the groups are all that were sampled, and none of them is trained on."""

    @property
    def rollouts(self) -> list[Rollout]:
        return [r for g in self.groups for r in g.rollouts]

    @property
    def scores(self) -> list[Score]:
        return [s for g in self.groups for s in g.scores]


class Gatherer:
    """A stage's sampling rule."""

    def __init__(
        self,
        stage: RlStage,
        tasks: Mapping[str, Task],
        collector: TurnCollector,
        judge: Judge,
        *,
        take: Callable[[int], list[Taken]],
        encode: Callable[[Prompt], PromptInputs],
        sampling: Callable[[str, int], Sampling],
        weights: Callable[[str], Mapping[str, float]],
        group_size: Callable[[str], int],
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        """take: the next n prompts. sampling: (task, how many times the step sampled before) -> parameters. weights, group_size:
        of a task. version: of the weights that sample."""
        self.stage, self.tasks, self.collector, self.judge = stage, tasks, collector, judge
        self.take, self.encode, self.sampling = take, encode, sampling
        self.weights, self.group_size, self.version = weights, group_size, version
        self.calls = 0

    def __call__(self, clock: Callable[[str], Any]) -> Gathered:
        """The groups of one step. clock: context managers that time `generate` and `judge`."""
        stage, self.calls, self.clock = self.stage, 0, clock
        sampled: list[Group] = []
        kept: list[Group] = []
        hinted = 0
        for _ in range(1 + stage.dynamic_sampling):
            missing = stage.prompts_per_step - len(kept)
            fresh = self.sample(self.take(math.ceil(missing * stage.oversample)))
            if stage.hints != "none":
                hinted += self.rescue(fresh)
            sampled += fresh
            kept += [g for g in fresh if self.keeps(g)]
            if len(kept) >= stage.prompts_per_step:
                break
        if stage.oversample > 1:
            kept = sorted(kept, key=lambda g: -g.spread)  # stable: of equals, the first sampled
        kept = kept[: stage.prompts_per_step]
        if stage.ground_truth != "never":
            self.add_ground_truth(kept)
        idle = not kept
        kept = kept or sampled
        for number, group in enumerate(kept):
            group.rollouts = [replace(r, group=number) for r in group.rollouts]
        counts: dict[str, float] = {}
        if self._selects:
            counts = {
                "sampling/groups": float(len(sampled)),
                "sampling/left_out_share": 1 - (0 if idle else len(kept)) / len(sampled),
            }
        if stage.hints != "none":
            counts["sampling/hinted"] = float(hinted)
        return Gathered(groups=kept, sampled=sampled, counts=counts, idle=idle)

    @property
    def _selects(self) -> bool:
        stage = self.stage
        return bool(stage.dynamic_sampling or stage.oversample > 1 or stage.success_low > 0 or stage.success_high < 1)

    def keeps(self, group: Group) -> bool:
        """Whether the rules train on it. Without dynamic sampling a group without spread stays: it counts in averages."""
        stage = self.stage
        if stage.dynamic_sampling and not group.spread:
            return False
        return stage.success_low <= group.successes(stage.success) <= stage.success_high

    # -- sample and score -------------------------------------------------------------------------------------------------

    def sample(self, taken: Sequence[Taken]) -> list[Group]:
        """Groups of scored completions of these prompts, in their order."""
        groups = self._complete(taken)
        if self.stage.labels == "task":
            self._score(groups)
        elif self.stage.labels == "co-reward":
            groups += self._agree(groups)
        else:
            for group in groups:
                self._vote(group)
        self._shorten(groups)
        return groups

    def _complete(self, taken: Sequence[Taken]) -> list[Group]:
        """Sampled, not yet scored. Prompts that are sampled alike go together."""
        alike: dict[tuple[int, Sampling], list[int]] = {}
        calls, self.calls = self.calls, self.calls + 1
        for i, (_, prompt, _) in enumerate(taken):
            alike.setdefault((self.group_size(prompt.task), self.sampling(prompt.task, calls)), []).append(i)
        groups: dict[int, Group] = {}
        with self.clock("generate"):
            for (size, sampling), chosen in alike.items():
                prompts, inputs = [taken[i][1] for i in chosen], [taken[i][2] for i in chosen]
                rollouts = self.collector.collect(prompts, inputs, size, sampling, version=self.version())
                for k, i in enumerate(chosen):
                    place, prompt, encoded = taken[i]
                    mine = rollouts[k * size : (k + 1) * size]
                    groups[i] = Group(place=place, prompt=prompt, inputs=encoded, rollouts=mine, scores=[])
        return [groups[i] for i in range(len(taken))]

    def _score(self, groups: Sequence[Group], without: Sequence[str] = ()) -> None:
        """Ask the verifiers, except some."""
        rollouts = [r for g in groups for r in g.rollouts]
        weights = [{v: 0.0 if v in without else w for v, w in self.weights(r.prompt.task).items()} for r in rollouts]
        with self.clock("judge"):
            scores = iter(self.judge.score(cases_of(rollouts), weights))
        for group in groups:
            group.scores = [next(scores) for _ in group.rollouts]

    def _shorten(self, groups: Sequence[Group]) -> None:
        """Take the soft penalty off rewards of completions near their limit."""
        if not self.stage.overlong_buffer:
            return
        for group in groups:
            limit = self.sampling(group.prompt.task, 0).max_tokens
            buffer = self.stage.overlong_buffer * limit
            lengths_N = torch.tensor([r.length for r in group.rollouts])
            penalties = overlong_penalty(lengths_N, max_length=limit, buffer=buffer, factor=self.stage.overlong_penalty).tolist()
            group.scores = [adjusted(s, "overlong", p) for s, p in zip(group.scores, penalties, strict=True)]

    # -- without labels ---------------------------------------------------------------------------------------------------

    def _vote(self, group: Group) -> None:
        """Rewards from the group's own answers."""
        answers = self._answers(group)
        rewards = frequency_entropy(answers) if self.stage.labels == "ttrv" else co_reward(answers, answers)
        group.scores = [Score(r, {self.stage.labels: r}) for r in rewards]

    def _agree(self, groups: Sequence[Group]) -> list[Group]:
        """Rewards from the answers to the same prompt in other words; those groups are trained on too, the other way round."""
        others = self._complete([self._rephrased(g) for g in groups])
        for group, other in zip(groups, others, strict=True):
            own, theirs = self._answers(group), self._answers(other)
            for one, answers, voters in ((group, own, theirs), (other, theirs, own)):
                one.scores = [Score(r, {"co-reward": r}) for r in co_reward(answers, voters)]
        return others

    def _answers(self, group: Group) -> list[str]:
        with calling(f"task {group.prompt.task!r}: read()"):
            return [self.tasks[group.prompt.task].read(r.completion) for r in group.rollouts]

    def _rephrased(self, group: Group) -> Taken:
        with calling(f"task {group.prompt.task!r}: rephrase()"):
            found = self.tasks[group.prompt.task].rephrase(group.prompt)
        if found is None:
            raise UserError(f'task {group.prompt.task!r} doesn\'t rephrase its prompts, which labels = "co-reward" needs')
        prompt = replace(found, task=group.prompt.task)
        return group.place, prompt, self.encode(prompt)

    # -- help ---------------------------------------------------------------------------------------------------------------

    def rescue(self, groups: list[Group]) -> int:
        """Sample groups that failed as a whole again with a hint, a longer one each time; how many that helped.

        `ghpo` (Liu et al., GHPO, section 3): the hinted prompt takes the place of the other. `guide` (Nath et al., Adaptive
        guidance, section 3): the hinted answers join the group as answers to the prompt without the hint.
        """
        lost = [i for i, g in enumerate(groups) if g.rewards and not g.successes(self.stage.success)]
        helped = 0
        for share in self.stage.hint_shares:
            if not lost:
                break
            tried = self.sample([self._hinted(groups[i], share) for i in lost])
            for i, hinted in zip(list(lost), tried, strict=True):
                if hinted.successes(self.stage.success):
                    groups[i] = hinted if self.stage.hints == "ghpo" else self._joined(groups[i], hinted)
                    lost.remove(i)
                    helped += 1
        return helped

    def _hinted(self, group: Group, share: float) -> Taken:
        with calling(f"task {group.prompt.task!r}: hint()"):
            hint = self.tasks[group.prompt.task].hint(group.prompt, share)
        prompt = with_text(group.prompt, HINT + hint)
        return group.place, prompt, self.encode(prompt)

    @staticmethod
    def _joined(group: Group, hinted: Group) -> Group:
        return Group(
            place=group.place,
            prompt=group.prompt,
            inputs=group.inputs,
            rollouts=[*group.rollouts, *(moved(r, group.prompt, group.inputs) for r in hinted.rollouts)],
            scores=[*group.scores, *hinted.scores],
        )

    def add_ground_truth(self, groups: Sequence[Group]) -> None:
        """The gold completion as one more rollout (ViSurf, section 3.3): in the task's own format, not rewarded by the verifiers
        that `ground_truth_without` names, and with the group's mean reward, so no advantage, where a sampled one is as good."""
        always = self.stage.ground_truth == "always"
        chosen = [g for g in groups if always or not g.successes(self.stage.success)]
        gold = [gold_of(self.tasks[g.prompt.task], g.prompt) for g in chosen]
        shown = self.collector.demonstrate([g.prompt for g in chosen], [g.inputs for g in chosen], gold)
        added = [
            Group(place=g.place, prompt=g.prompt, inputs=g.inputs, rollouts=[r], scores=[])
            for g, r in zip(chosen, shown, strict=True)
        ]
        self._score(added, self.stage.ground_truth_without)
        for group, extra in zip(chosen, added, strict=True):
            score = extra.scores[0]
            if group.rewards and score.value is not None and max(group.rewards) >= score.value:
                score = replace(score, value=statistics.fmean(group.rewards))
            group.rollouts, group.scores = [*group.rollouts, *extra.rollouts], [*group.scores, score]


def adjusted(score: Score, part: str, amount: float) -> Score:
    """The score with an amount added, under its own name; a failed one stays failed."""
    return score if score.value is None else Score(score.value + amount, {**score.parts, part: amount}, score.detail)


def moved(rollout: Rollout, prompt: Prompt, inputs: PromptInputs) -> Rollout:
    """The same answer, as one to another prompt than it was sampled from."""
    first = replace(rollout.turns[0], observed_ids=tuple(inputs.ids.tolist()))
    return replace(rollout, prompt=prompt, inputs=inputs, turns=(first, *rollout.turns[1:]), off_policy=True)


def with_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text at the end of its last user message."""
    messages = list(prompt.messages)
    last = max(i for i, m in enumerate(messages) if m["role"] == "user")
    content = messages[last]["content"]
    added = content + text if isinstance(content, str) else [*content, {"type": "text", "text": text}]
    messages[last] = {**messages[last], "content": added}
    return replace(prompt, messages=messages)


def outcomes(groups: Sequence[Group], success: float) -> list[Outcome]:
    """What came of the groups, for the source of prompts."""
    return [
        Outcome(g.place, tuple(g.rewards), spread=g.spread > 0, failed=bool(g.rewards) and not g.successes(success))
        for g in groups
    ]
