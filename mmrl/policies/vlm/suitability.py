"""Whether a vision-language model can be trained, read from its configuration and processor. Weights are not read.

Every reason is one line: transformers would load some of these models and initialise at random what it doesn't find, and others
would fail after minutes, in the middle of a run.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, shorten
from mmrl.policies.names import HEARING
from mmrl.policies.vlm.known_families import UNSUPPORTED
from mmrl.policies.vlm.plugin_families import builder, plugin_family
from mmrl.policies.vlm.thinkers import WHOLE, thinker_settings, whole_kind

MODEL_CURE = "give a folder with a transformers checkpoint, a hub name, or tiny:qwen2_5_vl"
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""Where transformers saves the image processor or feature extractor: with the other parts of the processor, or alone."""
NO_PROCESSOR = f"it has no processor for pictures: copy {' or '.join(PROCESSOR_FILES)} from the model that it was made from"
HEARING_CURE = "choose a Qwen2-Audio or Qwen-Omni, or a model that sees"
NO_EARS = NO_PROCESSOR.replace("pictures", "sounds")
GGUF = "in the format of llama.cpp (GGUF), which can't be trained: take the checkpoint in safetensors"
CROSS_ATTENTION = ("blip", "pp_formulanet", "vision-encoder-decoder")
"""Encoder-decoders of transformers whose configuration doesn't say so."""


MOST_LAYERS = 1000
"""A damaged number of layers would take hours, even without weights."""
OF_LEROBOT = {"smolvla": "a SmolVLA", "xvla": "an X-VLA", "diffusion": "a Diffusion Policy", "act": "an ACT"}
"""`type` in the config.json of a policy of LeRobot's -> how a person calls it."""
_MEDIA_ARGUMENT = re.compile(r"pixel|image|patches|features")
_MEDIA_SETTING = re.compile(r"(image|video|vision|audio).*token.*(id|index)$")


def refusal(name: str, reason: str) -> UserError:
    """The error about a `policy.model`."""
    return UserError(f"{name!r}: {reason}", key="policy.model")


def read_settings(name: str) -> dict[str, Any]:
    """The table in the config.json of a folder or hub name, or that of the thinker in it. Raises UserError for a folder that
    holds another kind of model, or whose config.json is damaged, and for a hub name that can't be looked up. Of a hub's
    config.json that holds no table, the result is empty."""
    refuse_gguf(name)
    if not Path(name).is_dir():
        from transformers import PreTrainedConfig

        try:
            return thinker_settings(PreTrainedConfig.get_config_dict(name)[0])
        except OSError as error:  # transformers' error for a name that is nowhere, and for a hub that can't be reached
            why = shorten(shorten(error).partition(". ")[0], 200)
            reason = f"it is no folder, and the hub doesn't give it ({why}): check the name, or give a folder"
            raise refusal(name, reason) from error
        except (ValueError, AttributeError, TypeError):  # AttributeError, TypeError: it holds no table
            return {}
    file = Path(name) / "config.json"
    if not file.is_file():
        raise _without_config(Path(name))
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not a table")
        return thinker_settings(found)
    except (OSError, ValueError, RecursionError) as error:
        raise refusal(name, f"its config.json is damaged ({shorten(error, 200)}): copy it again") from error


def refuse_gguf(name: str) -> None:
    """Raise UserError for the name of a file of llama.cpp."""
    if name.lower().endswith(".gguf"):
        raise refusal(name, f"it is {GGUF}")


def _without_config(folder: Path) -> UserError:
    name = str(folder)
    if any(folder.glob("*.gguf")):
        return refusal(name, f"its weights are {GGUF}")
    if (folder / "model_index.json").is_file():
        return refusal(name, "it is a diffusion pipeline, which writes no text: choose a vision-language model")
    kept = sorted(folder.glob("checkpoints/step-*/policy"))
    cure = f"it is a run: give one of its checkpoints, such as {kept[-1]}" if kept else MODEL_CURE
    return UserError(f"{name!r} is a folder without config.json: {cure}", key="policy.model")


