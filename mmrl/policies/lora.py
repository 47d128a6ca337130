"""Low-rank adapters over a frozen model: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models. The layers are peft's.

They are put into the model itself, so its class, forward pass and cache don't change. A saved folder is an adapter that peft and
vLLM load, with the processor beside it.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mmrl.api.errors import UserError, shorten
from mmrl.compute.bitsandbytes import quiet
from mmrl.config.parts import matches, no_layer_to_adapt
from mmrl.config.sections import PARTS, LoraConfig
from mmrl.policies.lora_products import add_product
from mmrl.policies.nf4 import NF4Linear, dequantise, nf4_layers, quantise
from mmrl.policies.shard import model_state_dict

TOKENIZERS = ("vqmodel", "vision_tokenizer", "audio_tokenizer")
"""Modules that make ids of pictures or sounds, as of Emu3 and Apertus 1.5: no gradient flows through ids."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
WAYS = ("use_rslora", "use_dora")
"""Keys of `policy.lora` that peft calls so too."""


def makes_ids(name: str) -> bool:
    """Whether a module or a weight of this name is of those."""
    return any(step in TOKENIZERS for step in name.split("."))


def target_modules(model: torch.nn.Module, match: Iterable[str]) -> list[str]:
    """Names of the linear layers that these parts or patterns match. A head that is tied to the embeddings is left out, and so
    are layers that compute more than a linear one, such as Llama 4's routers of experts, and those that peft takes for experts
    by their names, such as the dense layers of GLM-4.5V."""
    found = _linear_layers(model, match)
    leaves = {name.rpartition(".")[2] for name in found}
    taken = {leaf for leaf in leaves if _taken_for_experts(model, leaf)}
    return [name for name in found if name.rpartition(".")[2] not in taken]


def _linear_layers(model: torch.nn.Module, match: Iterable[str]) -> list[str]:
    own = {name for name, _ in model.named_parameters()}
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, NF4Linear)
        or (isinstance(module, torch.nn.Linear) and type(module).forward is torch.nn.Linear.forward and f"{name}.weight" in own)
        if any(matches(m, name) for m in match)
    ]


def _taken_for_experts(model: Any, leaf: str) -> bool:
    """Whether peft, here and wherever the adapters are loaded, adapts experts in place of a linear layer of this name: the names
    are those that experts had in transformers 4."""
    with quiet():
        import peft

        try:
            from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
        except ImportError:  # earlier versions take names as they are
            return False
    asked = peft.LoraConfig(target_modules=[leaf])
    try:
        convert_peft_config_for_transformers(asked, model, None)
    except ValueError:  # for gate_proj without up_proj, which experts hold in one tensor
        return True
    return bool(asked.target_parameters)


def quantised_layers(model: Any, match: Iterable[str]) -> list[str]:
    """Names of the linear layers that these parts or patterns match, without the head: it is computed for few tokens at a time,
    each time with all its weights."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return [name for name in _linear_layers(model, match) if model.get_submodule(name) is not head]


def refuse_parts_without_layers(model: Any, match: Iterable[str]) -> None:
    """Raise UserError for a part whose weights are in no linear layer, such as the projector of Gemma 3; and for a part or a
    pattern whose layers only make ids of what the model sees or hears: their adapters would train nothing."""
    for part in match:
        found = target_modules(model, [part])
        if found and all(map(makes_ids, found)):
            raise UserError(
                f'policy.lora.target_modules: "{part}" matches only layers that make ids of pictures or sounds in a '
                f"{type(model).__name__}, such as {found[0]}: no gradient flows through ids, so leave it out"
            )
        weights = {name: p.numel() for name, p in model.named_parameters() if part in PARTS and matches(part, name)}
        if weights and not found:
            there = [p for p in PARTS if target_modules(model, [p])]
            raise UserError(
                f'policy.lora.target_modules: "{part}" has no linear layer in a {type(model).__name__}, only weights '
                f"such as {max(weights, key=lambda name: weights[name])}, which can't have adapters: use {', '.join(there)}"
            )


def adapted_layers(model: torch.nn.Module, match: Sequence[str]) -> list[str]:
    """Names of the layers that get adapters, see `target_modules`. Raises UserError if no layer matches, none of a part, or none
    of a pattern."""
    refuse_parts_without_layers(model, match)
    found = target_modules(model, match)
    if missed := match if not found else [m for m in match if m not in PARTS and not target_modules(model, [m])]:
        raise no_layer_to_adapt(missed)
    return found


def add_adapters(model: Any, config: LoraConfig, seed: int, device: torch.device | None = None) -> None:
    """Add float32 adapters that change nothing yet to the layers that `config.target_modules` matches, and freeze all else. The
    same seed gives the same adapters. Before, the layers that `config.nf4` matches are quantised, on the device. Raises UserError
    if no layer matches, or none of a part."""
    with quiet():
        import peft
        from peft.tuners.tuners_utils import cast_adapter_dtype

    found = adapted_layers(model, config.target_modules)
    quantise(model, quantised_layers(model, config.nf4), device or torch.device("cpu"))
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]
        target_modules=found,
        lora_dropout=0.0,
        use_rslora=config.use_rslora,
        use_dora=config.use_dora,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which also seeds every GPU
        peft.inject_adapter_in_model(settings, model)
    cast_adapter_dtype(model, "default")
    linear: Any = peft.tuners.lora.Linear
    for _, layer in _layers(model):
        hooks = layer.get_base_layer()._forward_hooks
        for hook in hooks.values():  # they change what the layer gives, adapter and all
            layer.register_forward_hook(hook)
        hooks.clear()
        if type(layer) is linear and not config.use_dora:
            layer.forward = partial(_forward, layer)
        for dora in _dora_of(layer):  # by peft they are rounded as the weights are, and the model would not be itself
            dora.weight.data = _lengths(layer.get_base_layer().weight.float())


def _forward(layer: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What peft's layer computes, on a CPU bit for bit, in fewer operations and with fewer bytes: see `lora_products`."""
    if layer.disable_adapters or layer.merged or args or kwargs:
        found: torch.Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return found
    a, b, scaling = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.scaling["default"]
    rows_NI = x.reshape(-1, x.shape[-1])  # the output of more dimensions would be a view, to which adding in place costs copies
    return add_product(layer.base_layer(rows_NI), rows_NI, a, b, scaling).view(*x.shape[:-1], b.shape[0])


