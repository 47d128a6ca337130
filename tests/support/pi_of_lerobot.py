"""A small pi0 or pi0.5 of LeRobot's own classes, saved with its processors, and what it does. `peer_pythons` calls `main` by a
Python with lerobot 0.6.1, which imports nothing of mmrl."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from safetensors.torch import load_file, save_file

WIDTH, LAYERS = 32, 2


def shrink(module, vocabulary=512):
    """LeRobot's configurations know the published sizes alone."""
    sizes = {"gemma_2b": (WIDTH, 3 * WIDTH), "gemma_300m": (WIDTH // 2, 2 * WIDTH)}

    def gemma(variant):
        width, inner = sizes[variant]
        return module.GemmaConfig(width=width, depth=LAYERS, mlp_dim=inner, num_heads=8, num_kv_heads=1, head_dim=WIDTH // 4)

    whole, expert = module.PaliGemmaForConditionalGenerationWithPiGemma, getattr(module, "PiGemmaForCausalLM", None)

    def small_whole(config):
        eye = config.vision_config
        eye.hidden_size, eye.intermediate_size, eye.num_hidden_layers, eye.num_attention_heads = WIDTH, 2 * WIDTH, LAYERS, 16
        eye.projection_dim = config.projection_dim = WIDTH
        eye.image_size = 56  # pi0-FAST's class leaves it
        config.text_config.vocab_size = config.image_token_index = vocabulary
        return whole(config=config)

    def small_expert(config):
        config.vocab_size = vocabulary
        return expert(config=config)

    module.get_gemma_config = gemma
    module.PaliGemmaForConditionalGenerationWithPiGemma, module.PiGemmaForCausalLM = small_whole, small_expert


def main(what, kind, folder):
    """what: "save" builds one with random weights and saves it in the folder, "act" loads the one that is there. Both read its
    inputs.safetensors and asked.json, and write computed.safetensors."""
    folder = Path(folder)
    module = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    settings = importlib.import_module(f"lerobot.policies.{kind}.configuration_{kind}")
    policy_class, config_class = (getattr(m, f"{kind.upper()}{end}") for m, end in ((module, "Policy"), (settings, "Config")))
    shrink(module)
    asked = json.loads((folder / "asked.json").read_text())
    inputs = load_file(folder / "inputs.safetensors")
    if what == "save":
        statistics = {name: {k: torch.tensor(v) for k, v in table.items()} for name, table in asked["statistics"].items()}
        features = {name: PolicyFeature(type=FeatureType.VISUAL, shape=(3, 56, 56)) for name in asked["cameras"]}
        features["observation.state"] = PolicyFeature(type=FeatureType.STATE, shape=(asked["state"],))
        config = config_class(
            device="cpu",
            dtype="float32",
            chunk_size=5,
            n_action_steps=2,
            num_inference_steps=asked["steps"],
            image_resolution=(56, 56),
            tokenizer_max_length=asked["tokens"],
            input_features=features,
            output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(asked["dims"],))},
            normalization_mapping={name: NormalizationMode(mode) for name, mode in asked["modes"].items()},
        )
        torch.manual_seed(0)
        policy = policy_class(config)
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                weight.normal_(0, 1.0 if "norm" in name and "dense.bias" in name else weight.shape[-1] ** -0.5)
        policy.save_pretrained(folder)
        before, after = make_pre_post_processors(config, dataset_stats=statistics or None, **overrides(folder))
        before.save_pretrained(folder)
        after.save_pretrained(folder)
    else:
        policy = policy_class.from_pretrained(folder)
        policy.config.device = "cpu"
        before, after = make_pre_post_processors(policy.config, pretrained_path=str(folder), **overrides(folder, loaded=True))
        saved, own = load_file(folder / "model.safetensors"), policy.state_dict()
        lost = [name for name in saved if name in own and not torch.equal(saved[name].to(own[name].dtype), own[name])]
        assert not lost, lost
        assert {name for name in own if name not in saved} <= {TIED}, sorted(own.keys() - saved.keys())
        assert saved.keys() <= own.keys(), sorted(saved.keys() - own.keys())
    policy.eval()
    batch = {name: value for name, value in inputs.items() if name.startswith("observation.")}
    read = before({**batch, "task": asked["tasks"]})
    found = policy.predict_action_chunk(read, noise=inputs["noise"])
    computed = {"normalised": found, "actions": torch.stack([after(found[:, k]) for k in range(found.shape[1])], 1)}
    computed |= {"state": read["observation.state"], "tokens": read["observation.language.tokens"]}
    save_file({name: value.contiguous() for name, value in computed.items()}, folder / "computed.safetensors")


TIED = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"


def overrides(folder, loaded=False):
    """The tokenizer of the test instead of PaliGemma's, which is on the hub."""
    if loaded:
        changed = {"tokenizer_processor": {"tokenizer_name": str(folder)}, "device_processor": {"device": "cpu"}}
        return {"preprocessor_overrides": changed}
    from lerobot.processor import tokenizer_processor
    from transformers import AutoTokenizer

    class Here:
        from_pretrained = staticmethod(lambda name: AutoTokenizer.from_pretrained(folder))

    tokenizer_processor.AutoTokenizer = Here
    return {}
