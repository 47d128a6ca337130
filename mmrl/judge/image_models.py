"""Models that embed pictures alone, such as DINOv2, for verifiers. They are frozen and deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.api.services import Dtype
from mmrl.judge.models import TINY, check_room, dtype_of, folder_config, prepared_device

CURE = "give the folder or hub name of a DINO, or tiny"
SIDE, PATCH, WIDTH = 28, 14, 32
"""Of the tiny model: pixels of a picture and of a patch, and its width."""


class ImageEncoder:
    """A vision transformer that embeds pictures; see `image_encoder`."""

    def __init__(self, model: Any, processor: Any, device: str, batch_size: int) -> None:
        self.model, self.processor, self.batch_size = model.to(device).eval(), processor, batch_size

    @torch.inference_mode()
    def encode(self, pictures: Sequence[Any]) -> torch.Tensor:
        """PIL pictures -> float32 [N, D], each of length 1: the mean of the last hidden states of all tokens."""
        found = []
        for start in range(0, len(pictures), self.batch_size):
            inputs = self.processor(images=list(pictures[start : start + self.batch_size]), return_tensors="pt")
            states_NTD = self.model(inputs["pixel_values"].to(self.model.device, self.model.dtype)).last_hidden_state
            found.append(states_NTD.float().mean(1))
        features_ND = torch.cat(found)
        return features_ND / features_ND.norm(dim=-1, keepdim=True)


def image_encoder(model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 64) -> ImageEncoder:
    """Load a vision transformer. model: a folder or hub name, such as of a DINOv2, or `tiny`. batch_size: pictures at once.
    Raises UserError with the key `model`."""
    check_image_encoder(model, device=device, batch_size=batch_size)
    device = prepared_device(device)
    if model == TINY:
        return ImageEncoder(*build_tiny(), device, batch_size)
    from transformers import AutoImageProcessor, AutoModel

    try:
        loaded = AutoModel.from_pretrained(model, dtype=getattr(torch, dtype_of(dtype, device)), use_safetensors=True)
        processor = AutoImageProcessor.from_pretrained(model)
    except Exception as error:
        raise UserError(f"{model!r} can't be loaded: {shorten(error, 300)}: {CURE}", key="model") from error
    if loaded.main_input_name != "pixel_values":
        raise UserError(f"{model!r} is a {loaded.config.model_type}, which doesn't embed pictures alone: {CURE}", key="model")
    return ImageEncoder(loaded, processor, device, batch_size)


def check_image_encoder(model: str, *, device: str = "auto", batch_size: int = 64) -> None:
    """Raise UserError for options that `image_encoder` can't use, without loading the model. A hub name is not looked up."""
    check_room(device, batch_size)
    config = None if model == TINY else folder_config(model, CURE)
    if config is not None and "patch_size" not in config:
        kind = config.get("model_type", "model")
        raise UserError(f"{model!r} is a {kind}, which has no patches of pictures: {CURE}", key="model")


def build_tiny(seed: int = 0) -> tuple[Any, Any]:
    """A `Dinov2Model` with random weights, and its image processor. Same seed, same weights."""
    import transformers

    config = transformers.Dinov2Config(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=SIDE, patch_size=PATCH
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.Dinov2Model(config)
    sides = {"height": SIDE, "width": SIDE}
    return model.eval(), transformers.BitImageProcessor(size={"shortest_edge": SIDE}, crop_size=sides)
