"""Loading a vision-language model from a folder or the hub, or building a tiny one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.config.sections import PolicyConfig
from mmrl.policies.lora import adapter_chain, merge_saved_adapters
from mmrl.policies.names import refuse_path
from mmrl.policies.vlm import attention, suitability, tiny, weights
from mmrl.policies.vlm.chat_templates import read_template
from mmrl.policies.vlm.coordinate_formats import format_of
from mmrl.policies.vlm.published import layers_in_files
from mmrl.policies.vlm.suitability import MODEL_CURE, named_class
from mmrl.policies.vlm.thinkers import thinker_class, thinker_config


def load(config: PolicyConfig, name: str, seed: int) -> tuple[Any, Any]:
    """(model, processor), with the adapters of a folder that holds some merged. Raises UserError for what can't be loaded; before
    weights are read, if the other files tell."""
    adapters, name = adapter_chain(name)
    weights.refuse_lost_base(adapters, name)
    _refuse_frame(config, name)
    template = read_template(config.chat_template) if config.chat_template else ""
    dtype = getattr(torch, config.dtype)
    if name.startswith("tiny:"):
        model, processor = tiny.build(dtype=dtype, attention=config.dense_attention, **tiny.parse(name, seed))
    elif suitability.read_settings(name).get("model_type") == "openvla":
        from mmrl.policies.openvla import model as openvla
        from mmrl.policies.openvla import reading

        model = openvla.load(name, dtype, config.dense_attention)
        processor = reading.load_processor(name, model.config)
    else:
        processor = examine(name, config.trust_remote_code, adapters, template)
        model = _load_weights(config, name)
    attention.use(model, "dense")  # with the cap of scores that transformers leaves out of its fastest attention
    for folder in reversed(adapters):
        merge_saved_adapters(model, folder, layers_in_files(model))
    if template:
        processor.chat_template = template
    return model, processor


def check(config: PolicyConfig) -> None:
    """Raise UserError for a `model` or a `chat_template` that can't be loaded, without reading weights. A hub name is not looked
    up."""
    template = read_template(config.chat_template) if config.chat_template else ""
    if config.model.startswith("tiny:"):
        tiny.parse(config.model, 0)
        _refuse_frame(config, config.model)
        return
    if not Path(config.model).is_dir():
        suitability.refuse_gguf(config.model)
        refuse_path(config.model, MODEL_CURE)
        return
    adapters, name = adapter_chain(config.model)
    weights.refuse_lost_base(adapters, name)
    settings: dict[str, Any] = {}
    if Path(name).is_dir():
        settings = suitability.read_settings(name)
        suitability.refuse_kind(name, settings, config.trust_remote_code)
    _refuse_frame(config, name)
    if name.startswith("tiny:") or settings.get("model_type") == "openvla":
        weights.check_files(config.model, lambda: skeleton(config))
    elif settings:
        examine(name, config.trust_remote_code, adapters, template)


def skeleton(config: PolicyConfig) -> Any:
    """The model of a run file on torch's meta device: all weights have names and shapes, none has values."""
    _, name = adapter_chain(config.model)
    if name.startswith("tiny:"):
        options = tiny.parse(name, 0)
        return tiny.skeleton(options["family"], hidden=options["hidden"], layers=options["layers"])
    from mmrl.policies.openvla import model  # noqa: F401  registers it with transformers

    try:
        return without_weights(name, config.trust_remote_code)
    except Exception as error:
        raise UserError(
            f"{name!r} can't be built from its config: {shorten(error, 300)}: {MODEL_CURE}", key="policy.model"
        ) from error


def examine(name: str, trusted: bool, adapters: Sequence[Path], template: str = "") -> Any:
    """The processor of a folder or hub name. Raises UserError for a model that can't be trained, or whose files don't belong
    together. No weights are read; those of a folder, and adapters, are compared with the model by their names and shapes.

    trusted: code that comes with the checkpoint may run. adapters: folders with adapters of the model. template: in the place of
    its chat template; empty leaves it."""
    from transformers import AutoConfig, AutoProcessor

    settings = suitability.read_settings(name)
    suitability.refuse_kind(name, settings, trusted)
    kind, folder = str(settings.get("model_type", "")), Path(name)
    try:
        config = thinker_config(AutoConfig.from_pretrained(name, trust_remote_code=trusted))
    except Exception as error:
        raise _unloadable(name, error, kind) from error
    suitability.refuse_config(name, config)
    files: list[Path] = []
    if folder.is_dir():
        files = weights.weight_files(folder)
        suitability.refuse_ends(folder)
        if not any((folder / file).is_file() for file in suitability.PROCESSOR_FILES):
            raise suitability.refusal(name, suitability.NO_PROCESSOR)
    try:
        processor = AutoProcessor.from_pretrained(name, trust_remote_code=trusted)
    except Exception as error:
        raise _unloadable(name, error, kind) from error
    if not getattr(processor, "chat_template", None) and hasattr(processor, "tokenizer"):  # Phi-4's processor drops it
        processor.chat_template = processor.tokenizer.chat_template
    if template:
        processor.chat_template = template
    suitability.refuse_processor(name, config, processor)
    if files or adapters:
        try:
            empty = without_weights(name, trusted)
            weights.refuse_weights(name, files, empty)
        except UserError:
            raise
        except Exception as error:
            raise _unloadable(name, error, kind) from error
        for one in adapters:
            weights.refuse_adapters(one, name, empty)
    return processor