def _dora_of(layer: Any) -> list[Any]:
    """What DoRA adds to a layer: `weight` [out], the lengths of the rows; nothing without it."""
    return [module for name, module in layer.lora_magnitude_vector.items() if name == "default"]


def _lengths(weight: torch.Tensor) -> torch.Tensor:
    return torch.linalg.norm(weight, dim=1)


def _adapted(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """A layer's weight with its adapter worked in, as it computes."""
    delta = layer.get_delta_weight("default")
    for dora in _dora_of(layer):
        turned = weight.to(delta.dtype) + delta
        return ((dora.weight / _lengths(turned))[:, None] * turned).to(weight.dtype)
    return weight + delta.to(weight.dtype)


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".lora_" in name


@contextlib.contextmanager
def disable_adapters(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model computes what it did before it had adapters, bit for bit."""
    layers = list(_layers(model))
    for _, layer in layers:
        layer._disable_adapters = True  # peft's own switch would also change which of them need gradients
    try:
        yield
    finally:
        for _, layer in layers:
            layer._disable_adapters = False


def without_adapters(model: torch.nn.Module) -> bool:
    """Whether adapters of the model are disabled."""
    return any(getattr(layer, "_disable_adapters", False) for layer in model.modules())


def some_outputs(layer: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What a linear layer without a bias, or its adapters over it, gives for x [..., in] at these outputs alone, [..., rows]."""
    found = torch.nn.functional.linear(x, layer.weight[rows])
    if not hasattr(layer, "lora_A") or layer.disable_adapters:
        return found
    a, b = layer.lora_A["default"], layer.lora_B["default"].weight[rows]
    more = torch.nn.functional.linear(a(x.to(a.weight.dtype)), b) * layer.scaling["default"]
    for dora in _dora_of(layer):
        turned = layer.weight[rows].to(b.dtype) + layer.scaling["default"] * b @ a.weight
        return ((dora.weight[rows] / _lengths(turned).detach()) * (found + more)).to(found.dtype)
    return (found + more).to(found.dtype)


def merged_weights(
    model: torch.nn.Module, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of an equivalent model without adapters, by that model's names. wanted: selects names."""
    layers, packed = dict(_layers(model)), dict(nf4_layers(model))
    for name, value in model_state_dict(model).items():
        holder, _, own = name.rpartition(".")
        if (quantised := packed.get(holder)) and own == "packed":
            name, own = f"{holder}.weight", "weight"
        owner = holder.removesuffix(".base_layer")
        plain = f"{owner}.{own}" if owner else own
        if is_adapter(name) or (quantised and own in quantised._buffers) or not wanted(plain):
            continue
        if quantised and own == "weight":
            value = quantised.weight
        if own == "weight" and owner != holder:
            value = _adapted(layers[owner], value)
        yield plain, value


def save_adapters(model: Any, folder: Path, base: str, names: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write the adapters and their configuration as peft does. base: folder or name of the model they belong to. names: layer ->
    its name in files, if it isn't that in memory."""
    settings = copy.copy(model.peft_config["default"])
    settings.base_model_name_or_path, settings.inference_mode = base, True
    settings.target_modules = sorted(names.get(layer, layer) for layer in settings.target_modules)
    folder.mkdir(parents=True, exist_ok=True)
    settings.save_pretrained(str(folder))
    tensors = {saved: p.detach().contiguous() for saved, p in _saved_names(model, names)}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def load_adapters(model: Any, folder: Path, names: Mapping[str, str] = MappingProxyType({})) -> None:
    """Load saved weights into the model's adapters. names: see `save_adapters`; files by names in memory, as of peft, are
    read as well. Raises UserError if the folder has none or they don't match."""
    try:
        tensors = load_file(folder / WEIGHTS)
    except Exception as error:
        raise UserError(f"{folder} holds no adapters that can be read ({error}): was it saved without policy.lora?") from error
    saved, mine = _settings(folder), model.peft_config["default"]
    for name, called, default in (("alpha", "lora_alpha", None), *((way, way, False) for way in WAYS)):
        if (theirs := saved.get(called, default)) != (own := getattr(mine, called)):
            raise UserError(
                f"{folder}: its adapters were trained with policy.lora.{name} = {json.dumps(theirs)}, not {json.dumps(own)}: "
                "set that"
            )
    ours = dict(_saved_names(model, {}))
    if tensors.keys() != ours.keys():
        ours = dict(_saved_names(model, names))
    if {k: v.shape for k, v in tensors.items()} != {k: p.shape for k, p in ours.items()}:
        raise UserError(
            f"{folder}: its adapters don't match policy.lora: set the rank and target_modules that they were trained with"
        )
    with torch.no_grad():
        for name, p in ours.items():
            p.copy_(tensors[name])


def adapter_chain(name: str) -> tuple[list[Path], str]:
    """(folders of adapters, base model): the base of a folder's adapters may itself be a folder of adapters, and so on. The
    outermost come first; there are none if the name is that of a whole model. Raises UserError for a circle."""
    folders: list[Path] = []
    while not name.startswith("tiny:") and (Path(name) / CONFIG).is_file():
        if any(Path(name).resolve() == folder.resolve() for folder in folders):
            raise UserError(f"{folders[0]}: the base models of its adapters form a circle: name a whole model in its {CONFIG}")
        folders.append(Path(name))
        name = str(_settings(folders[-1])["base_model_name_or_path"])
    return folders, name


def _settings(folder: Path) -> dict[str, Any]:
    """The configuration of a folder's adapters."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(found["base_model_name_or_path"], str):
            raise ValueError(f"base_model_name_or_path is {found['base_model_name_or_path']!r:.60}")
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder / CONFIG} can't be read ({shorten(error, 200)}): save the adapters again") from error


def apply_adapters(model: Any, config: LoraConfig | None, below: Sequence[Path], source: Path | None, seed: int) -> None:
    """Merge saved adapters, the outermost first in `below`, and put those of `policy.lora` on top, with the weights of `source`,
    a checkpoint of the run, if there is one."""
    for folder in reversed(below):
        merge_saved_adapters(model, folder)
    if config:
        add_adapters(model, config, seed)
        if source:
            load_adapters(model, source)


def merge_saved_adapters(model: Any, folder: Path, names: Mapping[str, str] = MappingProxyType({})) -> None:
    """Merge a folder's adapters into the weights of the model they belong to. names: see `load_adapters`."""
    with quiet():
        import peft

    try:
        settings = peft.LoraConfig.from_pretrained(str(folder))
        if names:  # by the weights, as the targets may be a pattern for other names
            layers = {name: layer for layer, name in names.items()}
            with safe_open(folder / WEIGHTS, "pt") as saved:
                held = {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in saved.keys()}  # noqa: SIM118
            settings.target_modules = {layers.get(name, name) for name in held}
        peft.inject_adapter_in_model(settings, model)
    except Exception as error:
        raise UserError(f"{folder}: its adapters don't fit the model they name: {str(error).splitlines()[0][:200]}") from error
    peft.tuners.tuners_utils.cast_adapter_dtype(model, "default")
    load_adapters(model, folder, names)
    merge(model)
    model.requires_grad_(True)


def merge(model: Any) -> None:
    """Work the adapters of a model into its weights, in place; afterwards it has none, and no weights in 4 bits."""
    dequantise(model)
    layers = list(_layers(model))
    for _, layer in layers:
        layer.merge()
    for name, layer in layers:
        if not name.endswith(".base_layer"):  # experts have adapters around adapters
            model.set_submodule(name, layer.get_base_layer())
    for module in model.modules():  # the adapted model may be a part of this one
        vars(module).pop("peft_config", None)


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def _saved_names(model: torch.nn.Module, names: Mapping[str, str]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """(name in peft's files, parameter) of the adapters. names: see `save_adapters`."""
    for name, p in model.named_parameters():
        if is_adapter(name):
            layer = name.partition(".lora_")[0]
            rest = name.removeprefix(layer).replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector")
            yield f"base_model.model.{names.get(layer, layer)}{rest}".replace(".default.", "."), p
