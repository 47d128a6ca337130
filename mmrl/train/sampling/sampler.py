"""Sample the groups that a step trains on: draw prompts, sample completions, and apply the stage's rules in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError, UserError
from mmrl.api.interfaces import Task
from mmrl.api.sampling import COLDEST, HOTTEST, MOST_TOKENS, Continued, Group, SamplingRule, is_temperature, portion
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Rollout
from mmrl.compute import ranks
from mmrl.config.sections import HgDaggerStage, OffPolicyStage, PluginStage, PreferenceStage, RecapStage, RlStage
from mmrl.data.prompts import gold_completion
from mmrl.judge import build_cases
from mmrl.rollout.collector import Collector
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.metrics import StepTimer, collected_figures
from mmrl.train.position import StepIndex
from mmrl.train.sampling.groups import Sampled, group_stub
from mmrl.train.sampling.guard import applied, counted
from mmrl.train.sampling.numbers import StepNumbers, group_sizes
from mmrl.train.sampling.reward_weights import RewardWeights
from mmrl.train.sampling.rule_states import RuleState, states_of
from mmrl.train.sampling.smoke_gold import SmokeGold
from mmrl.train.sampling.source import EncodedPrompt, Prompts, PromptSource, earlier_of

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

BEHIND = 2**31
"""The groups that rules add to those of the prompts are numbered from here."""


class Sampler:
    """Samples and scores for the steps of an `rl` stage. `mmrl.train.sampling.async_sampling.AsyncSampler` wraps it to sample
    ahead."""

    def __init__(
        self,
        run: StageContext,
        stage: RlStage | PluginStage | PreferenceStage | OffPolicyStage | RecapStage | HgDaggerStage,
        source: PromptSource,
        rules: Sequence[SamplingRule],
        states: bool = False,
    ) -> None:
        """source: gives prompts to rules that need more of them. rules: in the order in which they are applied. states: other
        ranks need the states of this rank's rollouts."""
        self.run, self.stage, self.source, self.rules = run, stage, source, rules
        self.stub = partial(group_stub, states=states)
        """Makes what other ranks get in place of a group."""
        self.add_gold: SmokeGold | None = None
        """Puts gold completions among those of a smoke run."""
        self.weights = RewardWeights(run, stage)
        self.scoring = [rule for rule in rules if rule.phase == "score"]
        self.selecting = [rule for rule in rules if rule.phase == "select"]
        self.numbers = StepNumbers(stage.prompts_per_step, rules)
        self.prompts = self.numbers.prompts
        """Number of prompts with which a step begins."""

    def __call__(self, prompts: Prompts, at: StepIndex) -> Sampled:
        """Sample the groups of a step with the current weights."""
        self.refresh()
        return self.sample(prompts, at)

    def refresh(self) -> None:
        """Give the current weights to the sampling policy and the outcomes of earlier groups to the source of prompts."""
        self.source.settle()
        self.weights.refresh()
        self.run.collector.wake_up()

    def renew(self, at: StepIndex) -> None:
        """Give the current weights to the sampling policy, even in the middle of its answers."""
        self.run.collector.renew(at.version)

    def sample(self, prompts: Prompts, at: StepIndex) -> Sampled:
        """Sample the groups of a step with the weights of the last `refresh`, and from the next `renew` on with those."""
        step = SamplingStep(self, at, StepTimer())
        kept = step.passed(step.fresh(prompts), self.selecting)
        found = Sampled(groups=kept or step.sampled, sampled=step.sampled, seconds=step.clock.seconds, idle=not kept)
        found.weights = step.weights
        for number, group in enumerate(found.groups):
            group.number, group.rollouts = number, [replace(r, group=number) for r in group.rollouts]
        if any(rule.leaves_out for rule in self.rules):
            left = 1 - sum(not g.is_added for g in kept) / len(step.sampled)
            found.counts |= {"sampling/groups": float(len(step.sampled)), "sampling/filtered_share": left}
        for rule in self.rules:
            found.counts |= counted(rule, found.everything, known=found.counts)
        found.counts |= self.weights.metrics() | self.source.metrics() | collected_figures(self.run.collector)
        return found

    def greedy(self, groups: Sequence[Group], at: StepIndex, clock: StepTimer) -> list[Group]:
        """The greedy completion of each group's prompt, scored like the sampled ones."""
        self.run.collector.wake_up()
        own = _own_groups(groups)
        return ranks.gather_sharded(lambda: SamplingStep(self, at, clock).greedy(own), self.stub)

    def again(self, groups: Sequence[Group], at: StepIndex, clock: StepTimer, temperature: float) -> list[Group]:
        """Further groups of these prompts' completions at another temperature, scored rollout by rollout."""
        self.run.collector.wake_up()
        own = _own_groups(groups)
        step = SamplingStep(self, at, clock)
        return ranks.gather_sharded(lambda: step.answered(own, temperature, step.sizes()), self.stub)

    def sleep(self) -> None:
        """Free the sampling policy's memory for the learner."""
        self.run.collector.sleep()

    def state(self) -> dict[str, Any]:
        """The state with which the source of prompts continues after this step."""
        self.source.settle()
        return self.source.state()

    def rule_states(self) -> list[RuleState]:
        """The states of the rules after this step."""
        return states_of(self.rules)

    def close(self) -> None:
        """Do nothing: there is nothing to stop between steps."""


