"""Models that can't be trained, and files that don't belong together: one line, before any weight is read."""

from __future__ import annotations

import json
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies.vlm import loading, suitability, tiny
from mmrl.policies.vlm.known_families import UNSUPPORTED
from mmrl.policies.vlm.tiny.tokens import make_tokenizer
from mmrl.policies.vlm.vlm import VLM
from mmrl.ui.cli import main

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
BLOCK = "model.layers.0.self_attn.q_proj.weight"
LAYER = "model.language_model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A checkpoint in which nothing is wrong."""
    folder = tmp_path_factory.mktemp("sound") / "model"
    tiny.save(str(folder), "qwen2_5_vl", hidden=32, layers=1)
    return folder


@pytest.fixture
def copied(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "model"))


@pytest.fixture
def unread(monkeypatch):
    """Weights must not be read."""

    def read(*_):
        raise AssertionError("weights are read")

    monkeypatch.setattr(loading, "_load_weights", read)


def changed(folder, file="config.json", drop=(), **values):
    path = folder / file
    table = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps(table | values))


def rewritten(folder, drop=(), **tensors):
    kept = {k: v for k, v in load_file(folder / WEIGHTS).items() if k not in drop}
    save_file(kept | tensors, folder / WEIGHTS, metadata={"format": "pt"})


def refused(folder, reason, **options):
    """A run file that names the folder, and whoever loads it directly, get this one line."""
    config = PolicyConfig(model=str(folder), **options)
    told = []
    for use in (VLM.check, VLM):
        with pytest.raises(UserError) as caught:
            use(config)
        told.append(str(caught.value))
    assert told[0] == told[1] == f"policy.model: {str(folder)!r}{reason}"
    assert "\n" not in told[0] and len(told[0]) < 600


def test_a_sound_folder_passes_and_only_then_are_weights_read(sound, unread):
    VLM.check(PolicyConfig(model=str(sound)))
    with pytest.raises(AssertionError, match="weights are read"):
        VLM(PolicyConfig(model=str(sound)))


@pytest.mark.slow
@pytest.mark.parametrize("family", [*tiny.FAMILIES, "CLIP and Qwen2"])
def test_what_transformers_saves_passes(family, tmp_path, unread):
    if family in tiny.FAMILIES:
        tiny.save(str(tmp_path), family, hidden=32)
    else:
        cases.llava(tmp_path)
    VLM.check(PolicyConfig(model=str(tmp_path)))


