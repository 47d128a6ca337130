"""LeRobot's files beside the weights of a pi0, pi0.5 or pi0-FAST: `config.json`, and the processors with the statistics of its
data (lerobot 0.6.1: `PI0Config`, `PI05Config`, `PI0FastConfig`, `NormalizerProcessorStep`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mmrl.api.errors import UserError, shorten
from mmrl.policies.acting.options import NONE
from mmrl.policies.acting.units import Kind, Normalizer, Statistics

KINDS = ("pi0", "pi05", "pi0_fast")
PREFIX = "observation."
STATE, PICTURES, EMPTY = "observation.state", "observation.images.", "observation.images.empty_camera_"
MODES: dict[str, tuple[Kind, str, str]] = {
    "MEAN_STD": ("mean-std", "mean", "std"),
    "MIN_MAX": ("min-max", "min", "max"),
    "QUANTILES": ("quantiles", "q01", "q99"),
    "QUANTILE10": ("quantiles", "q10", "q90"),
}
"""LeRobot's ways of normalising -> the same here, and the two lists that they take."""
EPSILON = 1e-8
"""The width that LeRobot takes for a number that never changed."""
BEFORE, AFTER = "policy_preprocessor", "policy_postprocessor"
HARMLESS = frozenset(
    {
        *("rename_observations_processor", "to_batch_processor", "pi0_new_line_processor", "tokenizer_processor"),
        *("device_processor", "normalizer_processor", "unnormalizer_processor"),
        "pi05_prepare_state_tokenizer_processor_step",
        *("pi0_fast_prepare_state_tokenizer_processor_step", "action_tokenizer_processor"),
    }
)
RELATIVE = frozenset({"relative_actions_processor", "absolute_actions_processor"})
TOKENIZER = "google/paligemma-3b-pt-224"
LIMITS = {"pi0": 48, "pi05": 200, "pi0_fast": 200}
"""Most tokens of a text (openpi, `Pi0Config.max_token_len`; LeRobot, `PI0FastConfig`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a folder in LeRobot's layout says about its policy."""

    name: str
    config: Mapping[str, Any]
    cameras: Mapping[str, str]
    """Camera of a robot or simulator -> the policy's name of its pictures, in the order in which they are read."""
    modes: Mapping[str, str]
    tensors: Mapping[str, torch.Tensor]
    """The statistics, such as `action.mean`."""
    tokenizer: str
    dims: int
    text_tokens: int

    def statistics(self, state: int) -> Statistics | None:
        """None where nothing is normalised. state: numbers of the state that the policy reads. Raises UserError where the files
        have no statistics for what they say is normalised."""
        if {self.modes.get("ACTION", "IDENTITY"), self.modes.get("STATE", "IDENTITY")} == {"IDENTITY"}:
            return None
        action = self._normalizer("ACTION", "action", self.dims)
        return Statistics(action=action, state=self._normalizer("STATE", STATE, state) if state else None)

    def _normalizer(self, what: str, feature: str, size: int) -> Normalizer:
        mode = self.modes.get(what, "IDENTITY")
        if mode == "IDENTITY":
            return Normalizer(kind="min-max", first=(-1.0,) * size, second=(1.0,) * size, mask=(False,) * size)
        if mode not in MODES:
            raise UserError(
                f"{self.name!r}: its {feature} is normalised by {mode!r:.60}, which is none of {', '.join(MODES)}: set "
                f"policy.options.statistics to a file of the data set's, or to {NONE!r}",
                key="policy.model",
            )
        kind, low, high = MODES[mode]
        if any(f"{feature}.{end}" not in self.tensors for end in (low, high)):
            there = ", ".join(sorted(self.tensors)) or "no statistics at all"
            raise UserError(
                f"{self.name!r}: its {feature} is normalised by {mode}, and its processors lack {feature}.{low} and "
                f"{feature}.{high}: they have {there}: set policy.options.statistics to the data set's stats.json, or to "
                f"{NONE!r} where the policy's numbers are the simulator's",
                key="policy.model",
            )
        first, second = (self.tensors[f"{feature}.{end}"].double().flatten() for end in (low, high))
        width = second if kind == "mean-std" else second - first
        second = torch.where(width == 0, second + EPSILON, second)
        return Normalizer(kind=kind, first=tuple(first.tolist()), second=tuple(second.tolist()), mask=(True,) * len(first))


