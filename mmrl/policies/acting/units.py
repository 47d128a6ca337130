"""Scales of a policy's numbers: statistics of its training data, and the units of a simulator.

There are three scales: normalised (outputs of a policy trained on robot data), physical (metres, radians, a gripper convention)
and the simulator's [-1, 1]. `Statistics` convert between the first two, `Units` between the last two.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import ActionSpec
from mmrl.api.transfer import constant

Kind = Literal["quantiles", "min-max", "mean-std"]
ENDS: dict[str, tuple[str, str]] = {"quantiles": ("q01", "q99"), "min-max": ("min", "max"), "mean-std": ("mean", "std")}
"""Kind -> names of its two lists in files."""
GRIPPERS: dict[str, tuple[float, float]] = {
    "open-high": (1.0, 0.0),
    "close-high": (0.0, 1.0),
    "open-positive": (1.0, -1.0),
    "close-positive": (-1.0, 1.0),
}
"""A data set's convention -> (its number of an open gripper, its number of a closed one). `open-high` is OpenVLA's."""
ACTIONS, STATES = ("action", "actions"), ("proprio", "state", "observation.state")
"""Their names in files of OpenVLA, LeRobot and openpi."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalizer:
    """Statistics of D numbers.

    `quantiles` and `min-max`: -1 is `first`, 1 is `second` (OpenVLA: predict_action of its OpenVLAForActionPrediction).
    `mean-std`: 0 is the mean, 1 is a standard deviation above it.
    """

    kind: Kind
    first: tuple[float, ...]
    """Lower ends, or means."""
    second: tuple[float, ...]
    """Upper ends, or standard deviations."""
    mask: tuple[bool, ...]
    """False: this number was not normalised, such as OpenVLA's gripper."""

    def __len__(self) -> int:
        return len(self.first)

    def unnormalize(self, normalised: torch.Tensor) -> torch.Tensor:
        """float32 [..., D] -> float32 [..., D]."""
        first, second, mask = self._rows(normalised.device)
        n = normalised.double()
        x = n * second + first if self.kind == "mean-std" else (n + 1) / 2 * (second - first) + first
        return torch.where(mask, x, n).float()

    def normalize(self, physical: torch.Tensor) -> torch.Tensor:
        """The inverse of `unnormalize`."""
        first, second, mask = self._rows(physical.device)
        x = physical.double()
        n = (x - first) / second if self.kind == "mean-std" else (x - first) / (second - first) * 2 - 1
        return torch.where(mask, n, x).float()

    def _rows(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(first, second, mask), float64 and bool [D]. Numbers that are not normalised may have any ends."""
        first = tuple(number if used else 0.0 for number, used in zip(self.first, self.mask, strict=True))
        second = tuple(number if used else 1.0 for number, used in zip(self.second, self.mask, strict=True))
        ends = constant(first, torch.float64, device), constant(second, torch.float64, device)
        return (*ends, constant(self.mask, torch.bool, device))

    def plain(self) -> dict[str, Any]:
        """The same as in a file."""
        low, high = ENDS[self.kind]
        return {low: list(self.first), high: list(self.second), "mask": list(self.mask)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of the data set that a policy was trained on."""

    action: Normalizer
    state: Normalizer | None = None
    key: str = ""
    """Name of the data set, if a file has several."""

    def plain(self) -> dict[str, Any]:
        """Plain data that `load_statistics` reads; checkpoints contain it, so that they need no other file."""
        found: dict[str, Any] = {"action": self.action.plain()}
        if self.state:
            found["state"] = self.state.plain()
            if self.state.kind != self.action.kind:
                found["state_kind"] = self.state.kind
        return {"kind": self.action.kind, "key": self.key, **found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Units of a simulator's actions, and the gripper convention of a data set."""

    sizes: tuple[float, ...]
    """See `ActionSpec.units`."""
    offsets: tuple[float, ...] = ()
    """See `ActionSpec.offsets`."""
    gripper: int | None
    """Index of the gripper, whose size is not used; None if there is none."""
    convention: str = ""
    """A key of `GRIPPERS`; empty if there is no gripper."""

    def simulated(self, physical: torch.Tensor) -> torch.Tensor:
        """Physical actions -> the simulator's, float32 [..., A], clipped to [-1, 1]. A gripper is either opened or closed."""
        found = (physical - self._offsets(physical)) / constant(self.sizes, torch.float32, physical.device)
        if self.gripper is not None:
            opened, closed = GRIPPERS[self.convention]
            nearer_open = (physical[..., self.gripper] - (opened + closed) / 2) * (opened - closed) > 0
            found[..., self.gripper] = torch.where(nearer_open, -1.0, 1.0)
        return found.clamp(-1, 1)

    def physical(self, simulated: torch.Tensor) -> torch.Tensor:
        """The inverse of `simulated`, for actions within [-1, 1]."""
        found = simulated * constant(self.sizes, torch.float32, simulated.device) + self._offsets(simulated)
        if self.gripper is not None:
            opened, closed = GRIPPERS[self.convention]
            found[..., self.gripper] = torch.where(simulated[..., self.gripper] > 0, closed, opened)
        return found

    def _offsets(self, like: torch.Tensor) -> torch.Tensor | float:
        return constant(self.offsets, torch.float32, like.device) if self.offsets else 0.0


def load_statistics(given: str | Mapping[str, Any], key: str = "", kind: str = "") -> Statistics:
    """Statistics from a file, or from what `Statistics.plain` gave.

    given: a JSON file: OpenVLA's config.json or dataset_statistics.json, LeRobot's stats.json, openpi's norm_stats.json; or a
    folder with one of these. key: name of the data set. kind: see `Kind`; needed if a file has several and is not OpenVLA's.
    Raises UserError for missing or invalid statistics.
    """
    if not isinstance(given, str):
        return _kept(given, key, kind)
    where, data = _file(Path(given).expanduser())
    sets = data["norm_stats"] if isinstance(data.get("norm_stats"), Mapping) else data
    if any(name in sets for name in ACTIONS):
        if key:
            raise UserError(f"policy.options.statistics_key = {key!r}: {where} has the statistics of one data set: leave it out")
        chosen, published = sets, False
    else:
        known = [name for name, value in sets.items() if isinstance(value, Mapping) and any(a in value for a in ACTIONS)]
        key = _chosen(key, known, where)
        chosen, published = sets[key], True
    place = f"{where}: {key}" if key else str(where)
    action = _numbers(f"{place}: action", next(chosen[a] for a in ACTIONS if a in chosen), kind, published)
    state = next((chosen[s] for s in STATES if s in chosen), None)
    if state is not None and not _lists(state):
        state = None  # OpenVLA's own statistics have none for most data sets
    return Statistics(
        action=action,
        state=None if state is None else _numbers(f"{place}: state", _moving(state), action.kind, published),
        key=key,
    )


def check_range(action: Normalizer, gripper: int, convention: str) -> None:
    """Raise UserError if the data's range (0 to 1, or -1 to 1) is not the convention's. Means and deviations are not checked."""
    if action.kind == "mean-std":
        return
    low, high = action.first[gripper], action.second[gripper]
    lowest = min(GRIPPERS[convention])
    if (low < -0.5) != (lowest < 0):
        fitting = [name for name, ends in GRIPPERS.items() if (min(ends) < 0) == (low < -0.5)]
        raise UserError(
            f"policy.options.gripper = {convention!r}, and the data's gripper goes from {low:g} to {high:g}: "
            f"choose one of {', '.join(fitting)}"
        )


def simulator_units(where: str, action: ActionSpec, convention: str) -> Units:
    """The units of a simulator. where: its name in errors. Raises UserError if its spec lacks them."""
    if not action.units:
        raise UserError(
            f"{where} doesn't give its actions' units (ActionSpec.units), and the policy has statistics of actions in metres, "
            "radians and so on: set the simulator's option units if it has one, or take a policy without statistics"
        )
    if action.gripper is not None and not convention:
        raise UserError(
            f"{where} has a gripper, and policy.options.gripper doesn't say what the data set's numbers for it mean: "
            f"set it to one of {', '.join(GRIPPERS)} (OpenVLA: open-high)"
        )
    if action.gripper is None and convention:
        raise UserError(f"{where} has no gripper, and policy.options.gripper = {convention!r}: leave it out")
    return Units(sizes=tuple(action.units), offsets=tuple(action.offsets), gripper=action.gripper, convention=convention)


# -- files ------------------------------------------------------------------------------------------------------------------


def _file(path: Path) -> tuple[Path, Mapping[str, Any]]:
    """(the file that was read, its data). Fine-tuned OpenVLA checkpoints have their statistics in a separate file."""
    if path.is_dir():
        names = ("dataset_statistics.json", "norm_stats.json", "stats.json", "config.json")
        places = (path, path / "meta")  # LeRobot's are in meta
        found = next((place / name for place in places for name in names if (place / name).is_file()), None)
        if found is None:
            raise UserError(f"policy.options.statistics: {path} has none of {', '.join(names)}: name the file")
        path = found
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"policy.options.statistics: there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"policy.options.statistics: {path} can't be read as JSON: {error}") from error
    if not isinstance(data, Mapping):
        raise UserError(f"policy.options.statistics: {path} holds no table of statistics")
    return path, data


def _chosen(key: str, known: Sequence[str], where: Path) -> str:
    if not known:
        raise UserError(f"policy.options.statistics: {where} has no statistics of actions")
    if key and key not in known:
        raise UserError(f"policy.options.statistics_key = {key!r} is not in {where}: it has {_named(known)}")
    if not key and len(known) > 1:
        raise UserError(
            f"{where} has the statistics of {len(known)} data sets: set policy.options.statistics_key to one of {_named(known)}"
        )
    return key or known[0]


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 40 else ", ".join(names[:40]) + f" and {len(names) - 40} more"


def _lists(value: Any) -> bool:
    """Whether it has the lists of some kind, with at least one number."""
    return isinstance(value, Mapping) and any(all(value.get(end) for end in ends) for ends in ENDS.values())


def _numbers(where: str, value: Any, kind: str, published: bool) -> Normalizer:
    """published: OpenVLA's layout, which means quantiles unless `kind` says otherwise."""
    if not isinstance(value, Mapping):
        raise UserError(f"policy.options.statistics: {where} is no table of lists")
    there = [k for k, ends in ENDS.items() if all(end in value for end in ends)]
    if kind and kind not in ENDS:
        raise UserError(f"policy.options.statistics_kind = {kind!r} is unknown: choose one of {', '.join(ENDS)}")
    if kind not in there and (kind or not there):
        wanted = " and ".join(ENDS[kind]) if kind else "q01 and q99, min and max, or mean and std"
        raise UserError(f"policy.options.statistics: {where} has no {wanted}: it has {', '.join(value) or 'nothing'}")
    if not kind:
        if published and "quantiles" in there:
            kind = "quantiles"
        elif len(there) > 1:
            raise UserError(
                f"policy.options.statistics: {where} has {', '.join(there)}: set policy.options.statistics_kind to the one "
                "that the policy was trained with"
            )
        else:
            kind = there[0]
    low, high = ENDS[kind]
    first, second = (_list(f"{where}.{name}", value[name]) for name in (low, high))
    given = value.get("mask")
    if given is not None and (not isinstance(given, list | tuple) or not all(isinstance(m, bool) for m in given)):
        raise UserError(f"policy.options.statistics: {where}.mask = {given!r:.60} must be a list of true and false")
    mask = (True,) * len(first) if given is None else tuple(given)
    for name, numbers in ((high, second), ("mask", mask)):
        if len(numbers) != len(first):
            raise UserError(f"policy.options.statistics: {where}: {low} has {len(first)} numbers, and {name} {len(numbers)}")
    for i in range(len(first)):
        if mask[i] and (second[i] <= 0 if kind == "mean-std" else second[i] <= first[i]):
            what, width = ("std", second[i]) if kind == "mean-std" else (f"{high} - {low}", second[i] - first[i])
            raise UserError(
                f"policy.options.statistics: {where}: {what} of number {i} is {width:g} and must be above 0: "
                "set mask = false for a number that never changes"
            )
    return Normalizer(kind=kind, first=first, second=second, mask=mask)  # type: ignore[arg-type]


def _moving(state: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics of a state with a width of 1 or 2 for numbers that never changed, which are then normalised to 0 or -1. For
    actions such a width is an error: the number could not be learned."""
    found = dict(state)
    for low, high in ENDS.values():
        first, second = found.get(low), found.get(high)
        if not isinstance(first, list) or not isinstance(second, list) or len(first) != len(second):
            continue
        if high == "std":
            found[high] = [1.0 if s == 0 else s for s in second]
        else:
            found[high] = [f + 2.0 if f == s else s for f, s in zip(first, second, strict=True)]
    return found


def _list(where: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise UserError(f"policy.options.statistics: {where} must be a list of numbers")
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v) for v in value):
        odd = next(v for v in value if isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v))
        raise UserError(f"policy.options.statistics: {where} has {odd!r}, which is not a finite number")
    return tuple(float(v) for v in value)


def _kept(given: Mapping[str, Any], key: str, kind: str) -> Statistics:
    """Statistics from a checkpoint."""
    for option, asked, kept in (("statistics_key", key, given.get("key", "")), ("statistics_kind", kind, given.get("kind"))):
        if asked and asked != kept:
            raise UserError(f"policy.options.{option} = {asked!r}, and the policy's own statistics have {kept!r}: leave it out")
    if given.get("kind") not in get_args(Kind):
        raise UserError("policy.options.statistics is not a table that a policy saved: give a file")
    state = given.get("state")
    return Statistics(
        action=_numbers("action", given.get("action"), given["kind"], False),
        state=None if state is None else _numbers("state", state, given.get("state_kind", given["kind"]), False),
        key=given.get("key", ""),
    )