def test_a_run_file_is_refused_with_exit_code_2(copied, unread, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changed(copied, quantization_config={"quant_method": "gptq", "bits": 4})
    Path("x.toml").write_text(
        f'name = "x"\npolicy.model = "{copied}"\ntasks = [{{id = "classification/digits"}}]\n'
        'stages = [{kind = "sft", steps = 1}]\n'
    )
    for more in ([], ["--dry-run"]):
        result = CliRunner().invoke(main, ["train", "x.toml", *more])
        assert result.exit_code == 2
        assert result.stderr == (
            f"mmrl: policy.model: {str(copied)!r}: its weights are quantised (gptq, 4 bits), and can't be trained: take the "
            "checkpoint in 16 bits\n"
        )
    assert not Path("runs").exists()


# -- what config.json says ------------------------------------------------------------------------------------------------

TEXT = "reads text alone: choose a vision-language model"
BOTH = "an encoder and a decoder, and only decoders are trained here: choose another model"
NONE = "writes no text: choose a vision-language model"
HEARS = "hears and can't be trained here: choose a Qwen2-Audio or Qwen-Omni, or a model that sees"
VERSION = transformers.__version__
OTHERS = {
    **{kind: f"it is a {kind} model, which {TEXT}" for kind in ("llama", "qwen3")},
    **{kind: f"it is a {kind} model, {BOTH}" for kind in ("t5", "florence2", "pix2struct", "blip")},
    **{kind: f"it is a {kind} model, which {NONE}" for kind in ("vit", "clip")},
    **{kind: f"it is a {kind} model, which {HEARS}" for kind in ("whisper", "voxtral", "audioflamingo3", "qwen3_asr", "wavlm")},
    "Gr00tN1d6": 'it is a GR00T, which is a policy of its own: set policy.kind = "gr00t"',
    "Gr00tN1d7": 'it is a GR00T, which is a policy of its own: set policy.kind = "gr00t"',
    **{kind: f'it is a {kind}, which is a policy of its own: set policy.kind = "{kind}"' for kind in ("pi0", "pi05", "pi0_fast")},
    **{
        kind: f"transformers has no {kind} model that takes pictures and text and writes text: choose another model"
        for kind in ("mistral4", "evolla")
    },
    "qwen9_vl": f"transformers {VERSION} knows no qwen9_vl model: install one that does, or choose another model",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_kind_of_model(tmp_path, unread, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    refused(tmp_path, f": {OTHERS[kind]}")


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_a_kind_of_model_that_sees_and_does_not_fit(tmp_path, unread, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    refused(tmp_path, f" is a {kind} model: {UNSUPPORTED[kind]}")


def test_a_model_that_writes_pictures(tmp_path, unread):
    """Its class is in none of transformers' tables of models that write text, and a checkpoint names it."""
    named = {"model_type": "glm_image", "architectures": ["GlmImageForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(named))
    why = "it writes pictures, and models that write text are trained here: choose another model"
    refused(tmp_path, f" is a glm_image model: {why}")


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({}, f": its config.json names no model_type: {loading.MODEL_CURE}"),
        ({"type": "smolvla"}, ': it is a SmolVLA, which is a policy of its own: set policy.kind = "smolvla"'),
        ({"type": "xvla"}, ': it is an X-VLA, which is a policy of its own: set policy.kind = "xvla"'),
        ({"model_type": "xvla"}, ': it is an X-VLA, which is a policy of its own: set policy.kind = "xvla"'),
        ({"type": "diffusion"}, ': it is a Diffusion Policy, which is a policy of its own: set policy.kind = "diffusion"'),
        ({"type": "act"}, ': it is an ACT, which is a policy of its own: set policy.kind = "act"'),
        ({"type": "vqbet"}, ": it is a policy of LeRobot ('vqbet'), which can't be loaded here: choose another model"),
        ({"_class_name": "UNet2DModel"}, ": it is 'UNet2DModel', part of a diffusion pipeline, which "
         "writes no text: choose another model"),
        (
            {"model_type": "strange", "auto_map": {"AutoConfig": "a.B"}},
            " can't be loaded: it comes with code of its own: set policy.trust_remote_code = true if you trust the code's author",
        ),
    ],
)  # fmt: skip
def test_a_config_without_a_known_type(tmp_path, unread, table, reason):
    (tmp_path / "config.json").write_text(json.dumps(table))
    refused(tmp_path, reason)


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes, 4 bits"),
        ({"quantization_config": {"load_in_8bit": True, "quant_method": "bitsandbytes"}}, "bitsandbytes, 8 bits"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq, 4 bits"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8"),
        ({"text_config": {"quantization_config": {"quant_method": "compressed-tensors"}}}, "compressed-tensors"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "mlx, 4 bits"),
    ],
)
def test_quantised_weights(copied, unread, given, method):
    changed(copied, **given)
    refused(copied, f": its weights are quantised ({method}), and can't be trained: take the checkpoint in 16 bits")


def test_weights_in_eight_bits_that_the_config_does_not_mention(copied, unread):
    rewritten(copied, **{BLOCK: torch.zeros(32, 32, dtype=torch.float8_e4m3fn)})
    refused(copied, f": its weights are quantised ({BLOCK} is F8_E4M3), and can't be trained: take the checkpoint in 16 bits")


def test_files_of_llama_cpp(copied, unread, tmp_path):
    reason = "in the format of llama.cpp (GGUF), which can't be trained: take the checkpoint in safetensors"
    (copied / WEIGHTS).rename(copied / "model-Q4_K_M.gguf")
    refused(copied, f": its weights are {reason}")
    (copied / "config.json").unlink()
    refused(copied, f": its weights are {reason}")
    refused(copied / "model-Q4_K_M.gguf", f": it is {reason}")
    refused("someone/Model-Q8_0.GGUF", f": it is {reason}")


def test_a_diffusion_pipeline(tmp_path, unread):
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    refused(tmp_path, ": it is a diffusion pipeline, which writes no text: choose a vision-language model")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"model_type": ', "Expecting value: line 1 column 16 (char 15)"),
        ("[1]", "it holds a list, not a table"),
        ("[" * 100_000, "maximum recursion depth exceeded while decoding a JSON array from a unicode string"),
    ],
)
def test_a_damaged_config(copied, unread, text, why):
    (copied / "config.json").write_text(text)
    refused(copied, f": its config.json is damaged ({why}): copy it again")


