"""OpenVLA's processor: pictures scaled and normalised once for each of its towers, and its prompt format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmrl.api.errors import UserError, shorten
from mmrl.api.transfer import constant
from mmrl.policies.resizing import resize

SETTINGS = "preprocessor_config.json"
EMPTY = "▁"
"""The token of a space, which stood before every action in training: 29871 of Llama's."""
LAYOUTS = {"pure": ("In: ", "\nOut:"), "vicuna": (" USER: ", " ASSISTANT:")}
"""Text before and after a question: OpenVLA's, and that of its first version (openvla-v01)."""
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite "
    "answers to the user's questions."
)


class Pictures:
    """Pictures -> `pixel_values` [n, 3 k, size, size] for k towers: stretched to a square, normalised for each tower."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """settings: of preprocessor_config.json. Raises ValueError for unsupported ones."""
        self.settings = dict(settings)
        strategy = settings.get("image_resize_strategy")
        if strategy != "resize-naive":
            raise ValueError(f"{SETTINGS}: image_resize_strategy = {strategy!r} is not supported: use resize-naive")
        if odd := [way for way in settings.get("interpolations", []) if way != "bicubic"]:
            raise ValueError(f"{SETTINGS}: interpolation {odd[0]!r} is not supported: use bicubic")
        self.side = int(settings["input_sizes"][0][-1])
        if any(tuple(size) != (3, self.side, self.side) for size in settings["input_sizes"]):
            raise ValueError(f"{SETTINGS}: input_sizes = {settings['input_sizes']} is not supported: use squares of one size")
        # in the published files the values that are applied are rounded to bfloat16, and `means` is not
        applied = settings.get("tvf_normalize_params") or [
            {"mean": mean, "std": std} for mean, std in zip(settings["means"], settings["stds"], strict=True)
        ]
        self.mean, self.std = (tuple(float(x) for one in applied for x in one[key]) for key in ("mean", "std"))
        self.size = {"height": self.side, "width": self.side}

    def __call__(self, images: Sequence[Any], return_tensors: str = "pt", **_: Any) -> dict[str, torch.Tensor]:
        """images: pictures, or tensors uint8 [3, H, W]; or a list of them for each prompt."""
        shown = [picture for one in images for picture in (one if isinstance(one, list) else [one])]
        pixels = torch.cat([resize(_tensor(picture)[None], self.side, self.side) for picture in shown]).float() / 255
        towers = len(self.mean) // 3
        mean, std = (constant(of, torch.float32, pixels.device)[:, None, None] for of in (self.mean, self.std))
        return {"pixel_values": (pixels.repeat(1, towers, 1, 1) - mean) / std}


class Processor:
    """Tokenizer and picture processing, with the interface of transformers' processors."""

    def __init__(self, tokenizer: Any, pictures: Pictures, image_id: int, patches: int, layout: str) -> None:
        """image_id: placeholder of a patch. patches: number in a picture. layout: key of `LAYOUTS`."""
        self.tokenizer, self.image_processor = tokenizer, pictures
        self.image_id, self.patches, self.layout = image_id, patches, layout

    def apply_chat_template(self, conversation: Any, *, tokenize: bool = True, **_: Any) -> Any:
        """One conversation, alone or in a list: its text, or its ids, in which pictures follow the first token, and pixels."""
        messages = conversation[0] if conversation and isinstance(conversation[0], list) else conversation
        text, pictures = self._text(messages)
        if not tokenize:
            return text
        return self(text=[text], images=pictures or None)

    def __call__(
        self, text: Sequence[str], images: Sequence[Any] | None = None, text_kwargs: Mapping[str, Any] | None = None, **_: Any
    ) -> dict[str, torch.Tensor]:
        special = dict(text_kwargs or {}).get("add_special_tokens", True)
        ids = self.tokenizer.encode(text[0], add_special_tokens=special)
        if images and not special:
            raise ValueError("OpenVLA takes pictures only at the beginning of a conversation")
        empty = self.tokenizer.convert_tokens_to_ids(EMPTY)
        if special and text[0].endswith(LAYOUTS[self.layout][1]) and ids[-1] != empty:
            ids = [*ids, empty]
        shown = [self.image_id] * (self.patches * len(images or ()))
        found = {"input_ids": torch.tensor([[*ids[:1], *shown, *ids[1:]]])}
        return found | self.image_processor(images) if images else found

    def _text(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[Any]]:
        """(the conversation as text, its pictures), ready to be answered."""
        before, behind = LAYOUTS[self.layout]
        text, pictures = VICUNA if self.layout == "vicuna" else "", []
        for i, message in enumerate(messages):
            parts = message["content"]
            said = "".join(part["text"] for part in parts if part["type"] == "text")
            images = [part["image"] for part in parts if part["type"] == "image" and "image" in part]
            if images and i:
                raise ValueError("OpenVLA takes pictures only in the first message")
            pictures += images
            text += f" {said}{self.tokenizer.eos_token}" if message["role"] == "assistant" else f"{before}{said}{behind}"
        return text, pictures

    def save_pretrained(self, folder: Path | str) -> None:
        self.tokenizer.save_pretrained(folder)
        Path(folder, SETTINGS).write_text(json.dumps(self.image_processor.settings, indent=2))


