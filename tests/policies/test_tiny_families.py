"""Every tiny checkpoint reads conversations with pictures, can be trained, and is loaded by transformers' own classes."""

from __future__ import annotations

import fnmatch
import sys

import pytest
import torch
from transformers import AutoProcessor

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.policies.names import HEARING
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.known_families import without_pictures
from mmrl.policies.vlm.loading import auto_class
from mmrl.policies.vlm.tiny.__main__ import main

FAMILIES = [family for family in tiny.FAMILIES if family not in ("openvla", *HEARING)]
"""Those that see. test_qwen2_audio.py has the same for what hears."""
UNREAD = "model.vision_tower.post_layernorm.*"
"""A norm behind the last hidden states that the projector reads."""
UNUSED = {
    "llava_onevision": [UNREAD],
    "aya_vision": [UNREAD],
    "llava": [UNREAD, "model.vision_tower.encoder.layers.1.*"],
    "llava_next": [UNREAD, "model.vision_tower.encoder.layers.1.*"],
    "granite4_vision": [UNREAD, "model.spatial_projectors.[012].*"],
    "gemma4_unified": ["model.embed_audio.*"],
    "hunyuan_vl": ["model.vision_tower.patch_merger.image_sep"],
    "ernie4_5_vl_moe": ["*.e_score_correction_bias"],
    "gemma4": ["model.audio_tower.*", "model.embed_audio.*"],
    "qwen2_5_omni": ["*audio_tower.*"],
    "qwen3_omni_moe": ["*audio_tower.*"],
    "gemma3n": ["model.audio_tower.*", "model.embed_audio.*", "model.embed_vision.embedding.*", "*.hard_embedding_norm.*"],
    "phi4_multimodal": [
        "*.audio_embed.*",
        *(f"*.img_processor.{part}.*" for part in ("encoder.layers.1", "post_layernorm", "head")),
    ],
}
"""Family -> weights that the gradient of a text with two pictures doesn't reach."""
ALWAYS_PICTURES = ("paligemma",)
"""Families whose processors take no prompt without a picture."""
PICTURES = {0: [], 1: [(56, 84)], 2: [(56, 84), (140, 70)]}


def encoded(processor, count):
    sizes = PICTURES[count]
    if type(processor).__name__ == "PerceptionLMProcessor":  # it can't join pictures that are cut into several numbers of tiles
        sizes = sizes[:1] * count
    shown = [{"type": "image", "image": cases.picture(n, *size)} for n, size in enumerate(sizes)]
    message = {"role": "user", "content": [*shown, {"type": "text", "text": "What digit is shown?"}]}
    found = processor.apply_chat_template(
        [[message]], tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
    )
    return {k: v.float() if getattr(v, "dtype", None) == torch.bfloat16 else v for k, v in found.items()}


@pytest.mark.parametrize("family", cases.with_later_slow(FAMILIES))
def test_a_checkpoint_reads_pictures_learns_and_is_loaded_again(family, tmp_path):
    model, processor = tiny.build(family, hidden=32, spread=0.1)
    assert model.config.model_type == tiny.model_type(f"tiny:{family}")
    model.eval()
    inputs = {count: encoded(processor, count) for count in PICTURES if count or family not in ALWAYS_PICTURES}
    text, *lengths = [inputs[count]["input_ids"].shape[1] if count in inputs else 0 for count in PICTURES]
    assert text + 4 <= min(lengths) and lengths[0] != lengths[1]
    assert model.generation_config.eos_token_id[0] == processor.tokenizer.eos_token_id
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    again = auto_class(str(tmp_path), False).from_pretrained(tmp_path).eval()
    if family == "llama4":  # as known_families.Llama4 does, for transformers 5.24
        for each in (model, again):
            each.language_model.register_forward_hook(without_pictures)
    reader = AutoProcessor.from_pretrained(tmp_path)
    reader.chat_template = reader.chat_template or reader.tokenizer.chat_template  # Phi-4's processor drops its own
    assert (type(again), type(reader)) == (type(model), type(processor))
    assert reader.tokenizer.eos_token_id == processor.tokenizer.eos_token_id
    for count, shown in inputs.items():
        forget(model, again)
        found = encoded(reader, count)
        assert found.keys() == shown.keys()
        assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(found[k])) for k, v in shown.items())
        with torch.no_grad():
            assert torch.equal(model(**shown).logits, again(**found).logits)
    forget(model)
    model(**{**inputs[2], "labels": inputs[2]["input_ids"]}).loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(g is None or g.isfinite().all() for g in gradients.values())
    unused = [name for name, g in gradients.items() if g is None or not g.any()]
    for pattern in UNUSED.get(family, []):
        assert fnmatch.filter(unused, pattern)
        unused = [name for name in unused if not fnmatch.fnmatchcase(name, pattern)]
    assert not unused


@pytest.mark.parametrize("family", ALWAYS_PICTURES)
def test_a_prompt_without_a_picture_is_refused_by_the_processor(family):
    with pytest.raises(ValueError, match="images"):
        encoded(tiny.build(family, hidden=32)[1], 0)


def forget(*models):
    for model in models:
        base = getattr(model, "model", None)
        if hasattr(base, "rope_deltas"):
            base.rope_deltas = None


@pytest.mark.parametrize("family", cases.with_later_slow(FAMILIES))
def test_a_skeleton_has_the_names_and_shapes_of_the_model(family):
    model, _ = tiny.build(family, hidden=64)
    bare = tiny.skeleton(family, hidden=64)
    assert {n: p.shape for n, p in bare.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
    assert {p.device.type for p in bare.parameters()} == {"meta"}


def test_a_family_with_layers_of_several_types_has_one_of_each():
    assert set(tiny.skeleton("qwen3_5").config.text_config.layer_types) == {"linear_attention", "full_attention"}
    with pytest.raises(UserError, match=r"tiny qwen3_5, layers=1: it has layers of several types: give layers=2 or more"):
        tiny.parse("tiny:qwen3_5:layers=1", 0)


@pytest.mark.parametrize("family", ["qwen2_vl", "smolvlm", "paligemma"])
def test_words_get_a_token_and_change_no_weight(family):
    words = [f"word{n}" for n in range(100)]
    model, processor = tiny.build(family, hidden=32, words=words)
    plain, _ = tiny.build(family, hidden=32)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    ids = [processor.tokenizer.encode(word, add_special_tokens=False) for word in words]
    assert all(len(i) == 1 for i in ids) and max(ids)[0] < model.get_output_embeddings().weight.shape[0]
    assert tiny.vocabulary(family).items() <= processor.tokenizer.get_vocab().items()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["qwen2_vl", "--hidden", "33"],
            "error: tiny hidden=33, layers=2: hidden must be a multiple of 32 up to 4096, layers 1 to 64",
        ),
        (["qwen2_lv"], "error: no tiny 'qwen2_lv'. Did you mean 'qwen2_vl'?"),
    ],
)
def test_the_command_refuses_in_one_line(given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tiny", *given[:1], str(tmp_path / "x"), *given[1:]])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.splitlines()[-1].endswith(said) and not (tmp_path / "x").exists()
