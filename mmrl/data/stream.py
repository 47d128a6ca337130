"""The source of prompts: a weighted mixture of tasks, drawn epoch by epoch, and replay of prompts that failed before.

Tasks are identified by their labels: a run file may list the same task twice under two labels.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import PluginError, UserError, is_finite, plugin_errors
from mmrl.api.seeds import derive
from mmrl.api.tasks.option_checks import LazyPrompts
from mmrl.api.types import Prompt
from mmrl.data.curriculum import Curriculum
from mmrl.data.epoch_filter import EpochFilter
from mmrl.data.prompts import Indexable, PromptIndex, prompt_at

DECAY = 0.9
"""Decay per group of the running share of a task's groups with spread (`adapt_task_weights = "variance"`)."""
FLOOR = 0.1
"""Added to that share, so that a task whose groups have no spread is still drawn."""


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The outcome of one group of completions."""

    place: PromptIndex
    """The group's prompt."""
    rewards: tuple[float, ...]
    """Rewards of the completions whose score didn't fail."""
    spread: bool
    """Whether the rewards differ, so that the group teaches something."""
    failed: bool
    """Whether no completion succeeded."""
    successes: float = 0.0
    """Share of the completions that succeeded, 0 to 1."""
    value: float | None = None
    """What an epoch filter goes by; None without a score."""


