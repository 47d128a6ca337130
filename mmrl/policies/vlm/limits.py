"""What a model's processor can be told about the size of pictures, videos and sounds, found by the attributes of its image and
video processors and not by the family's name. Attributes are those of transformers' processors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.media.sounds import MAX_SECONDS

SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""The numbers of tokens that Gemma 4 was trained with; its processor takes no other: `_SUPPORTED_SOFT_TOKENS` of
transformers/models/gemma4/image_processing_gemma4.py."""


def pixel_limits(processor: Any, low: int | None, high: int | None) -> dict[str, Any]:
    """`policy.min_pixels` and `max_pixels` as keyword arguments of the image processor (`images_kwargs`); empty if its own sizes
    are within them. None: no limit.

    Processors differ in what they bound: the picture itself (Qwen-VL, GLM-V, Kimi), its tokens (Gemma 4, LFM2-VL) or its tiles
    (InternVL, SmolVLM, MiniCPM-V), of which there are never more than the model was made for. A small picture of the whole, shown
    beside the tiles, isn't counted. A picture many times as wide as high may have more pixels, as a side has at least a token.
    Raises UserError, with what the processor does instead, where a limit can't be kept.
    """
    if not low and not high:
        return {}
    if not hasattr(processor, "image_processor"):
        raise UserError(f"policy.min_pixels, max_pixels: a {type(processor).__name__} takes no pictures: leave them out")
    images = processor.image_processor
    has = [name for name in {name for needed, _ in _WAYS for name in needed} if _attribute(images, name) is not None]
    if "crop_to_patches" in has and not _cuts(processor):
        has = ["size"]
    limit = next((limit for needed, limit in _WAYS if {*needed} <= {*has}), None)
    if limit:
        return limit(images, low or 0, high or 0)
    raise UserError(f"policy.min_pixels, max_pixels: a {type(images).__name__} has no such limits: leave them out")


def video_factor(processor: Any) -> int:
    """Width and height of a video's frames are multiples of this, in pixels; 0 if the processor scales all frames to one size of
    its own. Raises UserError if it takes no videos."""
    videos = _attribute(processor, "video_processor")
    if videos is None:
        raise UserError(f"a {type(processor).__name__} takes no videos: show pictures, or choose another model")
    patch, merged = _attribute(videos, "patch_size"), _attribute(videos, "merge_size", "pooling_kernel_size")
    if isinstance(patch, int) and isinstance(merged, int):
        return patch * merged
    return 0


LEAST_FRAMES = 10
"""Frames of a spectrogram behind two tokens of Qwen2-Audio, which halves their number twice: transformers 5.19 takes a sound of a
single token for a prompt that it must fill up itself."""


@dataclass(frozen=True, slots=True)
class SoundLimits:
    """Sounds as a model hears them."""

    rate: int
    """Samples per second."""
    least_s: float
    """Shortest sound, in seconds."""
    most_s: float
    """Of a longer sound the first so many seconds are heard, as its processor cuts it."""


def sound_limits(processor: Any) -> SoundLimits:
    """The limits of a processor whose `feature_extractor` is Whisper's, which cuts sounds unless the processor says otherwise, as
    Qwen3-Omni's does."""
    ears = processor.feature_extractor
    defaults = part_defaults(processor, "audio_kwargs")
    return SoundLimits(
        rate=int(ears.sampling_rate),
        least_s=LEAST_FRAMES * ears.hop_length / ears.sampling_rate,
        most_s=ears.n_samples / ears.sampling_rate if defaults.get("truncation", True) else MAX_SECONDS,
    )


def _cuts(processor: Any) -> bool:
    """Whether pictures are cut into tiles: the processor may say so over the image processor's head, as InternVL's does."""
    defaults = part_defaults(processor, "images_kwargs")
    return bool(defaults.get("crop_to_patches", processor.image_processor.crop_to_patches))


def part_defaults(processor: Any, kind: str) -> Mapping[str, Any]:
    """What a processor asks of a part of it unless told otherwise: an attribute of its class, and in transformers up to 5.19 of
    its arguments'."""
    known: Mapping[str, Any] = getattr(processor, kind, None) or {}
    return known or getattr(getattr(processor, "valid_processor_kwargs", None), "_defaults", {}).get(kind, {})