def _tensor(picture: Any) -> torch.Tensor:
    """uint8 [3, H, W]."""
    if isinstance(picture, torch.Tensor):
        return picture
    return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)


def load_processor(name: str, config: Any) -> Processor:
    """The processor of a folder or hub name. Raises UserError for missing or unusable files."""
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        file = cached_file(name, SETTINGS)
        pictures = Pictures(json.loads(Path(file).read_text(encoding="utf-8")))  # type: ignore[arg-type]
    except Exception as error:
        raise UserError(f"{name!r} can't be loaded: {shorten(error, 300)}", key="policy.model") from error
    return make_processor(name, tokenizer, pictures, config)


def make_processor(name: str, tokenizer: Any, pictures: Pictures, config: Any) -> Processor:
    """Raises UserError if the parts don't belong together."""
    towers = config.shapes
    if len(pictures.mean) != 3 * len(towers) or any(tower["size"] != pictures.side for tower in towers):
        raise UserError(
            f"{name!r}: {SETTINGS} makes {len(pictures.mean) // 3} pictures of {pictures.side} pixels, and its "
            f"config.json has towers for {[tower['size'] for tower in towers]}: take both from one checkpoint",
            key="policy.model",
        )
    if tokenizer.convert_tokens_to_ids(EMPTY) in (None, tokenizer.unk_token_id) or tokenizer.bos_token_id is None:
        raise UserError(
            f"{name!r}: its tokenizer has no token for a space ({EMPTY!r}) or none for the beginning of a text: use Llama's",
            key="policy.model",
        )
    layout = "vicuna" if "vicuna" in config.llm_backbone_id else "pure"
    return Processor(tokenizer, pictures, config.image_id, (pictures.side // towers[0]["patch"]) ** 2, layout)


def is_openvla(name: str) -> bool:
    """Whether a folder or hub name, looked up by its config.json, is a model in OpenVLA's layout."""
    from transformers.utils import cached_file

    if name.startswith("tiny:"):
        return name.split(":")[1] == "openvla"
    try:
        path = cached_file(name, "config.json", _raise_exceptions_for_missing_entries=False)
    except OSError:  # it can't be reached: loading it says why
        return False
    if path is None:
        return False
    try:
        return bool(json.loads(Path(path).read_text(encoding="utf-8")).get("model_type") == "openvla")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{name!r}: its config.json can't be read: {shorten(error, 200)}", key="policy.model") from error


def statistics_file(name: str) -> str | None:
    """The file with the statistics of a checkpoint's data, by folder or hub name; None where it has none."""
    from transformers.utils import cached_file

    for file in ("dataset_statistics.json", "config.json"):
        path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        if path is not None and (file != "config.json" or json.loads(Path(path).read_text(encoding="utf-8")).get("norm_stats")):
            return str(path)
    return None
