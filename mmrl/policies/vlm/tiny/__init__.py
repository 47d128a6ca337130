"""Small but real checkpoints of a model family: built from its config, random weights, its own processor and chat layout.

Nothing is downloaded; the code paths are those of the full-size models. `tiny:qwen2_5_vl` in a run file builds the default
size, `tiny:qwen2_5_vl:hidden=256,layers=6` another; `python -m mmrl.policies.vlm.tiny FAMILY FOLDER` writes one to disk. A
family's builder is the function of its name in the module that `FAMILIES` gives.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch

from mmrl.api.errors import UserError, did_you_mean, plugin_errors
from mmrl.api.specs import FamilySpec
from mmrl.policies.names import tiny_name, tiny_sizes
from mmrl.policies.vlm.attention import asked
from mmrl.policies.vlm.plugin_families import builder, plugin_family
from mmrl.policies.vlm.published import save_model
from mmrl.policies.vlm.thinkers import WHOLE
from mmrl.policies.vlm.tiny.checkpoint import Checkpoint
from mmrl.registry import plugins

HIDDEN, LAYERS = 128, 2

FAMILIES = {
    "qwen2_vl": "qwen",
    "qwen2_5_vl": "qwen",
    "qwen3_vl": "qwen",
    "openvla": "",
    "qwen3_vl_moe": "qwen",
    "qwen3_5": "qwen",
    "qwen3_5_moe": "qwen",
    "gemma3": "gemma",
    "internvl": "tiles",
    "glm4v": "glm",
    "glm4v_moe": "glm",
    "glm46v": "glm",
    "smolvlm": "tiles",
    "idefics3": "tiles",
    "llava_onevision": "llava",
    "mistral3": "llava",
    "gemma4": "gemma",
    "paligemma": "gemma",
    "llava": "llava",
    "pixtral": "llava",
    "deepseek_vl": "llava",
    "aya_vision": "tiles",
    "cohere2_vision": "tiles",
    "ovis2": "tiles",
    "lfm2_vl": "tiles",
    "minicpmv4_6": "minicpm",
    "minicpmv4_7": "minicpm",
    "kimi_k25": "experts",
    "ernie4_5_vl_moe": "experts",
    "llama4": "experts",
    "phi4_multimodal": "phi",
    "internvl3_5": "tiles",
    "gemma3n": "timm",
    "perception_lm": "timm",
    "llava_next": "llava",
    "granite4_vision": "llava",
    "gemma4_unified": "gemma",
    "glm_ocr": "glm",
    "paddleocr_vl": "grids",
    "exaone4_5": "grids",
    "muse_glimmer": "grids",
    "step3p7": "experts",
    "lighton_ocr": "grids",
    "hunyuan_vl": "grids",
    "video_llama_3": "grids",
    "qwen2_audio": "audio",
    "qwen2_5_omni": "omni",
    "qwen3_omni_moe": "omni",
}
"""`model_type` -> module of the builder; OpenVLA's is `mmrl.policies.openvla.tiny`."""
LEAST_LAYERS = {"qwen3_5": 2, "qwen3_5_moe": 2, "glm4v_moe": 2, "gemma4": 2, "lfm2_vl": 2} | dict.fromkeys(
    ("minicpmv4_6", "minicpmv4_7", "kimi_k25", "ernie4_5_vl_moe", "llama4", "gemma3n", "gemma4_unified"), 2
)
LEAST_LAYERS |= {"granite4_vision": 2, "exaone4_5": 2, "muse_glimmer": 2, "step3p7": 2}
"""Families with layers of several types -> the least depth that has one of each."""


def build(
    family: str = "qwen2_5_vl",
    *,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
    words: Sequence[str] = (),
    spread: float | None = None,
) -> tuple[Any, Any]:
    """A model and its processor.

    hidden: width of the language model and the vision tower, a multiple of 32. layers: depth of both. words: texts that get a
    token of their own, 100 at most. spread: standard deviation of all matrices; None for the family's own initialisation, with
    which what a token sees hardly shows in the probabilities. Same arguments, same weights.
    """
    if family == "openvla":
        from mmrl.policies.openvla import tiny

        _refuse(family, hidden, layers)
        return tiny.build(hidden, layers, seed, dtype, attention)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, processor = _made(family, hidden, layers, words, attention)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Gemma 3's projector begins at zero, so that no picture would be seen, and Gemma 3n's embeddings for each layer
                # are scaled by zeros
                if not parameter.any() and (parameter.ndim > 1 or name.endswith("output_scale")):
                    parameter.normal_(0, 0.02)
        if spread is not None:
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim > 1:
                        parameter.normal_(0, spread)
    for parameter in model.parameters():  # not the buffers: rotary frequencies stay float32, as in from_pretrained
        parameter.data = parameter.data.to(dtype)
    end, pad = processor.tokenizer.eos_token_id, processor.tokenizer.pad_token_id
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = [end, pad], pad
    return model, processor


