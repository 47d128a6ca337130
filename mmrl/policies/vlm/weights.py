"""Whether files hold the weights of a model: their names and shapes are compared with it before any weight is read.

transformers warns of weights that are missing or left over, and goes on with random ones.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.policies.lora import CONFIG, WEIGHTS, adapter_chain
from mmrl.policies.names import refuse_path
from mmrl.policies.vlm.published import layers_in_files
from mmrl.policies.vlm.suitability import GGUF, refusal
from mmrl.policies.vlm.thinkers import PREFIX, whole_kind

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
LOW = ("F8_E4M3", "F8_E5M2", "F4", "I8", "U8")
"""Data types of quantised weights, as safetensors calls them."""
LONGEST_HEADER = 100_000_000
"""Largest header that the safetensors library reads, in bytes."""
TOGETHER = "take config.json and weights from one checkpoint"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint. Raises UserError if there are none, or some that its index names are missing."""
    name, index = str(folder), folder / INDEX
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not index.is_file():
        if any(folder.glob("*.gguf")):
            raise refusal(name, f"its weights are {GGUF}")
        pickled = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
        if pickled:
            raise refusal(name, f"its weights are pickled ({pickled[0]}), which may run code: convert them to safetensors")
        raise refusal(name, f"it has no weights: there is neither {SINGLE} nor {INDEX}: copy them, too")
    try:
        named = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if not named or not all(isinstance(file, str) for file in named):
            raise ValueError("it names no files")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise refusal(name, f"its {INDEX} is damaged ({shorten(error, 200)}): copy it again") from error
    if lost := [file for file in named if not (folder / file).is_file()]:
        raise refusal(
            name, f"{len(lost)} of the {len(named)} files that {INDEX} names are missing, such as {lost[0]}: copy them, too"
        )
    return [folder / file for file in named]


def read_headers(file: Path, name: str) -> dict[str, torch.Tensor]:
    """Name -> a tensor of that shape on torch's meta device, for each tensor of a file. Raises UserError for a damaged file and
    for quantised weights."""
    try:
        table = _header(file)
        kinds = {key: str(one["dtype"]) for key, one in table.items()}
        found = {key: torch.empty(one["shape"], device="meta") for key, one in table.items()}
    except (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, RuntimeError, RecursionError) as error:
        with open(file, "rb") as opened:
            pointer = opened.read(40).startswith(b"version https://git-lfs")
        cure = "it is a pointer of Git LFS: fetch the file with git lfs pull" if pointer else "copy it again"
        raise refusal(name, f"{file.name} is damaged ({shorten(error, 200)}): {cure}") from error
    if low := sorted(key for key, kind in kinds.items() if kind in LOW and key.endswith("weight")):
        raise refusal(
            name, f"its weights are quantised ({low[0]} is {kinds[low[0]]}), and can't be trained: take the checkpoint in 16 bits"
        )
    return found


def _header(file: Path) -> dict[str, Any]:
    """Name -> type, shape and place of each tensor of a safetensors file. Raises ValueError for a damaged one.

    The library reads headers too, but maps the whole file into memory, which a system may refuse for a large one. The format:
    the header's length in 8 bytes, the header in JSON, the tensors; https://github.com/huggingface/safetensors, Format."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= min(size - 8, LONGEST_HEADER):
            raise ValueError(f"its header has {length} bytes, and the file {size}")
        table = json.loads(opened.read(length))
    table.pop("__metadata__", None)
    end = max((one["data_offsets"][1] for one in table.values()), default=0)
    if size != 8 + length + end:
        raise ValueError(f"it has {size} bytes, and its header says {8 + length + end}")
    return dict(table)


def refuse_weights(name: str, files: list[Path], empty: Any) -> None:
    """Raise UserError if files don't hold the weights of a model; without files, nothing is checked. empty: the model on torch's
    meta device. transformers itself renames and merges the tensors, which have shapes and no values."""
    if not files:
        return
    headers: dict[str, torch.Tensor] = {}
    for file in files:
        headers |= read_headers(file, name)
    bare = [key.removeprefix(PREFIX) for key in headers if key.startswith(PREFIX)] if whole_kind(empty.config.model_type) else []
    if twice := sorted(headers.keys() & set(bare)):
        raise refusal(name, f"its files have two values of one weight, {twice[0]} and {PREFIX}{twice[0]}: copy it again")
    with _quiet():
        _, report = type(empty).from_pretrained(
            None,
            config=empty.config,
            state_dict=headers,
            device_map={"": "meta"},
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    refuse_report(name, report)


def refuse_report(name: str, report: Mapping[str, Any]) -> None:
    """Raise UserError if transformers' report of a loaded model names weights that are missing, left over or of another shape."""
    for key, there, here in sorted(report["mismatched_keys"], key=str):
        raise refusal(name, f"{key} is {list(there)} in its files, and {list(here)} by its config.json: {TOGETHER}")
    missing = sorted(report["missing_keys"])
    unexpected = sorted(report["unexpected_keys"])
    if missing and all(key.startswith("lm_head.") for key in missing):
        raise refusal(
            name,
            f"its files lack {missing[0]}, and its config.json says that the head isn't tied to the embeddings: set "
            "tie_word_embeddings = true if it is, or copy the head, too",
        )
    if missing:
        raise refusal(name, f"its files lack {_some(missing)} of the model in its config.json: {TOGETHER}")
    if unexpected:
        raise refusal(name, f"its files have {_some(unexpected)} that the model in its config.json lacks: {TOGETHER}")


