"""A small pi0-FAST of LeRobot's own class, saved with its processors, and what it does. `peer_pythons` calls `main` by a Python
with lerobot 0.6.1, which imports nothing of mmrl."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.pi0_fast import modeling_pi0_fast as module
from lerobot.policies.pi0_fast.configuration_pi0_fast import PI0FastConfig
from lerobot.processor import tokenizer_processor
from safetensors.torch import load_file, save_file
from scipy.fft import dct
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pi_of_lerobot import shrink


class Fast:
    """FAST as its authors describe it, by scipy: the code on the hub can't be had here."""

    def __init__(self, folder):
        kept = json.loads((folder / "processor_config.json").read_text())
        self.scale, self.min_token = kept["scale"], kept["min_token"]
        self.bpe_tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)

    def __call__(self, chunks):
        found = np.around(dct(np.asarray(chunks), axis=1, norm="ortho") * self.scale) - self.min_token
        texts = ["".join(map(chr, np.maximum(one.flatten(), 0).astype(int))) for one in found]
        return [self.bpe_tokenizer(text)["input_ids"] for text in texts]


def replace_the_hub(folder):
    """The tokenizers of the test instead of those on the hub."""

    def words(name, add_eos_token=False, add_bos_token=True, **_):
        found = AutoTokenizer.from_pretrained(folder)
        if add_eos_token and not add_bos_token:
            last = [(found.eos_token, found.eos_token_id)]
            found._tokenizer.post_processor = TemplateProcessing(single=f"$A {found.eos_token}", special_tokens=last)
        return found

    class Words:
        from_pretrained = staticmethod(words)

    class Actions:
        from_pretrained = staticmethod(lambda name, **_: Fast(folder / "action_tokenizer"))

    for one in (module, tokenizer_processor):
        one.AutoTokenizer, one.AutoProcessor = Words, Actions


def main(what, folder):
    """what: "save" builds one with random weights and saves it in the folder, "act" loads the one that is there. Both read its
    inputs.safetensors and asked.json, and write computed.safetensors."""
    folder = Path(folder)
    asked = json.loads((folder / "asked.json").read_text())
    inputs = load_file(folder / "inputs.safetensors")
    shrink(module, asked["vocabulary"])
    replace_the_hub(folder)
    if what == "save":
        statistics = {name: {k: torch.tensor(v) for k, v in table.items()} for name, table in asked["statistics"].items()}
        features = {name: PolicyFeature(type=FeatureType.VISUAL, shape=(3, 56, 56)) for name in asked["cameras"]}
        features["observation.state"] = PolicyFeature(type=FeatureType.STATE, shape=(asked["state"],))
        config = PI0FastConfig(
            device="cpu",
            chunk_size=5,
            n_action_steps=5,
            image_resolution=(56, 56),
            tokenizer_max_length=asked["tokens"],
            max_decoding_steps=24,
            max_action_tokens=40,
            validate_action_token_prefix=False,
            input_features=features,
            output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(asked["dims"],))},
            normalization_mapping={name: NormalizationMode(mode) for name, mode in asked["modes"].items()},
        )
        torch.manual_seed(0)
        policy = module.PI0FastPolicy(config)
        with torch.no_grad():
            for weight in policy.parameters():
                weight.normal_(0, weight.shape[-1] ** -0.5)
            head = policy.model.paligemma_with_expert.paligemma.lm_head.weight
            head[:-448] *= 0.5
            head[-128:] = 0  # ids that stand for nothing would make all actions 0
        policy.save_pretrained(folder)
        before, after = make_pre_post_processors(config, dataset_stats=statistics or None)
        before.save_pretrained(folder)
        after.save_pretrained(folder)
    else:
        policy = module.PI0FastPolicy.from_pretrained(folder)
        policy.config.device = "cpu"
        device = {"device_processor": {"device": "cpu"}}
        before, after = make_pre_post_processors(policy.config, pretrained_path=str(folder), preprocessor_overrides=device)
        saved, own = load_file(folder / "model.safetensors"), policy.state_dict()
        assert saved.keys() == own.keys(), sorted(saved.keys() ^ own.keys())
        lost = [name for name in saved if not torch.equal(saved[name].to(own[name].dtype), own[name])]
        assert not lost, lost
    policy.eval()
    save_file(computed(policy, before, after, inputs, asked["tasks"]), folder / "computed.safetensors")


def computed(policy, before, after, inputs, tasks):
    logits, generated = [], []
    policy.model.paligemma_with_expert.paligemma.lm_head.register_forward_hook(lambda _, __, out: logits.append(out[:, -1]))
    detokenize = policy.detokenize_actions
    policy.detokenize_actions = lambda tokens, **sizes: (generated.append(tokens), detokenize(tokens, **sizes))[1]
    batch = {name: value for name, value in inputs.items() if name.startswith("observation.")}
    read = before({**batch, "task": tasks})
    with torch.no_grad():
        found = policy.predict_action_chunk(read)
    policy.detokenize_actions = detokenize
    shown = before({**batch, "task": tasks, "action": inputs["demonstrated"]})
    return {
        "normalised": found,
        "actions": torch.stack([after(found[:, k]) for k in range(found.shape[1])], 1),
        "state": read["observation.state"],
        "words": read["observation.language.tokens"],
        "tokens": generated[0],
        "logits": torch.stack(logits, 1),
        "demonstrated": shown["action.tokens"],
        "demonstrated_there": shown["action.token_mask"],
        "understood": detokenize(inputs["sequences"], action_horizon=5, action_dim=found.shape[-1]),
    }
