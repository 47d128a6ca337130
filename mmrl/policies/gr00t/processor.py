"""The files beside the weights of a GR00T, which say how pictures, text, states and actions are processed.

processor_config.json has settings, and for each embodiment the groups of its numbers; statistics.json has the ends between which
they are normalised; embodiment_id.json has the embodiments' numbers (`Gr00tN1d7Processor.save_pretrained` of Isaac-GR00T,
gr00t/model/gr00t_n1d7/processing_gr00t_n1d7.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.policies.acting.units import Statistics
from mmrl.policies.gr00t import lerobot_layout
from mmrl.policies.gr00t.config import N1_7, HeadConfig, Version
from mmrl.policies.gr00t.embodiment import POSE, Embodiment, Group

PROCESSOR, STATISTICS, NUMBERS = "processor_config.json", "statistics.json", "embodiment_id.json"
OWN = "new_embodiment"
"""The one that is kept free for a user's robot."""
CURE = "take all files from one checkpoint"
SPREAD = ("mean", "std")
"""Statistics of groups that aren't normalised between two ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The three tables."""

    where: str
    """The checkpoint's name in errors."""
    settings: Mapping[str, Any]
    """`processor_kwargs` of processor_config.json."""
    statistics: Mapping[str, Any]
    numbers: Mapping[str, int]
    version: Version = N1_7
    own: bool = True
    """They are those of the checkpoint, without statistics that a user gave or left aside."""

    @property
    def configs(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.settings.get("modality_configs") or {}
        return found

    @property
    def known(self) -> list[str]:
        """Embodiments with statistics."""
        return [name for name in self.configs if name in self.statistics]

    def write(self, folder: Path) -> None:
        table = {"processor_class": self.version.processor, "processor_kwargs": self.settings}
        for file, content in ((PROCESSOR, table), (STATISTICS, self.statistics), (NUMBERS, self.numbers)):
            (folder / file).write_text(json.dumps(content, indent=2), encoding="utf-8")

    def chosen(self, name: str) -> str:
        """The embodiment of this name; by default the only one with statistics. Raises UserError if there is none."""
        if not name:
            if len(self.known) == 1:
                return self.known[0]
            there = f"statistics of {_named(self.known)}" if self.known else "no statistics"
            raise UserError(
                f"{self.where} has {there}: set policy.options.embodiment to one of {_named(self.known or self.numbers)}"
            )
        if name not in self.numbers:
            raise UserError(f"policy.options.embodiment = {name!r:.80} is not in {self.where}: it has {_named(self.numbers)}")
        return name

    def without(self, name: str) -> Files:
        """Without the statistics of an embodiment."""
        statistics = {other: table for other, table in self.statistics.items() if other != name}
        return replace(self, statistics=statistics, own=False)

    def extended(self, name: str, own: Statistics, cameras: Sequence[str], ahead: int) -> Files:
        """With statistics of a user's data for an embodiment, one group of numbers in the state and one in an action. Raises
        UserError if it has others already, or for means and deviations."""
        if own.action.kind == "mean-std":
            raise UserError(
                'policy.options.statistics_kind = "mean-std", and GR00T normalises between two ends: set it to quantiles or to '
                "min-max"
            )
        config: dict[str, Any] = {"video": {"delta_indices": [0], "modality_keys": list(cameras)}}
        config |= {"language": {"delta_indices": [0], "modality_keys": ["annotation.human.task_description"]}}
        tables: dict[str, Any] = {"relative_action": {}}
        for kind, normalizer in (("state", own.state), ("action", own.action)):
            names = [] if normalizer is None else [kind]
            config[kind] = {"delta_indices": [0] if kind == "state" else list(range(ahead)), "modality_keys": names}
            tables[kind] = {}
            if normalizer is not None:
                ends = zip(normalizer.first, normalizer.second, normalizer.mask, strict=True)
                low, high = zip(*((a, b) if used else (-1.0, 1.0) for a, b, used in ends), strict=True)
                middle, half = ([(b + s * a) / 2 for a, b in zip(low, high, strict=True)] for s in (1, -1))
                tables[kind] = {
                    kind: {**{"min": [*low], "max": [*high], "q01": [*low], "q99": [*high]}, "mean": middle, "std": half}
                }
        config["action"]["action_configs"] = [{"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}]
        if name in self.known and self.statistics[name] != tables:
            raise UserError(
                f"{self.where} has statistics of {name!r}: leave policy.options.statistics out, or set policy.options.embodiment "
                f"to another, such as {OWN}"
            )
        settings = {**self.settings, "modality_configs": {**self.configs, name: self.configs.get(name, config)}}
        return replace(self, settings=settings, statistics={**self.statistics, name: tables}, own=False)

    def embodiment(self, name: str, head: HeadConfig) -> Embodiment:
        """An embodiment for a head of this configuration. Raises UserError for tables that can't be used."""
        number = self.numbers[name]
        if not 0 <= number < head.max_num_embodiments:
            raise UserError(f"{self.where}: {NUMBERS}: {name} = {number}, and config.json has {head.max_num_embodiments}: {CURE}")
        if name not in self.known:
            return Embodiment(name=name, number=number, ahead=head.action_horizon)
        try:
            found = _embodiment(name, number, self.settings, self.configs[name], self.statistics[name], head)
        except UserError as error:
            raise UserError(f"{self.where}: embodiment {name!r}: {error.what}") from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise UserError(
                f"{self.where}: embodiment {name!r}: {PROCESSOR} or {STATISTICS} is damaged ({shorten(error, 120)}): {CURE}"
            ) from error
        for option, size, most in (
            ("max_state_dim", found.shown_size, head.max_state_dim),
            ("max_action_dim", found.action_size, head.max_action_dim),
        ):
            if size > most:
                raise UserError(
                    f"{self.where}: embodiment {name!r} has {size} numbers, and config.json {option} = {most}: {CURE}"
                )
        return found


def read_files(folder: Path, version: Version = N1_7) -> Files:
    """version: that of the weights. Raises UserError for files that are missing or damaged."""
    try:
        tuned = lerobot_layout.table_of(folder)
    except (OSError, ValueError):
        tuned = None
    if tuned:
        try:
            settings, statistics, numbers = lerobot_layout.read(folder, tuned)
        except UserError as error:
            raise UserError(f"{str(folder)!r}: {error.what}", key="policy.model") from error
        return Files(
            where=repr(str(folder)), settings=settings, statistics=statistics, numbers={**version.embodiments, **numbers}
        )
    found: dict[str, Any] = {}
    for file in (PROCESSOR, STATISTICS, NUMBERS):
        path = folder / file
        if file == NUMBERS and not path.is_file():
            found[file] = {}
            continue
        try:
            found[file] = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found[file], dict):
                raise ValueError("it is no table")
        except FileNotFoundError:
            raise UserError(
                f"{str(folder)!r} has no {file}, which says how its numbers are normalised: {CURE}", key="policy.model"
            ) from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} can't be read ({shorten(error, 120)}): {CURE}", key="policy.model") from error
    settings, numbers = found[PROCESSOR].get("processor_kwargs"), {**version.embodiments, **found[NUMBERS]}
    if not isinstance(settings, dict) or not isinstance(settings.get("modality_configs", {}), dict):
        raise UserError(f"{folder / PROCESSOR} has no processor_kwargs with modality_configs: {CURE}", key="policy.model")
    if odd := [name for name, number in numbers.items() if type(number) is not int]:
        raise UserError(
            f"{folder / NUMBERS}: {odd[0]} = {numbers[odd[0]]!r:.40} must be a whole number: {CURE}", key="policy.model"
        )
    return Files(where=repr(str(folder)), settings=settings, statistics=found[STATISTICS], numbers=numbers, version=version)


def _embodiment(
    name: str, number: int, settings: Mapping[str, Any], config: Mapping[str, Any], tables: Mapping[str, Any], head: HeadConfig
) -> Embodiment:
    if settings.get("use_tactile"):
        raise UserError(f"{PROCESSOR} has use_tactile, which can't be read: take a checkpoint without touch")
    ends = ("q01", "q99") if settings.get("use_percentiles") else ("min", "max")
    cameras = config["video"]["modality_keys"]
    if not all(isinstance(camera, str) for camera in cameras):
        raise TypeError(f"video.modality_keys = {cameras!r:.60} must be names of cameras")
    states, places, start = [], {}, 0
    angles = (config["state"].get("sin_cos_embedding_keys") or ()) if settings.get("apply_sincos_state_encoding") else ()
    for key in config["state"]["modality_keys"]:
        spread = key in (config["state"].get("mean_std_embedding_keys") or ()) and key not in angles
        low, high = _ends(f"state.{key}", tables["state"], key, SPREAD if spread else ends)
        states.append(Group(name=key, low=low, high=high, unbounded=spread, angles=key in angles))
        places[key] = slice(start, start + low.shape[-1])
        start = places[key].stop
    ahead = len(config["action"].get("delta_indices") or range(head.action_horizon))
    if ahead > head.action_horizon:
        raise UserError(f"it foresees {ahead} actions, and config.json {head.action_horizon} (action_horizon): {CURE}")
    keys = config["action"]["modality_keys"]
    forms = config["action"].get("action_configs") or [{}] * len(keys)
    actions = [
        _action(
            key,
            form if settings.get("use_relative_action") else {},
            tables,
            SPREAD if key in (config["action"].get("mean_std_embedding_keys") or ()) else ends,
            places,
            ahead,
        )
        for key, form in zip(keys, forms, strict=True)
    ]
    return Embodiment(
        name=name,
        number=number,
        ahead=ahead,
        cameras=tuple(cameras),
        frames=len(config["video"].get("delta_indices") or [0]),
        states=tuple(states),
        actions=tuple(actions),
        clip=bool(settings.get("clip_outliers", True)),
        blind=bool(settings.get("exclude_state") or config["state"].get("exclude_state")),
    )


def _action(
    key: str, form: Mapping[str, Any], tables: Mapping[str, Any], ends: tuple[str, str], places: Mapping[str, slice], ahead: int
) -> Group:
    rep, kind, layout = (_word(form.get(name)) for name in ("rep", "type", "format"))
    absolute = _ends(f"action.{key}", tables["action"], key, ends)
    if rep != "relative":
        return Group(name=key, low=absolute[0], high=absolute[1], unbounded=ends == SPREAD)
    own = SPREAD if ends == SPREAD else ("min", "max")
    low, high = _ends(f"relative_action.{key}", tables.get("relative_action") or {}, key, own)
    source, size = form.get("state_key") or key, absolute[0].shape[-1]
    if source not in places:
        raise UserError(f"its action {key} is relative to {source}, and its state has {_named(places)}: {CURE}")
    pose = kind == "eef"
    if kind not in ("eef", "non_eef") or (pose and layout != "xyz+rot6d"):
        raise UserError(f"its action {key} is relative as {kind}, {layout}, which can't be read: choose another embodiment")
    there = places[source].stop - places[source].start
    if not low.shape[-1] == size == there == (POSE if pose else there):
        raise UserError(
            f"its action {key} has {size} numbers, {low.shape[-1]} in relative_action, and its state {source} {there}: {CURE}"
        )
    if low.dim() == 2 and len(low) < ahead:
        raise UserError(f"relative_action.{key} has ends for {len(low)} steps, and {ahead} actions are foreseen: {CURE}")
    return Group(name=key, low=low, high=high, state=places[source], pose=pose, unbounded=ends == SPREAD)


def _ends(where: str, tables: Mapping[str, Any], key: str, names: tuple[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors, float32 [D] or [C, D]. For `SPREAD` they are a deviation away from the mean; a number that never changes is
    left as it is (`normalize_values_meanstd` of Isaac-GR00T, gr00t/data/utils.py)."""
    table = tables.get(key)
    if not isinstance(table, Mapping) or any(name not in table for name in names):
        there = f"it has {_named(table)}" if isinstance(table, Mapping) else f"there are {_named(tables)}"
        raise UserError(f"{STATISTICS} has no {' and '.join(names)} of {where}: {there}: {CURE}")
    low, high = (torch.tensor(table[name], dtype=torch.float32) for name in names)
    if low.shape != high.shape or low.dim() not in (1, 2) or not low.shape[-1]:
        raise UserError(
            f"{STATISTICS}: {where} has {list(low.shape)} and {list(high.shape)} numbers in {' and '.join(names)}: {CURE}"
        )
    if not all(math.isfinite(x) for x in (*low.flatten().tolist(), *high.flatten().tolist())):
        raise UserError(f"{STATISTICS}: {where} has a number that is not finite: {CURE}")
    if names == SPREAD:
        mean, deviation = low.double(), high.double()
        low, high = ((torch.where(deviation != 0, mean + s * deviation, s)).float() for s in (-1.0, 1.0))
    return low, high


def _word(value: Any) -> str:
    """The value of an enumeration, which is written in either case."""
    return {"xyz_rot6d": "xyz+rot6d", "non-eef": "non_eef"}.get(str(value).lower(), str(value).lower())


def _named(names: Any) -> str:
    return ", ".join(map(str, list(names)[:40])) or "none"