def refuse_untied(name: str, model: Any) -> None:
    """Raise UserError if a loaded model's head is tied to the embeddings by its configuration and not by its weights:
    transformers keeps two tensors then, and vLLM samples with one of them."""
    if model.get_expanded_tied_weights_keys(all_submodels=True).keys() - model.all_tied_weights_keys.keys():
        raise refusal(
            name,
            "its config.json ties the head to the embeddings, and its files have a head with other weights: set "
            "tie_word_embeddings = false",
        )


def refuse_adapters(folder: Path, base: str, empty: Any) -> None:
    """Raise UserError if the adapters in a folder aren't those of a model. empty: the model on torch's meta device."""
    cure = f"give its own model as base_model_name_or_path in {CONFIG}"
    kind = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("peft_type", "LORA")
    if kind != "LORA":
        raise refusal(str(folder), f"its adapters are of type {kind!r:.40}, and only LORA can be read: merge them with peft")
    if not (folder / WEIGHTS).is_file():
        raise refusal(str(folder), f"it has {CONFIG} and no {WEIGHTS}: copy it, too")
    modules, layers = dict(empty.named_modules()), {name: layer for layer, name in layers_in_files(empty).items()}
    for key, tensor in sorted(read_headers(folder / WEIGHTS, str(folder)).items()):
        owner, _, which = key.removeprefix("base_model.model.").rpartition(".lora_")
        if which not in ("A.weight", "B.weight", "magnitude_vector"):  # the last is DoRA's, the lengths of the rows
            raise refusal(str(folder), f"it has {key}, which is no LoRA of a linear layer: merge it with peft")
        layer = modules.get(layers.get(owner, owner))
        if layer is None:
            raise refusal(str(folder), f"its adapters have {owner}, which their model {base!r} lacks: {cure}")
        if isinstance(layer, torch.nn.Linear):
            there, here = (tensor.shape[1], layer.in_features) if which[0] == "A" else (tensor.shape[0], layer.out_features)
            if there != here:
                side = "inputs" if which[0] == "A" else "outputs"
                raise refusal(
                    str(folder), f"its adapters of {owner} have {there} {side}, and the layer of {base!r} has {here}: {cure}"
                )


def refuse_lost_base(adapters: Sequence[Path], name: str) -> None:
    """Raise UserError if the model that adapters name is a folder that isn't there."""
    if adapters and not name.startswith("tiny:") and not Path(name).is_dir():
        cure = f"put it there, or name another folder as base_model_name_or_path in {CONFIG}"
        try:
            refuse_path(name, cure)
        except UserError as error:
            raise refusal(str(adapters[-1]), f"the model of its adapters, {error.what}") from error


def check_files(model: str, empty: Callable[[], Any]) -> None:
    """Raise UserError for a `policy.model` without weights, and for adapters that aren't those of the model that they name. Of
    weights, no more than names and shapes is read, and a hub name is not looked up. empty: makes that model on torch's meta
    device."""
    adapters, name = adapter_chain(model)
    refuse_lost_base(adapters, name)
    if Path(name).is_dir():
        weight_files(Path(name))
    elif not name.startswith("tiny:"):
        return
    made = empty() if adapters else None
    for folder in adapters:
        refuse_adapters(folder, name, made)


def _some(names: list[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more weights" if len(names) > 1 else names[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own report and progress bar."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
