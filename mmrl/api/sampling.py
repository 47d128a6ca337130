"""Rules of sampling: what happens to the groups of a step between the completions and the update.

A rule is `rule(groups, sample) -> groups`. The built-in ones are made from the keys of an `rl` stage; a plugin brings its own
with the hook `mmrl_sampling_rules`, and a run file names those in `[[stages.rules]]`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from mmrl.api.types import Prompt, Rollout, Score, add_part

if TYPE_CHECKING:
    import torch

    from mmrl.api.interfaces import Task


@dataclass(kw_only=True)
class Group:
    """A prompt, its rollouts and their scores, side by side."""

    place: tuple[str, int]
    """The prompt's task, by its label, and its number among the task's items."""
    number: int
    """The group's number among those that were sampled together."""
    prompt: Prompt
    inputs: Any
    """The prompt as the policy reads it (`mmrl.policies.vlm.processing.PromptInputs`, or what a task demonstrates)."""
    rollouts: list[Rollout]
    scores: list[Score] = field(default_factory=list)
    """One for each rollout; empty until the group is scored."""
    unaided: list[float] = field(default_factory=list)
    """The rewards before any rule that selects or helps: hints and gold completions don't count in how hard a prompt is."""
    others: list[Group] = field(default_factory=list)
    """Groups that a rule sampled besides for this one. They are not trained on; their failed scores are reported."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What rules keep with the group, under names of their own: plain data, which every learner process gets."""
    is_stub: bool = False
    """A stub: another learner process owns the group, and this one knows only the texts, lengths and scores."""

    @property
    def rewards(self) -> list[float]:
        """The scores that didn't fail, each with the reward of its world."""
        both = zip(self.rollouts, self.scores, strict=True)
        return [s.value + r.environment_reward for r, s in both if s.value is not None]

    @property
    def spread(self) -> float:
        """Standard deviation of the rewards, 0 without any."""
        return statistics.pstdev(self.rewards) if self.rewards else 0.0

    def successes(self, threshold: float) -> float:
        """Share of the rewards that reach the threshold, 0 to 1; 0 without any."""
        return statistics.fmean(r >= threshold for r in self.rewards) if self.rewards else 0.0

    def pay(self, part: str, amounts: Sequence[float]) -> None:
        """Add an amount to the score of each rollout, as a part of its reward with this name; failed scores stay failed."""
        self.scores = [add_part(s, part, amount) for s, amount in zip(self.scores, amounts, strict=True)]


class StepSampler(Protocol):
    """The sampling of one step, as a rule sees it.

    With several learner processes each samples and scores its own share of the groups. A rule of the phase `score` is called
    in each with the groups of that process, and must call `complete` equally often in all of them, also without groups. A rule
    of the phase `select` is called in each with the groups of all, and must decide alike everywhere.
    """

    @property
    def seed(self) -> int:
        """What the next completions are sampled with; another one each time."""
        ...

    @property
    def wanted(self) -> int:
        """How many groups the step trains on."""
        ...

    def task(self, label: str) -> Task: ...

    def max_tokens(self, label: str) -> int:
        """The limit of a task's completions, in tokens."""
        ...

    def complete(self, groups: Sequence[Group], prompts: Sequence[Prompt], share: float = 1.0) -> list[Group]:
        """In the phase `score`: completions of other prompts, one in the place of each group's, not yet scored. share: of the
        task's group size; at least one completion is sampled."""
        ...

    def score(self, groups: Sequence[Group], without: Collection[str] = ()) -> None:
        """In the phase `score`: let the verifiers score groups. without: ids of verifiers that are not asked."""
        ...

    def again(self, groups: Sequence[Group], prompt_of: Callable[[Group], Prompt]) -> list[Group]:
        """In the phase `select`: sample groups anew, from other prompts, and score them as all groups of the step are."""
        ...

    def more(self, groups: int) -> list[Group]:
        """In the phase `select`: groups of further prompts, as the rules before this one leave them: as many as are asked for,
        or more where rules oversample, or fewer where they leave some out."""
        ...

    def gold(self, groups: Sequence[Group], without: Collection[str] = ()) -> list[Group]:
        """In the phase `select`: the gold completion of each group's prompt, as a scored group of one rollout."""
        ...


class SamplingRule:
    """A rule of sampling. Subclass it and write `__call__`; options of the run file arrive as keyword arguments of `__init__`.

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
    """`score`: rewards groups right after they were sampled. `select`: chooses, helps or replaces groups that are scored."""
    per_rollout: ClassVar[bool] = False
    """A rule of the phase `score` that rewards each rollout by itself also rewards the greedy completion that some algorithms
    compare with."""
    groups_per_prompt: ClassVar[int] = 1
    """How many groups the rule makes of each prompt's."""
    oversample: float = 1.0
    """How many times the prompts the rule wants to be sampled."""
    leaves_out: bool = False
    """The rule may leave groups out; then the share of those is among the metrics."""

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        """The groups as they go on."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(groups, sample)")

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Metrics of a step, from all groups that were sampled in it; by default none."""
        return {}

    def credit(self, groups: Sequence[Group], advantages: torch.Tensor) -> None:
        """Change, in place, the advantages ([N] or [N, T]) of the N rollouts of the groups that are trained on: 0 for those that
        only count in their group's mean, NaN for those that stay out of the update."""

    def check(self, verifiers: Collection[str]) -> None:
        """Refuse options before a run starts, by a UserError of one line. verifiers: ids of those that reward the stage's
        completions."""
