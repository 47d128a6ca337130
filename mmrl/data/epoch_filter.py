"""Prompts that later epochs leave out, by what their completions earned in the epoch before (Time-R1, arXiv 2503.13377)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import is_finite

if TYPE_CHECKING:
    from mmrl.config.sections import EpochFilterConfig
    from mmrl.data.prompts import PromptIndex

KEYS = ("epochs", "begun", "kept", "values")
"""The keys of a filter's state."""


class EpochFilter:
    """Which prompts of each task an epoch has. A prompt without a value, such as one whose step isn't over, is kept; so are all
    where none would be left, and where none of those that are left can be shown, the epoch has all prompts of the task."""

    def __init__(self, config: EpochFilterConfig, counts: Mapping[str, int]) -> None:
        """counts: label of a task -> number of its prompts."""
        self.config, self.counts = config, dict(counts)
        self.epochs, self.begun = dict.fromkeys(counts, 0), dict.fromkeys(counts, 0)
        """Label -> number of its epoch, from 0, and number of its prompts that were taken before the epoch."""
        self.kept = {label: list(range(count)) for label, count in counts.items()}
        """Label -> indices of the epoch's prompts, in the order of the task."""
        self.broken: set[PromptIndex] = set()
        """The prompts of `leave_out`: an epoch of nothing else would have no end."""
        self._values: dict[PromptIndex, float] = {}

    def place(self, label: str, taken: int) -> tuple[int, int, list[int]]:
        """(number of the epoch, how many of its prompts were taken, its prompts) for the next prompt. taken: number of the task's
        prompts that were taken so far."""
        if taken - self.begun[label] >= len(self.kept[label]):
            left = [i for i in self.kept[label] if self._stays((label, i))] or self.kept[label]
            can_be_shown = any((label, i) not in self.broken for i in left)
            self.kept[label] = left if can_be_shown else list(range(self.counts[label]))
            self.epochs[label], self.begun[label] = self.epochs[label] + 1, taken
            self._values = {place: value for place, value in self._values.items() if place[0] != label}
        return self.epochs[label], taken - self.begun[label], self.kept[label]

    def record(self, found: Sequence[tuple[PromptIndex, float]]) -> None:
        """Remember values of prompts for the end of their epoch."""
        self._values |= dict(found)

    def leave_out(self, place: PromptIndex) -> None:
        """A prompt that can't be shown never gets a value: it goes at the end of its epoch, as one that earned nothing."""
        self.broken.add(place)
        self._values[place] = self.config.above

    def _stays(self, place: PromptIndex) -> bool:
        value = self._values.get(place)
        return value is None or self.config.above < value <= self.config.up_to

    def state(self) -> dict[str, Any]:
        """The state for `restore`, as JSON data."""
        kept = {label: list(indices) for label, indices in self.kept.items()}
        values = [[*place, value] for place, value in self._values.items()]
        return dict(zip(KEYS, (dict(self.epochs), dict(self.begun), kept, values), strict=True))

    def restore(self, state: Any, taken: Mapping[str, int]) -> None:
        """Restore a `state`. taken: number of prompts of each task that were taken. Raises ValueError, and changes nothing, if it
        can't be a state of this filter."""
        if not isinstance(state, Mapping) or set(state) != set(KEYS):
            raise ValueError(f"an epoch filter's state has {', '.join(KEYS)}; found {state!r:.200}")
        for key in KEYS[:3]:
            if not isinstance(state[key], Mapping) or state[key].keys() != self.counts.keys():
                raise ValueError(f"epoch_filter.{key} must have the tasks {', '.join(self.counts)}; found {state[key]!r:.200}")
        for label, count in self.counts.items():
            epoch, begun, kept = (state[key][label] for key in KEYS[:3])
            if not _is_count(epoch) or not _is_count(begun) or not begun <= taken[label]:
                raise ValueError(f"epoch_filter of {label!r}: epoch {epoch!r:.60} can't begin at prompt {begun!r:.60}")
            if not isinstance(kept, list) or not kept or sorted({*kept}, key=str) != sorted(kept, key=str):
                raise ValueError(f"epoch_filter.kept of {label!r} must name prompts once; found {kept!r:.100}")
            if not all(_is_count(i) and i < count for i in kept) or taken[label] - begun > len(kept):
                raise ValueError(f"epoch_filter.kept of {label!r} must be of its {count} prompts, no fewer than were taken")
        values: dict[PromptIndex, float] = {}
        for row in state["values"] if isinstance(state["values"], list) else [None]:
            if not isinstance(row, list) or len(row) != 3 or row[0] not in self.counts or not is_finite(row[2]):
                raise ValueError(f"epoch_filter.values must be rows of a task, a prompt and a number; found {row!r:.100}")
            if not _is_count(row[1]) or row[1] >= self.counts[row[0]]:
                raise ValueError(f"epoch_filter.values names prompt {row[1]!r:.60} of {row[0]!r}, which isn't there")
            values[row[0], row[1]] = float(row[2])
        self.epochs, self.begun = dict(state["epochs"]), dict(state["begun"])
        self.kept, self._values = {label: list(found) for label, found in state["kept"].items()}, values


def mean_value(rewards: Sequence[float], parts: Sequence[Mapping[str, float]], verifier: str) -> float | None:
    """What decides about a group: the mean of its rewards, or of a verifier's values; None without any. parts: of each score that
    didn't fail."""
    found = [own[verifier] for own in parts if verifier in own] if verifier else rewards
    return statistics.fmean(found) if found else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