def test_an_absurd_number_of_layers(copied, unread):
    vision = json.loads((copied / "config.json").read_text())["vision_config"]
    changed(copied, vision_config=vision | {"depth": 10**6})
    refused(copied, ": its config.json has depth = 1000000, more than any model: copy it again")


# -- the processor --------------------------------------------------------------------------------------------------------


def test_no_processor(copied, unread):
    for name in ("processor_config.json", "preprocessor_config.json"):
        (copied / name).unlink(missing_ok=True)
    reason = ": it has no processor for pictures: copy processor_config.json or preprocessor_config.json from the model that "
    refused(copied, f"{reason}it was made from")


def test_a_tokenizer_in_place_of_a_processor(tmp_path):
    """AutoProcessor returns a tokenizer where it finds nothing else."""
    config = transformers.LlavaConfig()
    with pytest.raises(UserError, match=r": it has no processor for pictures: copy processor_config\.json or"):
        suitability.refuse_processor("m", config, make_tokenizer())


def test_chat_templates(copied, unread):
    template = copied / "chat_template.jinja"
    text = template.read_text()
    template.write_text(text.replace("<|image_pad|>", "").replace("<|vision_start|><|vision_end|>", ""))
    refused(copied, ": its chat template leaves pictures out: use one that shows them")
    template.write_text("{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}")
    refused(
        copied,
        ': its chat template can\'t write a picture and a text (TypeError: can only concatenate str (not "list") to str): check '
        "its chat template",
    )
    template.unlink()
    refused(copied, ": it has no chat template: put one into chat_template.jinja, or take a model tuned for instructions")


def test_ids_beyond_the_embeddings(copied, unread):
    tokenizer = transformers.AutoTokenizer.from_pretrained(copied)
    tokenizer.add_tokens([f"<new_{i}>" for i in range(len(tokenizer), 520)])
    tokenizer.save_pretrained(copied)
    cure = "take both from one checkpoint"
    refused(copied, f": its tokenizer has ids up to 519 ('<new_519>'), and its embeddings have 512 rows: {cure}")


@pytest.mark.parametrize("what", ["pad_token", "eos_token"])
def test_a_special_token_that_stands_for_pictures(copied, unread, what):
    changed(copied, "tokenizer_config.json", **{what: "<|image_pad|>"})
    cure = f"set another {what} in its tokenizer_config.json"
    refused(copied, f": its {what} is '<|image_pad|>', a picture's placeholder: {cure}")


@pytest.mark.parametrize("ends", ["<|im_end|>", [2, [3]], 2.5, True])
def test_ends_that_are_no_ids(copied, unread, ends):
    changed(copied, "generation_config.json", eos_token_id=ends)
    refused(copied, f": its generation_config.json has eos_token_id = {ends!r}: give the ids of tokens that end an answer")


def test_a_placeholder_beyond_the_embeddings(copied, unread):
    """transformers' default is the published models' id."""
    changed(copied, drop=["image_token_id"])
    cure = "set the id of its tokenizer"
    refused(copied, f": its config.json has image_token_id = 151655, and its embeddings have 512 rows: {cure}")


# -- files of weights -----------------------------------------------------------------------------------------------------


def test_files_that_are_missing(copied, unread):
    weights = (copied / WEIGHTS).read_bytes()
    (copied / WEIGHTS).unlink()
    refused(copied, f": it has no weights: there is neither {WEIGHTS} nor {INDEX}: copy them, too")
    (copied / "pytorch_model.bin").write_bytes(b"")
    refused(copied, ": its weights are pickled (pytorch_model.bin), which may run code: convert them to safetensors")
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    (copied / names[0]).write_bytes(weights)
    (copied / INDEX).write_text(json.dumps({"weight_map": {f"w{i}": name for i, name in enumerate(names)}}))
    refused(copied, f": 2 of the 3 files that {INDEX} names are missing, such as {names[1]}: copy them, too")
    (copied / INDEX).write_text('{"metadata": {}}')
    refused(copied, f": its {INDEX} is damaged ('weight_map'): copy it again")


