"""Checkpoints in the form of published ones, whose names of weights outlive a version of transformers; those in memory change.

A trained thinker is saved in the form of the whole model without the parts that speak, as the published checkpoints that only
write text are (Qwen3-Omni-30B-A3B-Thinking): the config says `enable_audio_output` = false, and weights are named `thinker.*`.
vLLM reads this form alone, and transformers' class of the thinker reads it too.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.policies.vlm.thinkers import PREFIX, whole_config, whole_kind

if TYPE_CHECKING:
    import torch


def save_model(model: Any, folder: Path | str, state: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write the config and the weights of a model; of a thinker, in the form of the whole model. state: its weights, by default
    those that it holds."""
    import torch
    import transformers

    config = whole_config(model.config)
    if config is model.config:
        known = _converted(model)
        mended = once(known)
        with _undoing(model, mended) if len(mended) < len(known) else contextlib.nullcontext():
            model.save_pretrained(folder, state_dict=state)
        return
    with torch.device("meta"):
        whole = getattr(transformers, config.architectures[0])._from_config(config)
    whole.thinker, whole.generation_config = model, model.generation_config
    named = model.state_dict() if state is None else state
    whole.save_pretrained(folder, state_dict={f"{PREFIX}{name}": value for name, value in named.items()})


def _converted(model: Any) -> list[Any]:
    """What transformers did to this model's checkpoint; if it was made here, what it does to a published one."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    known = vars(model).get("_weight_conversions")
    if known is not None:
        return list(known)
    return [one for one in get_model_conversion_mapping(model, add_legacy=False) if not isinstance(one, PrefixChange)]


def conversions_of(model: Any) -> list[Any]:
    """What transformers does to a published checkpoint of this model, without removing the prefix of a thinker. 5.24 does so for
    the thinker and again for the model within it: undoing both would put the prefix before two parts of a name."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    known = copy.deepcopy(get_model_conversion_mapping(model, add_legacy=False))
    found = [conversion for conversion in known if getattr(conversion, "prefix_to_remove", None) != PREFIX.removesuffix(".")]
    for operation in (operation for conversion in found for operation in getattr(conversion, "operations", ())):
        if hasattr(operation, "check_dims"):  # it would only be undone for a checkpoint that needed it
            operation.check_dims = False
    return once(found)


def once(conversions: Iterable[Any]) -> list[Any]:
    """Without renamings of what was renamed before: of Qwen2-Audio, transformers 5.19 has two from one name, and undoes both."""
    from transformers.core_model_loading import WeightRenaming

    found: list[Any] = []
    known = []
    for one in conversions:
        source = (one.scope_prefix or "", one.source_patterns)
        if type(one) is not WeightRenaming or source not in known:
            found.append(one)
            known.append(source)
    return found


def published(model: Any, conversions: Sequence[Any], weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Undo what transformers does to a published checkpoint as it loads it: other names, experts in one tensor. `save_pretrained`
    undoes what was done to the checkpoint that was loaded, which for a model that was made here is not the same. conversions: see
    `conversions_of`."""
    from transformers.core_model_loading import revert_weight_conversion

    prefix = PREFIX if whole_kind(model.config.model_type) else ""
    with _undoing(model, conversions):
        return {prefix + name: value for name, value in revert_weight_conversion(model, dict(weights)).items()}


def layers_in_files(model: Any) -> dict[str, str]:
    """Linear layer of a thinker -> its name in files of adapters, which is that in the published whole model: by names in memory,
    vLLM leaves adapters out without a word, and another version of transformers doesn't find their layers. Of other models none:
    there peft and vLLM expect the names in memory, which are the same from transformers 5.19 to 5.24."""
    import torch

    config = getattr(model, "config", None)  # networks for actions have none, or one of another kind
    if not whole_kind(getattr(config, "model_type", "")):
        return {}
    modules = [name for name, module in model.named_modules() if hasattr(module, "in_features")]
    layers = [name for name in modules if ".lora_" not in name and not name.endswith(".base_layer")]
    numbered = {f"{layer}.weight": torch.tensor(n) for n, layer in enumerate(layers)}
    found = published(model, conversions_of(model), numbered)
    return {layers[int(n)]: name.removesuffix(".weight") for name, n in found.items()}


@contextlib.contextmanager
def _undoing(model: Any, conversions: Sequence[Any]) -> Iterator[None]:
    """Inside, these are what transformers undoes when it saves a model."""
    own = vars(model).get("_weight_conversions")
    model._weight_conversions = list(conversions)
    try:
        yield
    finally:
        if own is None:
            del model._weight_conversions
        else:
            model._weight_conversions = own
