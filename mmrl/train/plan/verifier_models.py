"""The memory of verifiers that are models, which stay on the device from the beginning of a run to its end."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.config.sections import RunConfig
from mmrl.registry import plugins
from mmrl.train.plan.configs import base_of
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.memory import Part
from mmrl.train.plan.published import published
from mmrl.train.plan.skeletons import weights_in

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class VerifierModels:
    """What verifiers' models take of a learner's device."""

    parts: tuple[Part, ...] = ()
    """Each model of each worker, and on a GPU what the processes of the workers take of it besides."""
    unknown: tuple[str, ...] = ()
    """Models whose size isn't known without fetching them."""


def count_models(config: RunConfig, machine: Machine, online: bool) -> VerifierModels:
    """Count the models that `[verifiers]` names. Those of judges in actors (`compute.judges`) are on devices of their own, and so
    are those whose option `device` is another one than the machine's. online: allow asking the hub for a model's size."""
    sizes: dict[tuple[str, str, str], int] = {}
    unknown: dict[str, None] = {}
    for plugin, model, dtype in () if config.compute.judges else _loaded(config, machine.kind):
        count = weights_of(model, online)
        if count is None:
            unknown[model] = None
        else:
            sizes[plugin, model, dtype] = count * BYTES[dtype]
    parts = [
        Part(name="verifier's model", bytes=size, because=f"{model} in {dtype}")
        for (_, model, dtype), size in sizes.items()
        if size
    ]
    processes = len({plugin for plugin, *_ in sizes}) if parts else 0
    if machine.reserved and processes:
        size = processes * machine.reserved
        parts.append(Part(name="verifiers' processes", bytes=size, because=f"{processes} beside the learner's on the GPU"))
    return VerifierModels(tuple(parts), tuple(unknown))


def _loaded(config: RunConfig, kind: str) -> Iterator[tuple[str, str, str]]:
    """(plugin, model, dtype) of each verifier that loads a model onto the machine's device. kind: of the machine."""
    registry = plugins.registry()
    for name, given in config.verifiers.items():
        spec = registry.get("verifiers", name)
        options = {**_defaults(registry.target(spec)), **spec.options, **given}
        model, device = options.get("model"), options.get("device")
        if not spec.model or not isinstance(model, str) or not isinstance(device, str):  # one behind an endpoint has no device
            continue
        if device.startswith("cuda") if kind == "cpu" else device not in ("auto", "cuda"):
            continue
        dtype = options.get("dtype", "auto")
        usual = "float32" if kind == "cpu" else "bfloat16"
        yield registry.plugin_of(spec).name, model, dtype if dtype in BYTES else usual


def _defaults(target: Any) -> dict[str, Any]:
    """Options of a verifier's class or function that have a default."""
    found = inspect.signature(target).parameters.values()
    return {each.name: each.default for each in found if each.default is not inspect.Parameter.empty}


@functools.cache
def weights_of(model: str, online: bool) -> int | None:
    """Number of weights of a folder, a published model or one on the hub, by the headers of its files; 0 for a tiny one; None if
    it isn't known."""
    if model.split(":")[0] == "tiny":
        return 0
    model = base_of(model)
    if (config := published(model)) is not None:
        return weights_in(config)
    if Path(model).is_dir():
        return _in_folder(Path(model)) or None
    return _on_hub(model, online)


def _in_folder(folder: Path) -> int:
    """Number of weights in the safetensors files of a folder."""
    from safetensors import safe_open

    count = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118  no mapping
    return count


def _on_hub(name: str, online: bool) -> int | None:
    """Number of weights of a model in the hub's cache, or on the hub."""
    from huggingface_hub import errors, get_safetensors_metadata, snapshot_download

    try:
        return _in_folder(Path(snapshot_download(name, local_files_only=True))) or None
    except (errors.LocalEntryNotFoundError, errors.HFValidationError):
        pass
    try:
        return sum(get_safetensors_metadata(name).parameter_count.values()) if online else None
    except Exception:  # noqa: BLE001  whatever the network and the hub refuse, a person is told that the size isn't known
        return None