def _attribute(owner: Any, *names: str) -> Any:
    """The first of these attributes that is set."""
    return next((found for name in names if (found := getattr(owner, name, None)) is not None), None)


def _size(owner: Any, name: str = "size") -> dict[str, int]:
    """A size of transformers as a dictionary, without what is not set."""
    found = getattr(owner, name, None) or {}
    return {k: int(v) for k, v in dict(found).items() if v is not None}


def _too_small(what: str, least: int) -> UserError:
    return UserError(f"policy.max_pixels: {what}: give at least {least}, or leave it out")


def _not_enlarged(low: int, most: int, what: str) -> None:
    """Raise UserError if pictures may have fewer pixels than asked for. most: pixels that every picture has."""
    if low > most:
        raise UserError(f"policy.min_pixels: {what}: give at most {most}, or leave it out")


def _by_pixels(images: Any, low: int, high: int) -> dict[str, Any]:
    """`size` holds the least and the most pixels. GLM-V counts a picture once for each frame of a temporal patch."""
    size = _size(images)
    if not {"shortest_edge", "longest_edge"} <= size.keys():
        return _by_patches(images, low, high)
    patch, merge = int(images.patch_size), int(images.merge_size)
    side = 8 * patch * merge
    fits = images.get_number_of_image_patches(side, side, {"size": {"shortest_edge": 1, "longest_edge": side * side}})
    times = 1 if fits == (side // patch) ** 2 else int(images.temporal_patch_size)
    least = (patch * merge) ** 2
    if high and high < least:
        raise _too_small(f"a picture's token has {least} pixels", least)
    size["longest_edge"] = times * high or max(size["longest_edge"], times * low)
    size["shortest_edge"] = times * low or min(size["shortest_edge"], size["longest_edge"])
    return {"size": size}


def _by_patches(images: Any, low: int, high: int) -> dict[str, Any]:
    """Kimi K2.5: at most `max_patches` before the picture is padded to whole tokens."""
    patch, merge = int(images.patch_size), int(images.merge_size)
    _not_enlarged(low, (patch * merge) ** 2, "its processor enlarges no pictures")
    if not high:
        return {}
    edge = patch * merge
    # both sides are padded to whole tokens, which adds less than a token's edge to each
    inside = max(math.isqrt(high) - edge, 0) // patch
    if inside < merge:
        raise _too_small(f"a picture's token has {edge**2} pixels", (2 * edge) ** 2)
    return {"max_patches": min(inside**2, int(images.max_patches))}


def _by_soft_tokens(images: Any, low: int, high: int) -> dict[str, Any]:
    """Gemma 4: pictures are enlarged or reduced to nearly this number of tokens."""
    cell = (int(images.patch_size) * int(images.pooling_kernel_size)) ** 2
    kept = [n for n in SOFT_TOKENS if low <= n * cell and (n * cell <= high or not high)]
    if not kept:
        choices = ", ".join(str(n * cell) for n in SOFT_TOKENS)
        raise UserError(f"policy.min_pixels, max_pixels: its pictures can have {choices} pixels: allow one of these")
    own = int(images.max_soft_tokens)
    return {"max_soft_tokens": kept[-1] if high else max(own, kept[0])}


def _by_image_tokens(images: Any, low: int, high: int) -> dict[str, Any]:
    """LFM2-VL: a number of tokens, and tiles for a picture that is much larger."""
    cell, tile = (int(images.encoder_patch_size) * int(images.downsample_factor)) ** 2, int(images.tile_size) ** 2
    found: dict[str, Any] = {}
    if high:
        if high < cell:
            raise _too_small(f"a picture's token has {cell} pixels", cell)
        if images.do_image_splitting and high >= images.min_tiles * tile:
            found["max_tiles"] = min(high // tile, int(images.max_tiles))
        else:
            found |= {"do_image_splitting": False, "max_image_tokens": high // cell}
    most = int(found.get("max_image_tokens", images.max_image_tokens))
    least = -(-low // cell) or min(int(images.min_image_tokens), most)
    return found | {"min_image_tokens": least, "max_image_tokens": max(most, least)}


def _by_merged_tokens(images: Any, low: int, high: int) -> dict[str, Any]:
    """GLM-5-Next; and Muse Glimmer, which has no least number of tokens."""
    cell = (int(images.patch_size) * int(images.merge_size)) ** 2
    if high and high < cell:
        raise _too_small(f"a picture's token has {cell} pixels", cell)
    most = max(high // cell or int(images.max_image_tokens), -(-low // cell))
    if not hasattr(images, "min_image_tokens"):
        _not_enlarged(low, cell, "its processor enlarges no pictures")
        return {"max_image_tokens": most}
    return {"min_image_tokens": -(-low // cell) or min(int(images.min_image_tokens), most), "max_image_tokens": most}


def _by_num_patches(images: Any, low: int, high: int) -> dict[str, Any]:
    """Nemotron 3 Nano Omni."""
    patch, merge = int(images.patch_size) ** 2, round(1 / images.downsample_ratio) ** 2
    if high and high < patch * merge:
        raise _too_small(f"a picture's token has {patch * merge} pixels", patch * merge)
    least = -(-low // patch)
    most = high // patch or max(int(images.max_num_patches), 2 * least)  # no picture is enlarged if both are equal
    return {"min_num_patches": least or min(int(images.min_num_patches), most), "max_num_patches": most}


def _by_crops(images: Any, low: int, high: int) -> dict[str, Any]:
    """Step 3.7: the whole at one size, and crops of a larger picture. transformers up to 5.24 takes the largest size of the
    processor alone, and none that it is told."""
    least, most = math.prod(_size(images).values()), int(images.max_image_size) ** 2
    shape = f"its pictures have {least} pixels, and larger ones up to {most} in crops"
    _not_enlarged(low, least, shape)
    if high and high < most:
        raise _too_small(shape, most)
    return {}


def _of_one_square(images: Any, low: int, high: int) -> dict[str, Any]:
    """Aria: all pictures are padded to a square."""
    side = int(images.max_image_size)
    return _fixed({"height": side, "width": side}, low, high)


def _by_slices(images: Any, low: int, high: int) -> dict[str, Any]:
    """MiniCPM-V: a picture is scaled to a number of pixels, and a larger one is cut into slices of as many."""
    slice_ = int(images.scale_resolution) ** 2
    _not_enlarged(low, slice_, f"its pictures are scaled to {slice_} pixels")
    if high and high < slice_:
        raise _too_small(f"its pictures are scaled to {slice_} pixels", slice_)
    return {"max_slice_nums": min(high // slice_, int(images.max_slice_nums))} if high else {}


def _by_tiles(images: Any, low: int, high: int) -> dict[str, Any]:
    """InternVL, Aya Vision, Command A Vision, Ovis2, Llama 4: a picture is cut into tiles of one size."""
    return _tiles(images, "max_patches", _size(images), low, high)


def _by_numbered_tiles(images: Any, low: int, high: int) -> dict[str, Any]:
    """Perception LM. Of the numbers that it is told, transformers up to 5.24 heeds one tile alone."""
    side = int(images.tile_size)
    limit = _tiles(images, "max_num_tiles", {"height": side, "width": side}, low, high)
    return {"max_num_tiles": 1} if limit.get("max_num_tiles", images.max_num_tiles) < images.max_num_tiles else limit


def _by_dynamic_tiles(images: Any, low: int, high: int) -> dict[str, Any]:
    """Phi-4-multimodal."""
    return _tiles(images, "dynamic_hd", _size(images), low, high)


def _tiles(images: Any, name: str, size: dict[str, int], low: int, high: int) -> dict[str, Any]:
    """Tiles of one size, up to a number that the processor has by this name."""
    tile = size["height"] * size["width"]
    shape = f"its pictures are cut into tiles of {size['width']} x {size['height']}"
    if high and high < tile:
        raise _too_small(shape, tile)
    _not_enlarged(low, tile, shape)
    return {name: min(high // tile, int(getattr(images, name)))} if high else {}


def _by_edge_of_tiles(images: Any, low: int, high: int) -> dict[str, Any]:
    """Idefics3, SmolVLM: a picture is scaled to a longest edge and cut into tiles."""
    tile, edge = int(_size(images, "max_image_size")["longest_edge"]), _size(images)["longest_edge"]
    shape = f"its pictures are cut into tiles of {tile} x {tile}"
    _not_enlarged(low, tile * tile, shape)
    if not high:
        return {}
    if high < tile * tile:
        raise _too_small(shape, tile * tile)
    return {"size": {"longest_edge": min(math.isqrt(high) // tile * tile, edge)}}


def _by_edge(images: Any, low: int, high: int) -> dict[str, Any]:
    """Pixtral, Mistral 3: a picture is reduced to a longest edge."""
    patch = _size(images, "patch_size")
    _not_enlarged(low, patch["height"] * patch["width"], "its processor enlarges no pictures")
    step, edge = max(patch.values()), _size(images)["longest_edge"]
    if not high:
        return {}
    if high < step * step:
        raise _too_small(f"a picture's token has {step * step} pixels", step * step)
    return {"size": {"longest_edge": min(math.isqrt(high) // step * step, edge)}}


def _by_config(images: Any, low: int, high: int) -> dict[str, Any]:
    """LLaVA-NeXT, LLaVA-OneVision: the shapes into which tiles are put stand in the model's config as well."""
    size = _size(images)
    tile = size.get("height", size.get("shortest_edge", 0)) ** 2
    most = max(height * width for height, width in images.image_grid_pinpoints)
    shape = f"its pictures are cut into tiles of {tile} pixels, up to {most} in all, as the model's config says"
    _not_enlarged(low, tile, shape)
    if high and high < most:
        raise _too_small(shape, most)
    return {}


def _of_one_size(images: Any, low: int, high: int) -> dict[str, Any]:
    """Gemma 3, PaliGemma, LLaVA 1.5: all pictures have one size."""
    size = _size(images, "crop_size") if getattr(images, "do_center_crop", None) else _size(images)
    if not {"height", "width"} <= size.keys():
        raise UserError(f"policy.min_pixels, max_pixels: a {type(images).__name__} has no such limits: leave them out")
    return _fixed(size, low, high)


def _fixed(size: Mapping[str, int], low: int, high: int) -> dict[str, Any]:
    """No limits, as all pictures have this size. Raises UserError if it isn't within them."""
    pixels = size["height"] * size["width"]
    shape = f"its pictures are always {size['width']} x {size['height']}"
    if low > pixels:
        raise UserError(f"policy.min_pixels: {shape}: leave it out")
    if high and high < pixels:
        raise UserError(f"policy.max_pixels: {shape}: leave it out")
    return {}


_WAYS: tuple[tuple[tuple[str, ...], Callable[[Any, int, int], dict[str, Any]]], ...] = (
    (("max_image_tokens", "merge_size"), _by_merged_tokens),
    (("max_num_patches", "downsample_ratio"), _by_num_patches),
    (("max_image_size", "vision_patch_size"), _by_crops),
    (("max_image_size", "min_image_size"), _of_one_square),
    (("merge_size", "patch_size"), _by_pixels),
    (("max_soft_tokens", "pooling_kernel_size"), _by_soft_tokens),
    (("max_image_tokens", "encoder_patch_size"), _by_image_tokens),
    (("max_slice_nums", "scale_resolution"), _by_slices),
    (("max_num_tiles", "tile_size"), _by_numbered_tiles),
    (("max_image_size",), _by_edge_of_tiles),
    (("image_grid_pinpoints",), _by_config),
    (("crop_to_patches", "max_patches"), _by_tiles),
    (("resize_to_max_canvas", "max_patches"), _by_tiles),
    (("dynamic_hd", "patch_size"), _by_dynamic_tiles),
    (("patch_size",), _by_edge),
    (("size",), _of_one_size),
)
"""Attributes that an image processor has, and how such a processor is told its limits; the first that fits."""
