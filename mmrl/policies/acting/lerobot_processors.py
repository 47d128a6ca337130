"""LeRobot's processors, read and written: how observations become inputs of a policy, and its outputs actions.

`policy_preprocessor.json` and `policy_postprocessor.json` list steps; the statistics of the data set lie beside them in
`.safetensors` (lerobot 0.6.1, processor/pipeline.py and processor/normalize_processor.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mmrl.api.errors import UserError, shorten
from mmrl.policies.acting.options import NONE
from mmrl.policies.acting.saved_policy import SETTINGS, read_settings
from mmrl.policies.acting.units import ENDS, Normalizer, Statistics

BEFORE, BEHIND = "policy_preprocessor.json", "policy_postprocessor.json"
RENAME, BATCH, DEVICE = "rename_observations_processor", "to_batch_processor", "device_processor"
NORMALIZE, UNNORMALIZE = "normalizer_processor", "unnormalizer_processor"
STEPS = {BEFORE: {RENAME, BATCH, DEVICE, NORMALIZE}, BEHIND: {UNNORMALIZE, DEVICE}}
"""Those of every policy."""
ACTION, STATE = "action", "observation.state"
KINDS = {"MEAN_STD": "mean-std", "MIN_MAX": "min-max", "QUANTILES": "quantiles"}
"""LeRobot's name of a normalisation -> mmrl's."""
LISTS = {norm: ENDS[kind] for norm, kind in KINDS.items()} | {"QUANTILE10": ("q10", "q90")}
EPS = 1e-8
"""LeRobot adds it to standard deviations, and takes it for a width of 0."""


class Files:
    """The files of a checkpoint in a folder or on the hub, which are fetched when they are asked for."""

    def __init__(self, name: str) -> None:
        self.name, self.found = name, dict[str, Path]()

    def get(self, file: str) -> Path | None:
        """Its place, None if there is no such file. Raises OSError where the hub can't be asked."""
        if file and file not in self.found:
            from transformers.utils import cached_file

            place = cached_file(self.name, file, _raise_exceptions_for_missing_entries=False)
            if place is not None:
                self.found[file] = Path(place)
        return self.found.get(file)

    def there(self) -> str:
        """The names of those that there are; on the hub, of those that were asked for."""
        folder = Path(self.name)
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else self.found
        return ", ".join(sorted(names)) or "nothing"


OLD_CURE = "convert it by `python -m lerobot.processor.migrate_policy_normalization`, as LeRobot wants it too"
"""For a checkpoint from before LeRobot had processors, whose statistics lie among the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The step that normalises states, or undoes it for actions."""

    norms: Mapping[str, str] = field(default_factory=dict)
    """STATE, ACTION, VISUAL -> a key of `LISTS`, or IDENTITY."""
    lists: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """`observation.state.mean` and so on -> [numbers]."""
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class Processors:
    """What the steps say that every policy has. The defaults are without statistics."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Key of an observation -> the network's key."""
    before: Step = Step()
    behind: Step = Step()


def read_table(files: Files, kind: str, called: str, cure: str) -> Mapping[str, Any]:
    """config.json of a policy of LeRobot's. kind, called: its type, and how a person calls it, with an article. cure: what to do
    about another. Raises UserError for one that can't be read, and for that of another policy."""
    try:
        place = files.get("config.json")
        table = json.loads(place.read_text(encoding="utf-8")) if place else None
    except (OSError, ValueError) as error:
        raise UserError(f"{files.name!r} has no config.json that can be read: {cure}", key="policy.model") from error
    if not isinstance(table, Mapping):
        raise UserError(f"{files.name!r} has no config.json that can be read: {cure}", key="policy.model")
    found = table.get("type", table.get("model_type"))
    if found != kind:
        raise UserError(f"{files.name!r} is a {found or 'model of unknown type'}, not {called}: {cure}", key="policy.model")
    return table