def refuse_kind(name: str, settings: Mapping[str, Any], trusted: bool) -> None:
    """Raise UserError if the table of a config.json is that of a model that isn't trained here. trusted: whether code that comes
    with the checkpoint may run; then the code says what the model is."""
    kind, own = f"{settings.get('model_type', '')!s:.60}", settings.get("auto_map")
    if kind in UNSUPPORTED:
        raise UserError(f"{name!r} is a {kind} model: {UNSUPPORTED[kind]}", key="policy.model")
    if kind in WHOLE:
        raise refusal(name, "its config.json is damaged (thinker_config is no table): copy it again")
    if method := _quantised(settings):
        raise refusal(name, f"its weights are quantised ({method}), and can't be trained: take the checkpoint in 16 bits")
    for table in _tables(settings):
        for key in ("num_hidden_layers", "num_layers", "depth"):
            if isinstance(count := table.get(key), int) and count > MOST_LAYERS:
                raise refusal(name, f"its config.json has {key} = {count:.10g}, more than any model: copy it again")
    if kind == "openvla" or (own and trusted):
        return
    if spec := plugin_family(kind):
        builder(spec)
        return
    if (own_kind := kind or settings.get("type")) in ("pi0", "pi05", "pi0_fast"):
        raise refusal(name, f'it is a {own_kind}, which is a policy of its own: set policy.kind = "{own_kind}"')
    if kind in ("Gr00tN1d7", "Gr00tN1d6") or (not kind and settings.get("type") == "groot"):
        raise refusal(name, 'it is a GR00T, which is a policy of its own: set policy.kind = "gr00t"')
    if called := OF_LEROBOT.get(str(own_kind)):
        raise refusal(name, f'it is {called}, which is a policy of its own: set policy.kind = "{own_kind}"')
    if not kind and not own:
        raise refusal(name, _nameless(settings))
    from transformers import __version__
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if kind not in CONFIG_MAPPING_NAMES:
        if own:
            raise UserError(
                f"{name!r} can't be loaded: it comes with code of its own: set policy.trust_remote_code = true if you trust the "
                "code's author",
                key="policy.model",
            )
        raise refusal(name, f"transformers {__version__} knows no {kind} model: install one that does, or choose another model")
    reads = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind)
    if named_class(settings) or (reads and _takes_media(reads)):
        return
    if kind not in HEARING and _hears(kind):
        raise refusal(name, f"it is a {kind} model, which hears and can't be trained here: {HEARING_CURE}")
    if kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise refusal(name, f"it is a {kind} model, which reads text alone: choose a vision-language model")
    if kind in auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        raise refusal(name, _two_parts(kind))
    sees = (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES)
    if any(kind in names for names in sees):
        raise refusal(name, f"it is a {kind} model, which writes no text: choose a vision-language model")
    raise refusal(name, f"transformers has no {kind} model that takes pictures and text and writes text: choose another model")


def _takes_media(name: str) -> bool:
    """Whether a class of transformers has an argument for pictures or sounds. Mistral 4's is among those that read pictures, and
    is the language model of Mistral Small 4 alone: it would swallow them."""
    import transformers

    return any(_MEDIA_ARGUMENT.search(argument) for argument in inspect.signature(getattr(transformers, name).forward).parameters)


def _hears(kind: str) -> bool:
    """Whether transformers has a class of this `model_type` that takes sounds and no pictures and writes text. Its tables count
    some of these models among those of text, or among encoders with a decoder."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    tables = ("MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "CTC")
    known = (getattr(auto, f"MODEL_FOR_{table}_MAPPING_NAMES", {}).get(kind) for table in tables)
    classes = [getattr(transformers, found, None) for found in known if isinstance(found, str)]
    takes = [getattr(found, "input_modalities", ()) for found in classes]
    return any("audio" in kinds and "image" not in kinds for kinds in takes)


def named_class(settings: Mapping[str, Any]) -> Any:
    """The class of transformers that a config.json's `architectures` name, if it takes pictures, or sounds in a family that
    hears, and writes text; None otherwise. Not all that do are among the classes of `AutoModelForImageTextToText`, such as those
    that listen."""
    import transformers

    named = settings.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        return None
    kind: Any = getattr(transformers, named[0], None)
    if transformers.PreTrainedModel not in getattr(kind, "__mro__", ()) or not kind.can_generate():
        return None
    config: Any = kind.config_class
    own = config is not None and config.model_type == settings.get("model_type")
    return kind if own and ("vision_config" in config.sub_configs or config.model_type in HEARING) else None


def _nameless(settings: Mapping[str, Any]) -> str:
    """Why a config.json without `model_type` is refused."""
    if "_class_name" in settings:
        return f"it is {settings['_class_name']!r:.60}, part of a diffusion pipeline, which writes no text: choose another model"
    if "type" in settings:
        return f"it is a policy of LeRobot ({settings['type']!r:.60}), which can't be loaded here: choose another model"
    return f"its config.json names no model_type: {MODEL_CURE}"


def _tables(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A configuration and those of its parts."""
    return [settings, *(v for v in settings.values() if isinstance(v, Mapping))]