class SamplingStep:
    """The sampling of one step. Implements `mmrl.api.sampling.StepSampler` for rules."""

    def __init__(self, sampler: Sampler, at: StepIndex, clock: StepTimer) -> None:
        self.sampler, self.run, self.at, self.clock = sampler, sampler.run, at, clock
        self.weights = sampler.weights.of(at)
        self.calls = 0
        """Number of times that the step has sampled."""
        self.begun = 0
        """Number of prompts that the step has sampled, without those of rules."""
        self.sampled: list[Group] = []
        """The groups of all prompts sampled so far."""
        self.before: Sequence[SamplingRule] = ()
        """The selecting rules before the one being applied."""
        self.selecting = False
        """Whether selecting rules are being applied, and not those that score."""

    @property
    def seed(self) -> int:
        seed = derive(self.run.config.seed, "sample", self.at.step)
        return derive(seed, self.calls) if self.calls else seed

    @property
    def wanted(self) -> int:
        return self.sampler.numbers.wanted

    @property
    def progress(self) -> float:
        return (self.at.stage_step + 1) / self.sampler.stage.steps

    def task(self, label: str) -> Task:
        return self.run.tasks[label]

    def max_tokens(self, label: str) -> int:
        return self.run.sampling(label, 0).max_tokens

    # -- for rules that score ---------------------------------------------------------------------------------------------

    def complete(self, groups: Sequence[Group], prompts: Sequence[Prompt], share: float = 1.0) -> list[Group]:
        return self._complete({g.number: self._instead(g, p, g.earlier) for g, p in zip(groups, prompts, strict=True)}, share)

    def go_on(
        self, rollouts: Sequence[Rollout], begun: Sequence[str], temperature: float | None = None, most: int | None = None
    ) -> list[Continued]:
        if self.selecting:
            raise PluginError('sample.go_on() is for the phase "score": write `phase = "score"` in the rule\'s class')
        _check_going_on(rollouts, begun, temperature, most)
        answers = [_single_answer(rollout) for rollout in rollouts]
        endings = self.sampler.add_gold.endings(answers) if self.sampler.add_gold else [None] * len(answers)
        alike: dict[SamplingParams, list[int]] = {}
        numbers: list[int] = []
        seed, seen = self.seed, Counter[int]()
        self.calls += 1
        for n, answer in enumerate(answers):
            alike.setdefault(self.run.sampling(answer.prompt.task, seed, temperature), []).append(n)
            numbers.append(derive(answer.group, seen[answer.group]))
            seen[answer.group] += 1
        found: dict[int, Continued] = {}
        with self.clock("generate"):
            for how, chosen in alike.items():
                continued = self.run.collector.go_on(
                    [answers[n] for n in chosen],
                    [begun[n] for n in chosen],
                    how,
                    version=self.at.version,
                    numbers=[numbers[n] for n in chosen],
                    most=most,
                    endings=[endings[n] for n in chosen],
                )
                found |= zip(chosen, continued, strict=True)
        return [found[n] for n in range(len(answers))]

    def score(self, groups: Sequence[Group], without: Collection[str] = ()) -> None:
        rollouts = [r for g in groups for r in g.rollouts]
        weights = [{v: 0.0 if v in without else w for v, w in self.weights[r.prompt.task].items()} for r in rollouts]
        with self.clock("judge"):
            scores = iter(self.run.judge.score(build_cases(rollouts), weights))
        for group in groups:
            group.scores = [next(scores) for _ in group.rollouts]

    # -- for rules that select --------------------------------------------------------------------------------------------

    def again(self, groups: Sequence[Group], prompt_of: Callable[[Group], Prompt]) -> list[Group]:
        self._check_selecting("again")

        def read() -> dict[int, EncodedPrompt | None]:
            both = zip(groups, earlier_of(g.place for g in groups), strict=True)
            return {g.number: None if g.is_stub else self._instead(g, prompt_of(g), n) for g, n in both}

        order = {g.number: place for place, g in enumerate(groups)}
        return sorted(self._scored(ranks.run_on_all(read)), key=lambda g: order[g.number])

    def more(self, groups: int) -> list[Group]:
        self._check_selecting("more")
        before = self.before
        found = self.passed(self.fresh(self.sampler.source.upcoming(self.sampler.numbers.prompts_for(groups))), before)
        self.before = before
        return found

    def gold(self, groups: Sequence[Group], without: Collection[str] = ()) -> list[Group]:
        self._check_selecting("gold")
        own = {n: g for n, g in enumerate(groups) if not g.is_stub}
        return ranks.gather_sharded(partial(self._gold, own, without), self.sampler.stub)

    def _check_selecting(self, name: str) -> None:
        if not self.selecting:
            raise PluginError(f'sample.{name}() is for the phase "select": write `phase = "select"` in the rule\'s class')

    def _gold(self, groups: Mapping[int, Group], without: Collection[str]) -> dict[int, Group]:
        prompts, inputs = [g.prompt for g in groups.values()], [g.inputs for g in groups.values()]
        gold = [gold_completion(self.task(p.task), p) for p in prompts]
        shown = self.run.collector.demonstrate(prompts, inputs, gold)
        found = [_beside(g, [r]) for g, r in zip(groups.values(), shown, strict=True)]
        self.score(found, without)
        return dict(zip(groups, found, strict=True))

    # -- for the sampler --------------------------------------------------------------------------------------------------

    def fresh(self, prompts: Prompts) -> list[Group]:
        """The scored groups of the next prompts, of all ranks."""
        read = prompts.read(self.at, self.clock)
        groups = self._scored(dict(enumerate(read, self.begun)))
        self.sampled += groups
        self.begun += len(read)
        return groups

    def passed(self, groups: list[Group], rules: Sequence[SamplingRule]) -> list[Group]:
        """The groups that remain after these selecting rules."""
        selecting, self.selecting = self.selecting, True
        for number, rule in enumerate(rules):
            self.before = rules[:number]
            groups = applied(rule, groups, self)
        self.selecting = selecting
        return groups

    def greedy(self, groups: Mapping[int, Group]) -> dict[int, Group]:
        """Scored groups of the greedy completions of this rank's groups."""
        return self.answered(groups, 0.0, dict.fromkeys(self.run.tasks, 1))

    def answered(self, groups: Mapping[int, Group], temperature: float, size: Mapping[str, int]) -> dict[int, Group]:
        """Scored groups of further completions of this rank's groups. size: by task."""
        taken = {n: EncodedPrompt(g.place, g.prompt, g.inputs, g.earlier) for n, g in groups.items()}
        seed = derive(self.seed, "temperature")
        how = {label: replace(self.run.sampling(label, seed), temperature=temperature) for label in self.run.tasks}
        with self.clock("generate"):
            found = collect_groups(self.run.collector, taken, size, how, self.at.version)
        tried = [_beside(g, rollouts) for g, rollouts in zip(groups.values(), found, strict=True)]
        for rule in self.sampler.scoring:
            tried = applied(rule, tried, self) if rule.per_rollout else tried
        return dict(zip(groups, tried, strict=True))

    def _scored(self, taken: Mapping[int, EncodedPrompt | None]) -> list[Group]:
        """Groups of scored completions of these prompts, from all ranks, in the order of their numbers. taken: None if another
        rank samples the prompt."""

        def work() -> dict[int, Group]:
            groups = self._complete(own_shard(taken))
            selecting, self.selecting = self.selecting, False
            for rule in self.sampler.scoring:
                groups = applied(rule, groups, self)
            self.selecting = selecting
            numbered: dict[int, Group] = {}
            for group in groups:
                group.unaided = group.rewards
                numbered[group.number + BEHIND * (group.number in numbered)] = group
            return numbered

        return ranks.gather_sharded(work, self.sampler.stub)

    def _complete(self, taken: Mapping[int, EncodedPrompt], share: float = 1.0) -> list[Group]:
        """Groups of completions of this rank's prompts, not yet scored."""
        labels = self.run.tasks
        size = {label: portion(n, share) for label, n in self.sizes().items()}
        how = {label: self.run.sampling(label, self.seed) for label in labels}
        self.calls += 1
        with self.clock("generate"):
            found = collect_groups(self.run.collector, taken, size, how, self.at.version)
        groups = [
            Group(number=n, place=one.place, prompt=one.prompt, inputs=one.inputs, rollouts=rollouts, earlier=one.earlier)
            for (n, one), rollouts in zip(taken.items(), found, strict=True)
        ]
        if self.sampler.add_gold:
            self.sampler.add_gold(groups, self.at.stage_step, self.calls == 1)
        return groups

    def sizes(self) -> dict[str, int]:
        """Task -> completions per prompt."""
        return group_sizes(self.run.setup.entries, self.sampler.stage.group_size)

    def _instead(self, group: Group, prompt: Prompt, earlier: int) -> EncodedPrompt:
        return EncodedPrompt(group.place, prompt, self.run.collector.encode([prompt])[0], earlier)