def config_of(name: str) -> dict[str, Any] | None:
    """A config.json of LeRobot's, or None for a model in another layout."""
    found = _json(name, "config.json")
    return found if found is not None and "model_type" not in found and found.get("type") in KINDS else None


def published(name: str) -> Published | None:
    """What the files in LeRobot's layout say, None where there are none. Of the weights nothing is read. Raises UserError for a
    policy with a step that isn't computed here, and for files that can't be understood."""
    config = None if name.startswith("tiny:") else config_of(name)
    if config is None:
        return None
    try:
        return _understood(name, config)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{name!r}: config.json or a processor's JSON is not as LeRobot writes it: {type(error).__name__}: "
            f"{shorten(error, 200)}: copy the folder again",
            key="policy.model",
        ) from error


def _understood(name: str, config: dict[str, Any]) -> Published:
    modes: dict[str, str] = dict(config.get("normalization_mapping", {}))
    tensors: dict[str, torch.Tensor] = {}
    renamed: dict[str, str] = {}
    tokenizer = TOKENIZER
    for which in (BEFORE, AFTER):
        for step in (_json(name, f"{which}.json") or {}).get("steps", []):
            kind, own = step.get("registry_name", step.get("class", "")), step.get("config", {})
            if kind in RELATIVE and not own.get("enabled", False):
                continue
            if kind not in HARMLESS:
                raise UserError(
                    f"{name!r}: {which}.json has the step {kind!r:.80}, which mmrl doesn't compute", key="policy.model"
                )
            if kind == "rename_observations_processor":
                renamed = {new: old for old, new in own.get("rename_map", {}).items()}
            elif kind == "tokenizer_processor":
                tokenizer = own.get("tokenizer_name", tokenizer)
            elif kind in ("normalizer_processor", "unnormalizer_processor"):
                modes |= own.get("norm_map", {})
                tensors |= _tensors(name, step.get("state_file"))
    if config.get("use_relative_actions"):
        raise UserError(f"{name!r}: its actions are relative to the state, which mmrl doesn't compute", key="policy.model")
    if modes.get("VISUAL", "IDENTITY") != "IDENTITY":
        raise UserError(
            f"{name!r}: its pictures are normalised by {modes['VISUAL']!r:.60}, which mmrl doesn't compute", key="policy.model"
        )
    features = config.get("input_features") or {}
    pictures = [key for key, one in features.items() if one.get("type") == "VISUAL" and not key.startswith(EMPTY)]
    return Published(
        name=name,
        config=config,
        cameras={renamed.get(key, key).removeprefix(PICTURES).removeprefix(PREFIX): key for key in pictures},
        modes=modes,
        tensors=tensors,
        tokenizer=tokenizer,
        dims=int((config.get("output_features") or {}).get("action", {}).get("shape", [0])[0]),
        text_tokens=int(config.get("tokenizer_max_length", LIMITS[config["type"]])),
    )


def _file(name: str, file: str) -> Path | None:
    from transformers.utils import cached_file

    found = cached_file(name, file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False)
    return None if found is None else Path(found)


def _json(name: str, file: str) -> dict[str, Any] | None:
    path = _file(name, file)
    if path is None:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{name!r}: {file} can't be read as JSON: {error}", key="policy.model") from error
    if not isinstance(found, dict):
        raise UserError(f"{name!r}: {file} holds no table", key="policy.model")
    return found


def _tensors(name: str, file: str | None) -> dict[str, torch.Tensor]:
    """The statistics in a processor's own file. LeRobot names none if it has none."""
    path = _file(name, file) if file else None
    if path is None:
        return {}
    try:
        return load_file(path)
    except Exception as error:
        raise UserError(f"{name!r}: {file} can't be read: {shorten(error, 200)}", key="policy.model") from error


