"""What one evaluation says of a task: its figures, and how they come from the scores of its rollouts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mmrl.algorithms.labels import majority
from mmrl.api.specs import VerifierSpec
from mmrl.api.statistics import Z, wilson
from mmrl.api.types import Prompt, Score

HELD = ("episode/success", "episode/success_at_end")
"""What an episode in a simulator either reached or didn't."""


SAID = 2000
"""Characters of an answer that are kept of each held-out prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """One prompt's answers and what they scored."""

    id: str
    """The prompt's id within its task."""
    value: float | None
    """Mean of the values; None when none of the answers could be scored."""
    values: tuple[float | None, ...]
    """The score of each answer, in the order in which they were sampled; None where the verifier failed."""
    answers: tuple[str, ...]
    """What `Task.extract_answer` finds in each."""
    completion: str = ""
    """The first answer as it was written."""
    prompt: Prompt | None = None
    """Where it is kept for people: as the task posed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One task's figure on one split."""

    task: str
    """The entry's label in the run file."""
    split: str
    metric: str
    """`accuracy` when every score is 0 or 1 and the verifier's spec doesn't say `graded`, else the verifier's id."""
    value: float
    """Mean over prompts of the mean over a prompt's answers."""
    low: float
    high: float
    """Bounds of the 95% interval over prompts: Wilson's where each prompt's value is 0 or 1, otherwise the normal
    approximation of the mean's, within the verifier's range. Where all prompts have the same value, that would be no interval at
    all: then it is Wilson's of the share of the range that the mean is, which no values within that range can spread beyond.
    Answers to one prompt are not independent and count as one."""
    n: int
    """Prompts that were scored."""
    extra: dict[str, float] = field(default_factory=dict)
    """What the task's `summarise` adds, `part/NAME` of the parts that the verifier names, `truncated_share` and `failed` of the
    answers; with several answers a prompt `pass@k` and
    `majority@k`, see `pass_at_k_metrics`; with `evaluate.blank_images`, `blank`: the value on blanked pictures, where the task
    has any; likewise `shuffled`, `sparse_to_dense` and `steered`, with figures of their own."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of a task that acts: `episode/success` (at any time) and `episode/success_at_end` of `extra` -> such bounds; of steered
    answers, `steered` and `steered/gain`."""
    samples: int = 1
    """Answers to each prompt, or episodes from each start."""
    temperature: float = 0.0
    """At which they were sampled; 0 is greedy."""
    verifier: str = field(default="", repr=False)
    """The id of the verifier that scored."""
    items: tuple[PromptResult, ...] = field(default=(), repr=False)
    """Every prompt that was asked, also those that could not be scored."""
    episodes: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """Of a task that acts the first successes and failures, for `RunFolder.episodes`."""
    left_out: tuple[str, ...] = field(default=(), repr=False)
    """The prompts that could not be used, each with why; those that earlier evaluations had told are not among them."""

    def as_json(self) -> dict[str, Any]:
        """The figure, without its items and episodes."""
        apart = ("verifier", "items", "episodes", "left_out")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}

    def rows(self) -> list[dict[str, Any]]:
        """The items, as `RunFolder.items` writes them."""
        own = {"task": self.task, "split": self.split, "verifier": self.verifier}
        return [
            {**own, "id": i.id, "value": i.value, "values": list(i.values), "completion": i.completion[:SAID]}
            | ({"answer": i.prompt.answer, "messages": i.prompt.messages} if i.prompt else {})
            for i in self.items
        ]


def pass_at_k_metrics(items: Sequence[PromptResult], spec: VerifierSpec) -> dict[str, float]:
    """`pass@1`, `pass@2`, `pass@4` ... `pass@k` and `majority@k` over items with up to k answers each.

    An answer succeeds when it scores `high` of the verifier's spec; where that is `graded`, at least the middle of its range.
    Answers that could not be scored are left out: pass@j is the mean over the items with at least j scored answers. majority@k is
    the mean score of the answer that most completions give, of equals the first; completions in which nothing is read don't vote.
    """
    k = max(len(i.values) for i in items)
    bar = (spec.low + spec.high) / 2 if spec.graded else spec.high - 1e-6
    known = [[(a, v) for a, v in zip(i.answers, i.values, strict=True) if v is not None] for i in items]
    counts = [(len(votes), sum(v >= bar for _, v in votes)) for votes in known]
    found = {}
    for j in [*(2**e for e in range(k.bit_length()) if 2**e < k), k]:
        if rates := [pass_at(j, n, c) for n, c in counts if n >= j]:
            found[f"pass@{j}"] = statistics.fmean(rates)
    return found | {f"majority@{k}": statistics.fmean(_majority_score(votes) for votes in known if votes)}


def pass_at(k: int, n: int, c: int) -> float:
    """The chance that of k answers at least one is right, estimated without bias from n >= k answers of which c were (Chen et al.
    2021, Evaluating large language models trained on code, eq. 1)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_parts(scores: Sequence[Score]) -> dict[str, float]:
    """`part/NAME` -> the mean of a part that the verifier named, over the answers that have it."""
    found: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.parts.items():
            found.setdefault(f"part/{name}", []).append(value)
    return {name: statistics.fmean(values) for name, values in sorted(found.items())}


def _majority_score(votes: Sequence[tuple[str, float]]) -> float:
    """(answer, score) pairs -> the score of the first that gives the majority's answer."""
    winner = majority([answer for answer, _ in votes])
    return next((value for answer, value in votes if answer == winner), votes[0][1])


def mean_of(items: Sequence[PromptResult]) -> float:
    """Mean of the items that could be scored."""
    return statistics.fmean(_values(items))


def _values(items: Sequence[PromptResult]) -> list[float]:
    return [i.value for i in items if i.value is not None]


def figure_of(
    label: str, split: str, spec: VerifierSpec, metric: str, items: Sequence[PromptResult], extra: dict[str, float]
) -> Evaluation:
    """The mean of the items' values with its interval."""
    values = _values(items)
    accuracy = not spec.graded and all(v in (0.0, 1.0, None) for i in items for v in i.values)
    low, high = confidence_interval(values, spec.low, spec.high, counted=accuracy)
    return Evaluation(
        task=label,
        split=split,
        metric="accuracy" if accuracy else metric,
        value=statistics.fmean(values),
        low=low,
        high=high,
        n=len(values),
        extra=extra,
        verifier=metric,
        items=tuple(items),
    )


def confidence_interval(
    values: Sequence[float], low: float = 0.0, high: float = 1.0, counted: bool = True
) -> tuple[float, float]:
    """The bounds of the mean that `Evaluation.low` describes. low, high: of the values. counted: where all are 0 or 1, each says
    whether something held."""
    mean, n = statistics.fmean(values), len(values)
    if counted and all(v in (0.0, 1.0) for v in values):
        return wilson(sum(values), n)
    if n > 1 and statistics.stdev(values) <= 1e-9 * (high - low):
        least, most = (low + (high - low) * b for b in wilson(n * (mean - low) / (high - low), n))
        return min(least, mean), max(most, mean)  # rounding
    half = Z * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf  # one value says nothing of their spread
    return max(low, mean - half), min(high, mean + half)