def _check_going_on(rollouts: Sequence[Rollout], begun: Sequence[str], temperature: float | None, most: int | None) -> None:
    """Raise PluginError for what `go_on` can't be asked for."""
    counted = type(most) is int and 1 <= most <= MOST_TOKENS
    if len(rollouts) != len(begun) or not (most is None or counted):
        raise PluginError(
            f"sample.go_on(): {len(rollouts)} answers need as many texts, not {len(begun)}; most: from 1 to {MOST_TOKENS}, not "
            f"{most!r:.60}"
        )
    for text in begun:
        if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise PluginError(f"sample.go_on(): an answer can't begin with {text!r:.60}: give a str without lone surrogates")
    if temperature is not None and not is_temperature(temperature):
        raise PluginError(f"sample.go_on(): temperature = {temperature!r:.60} must be 0, or from {COLDEST:g} to {HOTTEST:g}")


def _single_answer(rollout: Rollout) -> Conversation:
    """The rollout, if it is one answer in words. Raises UserError for others."""
    task = rollout.prompt.task
    if not isinstance(rollout, Conversation):
        raise UserError(f"task {task!r} acts, and only answers in words go on from a begun one: leave the task or the rule out")
    if len(rollout.turns) != 1 or rollout.media_rows:
        raise UserError(f"task {task!r} has episodes of several turns, which don't go on from a begun answer: leave it out")
    return rollout


