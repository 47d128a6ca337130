"""A GR00T N1.7 as LeRobot saves it after fine-tuning, in the terms of NVIDIA's files (lerobot 0.6.1, policies/groot).

config.json names the model that it was tuned from, whose own config.json has the sizes of the network. What NVIDIA keeps in
processor_config.json, statistics.json and embodiment_id.json, LeRobot keeps for one robot in the steps of its processors. Where
the model had no statistics of the robot, those of the data set lie beside them, for all numbers of the state and of an action.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from mmrl.api.errors import UserError, shorten
from mmrl.policies.gr00t.hub import CONFIG, CURE, json_files

TYPE = "groot"
"""`type` of config.json."""
PREFIX = "_groot_model."
"""Beginning of the names of weights."""
BASE = "base_config.json"
"""In a folder that mmrl saved: config.json of the model that it was tuned from, which is needed no more."""
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
RENAME, PACK, ENCODE = "rename_observations_processor", "groot_n1_7_pack_inputs_v1", "groot_n1_7_vlm_encode_v1"
DECODE, UNPACK = "groot_n1_7_action_decode_v1", "groot_action_unpack_unnormalize_v2"
STEPS = {BEFORE: {RENAME, "to_batch_processor", PACK, ENCODE, "device_processor"}, AFTER: {DECODE, UNPACK, "device_processor"}}
PICTURES = "observation.images."
STATE, ACTION = "observation.state", "action"
FRAMING = (
    *("image_target_size", "image_crop_size", "shortest_image_edge", "crop_fraction"),
    *("use_albumentations", "letter_box_transform"),
)


def table_of(folder: Path) -> dict[str, Any] | None:
    """config.json if LeRobot wrote it. Raises ValueError if it can't be read."""
    table = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return table if isinstance(table, dict) and table.get("type") == TYPE and "model_type" not in table else None


def base_of(folder: Path, table: Mapping[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """(config.json of the model that a folder's was tuned from, that model's folder). Raises UserError if there is none."""
    if (folder / BASE).is_file():
        return dict(json.loads((folder / BASE).read_text(encoding="utf-8"))), None
    name = table.get("base_model_path")
    if not isinstance(name, str) or not name:
        raise UserError(f"its {CONFIG} has no base_model_path, the model that it was tuned from: {CURE}")
    try:
        base = json_files(name)
    except UserError as error:
        raise UserError(f"the model that it was tuned from, base_model_path of its {CONFIG}: {error.what}") from error
    return dict(json.loads((base / CONFIG).read_text(encoding="utf-8"))), base


def kept_files(folder: Path) -> dict[str, bytes]:
    """The small files of a policy, by name, to be written beside changed weights."""
    return {file.name: file.read_bytes() for file in sorted([folder / CONFIG, *folder.glob("policy_*")]) if file.is_file()}


def read(folder: Path, table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """(`processor_kwargs`, statistics, embodiments' numbers) as NVIDIA has them. table: config.json. Raises UserError for steps
    that aren't computed here, and for files that are missing or damaged."""
    try:
        return _read(folder, table)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{BEFORE} or {AFTER} is not as LeRobot writes it ({type(error).__name__}: {shorten(error, 120)}): copy the folder "
            "again"
        ) from error


def _read(folder: Path, table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    before, after = (_steps(folder / file, known) for file, known in STEPS.items())
    pack, name = before[PACK], str(before[PACK]["embodiment_tag"])
    if not pack.get("normalize_min_max", True):
        raise UserError(f"{BEFORE} doesn't normalise its numbers (normalize_min_max), which can't be done here")
    cameras = pack.get("video_modality_keys") or _pictures(table)
    if DECODE in after:
        config = {kind: dict(one) for kind, one in pack["modality_config"].items()}
        statistics = pack["raw_stats"]
    else:
        statistics, ahead = _flat(folder, pack), min(pack["valid_action_horizon"], pack["action_horizon"])
        config = {"state": {"modality_keys": [*statistics["state"]]}, "action": {"modality_keys": [*statistics["action"]]}}
        config["action"]["delta_indices"] = list(range(ahead))
    config.setdefault("video", {"modality_keys": list(cameras), "delta_indices": [0]})
    config["video"]["modality_keys"] = _renamed(config["video"]["modality_keys"], before.get(RENAME, {}).get("rename_map") or {})
    framed = before[ENCODE]
    settings = {name: framed[name] for name in FRAMING} | {"modality_configs": {name: config}}
    settings |= {key: pack[key] for key in ("formalize_language", "clip_outliers", "max_state_dim", "max_action_dim")}
    settings["use_percentiles"] = bool(pack["use_percentiles"]) and DECODE in after
    settings["use_relative_action"] = bool(after.get(DECODE, {}).get("use_relative_action"))
    mapping = {str(key): int(value) for key, value in pack["embodiment_mapping"].items()}
    return settings, {name: statistics}, {**mapping, name: mapping.get(name, 0)}


def _steps(file: Path, known: set[str]) -> dict[str, dict[str, Any]]:
    """Name of a step -> its configuration, with the file of its tensors under `state_file`."""
    if not file.is_file():
        raise UserError(f"it has no {file.name}, which says how its numbers are normalised: copy it, too")
    steps = json.loads(file.read_text(encoding="utf-8"))["steps"]
    found = {one["registry_name"]: {**(one.get("config") or {}), "state_file": one.get("state_file", "")} for one in steps}
    if odd := sorted(found.keys() - known):
        raise UserError(f"{file.name} has the step {odd[0]!r:.60}, which can't be done here: choose a GR00T N1.7 without it")
    return found


def _flat(folder: Path, pack: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of a data set, one group of numbers in the state and one in an action."""
    file = folder / pack["state_file"] if pack["state_file"] else None
    if file is None or not file.is_file():
        raise UserError("its processors have no statistics of its data: copy all files that LeRobot saved")
    tensors, found = load_file(file), dict[str, Any](relative_action={})
    for kind, feature in (("state", STATE), ("action", ACTION)):
        ends = {end: tensors[f"{feature}.{end}"].flatten().tolist() for end in ("min", "max") if f"{feature}.{end}" in tensors}
        found[kind] = {kind: ends} if ends else {}
    if not found["action"]:
        raise UserError(f"{file.name} has no {ACTION}.min and {ACTION}.max: copy all files that LeRobot saved")
    return found


def _pictures(table: Mapping[str, Any]) -> list[str]:
    """Cameras in LeRobot's order where the model names none: by the alphabet."""
    keys = sorted(key for key, one in (table.get("input_features") or {}).items() if one.get("type") == "VISUAL")
    return [key.removeprefix(PICTURES).removeprefix("observation.") for key in keys]


def _renamed(cameras: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """As the robot's observations have them. names: key of an observation -> the policy's."""
    back = {new.removeprefix(PICTURES): old.removeprefix(PICTURES) for old, new in names.items()}
    return [back.get(camera, camera) for camera in cameras]
