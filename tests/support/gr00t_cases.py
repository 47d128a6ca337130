"""A tiny GR00T, what it is shown, and checkpoints with statistics, for the tests of policies."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from mmrl.api.simulators.types import ActionSpec, Observation
from mmrl.api.specs import SimulatorSpec
from mmrl.config.sections import PolicyConfig
from mmrl.policies.gr00t.lerobot_layout import FRAMING
from mmrl.policies.gr00t.policy import Gr00t
from pi0_cases import moved

MODEL = "tiny:gr00t:hidden=32,layers=2,chunk=5"
SPEC = SimulatorSpec(id="some/arm", target="-:-", action=ActionSpec(dims=4, gripper=3, units=(0.5, 2.0, 4.0, 1.0)))
"""That of the first robot of `two_robots`."""
SETTINGS = {
    **{"clip_outliers": True, "formalize_language": True, "image_target_size": [64, 64], "image_crop_size": [58, 58]},
    **{"shortest_image_edge": None, "crop_fraction": None, "use_albumentations": False, "letter_box_transform": False},
    **{"use_percentiles": True, "use_relative_action": True, "max_state_dim": 132, "max_action_dim": 132},
    "max_action_horizon": 5,
}


def gr00t(model=MODEL, attention="sdpa", dtype="float32", lora=None, source=None, **options):
    config = PolicyConfig(model=model, kind="gr00t", attn_implementation=attention, dtype=dtype, lora=lora)
    given = {"dims": 3, "chunk": 2, "state": 6, **options}
    return Gr00t(config, seed=1, source=source, **{name: value for name, value in given.items() if value is not None})


def looked(n=1, seed=0, cameras=("image", "wrist_image"), size=(48, 64), state=8):
    noise = torch.Generator().manual_seed(seed)
    images = {c: torch.randint(0, 256, (n, *size, 3), dtype=torch.uint8, generator=noise) for c in cameras}
    texts = ["Pick up the red cube, please!", "push it", "stack the ball_2 on the box"]
    return Observation(
        images=images, state=torch.rand(n, state, generator=noise) * 4 - 2, instructions=[texts[i % 3] for i in range(n)]
    )


def ends(size, seed, steps=0):
    """Statistics of a group as files have them; the quantiles lie within the ends."""
    noise = torch.Generator().manual_seed(seed)
    shape = (steps, size) if steps else (size,)
    middle, half = torch.randn(shape, generator=noise), torch.rand(shape, generator=noise) + 0.5
    found = {"min": middle - half, "max": middle + half, "mean": middle, "std": half / 2}
    found |= {"q01": middle - 0.9 * half, "q99": middle + 0.8 * half}
    return {name: value.tolist() for name, value in found.items()}


def absolute():
    """Of 8 numbers of a state and 4 of an action in groups; one number of the state never changes."""
    state = {"x": ends(1, 1), "arm": ends(5, 2), "gripper": ends(2, 3)}
    for name in state["gripper"]:
        state["gripper"][name][1] = 0.25
    action = {"x": ends(1, 4), "turn": ends(2, 5), "gripper": ends(1, 6)}
    config = {
        "video": {"delta_indices": [0], "modality_keys": ["image", "wrist_image"]},
        "state": {"delta_indices": [0], "modality_keys": list(state)},
        "action": {"delta_indices": [0, 1, 2, 3], "modality_keys": list(action)},
        "language": {"delta_indices": [0], "modality_keys": ["annotation.human.action.task_description"]},
    }
    return config, {"state": state, "action": action, "relative_action": {}}


def relative():
    """A pose and joints relative to the state's, with ends for each step, and a gripper; two frames of one camera."""
    state = {"eef_9d": ends(9, 11), "gripper": ends(1, 12), "joints": ends(3, 13)}
    action = {"eef_9d": ends(9, 14), "gripper": ends(1, 15), "arm": ends(3, 16)}
    forms = [
        {"rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROT6D", "state_key": None},
        {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
        {"rep": "relative", "type": "non_eef", "format": "default", "state_key": "joints"},
    ]
    config = {
        "video": {"delta_indices": [-15, 0], "modality_keys": ["image"]},
        "state": {"delta_indices": [0], "modality_keys": list(state)},
        "action": {"delta_indices": list(range(5)), "modality_keys": list(action), "action_configs": forms},
        "language": {"delta_indices": [0], "modality_keys": ["annotation.language.language_instruction"]},
    }
    return config, {"state": state, "action": action, "relative_action": {"eef_9d": ends(9, 17, 5), "arm": ends(3, 18, 5)}}


def published(folder, embodiments, settings=(), numbers=None):
    """A checkpoint as NVIDIA publishes it, but small: the policy's own settings are not beside it."""
    moved(gr00t()).save(folder)
    for file in ("acting.json", "acting.safetensors"):
        (folder / file).unlink()
    kwargs = SETTINGS | dict(settings) | {"modality_configs": {name: config for name, (config, _) in embodiments.items()}}
    table = {"processor_class": "Gr00tN1d7Processor", "processor_kwargs": kwargs}
    (folder / "processor_config.json").write_text(json.dumps(table))
    (folder / "statistics.json").write_text(json.dumps({name: tables for name, (_, tables) in embodiments.items()}))
    (folder / "embodiment_id.json").write_text(json.dumps(numbers or {name: 3 + i for i, name in enumerate(embodiments)}))
    return str(folder)


def tuned(folder, base, statistics=None, embodiment="arm"):
    """`base`, a checkpoint as NVIDIA publishes it, as LeRobot saves it after fine-tuning for a robot; statistics: of a data set,
    in place of the checkpoint's own."""
    folder.mkdir(parents=True)
    files = {
        name: json.loads((Path(base) / f"{name}.json").read_text())
        for name in ("processor_config", "statistics", "embodiment_id")
    }
    kwargs = files["processor_config"]["processor_kwargs"]
    pack = {"embodiment_tag": embodiment, "embodiment_mapping": files["embodiment_id"], "normalize_min_max": True}
    pack |= {"action_horizon": 5, "valid_action_horizon": 5, "video_modality_keys": None, "raw_stats": {}, "modality_config": {}}
    pack |= {
        key: kwargs[key] for key in ("formalize_language", "clip_outliers", "use_percentiles", "max_state_dim", "max_action_dim")
    }
    after = {"registry_name": "groot_action_unpack_unnormalize_v2", "config": {}, "state_file": "policy_post.safetensors"}
    if statistics is None:
        config = kwargs["modality_configs"][embodiment]
        pack |= {"raw_stats": files["statistics"][embodiment], "modality_config": config}
        after = {"registry_name": "groot_n1_7_action_decode_v1", "config": {"use_relative_action": True}}
    else:
        save_file(statistics, folder / "policy_pack.safetensors")
    framed = {key: kwargs[key] for key in FRAMING}
    before = [{"registry_name": "rename_observations_processor", "config": {"rename_map": {}}}]
    before.append({"registry_name": "groot_n1_7_pack_inputs_v1", "config": pack, "state_file": "policy_pack.safetensors"})
    before.append({"registry_name": "groot_n1_7_vlm_encode_v1", "config": framed})
    (folder / "policy_preprocessor.json").write_text(json.dumps({"steps": before}))
    (folder / "policy_postprocessor.json").write_text(json.dumps({"steps": [after]}))
    features = {f"observation.images.{name}": {"type": "VISUAL"} for name in ("wrist_image", "image")}
    table = {"type": "groot", "base_model_path": str(base), "embodiment_tag": embodiment, "input_features": features}
    (folder / "config.json").write_text(json.dumps(table))
    weights = load_file(Path(base) / "model.safetensors")
    head = "backbone.model.lm_head.weight"
    weights[head] = weights.pop("backbone.model.model.language_model.embed_tokens.weight")  # LeRobot ties them, and saves one
    save_file({f"_groot_model.{name}": weight for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def two_robots(folder):
    """(a checkpoint with two robots, the statistics of the first)."""
    gripper = {"min": [0.0], "max": [1.0], "mean": [0.5], "std": [0.5], "q01": [0.0], "q99": [1.0]}
    config, tables = absolute()
    tables["action"]["gripper"] = gripper
    return published(folder, {"arm": (config, tables), "joints": relative()}), tables


def arm(name, **options):
    return gr00t(name, **{"embodiment": "arm", "dims": 4, "state": 8, "gripper": "open-high", **options})
