"""A small SmolVLA as LeRobot saves it, and the actions that LeRobot computes. `peer_pythons` calls `make` and `act` by a Python
with lerobot 0.6.1, which imports nothing of mmrl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from safetensors.torch import load_file, save_file

CALLS, DIMS, STATE = 3, 3, 4
TEXTS = ["push the red cube", "x", "stack the ball on the yellow box\n"]
SMALL = {"num_vlm_layers": 4, "chunk_size": 5, "n_action_steps": 2, "num_steps": 3, "device": "cpu", "max_action_dim": 8}
SMALL |= {"max_state_dim": 6, "resize_imgs_with_padding": (32, 32), "tokenizer_max_length": 12, "load_vlm_weights": False}


def backbone(folder: Path) -> None:
    """A SmolVLM of three heads over one: its configuration, tokenizer and processor, no weights."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    named = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}
    named |= {"end_of_utterance_token": "<end_of_utterance>"}
    bpe.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<pad>", "<video>", *named.values()]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="<pad>", extra_special_tokens=named)
    text = {"model_type": "llama", "vocab_size": 320, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 5}
    text |= {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8, "rope_theta": 100000.0}
    eye = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
    eye |= {"image_size": 32}
    config = SmolVLMConfig(
        text_config=text, vision_config=eye, image_token_id=tokenizer.convert_tokens_to_ids("<image>"), scale_factor=2
    )
    config.save_pretrained(folder)
    sizes = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
    images, videos = SmolVLMImageProcessor(**sizes), SmolVLMVideoProcessor(**sizes, num_frames=4, fps=1)
    SmolVLMProcessor(images, tokenizer, videos, image_seq_len=4, chat_template="x").save_pretrained(folder)


def statistics(draw: torch.Generator) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    for key, size in (("observation.state", STATE), ("action", DIMS)):
        low = torch.randn(size, generator=draw)
        names = ("min", "q01", "q10", "mean", "q90", "q99", "max")
        found[key] = {name: low + i + torch.rand(size, generator=draw) / 2 for i, name in enumerate(names)}
        found[key]["std"] = 0.5 + torch.rand(size, generator=draw)
    return found


def make(place: str, text: str) -> None:
    """Save a policy, and what it sees and does. text: its configuration in JSON; "statistics" is the normalisation of states and
    actions, "cameras" the names of its pictures, "rename" LeRobot's map of renamed keys."""
    folder, options = Path(place), json.loads(text)
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    backbone(folder / "vlm")
    norms, cameras = options.pop("statistics", {}), options.pop("cameras", ["front", "wrist"])
    renamed = options.pop("rename", {})
    config = SmolVLAConfig(**{**SMALL, "vlm_model_name": str(folder / "vlm"), **options})
    visual = PolicyFeature(type=FeatureType.VISUAL, shape=(3, 40, 56))
    config.input_features = {f"observation.images.{name}": visual for name in cameras}
    config.input_features["observation.state"] = PolicyFeature(type=FeatureType.STATE, shape=(STATE,))
    config.output_features = {"action": PolicyFeature(type=FeatureType.ACTION, shape=(DIMS,))}
    config.normalization_mapping |= {kind: NormalizationMode(norm) for kind, norm in norms.items()}
    policy = SmolVLAPolicy(config).eval()
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            weight.normal_(1 if "norm" in name and "weight" in name else 0, 0.02 if "embed" in name else 0.3)
    pre, post = make_pre_post_processors(config, dataset_stats=statistics(draw))
    pre.steps[0].rename_map = renamed
    policy.save_pretrained(folder)
    pre.save_pretrained(folder)
    post.save_pretrained(folder)
    back = {new: old for old, new in renamed.items()}
    keys = [back.get(key, key) for key in config.image_features if "empty_camera" not in key]
    pictures = [torch.randint(0, 256, (CALLS, 40 - 8 * i, 56, 3), dtype=torch.uint8, generator=draw) for i in range(len(keys))]
    seen = dict(zip(keys, pictures, strict=True))
    seen |= {"observation.state": torch.randn(CALLS, STATE, generator=draw)}
    seen |= {"noise": torch.randn(CALLS, config.chunk_size, config.max_action_dim, generator=draw)}
    seen |= {"time": torch.rand(CALLS, generator=draw)}
    save_file(seen, folder / "seen.safetensors")
    act(place, str(folder / "seen.safetensors"))


def act(folder: str, place: str) -> None:
    """Write beside `place`, a file with what is seen, what the policy in the folder does there."""
    policy = SmolVLAPolicy.from_pretrained(folder, strict=not Path(folder, "acting.json").is_file()).float().eval()
    pre, post = make_pre_post_processors(policy.config, pretrained_path=str(folder))
    seen = load_file(place)
    noise, time = seen.pop("noise"), seen.pop("time")
    batch: dict[str, Any] = {
        key: value.permute(0, 3, 1, 2).float() / 255 if value.dtype == torch.uint8 else value for key, value in seen.items()
    }
    batch = pre({**batch, "task": TEXTS[: len(noise)]})
    actions = policy.predict_action_chunk(batch, noise=noise)
    model, asked = policy.model, {}
    with torch.no_grad():
        images, masks = policy.prepare_images(batch)
        words = (batch["observation.language.tokens"], batch["observation.language.attention_mask"].bool())
        state = policy.prepare_state(batch)
        target = torch.zeros(noise.shape)
        # the squared error with these targets and times, from which each velocity's size follows
        asked["loss"] = model.forward(images, masks, *words, state, target, noise, time)
    asked |= {"actions": torch.stack([post(one) for one in actions.unbind(1)], 1), "normalised": actions}
    asked |= {"pixels": torch.stack(images, 1), "state": state}
    save_file({name: value.contiguous() for name, value in asked.items()}, Path(place).with_name("computed.safetensors"))
