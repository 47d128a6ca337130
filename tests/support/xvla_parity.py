"""X-VLA against LeRobot's own classes: what one saves, the other loads, acts and learns with alike."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import pad

from mmrl.api.simulators.types import Observation
from peer_pythons import Pairs, lerobot
from pi0_cases import moved
from xvla_cases import xvla

TEXTS = ["push the red cube", "x", "stack the ball on the yellow box and then another one"]
CASES = {
    "published": {"turned": True, "num_image_views": 3},
    "hands": {"empty_cameras": 1, "cameras": ["front"], "domain": 0},
    "auto": {"action_mode": "auto", "dims": 6, "max_action_dim": 9, "statistics": {"STATE": "MEAN_STD", "ACTION": "MIN_MAX"}},
    "joint": {"action_mode": "joint", "dims": 14, "use_hetero_proj": True, "resize_imgs_with_padding": None, "side": 40},
    "agibot": {"action_mode": "agibot_ee6d", "len_soft_prompts": 0, "num_image_views": 1, "cameras": ["front"]},
    "franka": {"action_mode": "franka_joint7", "dims": 7, "use_proprio": False},
    "so101": {"action_mode": "so101_bimanual", "dims": 12, "pad_language_to": "max_length"},
}
MICROSOFT = (
    (r"vlm\.vision_tower\.convs\.(\d+)\.conv\.", r"vlm.vision_tower.convs.\1.proj."),
    (r"(blocks\.\d+\.\d+\.\w+_block)\.(conv\d)\.", r"\1.\2.fn.dw."),
    (r"(blocks\.\d+\.\d+\.(spatial|channel)_block)\.norm1\.", r"\1.\2_attn.norm."),
    (r"\.spatial_attn\.norm\.", ".window_attn.norm."),
    (r"(blocks\.\d+\.\d+\.\w+_block)\.(window_attn|channel_attn)\.(qkv|proj)\.", r"\1.\2.fn.\3."),
    (r"(blocks\.\d+\.\d+\.\w+_block)\.norm2\.", r"\1.ffn.norm."),
    (r"(blocks\.\d+\.\d+\.\w+_block)\.ffn\.fc", r"\1.ffn.fn.net.fc"),
    (r"vlm\.multi_modal_projector\.image_position_embed\.", "vlm.image_pos_embed."),
    (r"vlm\.multi_modal_projector\.", "vlm."),
    (r"vlm\.language_model\.", "vlm.language_model.model."),
)
"""Names in transformers -> those in Microsoft's code, applied in turn."""


def pairs(policy, seen, folder: Path) -> Pairs:
    """Of the pictures, the state, the actions by the published steps, before and after the processors, and the loss."""
    theirs = load_file(folder / "computed.safetensors")
    images = {key.rpartition(".")[2]: value for key, value in seen.items() if value.dtype == torch.uint8}
    shown = Observation(images=images, state=seen["observation.state"], instructions=TEXTS)
    ours, noise = {"pixels": policy._pictures(shown), "state": policy._state(shown)}, seen["noise"]
    with torch.no_grad():
        scene = policy.look(shown)

        class Given:  # the sampler's own draw is replaced by the peer's noise
            calls_n = torch.zeros(len(noise), dtype=torch.long)

            def normal(self, use, *shape):
                return noise.clone()

            def uniform(self, use, *shape):
                return torch.zeros(len(noise), *shape)

        end, _, logprob = policy.chains.sample(lambda x, t: policy.velocity(scene, x, t), Given(), noise.shape[1:], 0.0)
        assert (logprob == 0).all()
        times = (seen["offset"] + torch.arange(len(noise)) / len(noise)) % (1 - 1e-5)
        target = pad(seen["target"], (0, policy.numbers - seen["target"].shape[-1]))
        t = times[:, None, None]
        said = policy.velocity(scene, (noise * t + target * (1 - t))[:, None], times[:, None])
        ours["loss"] = policy.space.errors(said[:, 0], target).sum(-1).mean()[None]
    ours["said"] = end[..., : policy.space.real]
    actions = policy.robot.carried_out(end[..., : policy.robot.used])
    if policy.robot.hands:
        actions[..., 6::7] = torch.where(actions[..., 6::7] > 0.5, 1.0, -1.0)
    ours["actions"] = policy.statistics.action.unnormalize(actions)
    assert end.std() > 0.2 and (end[0] - end[1]).abs().max() > 0.02, "the actions of calls differ"
    theirs["pixels"] = theirs["pixels"][:, : ours["pixels"].shape[1]]  # without empty views
    return {name: (value, theirs[name]) for name, value in ours.items()}


