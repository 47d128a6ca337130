"""Where the shapes of a run's model come from: its folder, the table of published models, or the hub. No weight is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, shorten
from mmrl.config.sections import PolicyConfig
from mmrl.policies.names import refuse_path
from mmrl.train.plan.published import LIMITS, PUBLISHED, published
from mmrl.train.plan.shapes import Shapes, shapes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model's shapes."""

    shapes: Shapes
    source: str
    """Where they are from, for people."""
    most_pixels: int
    """Pixels above which its processor shrinks a picture."""


def find_shapes(config: PolicyConfig, model: str = "", online: bool = True) -> Found:
    """The shapes of `policy.model`, or of another in its place. online: the hub may be asked, not only its cache.

    UserError where they can't be known: for a policy that acts, a family that isn't known here, a hub name when the hub can't be
    reached.
    """
    name = model or config.model
    if config.kind != "vlm":
        raise UserError(f"mmrl plan knows policies that write, and policy.kind = {config.kind!r} is another kind")
    data, source, limit = _config(_beneath(name), online)
    shapes = shapes_of(data, f"policy.model {name!r}")
    return Found(shapes=shapes, source=source, most_pixels=limit or LIMITS[shapes.family])


def _beneath(name: str) -> str:
    """What a folder of adapters belongs to, in the end."""
    if name.startswith("tiny:") or not Path(name).is_dir():
        return name
    from mmrl.policies.lora import adapter_chain

    return adapter_chain(name)[1]


def _config(name: str, online: bool) -> tuple[Mapping[str, Any], str, int]:
    """(What config.json holds, where it was found, the processor's limit on pixels or 0)."""
    if name.startswith("tiny:"):
        from mmrl.policies.vlm import tiny

        options = tiny.parse(name, 0)
        config = tiny.skeleton(options["family"], hidden=options["hidden"], layers=options["layers"]).config.to_dict()
        patch = (config.get("vision_config") or {}).get("patch_size", 14)
        return config, "built in", 1024 * (2 * patch) ** 2
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
            f"{name!r}: its config can't be had from the hub ({shorten(error)[:120]}): give a folder with its "
            f"config.json; known without the hub are {', '.join(PUBLISHED)}",
            key="policy.model",
        ) from error
    if not config:
        raise UserError(f"{name!r} has no config.json on the hub: give a folder with one", key="policy.model")
    return config, "the hub", 0


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read ({shorten(error)[:120]}): give a folder with a transformers checkpoint") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} holds no table: give a folder with a transformers checkpoint")
    return config


def _limit(folder: Path) -> int:
    """What the processor's own file says; 0 where it says nothing."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        try:
            data = json.loads((folder / name).read_text(encoding="utf-8"))
            data = data.get("image_processor", data)
            size = data.get("max_pixels") or (data.get("size") or {}).get("longest_edge")
            if isinstance(size, int) and size > 10_000:  # some have a length there
                return size
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
    return 0
