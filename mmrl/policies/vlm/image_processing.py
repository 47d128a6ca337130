"""How a model processes images and writes coordinates, from its config and processor alone."""

from __future__ import annotations

from mmrl.api.coordinates import ImageProcessing
from mmrl.api.errors import UserError
from mmrl.policies.vlm.chat_templates import ChatTemplate
from mmrl.policies.vlm.coordinate_formats import format_of
from mmrl.policies.vlm.known_families import family_of
from mmrl.policies.vlm.limits import pixel_limits
from mmrl.policies.vlm.loading import config_and_processor
from mmrl.policies.vlm.processing import PromptProcessor


def image_processing_of(
    name: str, frame: str | None = None, min_pixels: int | None = None, max_pixels: int | None = None, trusted: bool = False
) -> ImageProcessing:
    """The image processing of a folder, hub name or tiny model, whose weights aren't read; the other arguments are those of
    `[policy]`. Raises UserError for what can't be loaded, and for limits and formats that the model doesn't have."""
    for key, value in (("min_pixels", min_pixels), ("max_pixels", max_pixels)):
        if value is not None and (type(value) is not int or value < 1):
            raise UserError(f"{value!r:.60} must be a whole number of at least 1", key=f"policy.{key}")
    if min_pixels and max_pixels and min_pixels > max_pixels:
        raise UserError(f"{min_pixels} is above max_pixels = {max_pixels}: lower it", key="policy.min_pixels")
    model, processor = config_and_processor(name, trusted)
    limits = pixel_limits(processor, min_pixels, max_pixels)
    written = format_of(model.config.model_type, frame)
    return PromptProcessor(family_of(model, processor), limits, frozenset(), frame=written).image_processing


def opening_of(name: str, trusted: bool = False) -> str:
    """What the chat template of a model writes of each answer, see `ChatTemplate.opening`. Raises UserError for what can't be
    loaded."""
    _, processor = config_and_processor(name, trusted)
    return ChatTemplate(processor, {}).opening if getattr(processor, "chat_template", None) else ""