def read_steps(
    files: Files, more: Sequence[str] = (), acted: Sequence[str] = ()
) -> tuple[Processors, dict[str, dict[str, Any]]] | None:
    """(what every policy has, name -> configuration of the steps), None if there are no processors. more, acted: further steps
    that may be before the network and behind it. Raises UserError for steps that can't be done here."""
    known = {BEFORE: STEPS[BEFORE] | set(more), BEHIND: STEPS[BEHIND] | set(acted)}
    places = [files.get(file) for file in known]
    steps = [_steps(files.name, place, own) for place, own in zip(places, known.values(), strict=True) if place is not None]
    if len(steps) < len(known):
        return None
    before, behind = steps
    renamed = before.get(RENAME, {}).get("rename_map") or {}
    if not isinstance(renamed, Mapping):
        raise UserError(f"{files.name!r}: {BEFORE} can't be read: its rename_map is none", key="policy.model")
    found = Processors(
        renamed=renamed,
        before=_normalizer(before.get(NORMALIZE, {}), files),
        behind=_normalizer(behind.get(UNNORMALIZE, {}), files),
    )
    return found, {**behind, **before}


def _steps(name: str, file: Path, known: set[str]) -> dict[str, dict[str, Any]]:
    """Name of a step -> its configuration, with the file of its state under `state_file`."""
    try:
        found = {
            step["registry_name"]: {**(step.get("config") or {}), "state_file": step.get("state_file", "")}
            for step in json.loads(file.read_text(encoding="utf-8"))["steps"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{name!r}: {file.name} can't be read: {shorten(error, 200)}", key="policy.model") from error
    if odd := sorted(found.keys() - known):
        raise UserError(
            f"{name!r}: {file.name} has the step {odd[0]!r}, which can't be done here: it must be one of "
            f"{', '.join(sorted(known))}",
            key="policy.model",
        )
    return found


def _normalizer(step: Mapping[str, Any], files: Files) -> Step:
    file, norms = step.get("state_file") or "", step.get("norm_map") or {}
    place = files.get(file)
    try:
        return Step(norms=norms, lists=load_file(place) if place else {}, file=file)
    except Exception as error:
        raise UserError(f"{files.name!r}: {file} can't be read: {shorten(error, 200)}", key="policy.model") from error


def chosen_statistics(
    given: str | Mapping[str, Any], files: Files, found: Processors | None, saved: Path, dims: int, state: int
) -> str | Mapping[str, Any]:
    """The option `statistics`, or what comes with the checkpoint. saved: a folder of mmrl's, which says by itself whether it has
    any. dims, state: see `statistics_of`."""
    if given == NONE:
        return ""
    if given or files.name.startswith("tiny:"):
        return given
    if (saved / SETTINGS).is_file():
        kept: Mapping[str, Any] | str = read_settings(saved).get("statistics", "")
        return kept
    return statistics_of(files, found, dims, state)


def statistics_of(files: Files, found: Processors | None, dims: int, state: int) -> dict[str, Any]:
    """The statistics of a checkpoint's data, as `Statistics.plain` gives them. dims: numbers of an action. state: those of the
    state that are read, 0 for none. Raises UserError where there are none, saying what there is."""
    name, cure = (
        files.name,
        "set policy.options.statistics to a file, or to 'none' where the policy's numbers are the simulator's",
    )
    if found is None:
        raise UserError(
            f"{name!r} comes without statistics of its data: it has {files.there()}, and no {BEFORE} with {BEHIND}: {cure}",
            key="policy.model",
        )
    asked = [(found.behind, "ACTION", ACTION)] + ([(found.before, "STATE", STATE)] if state else [])
    parts: dict[str, Normalizer] = {}
    for step, kind, key in asked:
        norm = step.norms.get(kind, "IDENTITY")
        if norm == "IDENTITY":
            continue
        if norm not in LISTS:
            raise UserError(f"{name!r}: {key} is normalised by {norm!r:.60}, and not one of {', '.join(LISTS)}: {cure}")
        lists = {one.rpartition(".")[2]: value for one, value in step.lists.items() if one.rpartition(".")[0] == key}
        if any(one not in lists for one in LISTS[norm]):
            has = ", ".join(sorted({one.rpartition(".")[0] for one in step.lists})) or "nothing"
            what = f"{key}: {', '.join(sorted(lists))}" if lists else has
            where = step.file or "its processors"
            raise UserError(
                f"{name!r} lacks {' and '.join(LISTS[norm])} of {key} in {where}, which has {what}: {cure}", key="policy.model"
            )
        first, second = (lists[one].double().flatten() for one in LISTS[norm])
        if len(first) != len(second):
            raise UserError(f"{name!r}: {step.file}: {' and '.join(LISTS[norm])} of {key} differ in length", key="policy.model")
        parts[key] = _as_normalizer(norm, first, second, exact=key == ACTION)
    action = parts.get(ACTION) or Normalizer(kind="mean-std", first=(0.0,) * dims, second=(1.0,) * dims, mask=(False,) * dims)
    return Statistics(action=action, state=parts.get(STATE)).plain()


def _as_normalizer(norm: str, first: torch.Tensor, second: torch.Tensor, exact: bool) -> Normalizer:
    """As LeRobot computes it: a number that never changed has a width of `EPS`. exact: a standard deviation is taken as it is,
    as where actions are unnormalised."""
    kind = KINDS.get(norm, "quantiles")
    if kind == "mean-std":
        second = second.clamp_min(EPS) if exact else second + EPS
    else:
        second = torch.where(first == second, first + EPS, second)
    return Normalizer(kind=kind, first=_numbers(first), second=_numbers(second), mask=(True,) * len(first))  # type: ignore[arg-type]


def _of_lerobot(std: float, exact: bool) -> float:
    """The inverse of what `_as_normalizer` makes of a standard deviation, to which LeRobot itself adds `EPS`."""
    return (0.0 if std <= EPS else std) if exact else max(std - EPS, 0.0)


def _numbers(values: torch.Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def norm_map(statistics: Statistics | None) -> dict[str, str]:
    """LeRobot's `normalization_mapping` for these statistics."""
    names = {kind: norm for norm, kind in KINDS.items()}
    action = names[statistics.action.kind] if statistics else "IDENTITY"
    state = names[statistics.state.kind] if statistics and statistics.state else "IDENTITY"
    return {"VISUAL": "IDENTITY", "STATE": state, "ACTION": action}


def lists_of(statistics: Statistics | None) -> dict[str, torch.Tensor]:
    """The statistics as LeRobot saves them: `action.mean` and so on. Numbers that were not normalised get some that change
    nothing."""
    parts = {} if statistics is None else {ACTION: statistics.action, STATE: statistics.state}
    lists = {}
    for key, one in parts.items():
        if one is not None:
            nothing = (0.0, 1.0) if one.kind == "mean-std" else (-1.0, 1.0)
            for end, values, other in zip(ENDS[one.kind], (one.first, one.second), nothing, strict=True):
                if end == "std":
                    values = tuple(_of_lerobot(value, exact=key == ACTION) for value in values)
                kept = [value if used else other for value, used in zip(values, one.mask, strict=True)]
                lists[f"{key}.{end}"] = torch.tensor(kept, dtype=torch.float32)
    return lists


def write_steps(
    folder: Path,
    renamed: Mapping[str, str],
    norms: Mapping[str, str],
    lists: Mapping[str, torch.Tensor],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    *,
    read: Sequence[tuple[str, dict[str, Any]]] = (),
    acted: Sequence[tuple[str, dict[str, Any]]] = (),
) -> None:
    """Write both files and the statistics as LeRobot does. norms, lists: see `Step`. inputs, outputs: `input_features` and
    `output_features` of the config.json. read, acted: further steps before the network and behind it, with their
    configurations."""
    device, normalize = {"device": "cpu", "float_dtype": None}, {"eps": EPS, "norm_map": dict(norms)}
    steps: list[tuple[str, dict[str, Any]]] = [(RENAME, {"rename_map": dict(renamed)}), (BATCH, {}), *read, (DEVICE, device)]
    steps += [(NORMALIZE, {**normalize, "features": {**inputs, **outputs}})]
    back: list[tuple[str, dict[str, Any]]] = [(UNNORMALIZE, {**normalize, "features": dict(outputs)}), *acted, (DEVICE, device)]
    for file, made in ((BEFORE, steps), (BEHIND, back)):
        table: list[dict[str, Any]] = []
        for i, (name, config) in enumerate(made):
            table.append({"registry_name": name, "config": config})
            if name in (NORMALIZE, UNNORMALIZE) and lists:
                table[-1]["state_file"] = f"{Path(file).stem}_step_{i}_{name}.safetensors"
                save_file(dict(lists), folder / table[-1]["state_file"])
        (folder / file).write_text(json.dumps({"name": Path(file).stem, "steps": table}, indent=2), encoding="utf-8")
