"""Sampling rules: they change the groups of a step between sampling and the update.

A rule is `rule(groups, sample) -> groups`. The built-in rules are made from the keys of an `rl` stage. A plugin brings others
with the hook `mmrl_sampling_rules`, and a run file names them in `[[stages.rules]]`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from mmrl.api.errors import is_finite
from mmrl.api.types import Prompt, Rollout, Score, add_part

if TYPE_CHECKING:
    import torch

    from mmrl.api.interfaces import Task
    from mmrl.api.simulators.types import Observation

MOST_TOKENS = 2**17
"""Tokens at most of a completion."""
COLDEST, HOTTEST = 1e-3, 1e3
"""The lowest temperature above 0, which is greedy, and the highest one."""


@dataclass(kw_only=True)
class Group:
    """A prompt, its rollouts and their scores, in the same order."""

    place: tuple[str, int]
    """(label of the prompt's task, index of the prompt in the task)."""
    number: int
    """Index of the group's prompt among those of the step, until the rules have chosen; then of the group among those that are
    trained on."""
    prompt: Prompt
    inputs: Any
    """The prompt as model inputs (`mmrl.policies.vlm.prompt_inputs.PromptInputs`), or the task's demonstration."""
    rollouts: list[Rollout]
    scores: list[Score] = field(default_factory=list)
    """One score per rollout; empty until the group is scored."""
    unaided: list[float] = field(default_factory=list)
    """The rewards before any rule of the phase `select`: the difficulty of a prompt ignores hints and gold completions."""
    others: list[Group] = field(default_factory=list)
    """Further groups that a rule sampled for this one. Their failed scores are reported; they are trained on only where the rule
    also returns them, see `is_added`."""
    is_added: bool = False
    """A rule made it of other groups of the step and sets this: it is trained on beside the groups that the step wants, and
    `oversample` and `dynamic_sampling` don't count it among them."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Data that rules store with the group under their own names: plain data, sent to every learner process."""
    is_stub: bool = False
    """Another learner process owns the group, and this one knows only its texts, lengths and scores."""
    earlier: int = 0
    """How often the same prompt comes before it among the groups that were sampled at once, by all learner processes."""

    @property
    def rewards(self) -> list[float]:
        """The values of the scores that didn't fail, each plus the reward of its environment."""
        both = zip(self.rollouts, self.scores, strict=True)
        return [s.value + r.environment_reward for r, s in both if s.value is not None]

    @property
    def spread(self) -> float:
        """Standard deviation of the rewards; 0 without rewards."""
        return statistics.pstdev(self.rewards) if self.rewards else 0.0

    def successes(self, threshold: float) -> float:
        """Share of the rewards that reach the threshold, 0 to 1; 0 without rewards."""
        return share_of(self.rewards, threshold)

    def pay(self, part: str, amounts: Sequence[float]) -> None:
        """Add an amount to the score of each rollout as a reward part with this name; failed scores stay failed."""
        self.scores = [add_part(s, part, amount) for s, amount in zip(self.scores, amounts, strict=True)]


def share_of(rewards: Sequence[float], threshold: float) -> float:
    """Share of rewards that reach a threshold, 0 to 1; 0 without rewards."""
    return statistics.fmean(r >= threshold for r in rewards) if rewards else 0.0


def portion(size: int, share: float) -> int:
    """A share of a group's completions, at least one."""
    return max(1, round(share * size))


Rounds = tuple[tuple[int, int], ...]
"""What is sampled at a time: prompts, and completions of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What a step samples and trains on, at most, as `mmrl plan` counts it: each rule adds what it does, see
    `SamplingRule.adds`."""

    wanted: int
    """Groups that the step trains on, without those that rules add to them."""
    groups: int
    """Groups that there are at this point."""
    size: int
    """Completions that are sampled of each prompt at first."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Task -> completions of each of its prompts."""
    sampled: Rounds = ()
    perhaps: Rounds = ()
    """What is sampled besides if groups fail or are left out."""
    joined: tuple[float, ...] = ()
    """Completions that each group gets besides, as shares of its first ones."""
    beside: tuple[float, ...] = ()
    """Completions that are sampled for each group and not trained on, as shares."""
    extra: int = 0
    """Further completions of each group that are trained on."""
    added: Rounds = ()
    """Groups that are trained on besides."""

    @property
    def trained(self) -> Rounds:
        """What is trained on: groups, and completions of each."""
        both = ((self.groups, self.size), *self.added)
        return tuple((n, size + sum(portion(size, share) for share in self.joined) + self.extra) for n, size in both if n)

    def rounds(self, groups: int, size: int) -> Rounds:
        """What is sampled for groups of these first completions, by all rules that score."""
        return ((groups, size), *((groups, portion(size, share)) for share in (*self.joined, *self.beside)))

    def completing(self, share: float, joins: bool = False) -> StepLoad:
        """With `StepSampler.complete` for each group. joins: whether these completions join the group."""
        joined, beside = ((share,), ()) if joins else ((), (share,))
        more = (self.groups, portion(self.size, share))
        return replace(self, sampled=(*self.sampled, more), joined=(*self.joined, *joined), beside=(*self.beside, *beside))

    def again(self, groups: int, task: str = "", added: int = 0) -> StepLoad:
        """With `StepSampler.again` for so many groups. task: whose prompts they then are; by default the same. added: how many of
        the new groups are trained on besides."""
        size = self.sizes.get(task, self.size)
        more = ((added, size),) if added else ()
        return replace(self, sampled=(*self.sampled, *self.rounds(groups, size)), added=(*self.added, *more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """An answer that went on behind words that a rule gave it, see `StepSampler.go_on`."""

    rollout: Rollout
    """The whole answer."""
    text: str
    """What was sampled behind the given words, without special tokens."""
    tokens: int
    """Number of tokens of that, the end token included."""


def is_temperature(value: object) -> bool:
    """Whether completions can be sampled at it: 0, or from `COLDEST` to `HOTTEST`."""
    return is_finite(value) and (value == 0 or COLDEST <= value <= HOTTEST)


class StepSampler(Protocol):
    """The sampling of one step, as a rule sees it.

    With several learner processes, each samples and scores its own share of the groups. A rule of the phase `score` is called
    in each process with that process's groups. It must call `complete` and `go_on` equally often in all processes, even without
    groups. A rule of the phase `select` is called in each process with all groups and must decide the same in all of them.
    """

    @property
    def seed(self) -> int:
        """The seed for the next completions; a different one each time."""
        ...

    @property
    def wanted(self) -> int:
        """The number of groups that the step trains on."""
        ...

    @property
    def progress(self) -> float:
        """How far the stage is, from above 0 in its first step to 1 in its last: the share of its steps up to this one."""
        ...

    def task(self, label: str) -> Task: ...

    def max_tokens(self, label: str) -> int:
        """The limit of a task's completions, in tokens."""
        ...

    def complete(self, groups: Sequence[Group], prompts: Sequence[Prompt], share: float = 1.0) -> list[Group]:
        """In the phase `score`: sample other prompts, one for each group; the new groups are not scored.

        share: of the task's group size; at least one completion is sampled."""
        ...

    def go_on(
        self, rollouts: Sequence[Rollout], begun: Sequence[str], temperature: float | None = None, most: int | None = None
    ) -> list[Continued]:
        """In the phase `score`: answers that begin with the given texts, and go on from there. They are not scored, and the
        rollouts stay as they are.

        Tokens with which a text begins as its rollout does are the rollout's, with their log-probabilities; the end token isn't
        among them. The rest of the text is given and not sampled: its tokens have no log-probabilities (NaN) of the sampler, and
        are trained on like all others. temperature: of what is sampled; that of the run by default. most: tokens that are
        sampled at most; by default as many as the begun text leaves of the task's limit. Raises
        UserError for episodes of several turns or in a simulator."""
        ...

    def score(self, groups: Sequence[Group], without: Collection[str] = ()) -> None:
        """In the phase `score`: score groups with the verifiers. without: ids of verifiers to leave out."""
        ...

    def again(self, groups: Sequence[Group], prompt_of: Callable[[Group], Prompt]) -> list[Group]:
        """In the phase `select`: sample groups again from other prompts, and score them like all groups of the step. In the order
        of `groups`, with the same numbers."""
        ...

    def more(self, groups: int) -> list[Group]:
        """In the phase `select`: groups of further prompts, after the rules before this one were applied. There may be more than
        `groups` if rules oversample, or fewer if they leave groups out."""
        ...

    def gold(self, groups: Sequence[Group], without: Collection[str] = ()) -> list[Group]:
        """In the phase `select`: the gold completion of each group's prompt, as a scored group of one rollout."""
        ...


class SamplingRule:
    """A sampling rule. Subclass it and define `__call__`; its options in the run file are the keyword arguments of `__init__`.

    Example::

        class BriefBonus(SamplingRule):
            '''Pay answers of less than 64 tokens a little more.'''

            def __init__(self, bonus: float = 0.1) -> None:
                self.bonus = bonus

            def __call__(self, groups, sample):
                for group in groups:
                    group.pay("brief", [self.bonus * (r.length < 64) for r in group.rollouts])
                return groups
    """

    phase: ClassVar[Literal["score", "select"]] = "score"
    """`score`: change rewards right after sampling. `select`: choose, help or replace scored groups."""
    per_rollout: ClassVar[bool] = False
    """True for a rule of the phase `score` that rewards each rollout independently: it is then also applied to the greedy
    completion that some algorithms use as a baseline."""
    rewards: ClassVar[bool] = False
    """The rule rewards every rollout, so that a task needs no verifier with a weight."""
    groups_per_prompt: ClassVar[int] = 1
    """How many groups the rule makes from the group of each prompt."""
    oversample: float = 1.0
    """The rule needs this many times the prompts of a step."""
    longest_continued: int = 0
    """Tokens at most of an answer that the rule lets go on with `StepSampler.go_on`, with those that it begins with; 0 if it lets
    none go on, or none beyond the task's limit. A run file with a lower limit gets a warning before the run, and `mmrl plan`
    counts all answers with as many."""
    leaves_out: bool = False
    """The rule may leave groups out; the share of those groups is then reported as a metric."""
    revision: int | None = None
    """Of a rule that learns what to pay for what a call of the policy led to: a number that changes whenever `pay_for` does. An
    `off-policy` stage then pays again for every call that it remembers. None of any other rule."""

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        """Return the groups that the step continues with."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(groups, sample)")

    def adds(self, load: StepLoad) -> StepLoad:
        """What a step samples and trains on with this rule, at most, for `mmrl plan`. By default a rule samples nothing but whole
        groups for its `groups_per_prompt`."""
        more = self.groups_per_prompt - 1
        sampled = (*load.sampled, *((load.groups, load.size),) * more)
        return replace(load, groups=load.groups * (1 + more), sampled=sampled)

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Metrics of a step, from all groups that were sampled in it; none by default. A stage names such a rule only once."""
        return {}

    def credit(self, groups: Sequence[Group], advantages: torch.Tensor) -> None:
        """Change in place the advantages ([N] or [N, T]) of the N rollouts of the groups that are trained on: 0 for rollouts that
        only count in their group's mean, NaN for rollouts that stay out of the update."""

    def pay_for(self, after: Observation) -> torch.Tensor:
        """float32 [n]: what a rule with a `revision` pays by now for calls that led to these observations."""
        raise NotImplementedError(f"{type(self).__name__} has a revision and must define pay_for(after)")

    def state(self) -> Mapping[str, torch.Tensor]:
        """What the rule has learned or remembers, for checkpoints; empty by default. Called after each step; the tensors are
        copied. Of several learner processes each goes on with its own, and one that is new with the first one's."""
        return {}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state` gave; not called for an empty state."""

    def check(self, verifiers: Collection[str]) -> None:
        """Raise UserError for options that can't work, before a run starts. verifiers: ids of the verifiers that reward the
        stage's completions."""

    def check_tasks(self, tasks: Mapping[str, Task]) -> None:
        """Raise UserError where the run lacks a task that the rule asks `StepSampler.task` for, before it starts. tasks: those of
        the run, by label."""
