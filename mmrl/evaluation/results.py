"""The results of an evaluation: a task's figures, computed from the scores of its answers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mmrl.api.specs import VerifierSpec
from mmrl.api.statistics import effective_count_of_shares, mean_interval, wilson
from mmrl.api.types import Prompt, Score
from mmrl.api.votes import majority
from mmrl.evaluation.paired_tests import EQUAL
from mmrl.run_folder.figures import has_scale, metric_name
from mmrl.run_folder.files import to_json_value

SUMS = ("return", "steps")
"""Outcomes of an episode that are no shares."""
SAID = 2000
"""Maximal characters of a completion in the rows of held-out prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """One prompt's answers and their scores."""

    id: str
    """The prompt's id within its task."""
    value: float | None
    """Mean of the values; None if no answer could be scored."""
    values: tuple[float | None, ...]
    """The score of each answer, in the order of sampling; None if the verifier failed."""
    answers: tuple[str, ...]
    """The answers that `Task.extract_answer` finds in the completions."""
    completion: str = ""
    """The first completion; of an episode in a simulator its outcome in words."""
    prompt: Prompt | None = None
    """The task's prompt, for prompts that the run folder records."""
    gold: str = ""
    """The gold completion of such a prompt, if its answer `has_places`."""
    set: int | None = None
    """The number of the prompt's set, in a task with `prompt_sets`."""
    outcome: Mapping[str, float] = field(default_factory=dict)
    """Name -> its mean over the prompt's episodes that have it; empty where nothing is played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One task's figure on one split."""

    task: str
    """The entry's label in the run file."""
    split: str
    metric: str
    """`accuracy` if a score is 0 or 1, as the verifier's spec has these bounds and isn't `graded`, or `success` if that score is
    about episodes; else the verifier's id."""
    value: float
    """Mean over prompts of the mean over a prompt's answers."""
    low: float
    high: float
    """Bounds of the 95% interval over prompts: Wilson's if each prompt's value is 0 or 1, otherwise `mean_interval` within the
    verifier's range. If all prompts have the same value, that interval would be empty; then it is Wilson's interval of the
    mean as a share of the range, which is wide enough for any values in the range, or unknown (infinite) if the range is no
    scale. Answers to one prompt are not independent and count as one; prompts of a set count as `effective_count_of_shares`
    says."""
    n: int
    """Number of prompts that were scored."""
    extra: dict[str, float] = field(default_factory=dict)
    """Figures of the task's `summarise`; `part/NAME` of the verifier's parts, and of the task's `summarise_parts`;
    `truncated_share` and `failed` of the answers; with several answers per prompt `pass@k` and `majority@k`, see
    `pass_at_k_metrics`; with `evaluate.blank_images`, `blank`: the value with blank images, if the task has any; likewise
    `shuffled`, `sparse_to_dense` and `steered`, with further figures."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Key of `extra` -> bounds of its 95% interval: `episode/NAME` of a task that acts, see `outcome_interval`; `steered` and
    `steered/gain` of steered answers."""
    samples: int = 1
    """Answers per prompt, or episodes per start."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    verifier: str = field(default="", repr=False)
    """Id of the verifier."""
    items: tuple[PromptResult, ...] = field(default=(), repr=False)
    """Every prompt of the evaluation, also those that could not be scored."""
    episodes: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """The first successes and failures of a task that acts, for `RunFolder.episodes`."""
    left_out: tuple[str, ...] = field(default=(), repr=False)
    """Broken prompts with their errors, without those of earlier evaluations."""

    def as_json(self) -> dict[str, Any]:
        """The figure as plain data, without its items and episodes; bounds that are unknown are None."""
        apart = ("verifier", "items", "episodes", "left_out")
        plain: dict[str, Any] = to_json_value({f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart})
        return plain

    def rows(self) -> list[dict[str, Any]]:
        """The items, as `RunFolder.items` writes them."""
        own = {"task": self.task, "split": self.split, "verifier": self.verifier}
        return [
            {**own, "id": i.id, "value": i.value, "values": list(i.values), "completion": i.completion[:SAID]}
            | ({"answer": i.prompt.answer, "messages": i.prompt.messages} if i.prompt else {})
            | ({"gold": i.gold} if i.gold else {})
            | ({"set": i.set} if i.set is not None else {})
            | ({"outcome": dict(i.outcome)} if i.outcome else {})
            for i in self.items
        ]


def pass_at_k_metrics(items: Sequence[PromptResult], spec: VerifierSpec) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` ... `pass@k` and `majority@k` over items with up to k answers each.

    An answer succeeds if it scores `high` of the verifier's spec; with a `graded` verifier, at least the middle of its range,
    which must be a scale: there is no pass@k of a sum of rewards. Answers that could not be scored are left out: pass@j is the
    mean over the items with at least j scored answers. majority@k is the mean score of the most common answer, the first among
    equals; completions without an answer don't vote, and episodes, of which the last turn is no answer, have none.
    """
    k = max(len(i.values) for i in items)
    bar = (spec.low + spec.high) / 2 if spec.graded else spec.high - 1e-6
    known = [[(a, v) for a, v in zip(i.answers, i.values, strict=True) if v is not None] for i in items]
    counts = [(len(votes), sum(v >= bar for _, v in votes)) for votes in known] if has_scale(spec) or not spec.graded else []
    found = {}
    for j in [*(2**e for e in range(k.bit_length()) if 2**e < k), k]:
        if rates := [pass_at(j, n, c) for n, c in counts if n >= j]:
            found[f"pass@{j}"] = statistics.fmean(rates)
    return found if spec.outcome else found | {f"majority@{k}": statistics.fmean(_majority_score(v) for v in known if v)}


