"""OpenVLA and OpenVLA-OFT against arrays that their published code computed, see tests/golden/openvla/README.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

import openvla_parity as given
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.vla import VLA
from peer_pythons import Pairs

GOLDEN = Path(__file__).parents[1] / "golden" / "openvla"
ARRAYS = np.load(GOLDEN / "arrays.npz")
INSTRUCTION = "Pick up the red cube"


def checkpoint(folder: Path) -> Path:
    """The folder that the published code saved, with its config.json; only the sizes of the small towers are added."""
    shapes = json.loads((GOLDEN / "weights.json").read_text())
    weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for name, tensor in weights.items():
        given.fill(name, tensor)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((GOLDEN / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "towers": given.TOWERS}))
    (folder / "preprocessor_config.json").write_text((GOLDEN / "preprocessor_config.json").read_text())
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<PAD>"}
    PreTrainedTokenizerFast(tokenizer_object=given.tokenizer(), **special).save_pretrained(folder)
    return folder


def tuned(base: Path, folder: Path) -> Path:
    """The folder that OpenVLA-OFT saves after fine-tuning, whose names begin with `module.` after distributed training."""
    shutil.copytree(base, folder, dirs_exist_ok=True)
    (folder / "dataset_statistics.json").write_text(json.dumps(given.statistics()))
    for kind, shapes in json.loads((GOLDEN / "components.json").read_text()).items():
        weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
        for name, weight in weights.items():
            given.fill(f"{kind}.{name}", weight)
        torch.save({f"module.{name}": w for name, w in weights.items()}, folder / f"{kind}--150000_checkpoint.pt")
    return folder


def openvla(folder: Path) -> VLA:
    return VLA(PolicyConfig(model=str(folder), kind="vla"), seed=1, dims=given.DIMS, gripper="open-high")


def oft(folder: Path, **options) -> VLA:
    options = {"dims": given.DIMS, "chunk": given.CHUNK, "gripper": "open-high", **options}
    return VLA(PolicyConfig(model=str(folder), kind="vla"), seed=1, **options)


def seen(*pictures, state=None) -> Observation:
    images = {f"camera{i}": torch.from_numpy(np.array(picture))[None] for i, picture in enumerate(pictures)}
    return Observation(images=images, state=state, instructions=[INSTRUCTION])


def two() -> Observation:
    return seen(given.picture(0), given.picture(1), state=torch.from_numpy(given.state())[None].float())


def published(name: str) -> torch.Tensor:
    return torch.from_numpy(np.asarray(ARRAYS[name], dtype=np.float32))


def chosen(policy: VLA, shown: Observation) -> tuple[torch.Tensor, ...]:
    seeds = torch.zeros(1, dtype=torch.long)
    return policy.choose(shown, CallRandomness(seeds_n=seeds, calls_n=seeds), 0.0)


@torch.no_grad()
def one_by_one(policy: VLA) -> Pairs:
    shown = seen(given.picture(0))
    pixels = policy.seeing.media(policy.seeing.pictures(shown))["pixel_values"]
    ids = policy.seeing.prompt(INSTRUCTION, policy.seeing.sizes(shown)).ids
    logits = policy.vlm.model(ids[None], pixel_values=pixels).logits
    actions = policy.statistics.action.unnormalize(chosen(policy, shown)[0])[0, 0]
    ours = {"pixels": pixels[..., ::5, ::5], "logits": logits[..., torch.from_numpy(given.COLUMNS)], "action": actions}
    return {name: (value, published(name)) for name, value in ours.items()}


@torch.no_grad()
def in_parallel(policy: VLA, shown: Observation, name: str) -> Pairs:
    """Of the logits of all slots, by the name of the arrays."""
    kept = np.flatnonzero(np.isin(given.COLUMNS, policy.action_ids.numpy()))
    logits = policy.features(shown)[0].reshape(-1, 256)[:, given.WORDS - 1 - given.COLUMNS[kept]]
    return {name: (logits, published(name)[0][:, kept])}


@torch.no_grad()
def regressed(policy: VLA) -> Pairs:
    features, _ = policy.features(two())
    middle = chosen(policy, two())[0]
    ours = {"l1_states": features.view(1, given.DIMS * given.CHUNK, -1), "l1_normal": policy.head.model(features)}
    ours["l1_actions"] = policy.statistics.action.unnormalize(middle)[0]
    return {name: (value, published(name)) for name, value in ours.items()}


def all_pairs(folder: Path) -> dict[str, Pairs]:
    """By what is compared. folder: an empty one."""
    base = folder / "base"
    base.mkdir()
    checkpoint(base)
    fine = tuned(base, folder / "fine")
    cameras = ["camera0", "camera1"]
    return {
        "one by one": one_by_one(openvla(base)),
        "OFT, one picture": in_parallel(oft(base, decoding="oft"), seen(given.picture(0)), "oft_logits"),
        "OFT, two pictures and the state": in_parallel(oft(fine, head="tokens", cameras=cameras), two(), "oft_logits_two"),
        "OFT, regression head": regressed(oft(fine, cameras=cameras)),
    }