class PromptStream:
    """Prompts of several tasks in the proportion of their weights.

    The next prompt is a function of the seed, the number of draws and the recorded outcomes, so a resumed run continues with the
    same prompts.
    """

    def __init__(
        self,
        prompts: Mapping[str, Indexable],
        weights: Mapping[str, float],
        seed: int,
        *,
        order: str = "shuffled",
        adapt: str = "none",
        replay: float = 0.0,
        replay_size: int = 256,
        templates: Mapping[str, str] = {},
        history: bool = False,
        curriculum: Curriculum | None = None,
        epoch_filter: EpochFilter | None = None,
    ) -> None:
        """prompts: label -> the task's prompts.

        weights: label -> weight, relative to the others; a label without one is never drawn.
        order: `shuffled`, anew each epoch, or `easy-first`, by `meta["difficulty"]`, which reads all prompts once.
        adapt: `none`, or `variance`: weights are multiplied by 0.1 + the running share of the task's groups with spread.
        replay: share of draws, 0 to 1, that take one of the last `replay_size` prompts that failed.
        templates: label -> template of its prompts, see `prompt_at`.
        history: keep the rewards that `reward_history` returns.
        curriculum: draws the prompts of each task, in place of `order`.
        epoch_filter: leaves prompts out of later epochs.

        Raises UserError if a prompt has no finite difficulty with `easy-first`.
        """
        if unknown := weights.keys() - prompts.keys():
            raise ValueError(f"{sorted(unknown)} have weights but no prompts")
        self.prompts = dict(prompts)
        self.weights = {label: weights[label] for label in prompts if weights.get(label)}
        self.seed, self.adapt, self.templates = seed, adapt, dict(templates)
        self.replay, self.replay_size, self.history = replay, replay_size, history
        self.curriculum, self.epoch_filter = curriculum, epoch_filter
        self.draws = 0
        self.taken = dict.fromkeys(self.weights, 0)
        """Label -> number of draws, without replayed prompts."""
        self.spread = dict.fromkeys(self.weights, 1.0)
        """Label -> running share of the task's groups with spread."""
        self.again = 0
        """Number of prompts replayed since the last `record_outcomes`."""
        self.failed: dict[PromptIndex, bool] = {}
        """Prompts that failed, the oldest first -> whether replayed since the last `record_outcomes`. A step replays each of them
        at most once."""
        self._past: dict[PromptIndex, tuple[int, int, float, float]] = {}
        self._orders: dict[str, tuple[int, list[int]]] = {}
        self._easy = {label: easy_first(prompts[label], label) for label in self.weights} if order == "easy-first" else {}

    def __len__(self) -> int:
        """The number of different prompts."""
        return sum(len(self.prompts[label]) for label in self.weights)

    def take(self, n: int) -> list[Prompt]:
        """The next n prompts."""
        return [self[self.draw()] for _ in range(n)]

    def draw(self) -> PromptIndex:
        """Draw the place of the next prompt."""
        count, self.draws = self.draws, self.draws + 1
        if waiting := [place for place, again in self.failed.items() if not again]:
            chance = random.Random(derive(self.seed, "replay", count))
            if chance.random() < self.replay:
                place = chance.choice(waiting)
                self.failed[place], self.again = True, self.again + 1
                return place
        mixture = self.mixture()
        return self._next(random.Random(derive(self.seed, "mixture", count)).choices(list(mixture), list(mixture.values()))[0])

    def __getitem__(self, place: PromptIndex) -> Prompt:
        """The prompt at a place. Raises UserError if the task can't open its media."""
        label, index = place
        return prompt_at(self.prompts[label], index, label, self.templates.get(label, ""))

    def mixture(self) -> dict[str, float]:
        """Label -> its current weight in draws without replay, relative to the others."""
        if self.adapt == "none":
            return self.weights
        return {label: weight * (FLOOR + self.spread[label]) for label, weight in self.weights.items()}

    def metrics(self) -> dict[str, float]:
        """Metrics of replay, adapted weights, a curriculum and an epoch filter. Call it before `record_outcomes`."""
        found = {"sampling/replayed": float(self.again)} if self.replay else {}
        if self.adapt != "none":
            mixture = self.mixture()
            found |= {f"task/{label}/share": weight / sum(mixture.values()) for label, weight in mixture.items()}
        if self.curriculum:
            found |= {f"task/{label}/curriculum": centre for label, centre in self.curriculum.centres.items()}
        if self.epoch_filter:
            found |= {f"task/{label}/prompts": float(len(kept)) for label, kept in self.epoch_filter.kept.items()}
        return found

    def record_outcomes(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Record the outcomes of a step's groups."""
        for outcome in outcomes:
            label, place = outcome.place[0], outcome.place
            self.spread[label] = DECAY * self.spread[label] + (1 - DECAY) * bool(outcome.spread)
            self.failed.pop(place, None)
            if outcome.failed and self.replay:
                self.failed[place] = False
                if len(self.failed) > self.replay_size:
                    del self.failed[next(iter(self.failed))]
            if self.history:
                self._past[place] = _merged(self._past.get(place, (0, 0, 0.0, 0.0)), outcome.rewards)
        self.failed, self.again = dict.fromkeys(self.failed, False), 0
        if self.curriculum:
            self.curriculum.record([(o.place, o.successes) for o in outcomes if o.rewards])
        if self.epoch_filter:
            self.epoch_filter.record([(o.place, o.value) for o in outcomes if o.value is not None])

    def reward_history(self, place: PromptIndex) -> tuple[float, float, float, float]:
        """(visits, number of rewards, their mean, sum of their squared deviations) of a prompt in earlier steps. Zeros unless the
        source keeps a history."""
        return self._past.get(place, (0, 0, 0.0, 0.0))

    def state(self) -> dict[str, Any]:
        """The state for `restore`, as JSON data."""
        own = {"curriculum": self.curriculum, "epoch_filter": self.epoch_filter}
        return {
            "draws": self.draws,
            "taken": dict(self.taken),
            "spread": dict(self.spread),
            "failed": [[*place, again] for place, again in self.failed.items()],
            "past": [[*place, *seen] for place, seen in self._past.items()],
        } | {name: part.state() for name, part in own.items() if part}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`. Raises ValueError, and changes nothing, if it can't be a state of this source."""
        expected = self.state()
        if not isinstance(state, Mapping) or state.keys() != expected.keys():
            raise ValueError(f"a source's state has {', '.join(expected)}; found {state!r:.200}")
        draws, taken, spread = state["draws"], state["taken"], state["spread"]
        for name, found in (("taken", taken), ("spread", spread)):
            if not isinstance(found, Mapping) or found.keys() != self.weights.keys():
                raise ValueError(f"{name} must have the tasks {', '.join(self.weights)}; found {found!r:.200}")
        if not all(_is_count(n) for n in [draws, *taken.values()]) or sum(taken.values()) > draws:
            raise ValueError(f"draws and taken must be counts, draws at least all taken; found {draws!r} and {taken!r:.200}")
        if not all(is_finite(s) and 0 <= s <= 1 for s in spread.values()):
            raise ValueError(f"spread must be shares from 0 to 1; found {spread!r:.200}")
        failed, past = (self._rows(state, name, width) for name, width in (("failed", 3), ("past", 6)))
        most = self.replay_size if self.replay else 0
        if len(failed) > most or not all(isinstance(again, bool) for (again,) in failed.values()):
            raise ValueError(f"failed must be at most {most} rows of a task, an item and a bool; found {state['failed']!r:.200}")
        if past and not self.history:
            raise ValueError(f"past has {len(past)} rows, but this source keeps no history")
        for place, (visits, n, mean, squares) in past.items():
            if not (_is_count(visits) and _is_count(n) and is_finite(mean) and is_finite(squares) and visits and squares >= 0):
                raise ValueError(f"past of {place} can't be {visits!r:.60}, {n!r:.60}, {mean!r:.60}, {squares!r:.60}")
        if self.curriculum:
            self.curriculum.restore(state["curriculum"])
        if self.epoch_filter:
            self.epoch_filter.restore(state["epoch_filter"], taken)
        self.draws, self.taken, self.spread = draws, {t: taken[t] for t in self.taken}, {t: spread[t] for t in self.spread}
        self.failed, self._past = {place: again for place, (again,) in failed.items()}, past

    def after(self, state: Mapping[str, Any], outcomes: Sequence[GroupOutcome]) -> dict[str, Any]:
        """An earlier `state` with these outcomes recorded. This source, which may be drawing prompts, stays as it is."""
        apart = copy.copy(self)
        apart.failed, apart._past = {}, {}
        if self.epoch_filter:
            apart.epoch_filter = EpochFilter(self.epoch_filter.config, self.epoch_filter.counts)
        apart.restore(state)
        apart.record_outcomes(outcomes)
        return apart.state()

    def _rows(self, state: Mapping[str, Any], name: str, width: int) -> dict[PromptIndex, Any]:
        """Rows of a state that begin with a place: place -> the rest of the row."""
        rows = state[name]
        if not isinstance(rows, Sequence) or isinstance(rows, str):
            raise ValueError(f"{name} must be a list; found {rows!r:.200}")
        found: dict[PromptIndex, Any] = {}
        for row in rows:
            if not isinstance(row, Sequence) or len(row) != width or not isinstance(row[0], str) or row[0] not in self.weights:
                raise ValueError(f"{name} must be rows of a task, an item and {width - 2} more; found {row!r:.200}")
            place, most = (row[0], row[1]), len(self.prompts[row[0]])
            if not _is_count(row[1]) or row[1] >= most or place in found:
                raise ValueError(f"{name} must name each item once, up to {most - 1} of {row[0]!r}; found {row!r:.200}")
            found[place] = tuple(row[2:])
        return found

    def _next(self, label: str) -> PromptIndex:
        count = len(self.prompts[label])
        epoch, index = divmod(self.taken[label], count)
        kept: Sequence[int] = range(count)
        if self.epoch_filter:
            epoch, index, kept = self.epoch_filter.place(label, self.taken[label])
        self.taken[label] += 1
        if self.curriculum:
            return label, self.curriculum.draw(label, random.Random(derive(self.seed, "curriculum", label, self.taken[label])))
        if self._orders.get(label, (-1, []))[0] != epoch:
            order = list(kept)
            if label in self._easy:
                left = set(kept)
                order = [i for i in self._easy[label] if i in left]
            else:
                random.Random(derive(self.seed, "order", label, epoch)).shuffle(order)
            self._orders[label] = (epoch, order)
        return label, self._orders[label][1][index]


def easy_first(items: Indexable, label: str) -> list[int]:
    """The items' indices sorted by `meta["difficulty"]`, the lowest first. Makes all prompts unless the task knows difficulties
    beforehand.

    A prompt that the task can't open comes last; drawing it raises the error. Raises UserError for a prompt without a finite
    difficulty.
    """
    found = []
    for i in range(len(items)):
        try:
            difficulty = _difficulty_at(items, i, label)
        except PluginError:
            raise
        except UserError:
            found.append(math.inf)
            continue
        if not is_finite(difficulty):
            raise UserError(
                f'order = "easy-first": item {i} of task {label!r} has meta["difficulty"] = {difficulty!r:.60}, not a number: '
                'let the task give a number to each prompt, or use order = "shuffled"'
            )
        found.append(float(difficulty))
    return sorted(range(len(found)), key=found.__getitem__)


def _difficulty_at(items: Indexable, index: int, label: str) -> Any:
    if isinstance(items, LazyPrompts) and items.difficulty:
        with plugin_errors(f"task {label!r}: difficulty of item {index} of its prompts"):
            return items.difficulty(items.items[index])
    return prompt_at(items, index, label).meta.get("difficulty")


def _merged(seen: tuple[int, int, float, float], rewards: Sequence[float]) -> tuple[int, int, float, float]:
    """(visits, count, mean, squared deviations) updated with the rewards of one more visit (Welford 1962)."""
    visits, n, mean, squares = seen
    for reward in rewards:
        n, before = n + 1, reward - mean
        mean += before / n
        squares += before * (reward - mean)
    return visits + 1, n, mean, squares


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