def acted(folder: Path, seen) -> None:
    save_file(seen, folder / "seen.safetensors")
    lerobot("xvla_of_lerobot", "act", folder, folder / "seen.safetensors")


def both_ways(case: str, folder: Path, attention: str = "sdpa") -> dict[str, Pairs]:
    """By who saved the checkpoint, and of mmrl's loaded again."""
    theirs, ours = folder / "theirs", folder / "ours"
    lerobot("xvla_of_lerobot", "make", theirs, json.dumps(CASES[case]))
    seen, given = load_file(theirs / "seen.safetensors"), {"dims": None, "chunk": None, "state": None, "attention": attention}
    policy = xvla(str(theirs), **given)
    assert (policy.dims, policy.chunk, policy.state) == (CASES[case].get("dims", 7 if case == "published" else 20), 2, 8)
    assert (policy.chains.steps, policy.domain) == (3, CASES[case].get("domain", 3))
    found = {"saved by LeRobot": pairs(policy, seen, theirs)}
    moved(policy, 0.02).save(ours)
    acted(ours, seen)
    found["saved by mmrl"] = pairs(policy, seen, ours)
    again = xvla(str(ours), **given, statistics=policy.statistics.plain())
    kept = json.loads((theirs / "config.json").read_text()).keys()
    assert json.loads((ours / "config.json").read_text()).keys() == kept, "no field is lost"
    return found | {"loaded again": pairs(again, seen, ours)}


def of_microsoft(folder: Path) -> None:
    """Rewrite a folder's weights and configuration to those of the first published checkpoints, with Microsoft's Florence-2."""
    weights, found = load_file(folder / "model.safetensors"), {}
    for name, value in weights.items():
        for pattern, new in MICROSOFT:
            name = re.sub(pattern, new, name)
        if name.endswith("vlm.image_projection.weight"):
            name, value = name.removesuffix(".weight"), value.T.contiguous()
        found[name] = value
    found["model.vlm.language_model.final_logits_bias"] = torch.zeros(1, 300)
    save_file(found, folder / "model.safetensors")
    table = json.loads((folder / "config.json").read_text())
    vision = table["florence_config"]["vision_config"]
    vision |= {"model_type": "davit", "dim_embed": vision.pop("embed_dim"), "enable_checkpoint": False}
    places = vision.pop("max_position_embeddings")
    vision["image_pos_embed"] = {"type": "learned_abs_2d", "max_pos_embeddings": places}
    vision["visual_temporal_embedding"] = {"type": "COSINE", "max_temporal_embeddings": 100}
    vision["image_feature_source"] = ["spatial_avg_pool", "temporal_avg_pool"]
    table["florence_config"]["text_config"]["model_type"] = "florence2_language"
    (folder / "config.json").write_text(json.dumps(table))


def published_names(folder: Path) -> Pairs:
    """Of a checkpoint with Microsoft's names."""
    lerobot("xvla_of_lerobot", "make", folder, json.dumps(CASES["hands"]))
    of_microsoft(folder)
    seen = load_file(folder / "seen.safetensors")
    acted(folder, seen)
    return pairs(xvla(str(folder), dims=None, chunk=None, state=None), seen, folder)


def tiny(folder: Path) -> Pairs:
    """Of mmrl's tiny one, with cameras that the run file names, as the checkpoint has none."""
    numbers = {"kind": "min-max", "action": {"min": [-1.0] * 3, "max": [1.0, 2.0, 3.0]}}
    policy = xvla(cameras=["wrist", "front"], chunk=5, steps=3, domain=2, statistics=numbers)
    policy.save(folder)
    draw = torch.Generator().manual_seed(1)
    seen = {
        "observation.images.front": torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8, generator=draw),
        "observation.images.wrist": torch.randint(0, 256, (3, 40, 64, 3), dtype=torch.uint8, generator=draw),
        "observation.state": torch.randn(3, 6, generator=draw),
        "noise": torch.randn(3, 5, 20, generator=draw),
        "offset": torch.rand(1, generator=draw),
        "target": torch.rand(3, 5, 3, generator=draw),
    }
    acted(folder, seen)
    return pairs(policy, seen, folder)