def _quantised(settings: Mapping[str, Any]) -> str:
    """The method by which a model, or a part of it, was quantised; empty if none was."""
    for table in _tables(settings):
        for key in ("quantization_config", "quantization"):  # the latter of MLX
            given = table.get(key)
            if isinstance(given, Mapping) and given:
                bits = given.get("bits") or (8 * bool(given.get("load_in_8bit")) or 4 * bool(given.get("load_in_4bit")))
                method = str(given.get("quant_method") or ("mlx" if key == "quantization" else "unknown method"))
                return f"{method}, {bits} bits" if bits else method
    return ""


def _two_parts(kind: str) -> str:
    return f"it is a {kind} model, an encoder and a decoder, and only decoders are trained here: choose another model"


def refuse_config(name: str, config: Any) -> None:
    """Raise UserError for an encoder-decoder. config: as transformers reads it."""
    text = config.get_text_config(decoder=True)
    if config.model_type in CROSS_ATTENTION or config.is_encoder_decoder or getattr(text, "is_encoder_decoder", False):
        raise refusal(name, _two_parts(config.model_type))


def refuse_ends(folder: Path) -> None:
    """Raise UserError for a generation_config.json whose ids of ends aren't whole numbers."""
    file = folder / "generation_config.json"
    if not file.is_file():
        return
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        ends = table.get("eos_token_id")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise refusal(str(folder), f"its {file.name} is damaged ({shorten(error, 200)}): copy it again") from error
    if not all(type(end) is int for end in (ends if isinstance(ends, list) else [ends]) if end is not None):
        raise refusal(str(folder), f"its {file.name} has eos_token_id = {ends!r:.60}: give the ids of tokens that end an answer")


def refuse_processor(name: str, config: Any, processor: Any) -> None:
    """Raise UserError if the processor has no part for pictures, or for sounds in a family that hears, if its tokenizer doesn't
    fit the model's embeddings, or if its chat template shows no picture or sound."""
    media = {} if config.model_type in HEARING else {"picture": ("image", "image_processor", NO_PROCESSOR)}
    if config.model_type in HEARING or whole_kind(config.model_type):
        media["sound"] = ("audio", "feature_extractor", NO_EARS)
    for _, part, lacks in media.values():
        if not hasattr(processor, "tokenizer") or not hasattr(processor, part):
            raise refusal(name, lacks)
    tokenizer = processor.tokenizer
    if tokenizer.eos_token_id is None:
        raise refusal(name, "its tokenizer names no end-of-sequence token: set eos_token in its config")
    for what, (kind, *_) in media.items():
        shown = {getattr(config, f"{kind}_token_{key}", None) for key in ("id", "index")} - {None}
        for use, token in (("pad_token", tokenizer.pad_token_id), ("eos_token", tokenizer.eos_token_id)):
            if token in shown:
                text = tokenizer.convert_ids_to_tokens(token)
                raise refusal(
                    name, f"its {use} is {text!r}, a {what}'s placeholder: set another {use} in its tokenizer_config.json"
                )
    token, highest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    decoder = config.get_text_config(decoder=True)
    rows = decoder.vocab_size + inputs_alone(decoder)
    if highest >= rows:
        raise refusal(
            name,
            f"its tokenizer has ids up to {highest} ({token!r:.60}), and its embeddings have {rows} rows: take both from one "
            "checkpoint",
        )
    for part in (config, config.get_text_config()):
        for key, value in part.to_dict().items():
            if _MEDIA_SETTING.search(key) and isinstance(value, int) and value >= rows:
                raise refusal(
                    name, f"its config.json has {key} = {value}, and its embeddings have {rows} rows: set the id of its tokenizer"
                )
    for what, (kind, *_) in media.items():
        _refuse_template(name, processor, what, kind)


def inputs_alone(decoder: Any) -> int:
    """How many of a language model's ids have embeddings and no outputs: placeholders of Molmo 2 and of Llama 3.2 Vision."""
    return 8 if decoder.model_type == "mllama_text_model" else getattr(decoder, "additional_vocab_size", 0)


def _refuse_template(name: str, processor: Any, what: str, kind: str) -> None:
    """what: the medium that the template must show. kind: its type in a message."""
    if not processor.chat_template:
        raise refusal(name, "it has no chat template: put one into chat_template.jinja, or take a model tuned for instructions")

    def rendered(*media: dict[str, str]) -> str:
        parts = [*media, {"type": "text", "text": "x"}]
        return str(
            processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True)
        )

    try:
        shown, plain = rendered({"type": kind}), rendered()
    except Exception as error:
        reason = f"{type(error).__name__}: {shorten(error, 300)}"
        raise refusal(name, f"its chat template can't write a {what} and a text ({reason}): check its chat template") from error
    if shown == plain:
        raise refusal(name, f"its chat template leaves {what}s out: use one that shows them")
