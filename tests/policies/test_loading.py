"""Loading models: code that comes with a checkpoint, and what can't be loaded is one line that says what to do."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from transformers.models.smolvlm import processing_smolvlm

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import suitability, tiny
from mmrl.policies.vlm.loading import _reason, auto_class, skeleton
from mmrl.policies.vlm.vlm import VLM

CONFIG = """
from transformers import LlavaConfig

class OwnConfig(LlavaConfig):
    model_type = "own_vlm"
"""
MODEL = """
from transformers import LlavaForConditionalGeneration
from .configuration_own import OwnConfig

class OwnForCausalLM(LlavaForConditionalGeneration):
    config_class = OwnConfig
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A checkpoint whose model is code in its folder, registered for `AutoModelForCausalLM` alone."""
    name = cases.llava(tmp_path / "own")
    model = transformers.LlavaForConditionalGeneration.from_pretrained(name)
    model.save_pretrained(name, save_original_format=False)
    (tmp_path / "own" / "configuration_own.py").write_text(CONFIG)
    (tmp_path / "own" / "modeling_own.py").write_text(MODEL)
    settings = tmp_path / "own" / "config.json"
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    changed = {"model_type": "own_vlm", "auto_map": code, "architectures": ["OwnForCausalLM"]}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changed))
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    return name, model


def test_code_that_registers_its_model_for_text_alone_loads(own):
    name, model = own
    config = PolicyConfig(model=name, trust_remote_code=True)
    vlm = VLM(config)
    assert type(vlm.model).__name__ == "OwnForCausalLM" and type(vlm.model).__module__.startswith("transformers_modules")
    assert all(torch.equal(p, q) for (_, p), q in zip(vlm.parameters(), model.parameters(), strict=True))
    inputs = vlm.encode(cases.prompt(1))
    mine, theirs = (m(input_ids=inputs.ids[None], **inputs.media).logits for m in (vlm.model, model.eval()))
    assert torch.equal(mine, theirs)
    assert [n for n, _ in skeleton(config).named_parameters()] == [n for n, _ in vlm.parameters()]


def test_code_of_a_checkpoint_runs_only_if_it_is_trusted(own):
    with pytest.raises(UserError, match=r"it comes with code of its own: set policy\.trust_remote_code = true if") as told:
        VLM(PolicyConfig(model=own[0]))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("diffusion_gemma", "is a diffusion_gemma model: it writes by diffusion, and models that write a token after"),
        ("idefics", "is a idefics model: it reads pictures by cross-attention, which can't be trained here: choose another"),
        ("blip-2", "is a blip-2 model: its processor puts one picture before a text, whatever a prompt's messages say: choose"),
        ("instructblip", "is a instructblip model: its processor puts one picture before a text"),
        ("instructblipvideo", "is a instructblipvideo model: its processor puts one video before a text"),
        ("fuyu", "is a fuyu model: its processor puts one picture before a text, whatever a prompt's messages say: choose"),
        ("kosmos-2", "is a kosmos-2 model: its processor puts one picture before a text"),
        ("kosmos-2.5", "is a kosmos-2.5 model: its processor puts one picture before a text"),
        ("git", "is a git model: its pictures have no tokens in a prompt: choose another model"),
        ("got_ocr2", "is a got_ocr2 model: its processor takes pages and no conversation: choose another model"),
        ("shieldgemma2", "is a shieldgemma2 model: it is a classifier of pictures, which writes no text: choose another model"),
        ("unlimited_ocr", "is a unlimited_ocr model: its processor counts the tiles of pictures in lists"),
    ],
)
def test_a_family_that_cannot_be_is_one_line(tmp_path, kind, message):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(UserError, match=message) as told:
        VLM(PolicyConfig(model=str(tmp_path)))
    assert str(told.value).startswith("policy.model: ") and "\n" not in str(told.value) and len(str(told.value)) < 400


def test_a_processor_that_lacks_a_package_names_it(tmp_path, monkeypatch):
    model, processor = tiny.build("smolvlm", hidden=32)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    monkeypatch.setattr(processing_smolvlm, "num2words", None)
    with pytest.raises(UserError, match=r"can't be loaded: it needs the Python package num2words: install num2words$") as told:
        VLM(PolicyConfig(model=str(tmp_path)))
    assert "\n" not in str(told.value)
    monkeypatch.setattr(processing_smolvlm, "num2words", str)
    assert VLM(PolicyConfig(model=str(tmp_path))).encode(cases.prompt(1)).media


def test_the_package_that_code_imports_is_named():
    with pytest.raises(ModuleNotFoundError) as caught:
        import no_such_package.inside  # noqa: F401
    assert _reason(caught.value, "own") == "it needs the Python package no_such_package: install no_such_package"
    other = ImportError("cannot import name 'x' from 'transformers'", name="transformers")
    assert _reason(other, "own").startswith("cannot import name 'x' from 'transformers': give a folder")


# -- the class of a model -----------------------------------------------------------------------------------------------------


def test_a_class_that_is_not_among_the_automatic_ones_is_the_one_that_the_checkpoint_names(tmp_path):
    """transformers lists Phi-4-multimodal among language models."""
    phi = {"model_type": "phi4_multimodal", "architectures": ["Phi4MultimodalForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(phi))
    suitability.refuse_kind(str(tmp_path), phi, trusted=False)
    assert auto_class(str(tmp_path), trusted=False) is transformers.Phi4MultimodalForCausalLM
    llava = {"model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"]}  # of the code that it was trained with
    (tmp_path / "config.json").write_text(json.dumps(llava))
    assert auto_class(str(tmp_path), trusted=False) is transformers.AutoModelForImageTextToText


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {"model_type": "clip", "architectures": ["CLIPModel"]},
        {"model_type": "phi4_multimodal", "architectures": ["Phi4MultimodalModel"]},
        {"model_type": "llama", "architectures": ["Phi4MultimodalForCausalLM"]},
        {"model_type": "phi4_multimodal", "architectures": ["PreTrainedModel"]},
        {"model_type": "phi4_multimodal", "architectures": "Phi4MultimodalForCausalLM"},
        {"model_type": "phi4_multimodal", "architectures": [{}]},
        {"model_type": "phi4_multimodal"},
    ],
)
def test_a_class_that_sees_no_pictures_or_writes_no_text_is_not_taken(settings):
    assert suitability.named_class(settings) is None
    with pytest.raises(UserError, match=r"choose a vision-language model$"):
        suitability.refuse_kind("m", settings, trusted=False)


def test_a_chat_template_that_only_the_tokenizer_has_is_taken(tmp_path):
    folder = cases.llava(tmp_path)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    processor.tokenizer.chat_template, processor.chat_template = processor.chat_template, None
    processor.save_pretrained(folder)
    (tmp_path / "chat_template.jinja").rename(tmp_path / "moved.jinja")
    table = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(table | {"chat_template": (tmp_path / "moved.jinja").read_text()}))
    assert transformers.AutoProcessor.from_pretrained(folder).chat_template is None
    assert VLM(PolicyConfig(model=folder)).encode(cases.prompt(1)).media


# -- what torch's attention leaves out ------------------------------------------------------------------------------------------


def test_scores_are_capped_in_sampling_and_updates(tmp_path):
    """PaliGemma 2 with a low cap on its attention's scores: torch's own attention would leave it out, and transformers 5.24
    refuses that."""
    tiny.save(str(tmp_path), "paligemma", hidden=32, spread=0.3)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["text_config"]["attn_logit_softcapping"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(settings))
    vlm = VLM(PolicyConfig(model=str(tmp_path)))
    assert vlm.model.config.get_text_config()._attn_implementation != "sdpa"
    assert vlm.model.config.vision_config._attn_implementation == "sdpa"
    inputs, found = vlm.encode(cases.prompt(1)), {}
    given = {"input_ids": inputs.ids[None], **inputs.media, **{k: v[None] for k, v in inputs.token_types.items()}}
    model = transformers.PaliGemmaForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="eager").eval()
    for cap in (0.5, None):
        for layer in model.model.language_model.layers:
            layer.self_attn.attn_logit_softcapping = cap
        with torch.no_grad():
            found[cap] = model(**given).logits
    with torch.no_grad():
        logits = vlm.model(**given).logits
    assert torch.allclose(logits, found[0.5], atol=1e-5) and not torch.allclose(logits, found[None], atol=1e-3)
    assert vlm.family.capabilities.packs and vlm.family.capabilities.pads
