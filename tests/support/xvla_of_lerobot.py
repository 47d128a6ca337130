"""A small X-VLA as LeRobot saves it, and the actions that LeRobot computes. `peer_pythons` calls `make` and `act` by a Python
with lerobot 0.6.1, which imports nothing of mmrl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.xvla.configuration_xvla import XVLAConfig
from lerobot.policies.xvla.modeling_xvla import XVLAPolicy
from lerobot.policies.xvla.processor_xvla import LiberoProcessorStep, XVLARotation6DToAxisAngleProcessorStep
from safetensors.torch import load_file, save_file

CALLS, STATE = 3, 8
TEXTS = ["push the red cube", "x", "stack the ball on the yellow box and then another one"]
VISION = {"depths": [1, 1], "embed_dim": [16, 32], "num_heads": [2, 4], "num_groups": [2, 4], "window_size": 4}
VISION |= {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True]}
VISION |= {"projection_dim": 24, "max_position_embeddings": 12}
TEXT = {"d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 40, "vocab_size": 300}
TEXT |= {
    "decoder_layers": 1,
    "decoder_attention_heads": 3,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
TEXT |= {"scale_embedding": True}
SMALL = {"florence_config": {"vision_config": VISION, "text_config": TEXT}, "chunk_size": 5, "n_action_steps": 2, "device": "cpu"}
SMALL |= {"hidden_size": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2.5, "num_domains": 4, "len_soft_prompts": 3, "dim_time": 9}
SMALL |= {"max_len_seq": 200, "num_denoising_steps": 3, "max_state_dim": 20, "tokenizer_max_length": 12, "num_image_views": 3}
SMALL |= {"resize_imgs_with_padding": (32, 40)}


def words(folder: Path) -> None:
    """A tokenizer of letters."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bpe = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="</s>", bos_token="<s>").save_pretrained(folder)


def statistics(draw: torch.Generator, dims: int) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    for key, size in (("observation.state", STATE), ("action", dims)):
        low = torch.randn(size, generator=draw)
        found[key] = {name: low + i + torch.rand(size, generator=draw) / 2 for i, name in enumerate(("min", "mean", "max"))}
        found[key]["std"] = 0.5 + torch.rand(size, generator=draw)
    return found


def make(place: str, text: str) -> None:
    """Save a policy, and what it sees and does. text: its configuration in JSON; "statistics" is the normalisation of states and
    actions, "cameras" the names of its pictures, "dims" the numbers of an action, "domain" its domain, "turned" whether LeRobot
    makes an axis and an angle of a turn, as for LIBERO."""
    folder, options = Path(place), json.loads(text)
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    words(folder / "words")
    norms, cameras, dims = options.pop("statistics", {}), options.pop("cameras", ["image", "image2"]), options.pop("dims", 20)
    domain, turned, side = options.pop("domain", 3), options.pop("turned", False), options.pop("side", 48)
    config = XVLAConfig(**{**SMALL, "tokenizer_name": str(folder / "words"), **options})
    visual = PolicyFeature(type=FeatureType.VISUAL, shape=(3, 40, side))
    config.input_features = {f"observation.images.{name}": visual for name in cameras}
    config.input_features["observation.state"] = PolicyFeature(type=FeatureType.STATE, shape=(STATE,))
    config.output_features = {"action": PolicyFeature(type=FeatureType.ACTION, shape=(dims,))}
    config.normalization_mapping |= {kind: NormalizationMode(norm) for kind, norm in norms.items()}
    policy = XVLAPolicy(config).eval()
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            weight.normal_(1 if "norm" in name and "weight" in name else 0, 0.2)
    pre, post = make_pre_post_processors(config, dataset_stats=statistics(draw, dims))
    next(step for step in pre.steps if hasattr(step, "domain_id")).domain_id = domain
    if turned:
        post.steps.insert(1, XVLARotation6DToAxisAngleProcessorStep())
    policy.save_pretrained(folder)
    pre.save_pretrained(folder)
    post.save_pretrained(folder)
    keys = [key for key in config.image_features if "empty_camera" not in key]
    pictures = [torch.randint(0, 256, (CALLS, 40, side, 3), dtype=torch.uint8, generator=draw) for _ in keys]
    seen = dict(zip(keys, pictures, strict=True))
    seen |= {"observation.state": torch.randn(CALLS, STATE, generator=draw)}
    size = policy.model.dim_action
    seen |= {"noise": torch.randn(CALLS, config.chunk_size, size, generator=draw), "offset": torch.rand(1, generator=draw)}
    seen |= {"target": torch.rand(CALLS, config.chunk_size, dims if dims > 7 else policy.model.dim_action, generator=draw)}
    save_file(seen, folder / "seen.safetensors")
    act(place, str(folder / "seen.safetensors"))


def act(folder: str, place: str) -> None:
    """Write beside `place`, a file with what is seen, what the policy in the folder does there."""
    policy = XVLAPolicy.from_pretrained(folder).float().eval()
    pre, post = make_pre_post_processors(policy.config, pretrained_path=str(folder))
    seen = load_file(place)
    noise, offset, target = seen.pop("noise"), seen.pop("offset"), seen.pop("target")
    batch: dict[str, Any] = {
        key: value.permute(0, 3, 1, 2).float() / 255 if value.dtype == torch.uint8 else value for key, value in seen.items()
    }
    if any(isinstance(step, XVLARotation6DToAxisAngleProcessorStep) for step in post.steps):
        state = batch.pop("observation.state")
        x, y, z = state[:, 3:6].unbind(-1)
        nothing = torch.zeros_like(x)
        crossed = torch.stack([nothing, -z, y, z, nothing, -x, -y, x, nothing], -1).view(-1, 3, 3)
        hand = {"pos": state[:, :3], "mat": torch.linalg.matrix_exp(crossed)}
        robot = LiberoProcessorStep().observation({"observation.robot_state": {"eef": hand}})
        batch["observation.state"] = robot["observation.state"]
    batch = pre({**batch, "task": TEXTS[: len(noise)]})
    inputs = policy._build_model_inputs(batch)
    asked = {"pixels": inputs["image_input"], "state": inputs["proprio"]}
    with torch.no_grad():
        with patch("torch.randn", lambda *shape, **more: noise.clone()):
            asked["said"] = policy.predict_action_chunk(dict(batch))
        with patch("torch.rand", lambda *shape, **more: offset), patch("torch.randn_like", lambda like: noise.clone()):
            asked["loss"] = policy.forward({**batch, "action": target})[0][None]
    asked["actions"] = torch.stack([post(one.clone()) for one in asked["said"].unbind(1)], 1)
    save_file({name: value.contiguous() for name, value in asked.items()}, Path(place).with_name("computed.safetensors"))
