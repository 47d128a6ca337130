"""What the files of a processor may ask of a plan: they are read from a checkpoint, and a damaged one may cut a picture into
millions of patches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from mmrl.api.errors import UserError

MOST_TILES, MOST_TOKENS = 1024, 2**20
"""Of a picture. Published processors cut it into 36 tiles at most; lists of shapes grow with the square of that number."""
LONGEST_EDGE = 4096
"""To which Idefics3 scales a picture at most: `MAX_IMAGE_SIZE` of transformers' image_processing_idefics3.py."""
MOST_BYTES = 2**32
"""That may be written while a picture is processed: twenty copies of 4096 x 4096 pixels in float32."""
_TILES = re.compile(r"(max|min|num)_(\w+_)?(tiles|crops|slices|slice_nums)|dynamic_hd")
_TOKENS = re.compile(r"\w*(seq_len(gth)?|soft_tokens|image_tokens|tokens_per_image|num_image_token)s?")
_CUTS = ("crop_to_patches", "resize_to_max_canvas")
"""Attributes of processors whose `patches` are tiles: of InternVL and others, of Llama 4."""


def refuse_counts(processor: Any, what: str) -> None:
    """Raise UserError where the settings of a processor have more tiles or tokens of a picture than a plan lists, as lists of
    that many would take minutes or the memory. what: the model's name in the error."""
    images = getattr(processor, "image_processor", None)
    cuts = any(getattr(images, cut, None) is not None for cut in _CUTS)
    most_tiles, most_tokens = _squares(images), 1
    if most_tiles > MOST_TILES:
        raise UserError(
            f"{what}: size and max_image_size of its processor cut a picture into {most_tiles:,} tiles, more than the "
            f"{MOST_TILES:,} of a plan: its files are damaged, copy them again"
        )
    for name, value in (*_numbers(vars(processor)), *_numbers(vars(images) if images is not None else {})):
        tiles = _TILES.fullmatch(name) or (name in ("max_patches", "min_patches") and cuts)
        most = MOST_TILES if tiles else MOST_TOKENS if _TOKENS.fullmatch(name) else None
        if most and value > most:
            raise UserError(
                f"{what}: {name} = {value:,} of its processor is more than the {most:,} of a plan: its files are damaged, copy "
                "them again"
            )
        most_tiles = max(most_tiles, value if tiles else 1)
        most_tokens = max(most_tokens, value if most == MOST_TOKENS else 1)
    if most_tiles * most_tokens > MOST_TOKENS:
        raise UserError(
            f"{what}: {most_tiles:,} tiles of its processor with {most_tokens:,} tokens each are more than the {MOST_TOKENS:,} "
            "tokens of a plan: its files are damaged, copy them again"
        )


def _squares(images: Any) -> int:
    """Tiles of a picture that is scaled to a longest edge and cut into squares of another, as Idefics3 and SmolVLM do."""
    settings = [getattr(images, name, None) for name in ("size", "max_image_size")]
    edges: list[Any] = [s.get("longest_edge") if isinstance(s, Mapping) else getattr(s, "longest_edge", None) for s in settings]
    if not all(isinstance(edge, int) and edge > 0 for edge in edges):
        return 0
    return int(math.ceil(min(edges[0], LONGEST_EDGE) / edges[1]) ** 2)


def _numbers(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    yield from ((name.lstrip("_"), value) for name, value in settings.items() if type(value) is int)


class Bounded(TorchDispatchMode):
    """Refuses what writes more than `MOST_BYTES` in all, before it is computed: tensors without numbers take no memory."""

    def __init__(self, what: str) -> None:
        """what: the model's name in the error."""
        super().__init__()
        self.what, self.left = what, MOST_BYTES

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not any(isinstance(x, FakeTensor) or x.is_meta for x in given) and not func.is_view:
            self.left -= _written(func, args, kwargs)
            if self.left < 0:
                raise UserError(
                    f"{self.what}: by its processor's files a picture takes more than {MOST_BYTES / 2**30:.0f} GiB: they are "
                    "damaged, copy them again, or set --image-pixels"
                )
        return func(*args, **kwargs)


def _written(func: Any, args: Any, kwargs: Mapping[str, Any]) -> int:
    """Bytes of what an operation makes; 0 where that follows from numbers."""
    on_meta = tree_map_only(torch.Tensor, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), args)
    given = {name: "meta" if name == "device" else value for name, value in kwargs.items()}
    try:
        made = func(*on_meta, **given)
    except (NotImplementedError, RuntimeError, TypeError):
        return 0
    return sum(x.numel() * x.element_size() for x in tree_leaves(made) if isinstance(x, torch.Tensor))