def test_damaged_files(copied, unread):
    whole = (copied / WEIGHTS).read_bytes()
    (copied / WEIGHTS).write_bytes(whole[:-100])
    size = len(whole)
    refused(copied, f": {WEIGHTS} is damaged (it has {size - 100} bytes, and its header says {size}): copy it again")
    for odd in (
        b"",
        b"x" * 50,
        whole[:8] + b"[" * (size - 8),
        b"\2" + b"\0" * 7 + b"[]",
        b"\x0f" + b"\0" * 7 + b'{"a": {"b": 1}}',
    ):
        (copied / WEIGHTS).write_bytes(odd)
        with pytest.raises(UserError, match=rf": {WEIGHTS} is damaged \(.*\): copy it again$"):
            VLM.check(PolicyConfig(model=str(copied)))
    (copied / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    with pytest.raises(UserError, match=r"damaged \(.*\): it is a pointer of Git LFS: fetch the file with git lfs pull$"):
        VLM(PolicyConfig(model=str(copied)))


def test_weights_of_another_model(copied, unread):
    """transformers would initialise all of them at random, and the command line hides its warning."""
    save_file({"bert.embeddings.weight": torch.zeros(3)}, copied / WEIGHTS)
    names = tiny.skeleton("qwen2_5_vl", hidden=32, layers=1).state_dict()
    refused(
        copied,
        f": its files lack lm_head.weight and {len(names) - 1} more weights of the model in its "
        "config.json: take config.json and weights from one checkpoint",
    )


def test_weights_that_are_missing_left_over_or_of_another_shape(copied, unread):
    together = "take config.json and weights from one checkpoint"
    sound = (copied / WEIGHTS).read_bytes()
    rewritten(copied, drop=[BLOCK])
    refused(copied, f": its files lack {LAYER}.weight of the model in its config.json: {together}")
    (copied / WEIGHTS).write_bytes(sound)
    rewritten(copied, **{"v_head.summary.weight": torch.zeros(1, 32), "v_head.summary.bias": torch.zeros(1)})
    refused(
        copied, f": its files have v_head.summary.bias and 1 more weights that the model in its config.json lacks: {together}"
    )
    (copied / WEIGHTS).write_bytes(sound)
    rewritten(copied, **{BLOCK: torch.zeros(64, 32)})
    refused(copied, f": {LAYER}.weight is [64, 32] in its files, and [32, 32] by its config.json: {together}")
    (copied / WEIGHTS).write_bytes(sound)
    rewritten(copied, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})  # of transformers 4.30
    VLM.check(PolicyConfig(model=str(copied)))


def test_a_head_that_is_tied_in_the_files_alone(copied, unread):
    text = json.loads((copied / "config.json").read_text())["text_config"]
    changed(copied, tie_word_embeddings=False, text_config=text | {"tie_word_embeddings": False})
    refused(
        copied,
        ": its files lack lm_head.weight, and its config.json says that the head isn't tied to the embeddings: set "
        "tie_word_embeddings = true if it is, or copy the head, too",
    )


def test_a_head_that_is_tied_by_the_config_alone(copied):
    embeddings = next(v for k, v in load_file(copied / WEIGHTS).items() if k.endswith("embed_tokens.weight"))
    rewritten(copied, **{"lm_head.weight": embeddings.clone()})
    assert VLM(PolicyConfig(model=str(copied))).model.get_output_embeddings().weight.shape == (512, 32)
    rewritten(copied, **{"lm_head.weight": embeddings + 1})
    with pytest.raises(UserError) as told:
        VLM(PolicyConfig(model=str(copied)))
    assert str(told.value) == (
        f"policy.model: {str(copied)!r}: its config.json ties the head to the embeddings, and its files have a head with other "
        "weights: set tie_word_embeddings = false"
    )