def pass_at(k: int, n: int, c: int) -> float:
    """The probability that at least one of k answers is right, estimated without bias from n >= k answers of which c were right
    (Chen et al. 2021, Evaluating large language models trained on code, eq. 1)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_parts(scores: Sequence[Score]) -> dict[str, float]:
    """`part/NAME` -> mean of a verifier's part, over the answers that have it."""
    found: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.parts.items():
            found.setdefault(f"part/{name}", []).append(value)
    return {name: statistics.fmean(values) for name, values in sorted(found.items())}


def parts_by_prompt(prompts: Sequence[Prompt], scores: Sequence[Score], samples: int) -> dict[str, list[tuple[Prompt, float]]]:
    """Name of a verifier's part -> (prompt, mean over its answers that have the part), for `Task.summarise_parts`. scores: of
    `samples` answers to each prompt, in order."""
    found: dict[str, list[tuple[Prompt, float]]] = {}
    for number, prompt in enumerate(prompts):
        for name, value in mean_parts(scores[number * samples : (number + 1) * samples]).items():
            found.setdefault(name.removeprefix("part/"), []).append((prompt, value))
    return found


def _majority_score(votes: Sequence[tuple[str, float]]) -> float:
    """The score of the first vote with the majority answer. votes: (answer, score)."""
    winner = majority([answer for answer, _ in votes])
    return next((value for answer, value in votes if answer == winner), votes[0][1])


def mean_of(items: Sequence[PromptResult]) -> float:
    """Mean value of the items that could be scored."""
    return statistics.fmean(_values(items))


def _values(items: Sequence[PromptResult]) -> list[float]:
    return [i.value for i in items if i.value is not None]


def figure_of(label: str, split: str, spec: VerifierSpec, items: Sequence[PromptResult], extra: dict[str, float]) -> Evaluation:
    """The Evaluation of these items, which the verifier has scored: the mean of their values with its interval."""
    values, metric = _values(items), metric_name(spec)
    sets = known_sets(i.set for i in items if i.value is not None)
    low, high = confidence_interval(values, *range_of(spec, values), counted=metric != spec.id, sets=sets)
    return Evaluation(
        task=label,
        split=split,
        metric=metric,
        value=statistics.fmean(values),
        low=low,
        high=high,
        n=len(values),
        extra=extra,
        verifier=spec.id,
        items=tuple(items),
    )


def range_of(spec: VerifierSpec, values: Sequence[float]) -> tuple[float, float]:
    """The range of a verifier, and of its values where they leave it; infinite for one without a scale."""
    low, high = (spec.low, spec.high) if has_scale(spec) else (-math.inf, math.inf)
    return min(low, *values), max(high, *values)


def outcome_interval(
    name: str, values: Sequence[float], sets: Sequence[Hashable] | None, others: Sequence[float] = ()
) -> tuple[float, float]:
    """The bounds of an outcome's mean over prompts. It is a share, as a part of a simulator is, unless it is one of `SUMS` or
    leaves 0 to 1. sets: see `confidence_interval`. others: further values, with which these are compared."""
    share = name not in SUMS and all(0 <= value <= 1 for value in (*values, *others))
    return confidence_interval(values, *((0.0, 1.0) if share else (-math.inf, math.inf)), counted=share, sets=sets)


def known_sets(sets: Iterable[int | None]) -> list[int] | None:
    """The sets of some prompts; None if one has none, as in most tasks."""
    found = [*sets]
    return None if None in found else [one for one in found if one is not None]


def confidence_interval(
    values: Sequence[float], low: float = 0.0, high: float = 1.0, counted: bool = True, sets: Sequence[Hashable] | None = None
) -> tuple[float, float]:
    """The bounds of the mean, see `Evaluation.low`. low, high: range of the values; if it is infinite, so are the bounds of one
    value, and of equal ones. counted: if all values are 0 or 1, treat them as successes. sets: see `mean_interval`."""
    mean, alike = statistics.fmean(values), max(values) - min(values) <= EQUAL
    n = effective_count_of_shares([mean] * len(values) if alike else values, sets)
    if counted and all(v in (0.0, 1.0) for v in values):
        return wilson(sum(values) * n / len(values), n)
    if n > 1 and alike:
        if math.isinf(high - low):
            return low, high
        least, most = (low + (high - low) * b for b in wilson(n * (mean - low) / (high - low), n))
        return min(least, mean), max(most, mean)  # against rounding
    least, most = mean_interval(values, sets, low, high)
    return max(low, least), min(high, most)