def _made(family: str, hidden: int, layers: int, words: Sequence[str], attention: str) -> tuple[Any, Any]:
    """(model with random weights, processor)."""
    if spec := _of_plugin(family):
        _refuse(family, hidden, layers)
        with plugin_errors(f"family {spec.id!r}"):
            model, processor = builder(spec)(hidden, layers)
            model.set_attn_implementation(attention)
        return model, processor
    made = _checkpoint(family, hidden, layers, words)
    return made.kind._from_config(made.config, attn_implementation=asked(attention)), made.processor()


def _of_plugin(family: str) -> FamilySpec | None:
    """The spec of a family that a plugin brings; plugins aren't looked for if mmrl has a tiny one itself."""
    return None if family in FAMILIES else plugin_family(family)


def skeleton(family: str, *, hidden: int = HIDDEN, layers: int = LAYERS) -> Any:
    """The model without its weights, which are on torch's meta device."""
    if family == "openvla":
        from mmrl.policies.openvla import model as openvla
        from mmrl.policies.openvla import tiny

        with torch.device("meta"):
            return openvla.OpenVLA._from_config(tiny.config_of(hidden, layers))
    if _of_plugin(family):
        with torch.random.fork_rng(devices=[]):
            return _made(family, hidden, layers, (), "sdpa")[0].to("meta")
    made = _checkpoint(family, hidden, layers)
    with torch.device("meta"):
        return made.kind._from_config(made.config)


def processor(family: str, *, hidden: int = HIDDEN, layers: int = LAYERS) -> Any:
    """The processor of the tiny model."""
    return _made(family, hidden, layers, (), "sdpa")[1] if _of_plugin(family) else _checkpoint(family, hidden, layers).processor()


def _checkpoint(family: str, hidden: int, layers: int, words: Sequence[str] = ()) -> Checkpoint:
    _refuse(family, hidden, layers)
    module = importlib.import_module(f"{__name__}.{FAMILIES[family]}")
    try:
        made: Checkpoint = getattr(module, family)(hidden, layers, words)
    except AttributeError as error:
        if not str(error).startswith("module transformers has no attribute"):
            raise
        version = metadata.version("transformers")
        raise UserError(f"transformers {version} doesn't know {family}: install a newer one", key="policy.model") from error
    return made


def parse(name: str, seed: int) -> dict[str, Any]:
    """`tiny:FAMILY[:key=value,...]` -> keyword arguments of `build`."""
    family, sizes = tiny_sizes(name, {"hidden": HIDDEN, "layers": LAYERS}, seed)
    _refuse(family, sizes["hidden"], sizes["layers"])
    return {"family": family, **sizes}


def model_type(name: str) -> str:
    """The `model_type` of `tiny:FAMILY[:key=value,...]`."""
    family = str(parse(name, 0)["family"])
    thinkers = {kind: f"{kind}_thinker" for kind in WHOLE}
    return ({"pixtral": "llava", "internvl3_5": "internvl"} | thinkers).get(family, family)


def full_name(name: str, seed: int) -> str:
    """`name` with everything that `parse` would add, so that it stands for the same weights whatever the seed of a run."""
    options = parse(name, seed)
    return tiny_name(options.pop("family"), options)


def _refuse(family: str, hidden: int, layers: int) -> None:
    if family not in FAMILIES and _of_plugin(family) is None:
        known = [*FAMILIES, *(spec.model_type for spec in plugins.registry().specs("families").values())]
        near = did_you_mean(family, known)
        raise UserError(
            f"no tiny {family!r}" + (f".{near}" if near else f": choose one of {', '.join(known)}"), key="policy.model"
        )
    if hidden % 32 or not 32 <= hidden <= 4096 or not 1 <= layers <= 64:
        raise UserError(
            f"tiny hidden={hidden}, layers={layers}: hidden must be a multiple of 32 up to 4096, layers 1 to 64",
            key="policy.model",
        )
    if layers < LEAST_LAYERS.get(family, 1):
        raise UserError(
            f"tiny {family}, layers={layers}: it has layers of several types: give layers={LEAST_LAYERS[family]} or more",
            key="policy.model",
        )


def vocabulary(family: str = "qwen2_5_vl") -> dict[str, int]:
    """Token -> id."""
    if family == "openvla":
        from mmrl.policies.openvla import tiny

        return dict(tiny.tokenizer_of().get_vocab())
    if _of_plugin(family):
        return dict(build(family)[1].tokenizer.get_vocab())
    return dict(_checkpoint(family, HIDDEN, max(LAYERS, LEAST_LAYERS.get(family, 1))).tokenizer.get_vocab())


def save(folder: str, family: str = "qwen2_5_vl", **options: Any) -> None:
    """Write a checkpoint that transformers and vLLM load like any other."""
    model, processor = build(family, **options)
    save_model(model, folder)
    processor.save_pretrained(folder)
