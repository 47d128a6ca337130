"""Which completions a step trains on: sample groups, score them, and the rules that replace, leave out, hint and add."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mmrl.algorithms.labels import co_reward, frequency_entropy
from mmrl.algorithms.shaping import length_bonus, overlong_penalty
from mmrl.api.errors import PluginError, UserError, calling
from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt, Rollout, Score, adjusted, right
from mmrl.compute import ranks
from mmrl.config.sections import LengthConfig, RlStage, TemporalConfig
from mmrl.data.altered import shuffled
from mmrl.data.prompts import Place, gold_of
from mmrl.judge import Judge, cases_of
from mmrl.policies.vlm.reading import PromptInputs
from mmrl.rollout.collector import Collector
from mmrl.rollout.generate.sampling import Sampling
from mmrl.train.sampling.groups import Gathered, Group
from mmrl.train.sampling.temporal import Timed, figures

Taken = tuple[Place, Prompt, PromptInputs]
BEHIND = 2**31
"""Numbers of rephrased prompts begin here."""
HINT = "\n\nHint: "


class Gatherer:
    """A stage's sampling rule."""

    def __init__(
        self,
        stage: RlStage,
        tasks: Mapping[str, Task],
        collector: Collector,
        judge: Judge,
        *,
        take: Callable[[int], list[Taken | None]],
        encode: Callable[[Prompt], PromptInputs],
        sampling: Callable[[str, int], Sampling],
        weights: Callable[[str], Mapping[str, float]],
        group_size: Callable[[str], int],
        version: Callable[[], int] = lambda: 0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """take: the next n prompts, None for those of other ranks. sampling: (task, how many times the step sampled before) ->
        parameters. weights, group_size: of a task. version: of the weights that sample. wake: called before
        they do."""
        self.stage, self.tasks, self.collector, self.judge = stage, tasks, collector, judge
        self.take, self.encode, self.sampling = take, encode, sampling
        self.weights, self.group_size, self.version = weights, group_size, version
        self.wake = wake
        self.calls = 0
        self.spent: list[Group] = []
        self.timed: list[Timed] = []

    def __call__(self, clock: Callable[[str], Any]) -> Gathered:
        """The groups of one step. clock: context managers that time `generate` and `judge`."""
        stage, self.calls, self.spent, self.timed, self.clock = self.stage, 0, [], [], clock
        of_prompt = 2 if stage.labels == "co-reward" else 1  # the rephrased prompts come on top of prompts_per_step
        wanted = stage.prompts_per_step * of_prompt
        sampled: list[Group] = []
        kept: list[Group] = []
        hinted = 0
        for _ in range(1 + stage.dynamic_sampling):
            missing = math.ceil((wanted - len(kept)) / of_prompt)
            fresh = self.sample(dict(enumerate(self.take(math.ceil(round(missing * stage.oversample, 6))))))  # 10 x 1.1 is 11
            if stage.hints != "none":
                hinted += self.rescue(fresh)
            sampled += fresh
            kept += [g for g in fresh if self.keeps(g)]
            if len(kept) >= wanted:
                break
        if stage.oversample > 1:
            kept = sorted(kept, key=lambda g: -g.spread)  # stable: of equals, the first sampled
        kept = kept[:wanted]
        shown = self.add_ground_truth(kept) if stage.ground_truth != "never" else 0
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
        if stage.ground_truth != "never":
            counts["sampling/ground_truth"] = float(shown)
        if stage.temporal:
            counts |= figures(self.timed)
        return Gathered(groups=kept, sampled=sampled, spent=self.spent, counts=counts, idle=idle)

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

    def sample(self, taken: Mapping[int, Taken | None]) -> list[Group]:
        """Groups of scored completions of these prompts, in the order of their numbers. None: another rank samples it."""
        self.wake()
        groups = ranks.gathered(lambda: self._sample(own_of(taken)), lambda group: group.light)
        for group in groups:
            self.spent += group.beside
            self.timed += [group.timed] if group.timed else []
        return groups

    def _sample(self, taken: Mapping[int, Taken]) -> dict[int, Group]:
        """Those of this rank, by number; of what is rephrased, behind all others."""
        groups = self._complete(taken)
        if self.stage.labels == "task":
            self._score(groups)
        elif self.stage.labels == "co-reward":
            groups += self._agree(dict(zip(taken, groups, strict=True)))
        else:
            for group in groups:
                self._vote(group)
        if self.stage.temporal:
            self._time(dict(zip(taken, groups, strict=False)), self.stage.temporal)
        if self.stage.length:
            self._measure(groups, self.stage.length)
        self._shorten(groups)
        for group in groups:
            group.alone = group.rewards
        rephrased = [BEHIND + number for number in taken]
        return dict(zip([*taken, *rephrased][: len(groups)], groups, strict=True))

    def _complete(self, taken: Mapping[int, Taken], size: Callable[[str], int] | None = None) -> list[Group]:
        """Sampled, not yet scored. size: of a task's groups, by default those that are trained on."""
        calls, self.calls = self.calls, self.calls + 1
        with self.clock("generate"):
            found = collected(
                self.collector, taken, size or self.group_size, lambda task: self.sampling(task, calls), self.version()
            )
        return [
            Group(place=place, prompt=prompt, inputs=encoded, rollouts=rollouts, scores=[])
            for (place, prompt, encoded), rollouts in zip(taken.values(), found, strict=True)
        ]

    def _score(self, groups: Sequence[Group], without: Sequence[str] = ()) -> None:
        """Ask the verifiers, except some."""
        rollouts = [r for g in groups for r in g.rollouts]
        weights = [{v: 0.0 if v in without else w for v, w in self.weights(r.prompt.task).items()} for r in rollouts]
        with self.clock("judge"):
            scores = iter(self.judge.score(cases_of(rollouts), weights))
        for group in groups:
            group.scores = [next(scores) for _ in group.rollouts]

    def _time(self, groups: Mapping[int, Group], rule: TemporalConfig) -> None:
        """Answer videos again with their frames shuffled, and pay as `mmrl.train.sampling.temporal` says."""
        ordered = {n: g for n, g in groups.items() if g.prompt.videos}
        prompts = {n: shuffled(g.prompt, self.sampling(g.prompt.task, self.calls).seed) for n, g in ordered.items()}
        taken = {n: (g.place, prompts[n], self.encode(prompts[n])) for n, g in ordered.items()}
        others = self._complete(taken, lambda task: max(1, round(rule.share * self.group_size(task))))
        self._score(others)
        for group, other in zip(ordered.values(), others, strict=True):
            group.timed, group.beside = Timed.of(group.scores, other.scores, rule), [other]
            bonuses = group.timed.bonuses(group.scores, rule)
            group.scores = [adjusted(s, "temporal", b) for s, b in zip(group.scores, bonuses, strict=True)]

    @staticmethod
    def _measure(groups: Sequence[Group], rule: LengthConfig) -> None:
        """Pay right answers of some length, as `length_bonus` says, in groups that the rule's verifier judged."""
        for group in groups:
            judged = [right(s, rule.verifier) for s in group.scores]
            accuracy_N = torch.tensor([math.nan if v is None else v for v in judged], dtype=torch.float64)
            lengths_N = torch.tensor([r.length for r in group.rollouts])
            paid_N = length_bonus(
                accuracy_N, lengths_N, bonus=rule.bonus, low=rule.low, high=rule.high, threshold=rule.above
            ).nan_to_num(0.0)
            if not all(v is None for v in judged):
                group.scores = [adjusted(s, "length", b) for s, b in zip(group.scores, paid_N.tolist(), strict=True)]

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

    def greedy(self, groups: Sequence[Group], clock: Callable[[str], Any]) -> list[Group]:
        """The likeliest completion of each group's prompt, scored as the sampled ones are."""
        self.clock = clock
        self.wake()
        own = {n: g for n, g in enumerate(groups) if not g.elsewhere}
        return ranks.gathered(lambda: self._greedy(own), lambda group: group.light)

    def _greedy(self, groups: Mapping[int, Group]) -> dict[int, Group]:
        sampling = lambda task: replace(self.sampling(task, 0), temperature=0.0)  # noqa: E731
        taken = {n: (g.place, g.prompt, g.inputs) for n, g in groups.items()}
        with self.clock("generate"):
            found = collected(self.collector, taken, lambda task: 1, sampling, self.version())
        tried = [replace(g, rollouts=r, scores=[]) for g, r in zip(groups.values(), found, strict=True)]
        self._score(tried)
        self._shorten(tried)
        return dict(zip(groups, tried, strict=True))

    # -- without labels ---------------------------------------------------------------------------------------------------

    def _vote(self, group: Group) -> None:
        """Rewards from the group's own answers."""
        answers = self._answers(group)
        rewards = frequency_entropy(answers) if self.stage.labels == "ttrv" else co_reward(answers, answers)
        group.scores = [Score(r, {self.stage.labels: r}) for r in rewards]

    def _agree(self, groups: Mapping[int, Group]) -> list[Group]:
        """Rewards from the answers to the same prompt in other words; those groups are trained on too, the other way round."""
        others = self._complete({number: self._rephrased(g) for number, g in groups.items()})
        for group, other in zip(groups.values(), others, strict=True):
            own, theirs = self._answers(group), self._answers(other)
            for one, answers, voters in ((group, own, theirs), (other, theirs, own)):
                one.scores = [Score(r, {"co-reward": r}) for r in co_reward(answers, voters)]
        return others

    def _answers(self, group: Group) -> list[str]:
        what = f"task {group.prompt.task!r}: answer_of()"
        with calling(what):
            answers = [self.tasks[group.prompt.task].answer_of(r.completion) for r in group.rollouts]
        for answer in answers:
            _check(answer, str, f"{what} must give text")
        return answers

    def _rephrased(self, group: Group) -> Taken:
        what = f"task {group.prompt.task!r}: rephrase()"
        with calling(what):
            found = self.tasks[group.prompt.task].rephrase(group.prompt)
        if found is None:
            raise UserError(f'task {group.prompt.task!r} doesn\'t rephrase its prompts, which labels = "co-reward" needs')
        _check(found, Prompt, f"{what} must give a mmrl.Prompt")
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
            asked = ranks.each(functools.partial(self._hinted_all, {i: groups[i] for i in lost}, share))
            tried = self.sample(asked)
            for i, hinted in zip(list(lost), tried, strict=True):
                if not hinted.successes(self.stage.success):
                    self.spent.append(hinted)
                    continue
                if self.stage.hints == "ghpo":
                    self.spent.append(groups[i])
                    hinted.alone, groups[i] = groups[i].alone, hinted
                else:
                    groups[i] = self._joined(groups[i], hinted)
                lost.remove(i)
                helped += 1
        return helped

    def _hinted_all(self, groups: Mapping[int, Group], share: float) -> dict[int, Taken | None]:
        return {n: None if g.elsewhere else self._hinted(g, share) for n, g in groups.items()}

    def _hinted(self, group: Group, share: float) -> Taken:
        what = f"task {group.prompt.task!r}: hint()"
        with calling(what):
            hint = self.tasks[group.prompt.task].hint(group.prompt, share)
        _check(hint, str, f"{what} must give text")
        prompt = with_text(group.prompt, HINT + hint)
        return group.place, prompt, self.encode(prompt)

    @staticmethod
    def _joined(group: Group, hinted: Group) -> Group:
        theirs = [moved(r, group.prompt, group.inputs) for r in hinted.rollouts]
        return replace(group, rollouts=[*group.rollouts, *theirs], scores=[*group.scores, *hinted.scores])

    def add_ground_truth(self, groups: Sequence[Group]) -> int:
        """The gold completion as one more rollout (ViSurf, section 3.3): in the task's own format, not rewarded by the verifiers
        that `ground_truth_without` names, and with the group's mean reward and no advantage where a sampled one is as good.

        Returns how many groups got one."""
        always = self.stage.ground_truth == "always"
        chosen = [g for g in groups if always or not g.successes(self.stage.success)]
        own = {n: g for n, g in enumerate(chosen) if not g.elsewhere}
        added = ranks.gathered(lambda: self._gold(own), lambda group: group.light)
        for group, extra in zip(chosen, added, strict=True):
            score = extra.scores[0]
            score = replace(score, parts={k: v for k, v in score.parts.items() if k not in self.stage.ground_truth_without})
            if group.rewards and score.value is not None and max(group.rewards) >= score.value:
                score, group.neutral = replace(score, value=statistics.fmean(group.rewards)), len(group.rollouts)
            group.rollouts, group.scores = [*group.rollouts, *extra.rollouts], [*group.scores, score]
        return len(chosen)

    def _gold(self, groups: Mapping[int, Group]) -> dict[int, Group]:
        """The gold completion of each, scored."""
        gold = [gold_of(self.tasks[g.prompt.task], g.prompt) for g in groups.values()]
        shown = self.collector.demonstrate([g.prompt for g in groups.values()], [g.inputs for g in groups.values()], gold)
        added = [replace(g, rollouts=[r], scores=[]) for g, r in zip(groups.values(), shown, strict=True)]
        self._score(added, self.stage.ground_truth_without)
        return dict(zip(groups, added, strict=True))


def collected(
    collector: Collector,
    taken: Mapping[int, Taken],
    size: Callable[[str], int],
    sampling: Callable[[str], Sampling],
    version: int = 0,
) -> list[list[Rollout]]:
    """The rollouts of each prompt, its number as their group. size, sampling: of a task; prompts that are sampled alike go
    together."""
    alike: dict[tuple[int, Sampling], list[int]] = {}
    for i, (_, prompt, _) in taken.items():
        alike.setdefault((size(prompt.task), sampling(prompt.task)), []).append(i)
    found: dict[int, list[Rollout]] = {}
    for (n, how), chosen in alike.items():
        prompts, inputs = [taken[i][1] for i in chosen], [taken[i][2] for i in chosen]
        rollouts = collector.collect(prompts, inputs, n, how, version=version, numbers=chosen)
        for k, i in enumerate(chosen):
            found[i] = [replace(r, group=i) for r in rollouts[k * n : (k + 1) * n]]
    return [found[i] for i in taken]


def own_of(taken: Mapping[int, Taken | None]) -> dict[int, Taken]:
    """What this rank has of them."""
    return {number: one for number, one in taken.items() if one is not None}


def _check(found: Any, kind: type, what: str) -> None:
    if not isinstance(found, kind):
        raise PluginError(f"{what}, not {found!r:.60}")


def moved(rollout: Rollout, prompt: Prompt, inputs: Any) -> Rollout:
    """The same answer, as one to another prompt than it was sampled from."""
    if rollout.elsewhere:
        return replace(rollout, prompt=prompt, off_policy=True)
    first = replace(rollout.turns[0], observed_ids=tuple(inputs.ids.tolist()))
    return replace(rollout, prompt=prompt, inputs=inputs, turns=(first, *rollout.turns[1:]), off_policy=True)


def with_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text at the end of its last user message."""
    messages = list(prompt.messages)
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    if last < 0:
        raise PluginError(f"task {prompt.task!r}: prompt {prompt.id!r} has no user message that a text could be added to")
    content = messages[last]["content"]
    added = content + text if isinstance(content, str) else [*content, {"type": "text", "text": text}]
    messages[last] = {**messages[last], "content": added}
    return replace(prompt, messages=messages)
