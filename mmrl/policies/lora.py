"""Low-rank adapters over a frozen model: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models. The layers are peft's.

They are put into the model itself, so its class, its forward pass and its cache stay what they are. A saved folder is an adapter
as peft and vLLM load it, with the processor beside it.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from mmrl.api.errors import UserError, shorten
from mmrl.config.parts import matches
from mmrl.config.sections import LoraConfig
from mmrl.policies.shard import model_state_dict

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def target_modules(model: torch.nn.Module, match: Iterable[str]) -> list[str]:
    """Names of the linear layers that these parts or patterns match. A head that is tied to the embeddings is none of its own."""
    own = {name for name, _ in model.named_parameters()}
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and f"{name}.weight" in own and any(matches(m, name) for m in match)
    ]


def add_adapters(model: Any, config: LoraConfig, seed: int) -> None:
    """Give the layers that `config.match` names float32 adapters that change nothing yet, and freeze all else. Same seed, same
    adapters. Raises UserError when no layer matches."""
    import peft
    from peft.tuners.tuners_utils import cast_adapter_dtype

    found = target_modules(model, config.target_modules)
    if not found:
        raise UserError(
            f"policy.lora.target_modules = {config.target_modules} matches no linear layer: use vision, projector or language"
        )
    settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=found, lora_dropout=0.0)  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which also seeds every GPU
        peft.inject_adapter_in_model(settings, model)
    cast_adapter_dtype(model, "default")


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name is an adapter's."""
    return ".lora_" in name


@contextlib.contextmanager
def disable_adapters(model: torch.nn.Module) -> Iterator[None]:
    """Meanwhile the model is what it was without adapters, bit for bit."""
    layers = list(_layers(model))
    for _, layer in layers:
        layer._disable_adapters = True  # peft's own switch would also change which of them need gradients
    try:
        yield
    finally:
        for _, layer in layers:
            layer._disable_adapters = False


def merged_weights(
    model: torch.nn.Module, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights that a model without adapters needs to do the same, by that model's names; those that are wanted."""
    layers = dict(_layers(model))
    for name, value in model_state_dict(model).items():
        owner, _, own = name.partition(".base_layer.")
        plain = f"{owner}.{own}" if own else name
        if is_adapter(name) or not wanted(plain):
            continue
        if own == "weight":
            value = value + layers[owner].get_delta_weight("default").to(value.dtype)
        yield plain, value


def save_adapters(model: Any, folder: Path, base: str) -> None:
    """Write the adapters and their configuration as peft does. base: what they belong to, a folder or name of a checkpoint."""
    settings = copy.copy(model.peft_config["default"])
    settings.base_model_name_or_path, settings.inference_mode = base, True
    settings.target_modules = sorted(settings.target_modules)
    folder.mkdir(parents=True, exist_ok=True)
    settings.save_pretrained(str(folder))
    tensors = {saved: p.detach().contiguous() for saved, p in _saved_names(model)}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def load_adapters(model: Any, folder: Path) -> None:
    """Give the model's adapters the saved weights. Raises UserError when the folder has none or they are others."""
    try:
        tensors = load_file(folder / WEIGHTS)
    except Exception as error:
        raise UserError(f"{folder} holds no adapters that can be read ({error}): was it saved without policy.lora?") from error
    alpha, own = _settings(folder).get("lora_alpha"), model.peft_config["default"].lora_alpha
    if alpha != own:
        raise UserError(f"{folder}: its adapters were trained with policy.lora.alpha = {alpha!r}, not {own:g}: set that")
    ours = dict(_saved_names(model))
    if {k: v.shape for k, v in tensors.items()} != {k: p.shape for k, p in ours.items()}:
        raise UserError(
            f"{folder}: its adapters are not those that policy.lora asks for: use the rank and match it was trained with"
        )
    with torch.no_grad():
        for name, p in ours.items():
            p.copy_(tensors[name])


def adapter_chain(name: str) -> tuple[list[Path], str]:
    """(folders of adapters, the model beneath): a folder's adapters may belong to a model that is adapters again, and so on. The
    outermost come first; there are none where the name is that of a whole model. Raises UserError when they go in a circle."""
    folders: list[Path] = []
    while not name.startswith("tiny:") and (Path(name) / CONFIG).is_file():
        if any(Path(name).resolve() == folder.resolve() for folder in folders):
            raise UserError(f"{folders[0]}: its adapters belong to themselves in the end: name a whole model in its {CONFIG}")
        folders.append(Path(name))
        name = str(_settings(folders[-1])["base_model_name_or_path"])
    return folders, name


def _settings(folder: Path) -> dict[str, Any]:
    """What a folder's adapters say of themselves."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(found["base_model_name_or_path"], str):
            raise ValueError(f"base_model_name_or_path is {found['base_model_name_or_path']!r:.60}")
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder / CONFIG} can't be read ({shorten(error)[:200]}): save the adapters again") from error


def merge_saved_adapters(model: Any, folder: Path) -> None:
    """Work a folder's adapters into the weights of the model they belong to."""
    import peft

    try:
        peft.inject_adapter_in_model(peft.LoraConfig.from_pretrained(str(folder)), model)
    except Exception as error:
        raise UserError(f"{folder}: its adapters don't fit the model they name: {str(error).splitlines()[0][:200]}") from error
    peft.tuners.tuners_utils.cast_adapter_dtype(model, "default")
    load_adapters(model, folder)
    _merge(model)
    model.requires_grad_(True)


def merged_copy(model: Any) -> Any:
    """A copy of the model whose weights hold what its adapters have learned; it has none itself."""
    whole = copy.deepcopy(model)
    _merge(whole)
    return whole


def _merge(model: Any) -> None:
    for name, layer in list(_layers(model)):
        layer.merge()
        model.set_submodule(name, layer.get_base_layer())
    del model.peft_config


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def _saved_names(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """(name in peft's files, parameter) of the adapters."""
    for name, p in model.named_parameters():
        if is_adapter(name):
            yield "base_model.model." + name.replace(".default.", "."), p