def _beside(group: Group, rollouts: list[Rollout]) -> Group:
    """A group of the same prompt with other rollouts."""
    return Group(number=group.number, place=group.place, prompt=group.prompt, inputs=group.inputs, rollouts=rollouts)


def collect_groups(
    collector: Collector,
    taken: Mapping[int, EncodedPrompt],
    size: Mapping[str, int],
    sampling: Mapping[str, SamplingParams],
    version: int = 0,
) -> list[list[Rollout]]:
    """The rollouts of each prompt; `Rollout.group` is the prompt's number. size, sampling: by task; prompts with equal ones are
    sampled together."""
    alike: dict[tuple[int, SamplingParams], list[int]] = {}
    for i, one in taken.items():
        alike.setdefault((size[one.prompt.task], sampling[one.prompt.task]), []).append(i)
    found: dict[int, list[Rollout]] = {}
    for (n, how), chosen in alike.items():
        prompts, inputs = [taken[i].prompt for i in chosen], [taken[i].inputs for i in chosen]
        if any(earlier := tuple(taken[i].earlier for i in chosen)):
            how = replace(how, earlier=earlier)
        rollouts = collector.collect(prompts, inputs, n, how, version=version, numbers=chosen)
        for k, i in enumerate(chosen):
            found[i] = [replace(r, group=i) for r in rollouts[k * n : (k + 1) * n]]
    return [found[i] for i in taken]


def _own_groups(groups: Sequence[Group]) -> dict[int, Group]:
    """The groups of this rank by their indices, to be sampled at once."""
    both = zip(groups, earlier_of(g.place for g in groups), strict=True)
    return {n: replace(g, earlier=earlier) for n, (g, earlier) in enumerate(both) if not g.is_stub}


def own_shard(taken: Mapping[int, EncodedPrompt | None]) -> dict[int, EncodedPrompt]:
    """The prompts of this rank."""
    return {number: prompt for number, prompt in taken.items() if prompt is not None}