def test_a_model_of_70_billion_weights_is_refused_in_seconds(copied, unread):
    """Its file has the right size, and no content: a header, and a hole of 289 GB."""
    table = json.loads((copied / "config.json").read_text())
    table["text_config"].pop("layer_types")
    text = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
    text |= {
        "intermediate_size": 29568,
        "rope_parameters": {**table["text_config"]["rope_parameters"], "mrope_section": [16, 24, 24]},
    }
    changed(copied, text_config=table["text_config"] | text, vision_config=table["vision_config"] | {"out_hidden_size": 8192})
    tensors, end = {}, 0
    for name, weight in loading.without_weights(str(copied), False).state_dict().items():
        if name != "lm_head.weight" and not name.endswith("layers.79.mlp.up_proj.weight"):
            tensors[name] = {"dtype": "F32", "shape": list(weight.shape), "data_offsets": [end, end + 4 * weight.numel()]}
            end += 4 * weight.numel()
    assert end > 250e9
    header = json.dumps(tensors).encode()
    with open(copied / WEIGHTS, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(
        UserError, match=r"lack model.language_model.layers.79.mlp.up_proj.weight of the model in its config.json"
    ):
        VLM(PolicyConfig(model=str(copied)))
    assert time.process_time() - start < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300e3  # KB


# -- adapters -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(sound, tmp_path_factory):
    """Adapters of the sound checkpoint."""
    folder = tmp_path_factory.mktemp("trained") / "adapters"
    VLM(PolicyConfig(model=str(sound), lora=LoraConfig(rank=2, target_modules=["*q_proj"]))).save(folder)
    return folder


@pytest.fixture
def adapters(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "adapters"))


def test_adapters_of_another_model(adapters, tmp_path, unread):
    VLM.check(PolicyConfig(model=str(adapters)))
    cure = "give its own model as base_model_name_or_path in adapter_config.json"
    wider = tmp_path / "wider"
    tiny.save(str(wider), "qwen2_5_vl", hidden=64, layers=1)
    changed(adapters, "adapter_config.json", base_model_name_or_path=str(wider))
    refused(adapters, f": its adapters of {LAYER} have 32 inputs, and the layer of {str(wider)!r} has 64: {cure}")
    other = cases.llava(tmp_path / "other")
    key = LAYER.replace("layers.0", "layers.1")
    found = load_file(adapters / "adapter_model.safetensors")
    save_file({k.replace(LAYER, key): v for k, v in found.items()}, adapters / "adapter_model.safetensors")
    changed(adapters, "adapter_config.json", base_model_name_or_path=other)
    refused(adapters, f": its adapters of {key} have 32 inputs, and the layer of {other!r} has 64: {cure}")
    save_file({k.replace(LAYER, "model.h.0.q"): v for k, v in found.items()}, adapters / "adapter_model.safetensors")
    refused(adapters, f": its adapters have model.h.0.q, which their model {other!r} lacks: {cure}")


def test_adapters_whose_model_is_not_there(adapters, tmp_path, unread):
    gone = str(tmp_path / "gone")
    changed(adapters, "adapter_config.json", base_model_name_or_path=gone)
    refused(
        adapters,
        f": the model of its adapters, {gone!r} is not a folder: put it there, or name another folder as base_model_name_or_path "
        "in adapter_config.json",
    )


def test_adapters_that_are_no_lora(adapters, unread):
    found = load_file(adapters / "adapter_model.safetensors")
    extra = {"base_model.model.lm_head.weight": torch.zeros(512, 32)}
    save_file(found | extra, adapters / "adapter_model.safetensors")
    refused(adapters, ": it has base_model.model.lm_head.weight, which is no LoRA of a linear layer: merge it with peft")
    (adapters / "adapter_model.safetensors").unlink()
    refused(adapters, ": it has adapter_config.json and no adapter_model.safetensors: copy it, too")
    changed(adapters, "adapter_config.json", peft_type="IA3")
    refused(adapters, ": its adapters are of type 'IA3', and only LORA can be read: merge them with peft")


def test_a_hub_name_that_is_nowhere_is_told_as_such(monkeypatch):
    """transformers raises OSError for it, without a network too."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    told = r"'no/such-model': it is no folder, and the hub doesn't give it \(.+\): check the name"
    with pytest.raises(UserError, match=told) as caught:
        suitability.read_settings("no/such-model")
    assert "\n" not in str(caught.value)