# -- writing ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A policy, for LeRobot's files."""

    kind: str
    dims: int
    state: int
    own: Mapping[str, Any]
    """What config.json says about the kind's way of acting."""
    text_tokens: int
    dtype: str
    cameras: Mapping[str, str]
    statistics: Statistics | None
    network: Any
    """Its `PI0Config`."""
    tokenizer: str
    kept: Mapping[str, Any]
    """What the config.json says that it came with."""

    def write(self, folder: Path) -> None:
        side = self.network.vlm_config.vision_config.image_size
        inputs = {key: {"type": "VISUAL", "shape": [3, side, side]} for key in self.cameras.values()}
        inputs[STATE] = {"type": "STATE", "shape": [self.state or self.network.max_state_dim]}
        outputs = {"action": {"type": "ACTION", "shape": [self.dims]}}
        action = self.statistics.action if self.statistics else None
        state = self.statistics.state if self.statistics else None
        modes = {"VISUAL": "IDENTITY", "STATE": _mode(state), "ACTION": _mode(action)}
        config = {**self.kept, "type": self.kind, "input_features": inputs, "output_features": outputs, "empty_cameras": 0}
        config |= {name: getattr(self.network, name) for name in ("chunk_size", "max_state_dim", "max_action_dim")}
        config |= self.own
        config |= {"image_resolution": [side, side], "tokenizer_max_length": self.text_tokens, "dtype": self.dtype}
        config |= {"normalization_mapping": modes, "device": None}
        (folder / "config.json").write_text(json.dumps(config, indent=4))
        tensors = {**_statistics("action", action), **_statistics(STATE, state)}
        scales = {"eps": EPSILON, "norm_map": modes}
        before = _step("normalizer_processor", **scales, features={**inputs, **outputs})
        after = _step("unnormalizer_processor", **scales, features=outputs)
        _write(folder, BEFORE, self._before(before), before, tensors)
        _write(folder, AFTER, [after, _step("absolute_actions_processor", enabled=False), _device()], after, tensors)

    def _before(self, normalizer: dict[str, Any]) -> list[dict[str, Any]]:
        """The steps in the order of LeRobot's `make_pi0_pre_post_processors` and of its siblings for the other kinds."""
        renamed = {PICTURES + name: key for name, key in self.cameras.items() if key not in (PREFIX + name, PICTURES + name)}
        begin = [_step("rename_observations_processor", rename_map=renamed), _step("to_batch_processor")]
        lengths = {"max_length": self.text_tokens, "task_key": "task", "padding_side": "right", "padding": "max_length"}
        tokens = _step("tokenizer_processor", **lengths, truncation=True, tokenizer_name=self.tokenizer)
        relative = _step("relative_actions_processor", enabled=False)
        if self.kind == "pi0":
            return [*begin, _step("pi0_new_line_processor"), tokens, _device(), relative, normalizer]
        words = [_step(f"{self.kind}_prepare_state_tokenizer_processor_step"), tokens]
        if self.kind == "pi0_fast":
            asked = {name: self.own[name] for name in ("max_action_tokens", "action_tokenizer_name")}
            words.append(_step("action_tokenizer_processor", trust_remote_code=True, **asked))
        return [*begin, relative, normalizer, *words, _device()]


def _step(name: str, **config: Any) -> dict[str, Any]:
    return {"registry_name": name, "config": config}


def _device() -> dict[str, Any]:
    return _step("device_processor", device="cpu", float_dtype=None)


def _write(
    folder: Path, name: str, steps: Sequence[dict[str, Any]], scaling: dict[str, Any], tensors: Mapping[str, torch.Tensor]
) -> None:
    if tensors:
        scaling["state_file"] = f"{name}_step_{steps.index(scaling)}_{scaling['registry_name']}.safetensors"
        save_file(dict(tensors), folder / scaling["state_file"])
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": steps}, indent=2))


def _mode(normalizer: Normalizer | None) -> str:
    if normalizer is None or not any(normalizer.mask):
        return "IDENTITY"
    return next(mode for mode, (kind, *_) in MODES.items() if kind == normalizer.kind)


def _statistics(feature: str, normalizer: Normalizer | None) -> dict[str, torch.Tensor]:
    """A number that isn't normalised has the ends that change nothing. LeRobot itself adds the least deviation."""
    mode = _mode(normalizer)
    if normalizer is None or mode == "IDENTITY":
        return {}
    _, low, high = MODES[mode]
    nothing = (0.0, 1.0) if mode == "MEAN_STD" else (-1.0, 1.0)
    rows = zip(normalizer.first, normalizer.second, normalizer.mask, strict=True)
    ends = [(first, second) if used else nothing for first, second, used in rows]
    if mode == "MEAN_STD":
        ends = [(mean, 0.0 if std == EPSILON else std) for mean, std in ends]
    return {f"{feature}.{low}": torch.tensor([a for a, _ in ends]), f"{feature}.{high}": torch.tensor([b for _, b in ends])}