def _refuse_frame(config: PolicyConfig, name: str) -> None:
    """Raise UserError for a `policy.frame` that contradicts the model's family."""
    if config.frame:
        kind = tiny.model_type(name) if name.startswith("tiny:") else str(suitability.read_settings(name).get("model_type", ""))
        format_of(kind, config.frame)


def auto_class(name: str, trusted: bool) -> Any:
    """The class of transformers that loads the model: the one that the checkpoint names, where it isn't among the automatic ones.
    Code that comes with a checkpoint often registers its model for `AutoModelForCausalLM` alone."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    settings = PreTrainedConfig.get_config_dict(name)[0]
    if thinker := thinker_class(str(settings.get("model_type"))):
        return thinker
    own = settings.get("auto_map", {}) if trusted else {}
    if AutoModelForCausalLM.__name__ in own and AutoModelForImageTextToText.__name__ not in own:
        return AutoModelForCausalLM
    named = None if own or settings.get("model_type") in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES else named_class(settings)
    return named or AutoModelForImageTextToText


def without_weights(name: str, trusted: bool) -> Any:
    """The model of a folder or hub name on torch's meta device: all weights have names and shapes, none has values."""
    from transformers import AutoConfig

    settings = thinker_config(AutoConfig.from_pretrained(name, trust_remote_code=trusted))
    kind = auto_class(name, trusted)
    with torch.device("meta"):
        if hasattr(kind, "from_config"):
            return kind.from_config(settings, trust_remote_code=trusted)
        return kind._from_config(settings)


def config_and_processor(name: str, trusted: bool) -> tuple[Any, Any]:
    """(the model without its weights, its processor) of a folder or hub name, of which config and processor files are read, or
    of a tiny model. Raises UserError for what can't be loaded.

    trusted: code that comes with the checkpoint may run."""
    _, name = adapter_chain(name)
    if name.startswith("tiny:"):
        return tiny.build(**tiny.parse(name, 0))
    from transformers import AutoProcessor

    suitability.refuse_gguf(name)
    if not Path(name).is_dir():
        refuse_path(name, MODEL_CURE)
    kind = str(suitability.read_settings(name).get("model_type", ""))
    try:
        model, processor = without_weights(name, trusted), AutoProcessor.from_pretrained(name, trust_remote_code=trusted)
    except Exception as error:
        raise _unloadable(name, error, kind) from error
    suitability.refuse_processor(name, model.config, processor)
    return model, processor


def _load_weights(config: PolicyConfig, name: str) -> Any:
    try:
        model, report = auto_class(name, config.trust_remote_code).from_pretrained(
            name,
            dtype=getattr(torch, config.dtype),
            attn_implementation=attention.asked(config.dense_attention),
            use_safetensors=True,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        raise _unloadable(name, error, "") from error
    weights.refuse_report(name, report)
    weights.refuse_untied(name, model)
    return model


def _unloadable(name: str, error: Exception, kind: str) -> UserError:
    return UserError(f"{name!r} can't be loaded: {_reason(error, kind)}", key="policy.model")


def _reason(error: Exception, kind: str) -> str:
    """Why loading failed, and what to do."""
    if "Unrecognized configuration class" in str(error):  # followed by a list of all classes that transformers knows
        return f"transformers has no {kind} model that takes pictures and text and writes text: choose another model"
    if "trust_remote_code" in str(error):
        return "it comes with code of its own: set policy.trust_remote_code = true if you trust the code's author"
    if isinstance(error, ImportError) and (package := _missing(error)):
        return f"it needs the Python package {package}: install {package}"
    return f"{shorten(error, 300)}: {MODEL_CURE}"


def _missing(error: ImportError) -> str:
    """The package for lack of which something can't be imported; empty if that is not the reason."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return error.name.partition(".")[0]
    named = re.search(r"pip install ([\w.-]*\w)", str(error))
    return named[1] if named else ""
