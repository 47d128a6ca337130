"""Read a model's config: from its folder, from the table of published models, or from the hub. Reads no weights."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, shorten
from mmrl.config.sections import PolicyConfig
from mmrl.policies.names import refuse_path
from mmrl.policies.vlm.thinkers import thinker_settings
from mmrl.registry import plugins
from mmrl.train.plan.acting import with_actions
from mmrl.train.plan.families import GRIDS, SHOWN
from mmrl.train.plan.published import LIMITS, PUBLISHED, published
from mmrl.train.plan.shapes import Shapes

MOST = 4096**2
"""Pixels of the largest picture where no limit is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model's shapes and their source."""

    shapes: Shapes
    source: str
    """Where the shapes are from, in words."""
    most_pixels: int
    """Pixels above which the model's processor shrinks an image."""


def read_shapes(config: PolicyConfig, name: str, online: bool) -> Found:
    """Of a policy of kind `vlm` or `vla`; see `mmrl.train.plan.sources.find_shapes`."""
    if config.options:
        from mmrl.policies.load import checked_options  # imports torch

        checked_options(config, plugins.registry().get("policies", config.kind))
    data, source, limit = _config(base_of(name), online)
    what = f"policy.model {name!r}"
    shapes = _counted(data, base_of(name), what, online, config.kind == "vla")
    if config.kind == "vla":
        if shapes.text.masks > 1:
            raise UserError(f"{what} is a {shapes.family}, whose windows of attention keep it from acting: choose another model")
        shapes = with_actions(shapes, config)
    return Found(shapes=shapes, source=source, most_pixels=limit or LIMITS.get(shapes.family, MOST))


def _kind(data: Mapping[str, Any]) -> str:
    return str(thinker_settings(data).get("model_type", ""))


@functools.lru_cache(4)
def _shapes(data: str, name: str, what: str, online: bool, shown: bool) -> Shapes:
    from mmrl.train.plan.any_family import shapes_of  # imports torch

    return shapes_of(json.loads(data), what, _processor(name, what, online) if shown else None)


def _counted(data: Mapping[str, Any], name: str, what: str, online: bool, acts: bool) -> Shapes:
    """The shapes of a model, which are counted once."""
    kind = _kind(data)
    if kind not in (*GRIDS, *SHOWN, *(["openvla"] if acts else [])):
        known = ", ".join((*GRIDS, *SHOWN))
        raise UserError(f"{what} is a {kind or 'model without a model_type'}, which mmrl plan can't count: it counts {known}")
    return _shapes(json.dumps(data), name, what, online, kind in SHOWN)


def _processor(name: str, what: str, online: bool) -> Any:
    """The processor, as transformers loads it. Raises UserError without one."""
    if name.startswith("tiny:"):
        from mmrl.policies.vlm import tiny

        return tiny.processor(**{key: value for key, value in tiny.parse(name, 0).items() if key != "seed"})
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(name, local_files_only=not online)
    except Exception as error:
        raise UserError(
            f"{what}: its processor can't be loaded, which shows how many tokens a picture has: give a folder with its "
            f"files beside config.json, such as preprocessor_config.json and tokenizer.json ({shorten(error, 160)})"
        ) from error


def base_of(name: str) -> str:
    """The base model of a folder of adapters; other names unchanged."""
    if name.startswith("tiny:") or not Path(name).is_dir():
        return name
    from mmrl.policies.lora import adapter_chain

    return adapter_chain(name)[1]


def _config(name: str, online: bool) -> tuple[Mapping[str, Any], str, int]:
    """(content of config.json, its source, the processor's limit of pixels or 0)."""
    if name.startswith("tiny:"):
        from mmrl.policies.vlm import tiny

        options = tiny.parse(name, 0)
        model = tiny.skeleton(options["family"], hidden=options["hidden"], layers=options["layers"])
        config = model.config.to_dict() | {"architectures": [type(model).__name__]}
        patch = (config.get("vision_config") or {}).get("patch_size", 14)
        return config, "built in", 1024 * (2 * patch) ** 2 if isinstance(patch, int) and _kind(config) in GRIDS else 0
    if (known := published(name)) is not None:
        return known, "the table of published models", 0
    if Path(name).is_dir():
        return _read(Path(name) / "config.json"), str(Path(name) / "config.json"), _limit(Path(name))
    refuse_path(name, "give a folder with a transformers checkpoint or a hub name")
    from transformers import PreTrainedConfig

    try:
        config = PreTrainedConfig.get_config_dict(name, local_files_only=not online)[0]
    except Exception as error:
        raise UserError(
            f"{name!r}: its config can't be fetched from the hub ({shorten(error, 120)}): give a folder with its "
            f"config.json; these need no hub: {', '.join(PUBLISHED)}",
            key="policy.model",
        ) from error
    if not config:
        raise UserError(f"{name!r} has no config.json on the hub: give a folder with one", key="policy.model")
    return config, "the hub", 0


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read ({shorten(error, 120)}): give a folder with a transformers checkpoint") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a JSON object: give a folder with a transformers checkpoint")
    return config


def _limit(folder: Path) -> int:
    """The limit of pixels in the processor's file; 0 if there is none."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        try:
            data = json.loads((folder / name).read_text(encoding="utf-8"))
            data = data.get("image_processor", data)
            size = data.get("max_pixels") or (data.get("size") or {}).get("longest_edge")
            if isinstance(size, int) and size > 10_000:  # smaller numbers are lengths of a side
                return size
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
    return 0
