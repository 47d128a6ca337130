"""Models for verifiers: a vision-language model that answers questions about pictures, a CLIP that compares them with texts.

They are frozen and deterministic.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from mmrl.api.errors import UserError, check_path, shorten
from mmrl.api.services import Dtype
from mmrl.api.tasks.option_checks import check_integer
from mmrl.api.types import Message, Prompt
from mmrl.compute.devices import has_bfloat16, prepare_device
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.processor import LogitsProcessor
from mmrl.rollout.generate.sampling import SamplingParams

ModelDtype = Literal["float32", "bfloat16", "float16"]
TINY = "tiny"
"""A small random model, for tests."""
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


class VisionLanguage:
    """A vision-language model that answers questions; see `vision_language`. A question is a conversation that ends with the
    user."""

    def __init__(self, policy: VLM, batch_size: int) -> None:
        self.policy = policy
        self._generator, self._numbers = LocalGenerator(policy, batch_size), NumberSampler(policy)

    def answer_probabilities(self, questions: Sequence[Sequence[Message]], answers: Sequence[str]) -> torch.Tensor:
        """float64 [N, A], rows that sum to 1: the probability that the answer begins with each of these words, normalised over
        them. A word counts in lower case and capitalised, with and without a blank before it."""
        spellings = [self._beginnings(word) for word in answers]
        ids = [own - set[int]().union(*(s for j, s in enumerate(spellings) if j != i)) for i, own in enumerate(spellings)]
        for word, own in zip(answers, ids, strict=True):
            if not own:
                raise UserError(
                    f"the model's tokens don't distinguish {word!r} in {', '.join(map(repr, answers))}: use other answers"
                )
        logprobs_NV = self._generator.first(self._encoded(questions)).double()
        scores_NA = torch.stack([logprobs_NV[:, sorted(own)].logsumexp(-1) for own in ids], -1)
        return scores_NA.softmax(-1).cpu()

    def numbers(self, questions: Sequence[Sequence[Message]], max_tokens: int = 8) -> list[float]:
        """The model's answers as numbers, which may have a sign; other tokens are masked."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, logits_processor=self._numbers)
        samples = [group[0] for group in self._generator.generate(self._encoded(questions), 1, sampling)]
        found = [NUMBER.search(self.policy.decode(sample.token_ids).replace(" ", "")) for sample in samples]
        assert all(found), "the tokens that may be sampled make a number"
        return [float(match.group()) for match in found if match]

    def _encoded(self, questions: Sequence[Sequence[Message]]) -> list[PromptInputs]:
        return [self.policy.encode(Prompt(messages=question)) for question in questions]

    def _beginnings(self, word: str) -> set[int]:
        written = (blank + form for blank in ("", " ") for form in (word, word.capitalize()))
        return {self.policy.tokenizer.encode(text, add_special_tokens=False)[0] for text in written}


class NumberSampler(LogitsProcessor):
    """Allows numbers only: an optional sign, digits, then perhaps a point, a percent sign, the end token."""

    def __init__(self, policy: VLM) -> None:
        self.policy = policy
        texts = {i: policy.decode([i]).strip() for i in set(policy.tokenizer.get_vocab().values()) if i < len(policy.bias_V)}
        texts = {i: text for i, text in texts.items() if i not in policy.banned}
        self._digits = self._mask([i for i, text in texts.items() if text.isascii() and text.isdigit()])
        self._signs = self._mask([i for i, text in texts.items() if text in ("+", "-")])
        signed = self._mask([i for i, text in texts.items() if re.fullmatch(r"[+-]\d+", text, re.ASCII)])
        self._first = torch.maximum(torch.maximum(self._digits, self._signs), signed)
        end = self._mask([*policy.eos, *(i for i, text in texts.items() if text in (".", "%"))])
        self._then = torch.maximum(self._digits, end)
        if not self._digits.isfinite().any():
            raise UserError("the model's tokenizer has no digits, so it can't write a number")

    def __call__(self, step: int, ids_NT: torch.Tensor, logits_NV: torch.Tensor) -> torch.Tensor:
        """Mask the logits; after a lone sign only digits are allowed."""
        if step == 0:
            return logits_NV + self._first
        if step == 1:
            lone_N = self._signs[ids_NT[:, 0]].isfinite()
            return logits_NV + torch.where(lone_N[:, None], self._digits, self._then)
        return logits_NV + self._then

    def _mask(self, ids: Sequence[int]) -> torch.Tensor:
        """float32 [V]: 0 at these ids, minus infinity elsewhere."""
        mask = torch.full_like(self.policy.bias_V, -torch.inf)
        mask[list(ids)] = 0.0
        return mask


class Contrastive:
    """A model such as CLIP that embeds pictures and texts in one space; see `contrastive`."""

    def __init__(self, model: Any, processor: Any, device: str, batch_size: int) -> None:
        self.model, self.processor, self.batch_size = model.to(device).eval(), processor, batch_size
        self.limit = int(getattr(model.config.text_config, "max_position_embeddings", 77))
        self._padding: Any = "max_length" if "siglip" in model.config.model_type else True

    @torch.inference_mode()
    def encode_images(self, pictures: Sequence[Any]) -> torch.Tensor:
        """PIL pictures -> float32 [N, D], each of length 1."""
        found = []
        for start in range(0, len(pictures), self.batch_size):
            inputs = self.processor(images=list(pictures[start : start + self.batch_size]), return_tensors="pt")
            pixels = inputs["pixel_values"].to(self.model.device, self.model.dtype)
            found.append(_unit(self.model.get_image_features(pixel_values=pixels)))
        return torch.cat(found)

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> torch.Tensor:
        """float32 [N, D], each of length 1. UserError for a text that is longer than the model reads."""
        for text in texts:
            if (count := len(self.processor.tokenizer(text, verbose=False)["input_ids"])) > self.limit:
                raise UserError(f"the text {text[:40]!r}... has {count} tokens, and the model reads {self.limit}: shorten it")
        padding = {"padding": self._padding, **({"max_length": self.limit} if self._padding == "max_length" else {})}
        inputs = self.processor(text=list(texts), return_tensors="pt", **padding).to(self.model.device)
        return _unit(self.model.get_text_features(**inputs))


def vision_language(
    model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 16, max_pixels: int | None = None
) -> VisionLanguage:
    """Load a vision-language model. model: a folder (also a checkpoint's `policy` in a run folder), a hub name, or `tiny`.
    batch_size: questions answered at once. max_pixels: larger pictures are shrunk. Raises UserError with the key `model`."""
    check_vision_language(model, device=device, batch_size=batch_size)
    device = prepared_device(device)
    try:
        return VisionLanguage(_policy(_named(model, "qwen2_5_vl"), device, dtype_of(dtype, device), max_pixels), batch_size)
    except UserError as error:
        raise _of_model(error) from error


@functools.lru_cache(maxsize=8)
def _policy(model: str, device: str, dtype: ModelDtype, max_pixels: int | None) -> VLM:
    """Verifiers with the same model share it."""
    policy = VLM(PolicyConfig(model=model, dtype=dtype, max_pixels=max_pixels), device=device, seed=0)
    policy.model.requires_grad_(False)
    return policy


def contrastive(model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 64) -> Contrastive:
    """Load a contrastive model. model: a folder or hub name of a CLIP or SigLIP checkpoint, or `tiny`. batch_size: pictures
    encoded at once. Raises UserError with the key `model`."""
    check_contrastive(model, device=device, batch_size=batch_size)
    device = prepared_device(device)
    if model in (TINY, f"{TINY}:clip"):
        from mmrl.judge import tiny_clip

        return Contrastive(*tiny_clip.build(), device, batch_size)
    from transformers import AutoModel, AutoProcessor

    try:
        loaded = AutoModel.from_pretrained(model, dtype=getattr(torch, dtype_of(dtype, device)), use_safetensors=True)
        processor = AutoProcessor.from_pretrained(model)
    except Exception as error:
        raise UserError(
            f"{model!r} can't be loaded: {shorten(error, 300)}: give the folder of a CLIP checkpoint", key="model"
        ) from error
    if not hasattr(loaded, "get_image_features") or not hasattr(loaded, "get_text_features"):
        raise UserError(
            f"{model!r} is a {loaded.config.model_type}, which doesn't compare pictures with texts: give a CLIP", key="model"
        )
    return Contrastive(loaded, processor, device, batch_size)


def check_vision_language(model: str, *, device: str = "auto", batch_size: int = 16) -> None:
    """Raise UserError for options that `vision_language` can't use, without loading the model. A hub name is not looked up."""
    check_room(device, batch_size)
    try:
        VLM.check(PolicyConfig(model=_named(model, "qwen2_5_vl")))
    except UserError as error:
        raise _of_model(error) from error


def check_contrastive(model: str, *, device: str = "auto", batch_size: int = 64) -> None:
    """Raise UserError for options that `contrastive` can't use, without loading the model. A hub name is not looked up."""
    check_room(device, batch_size)
    if model in (TINY, f"{TINY}:clip"):
        return
    config = folder_config(model, "give one with a CLIP checkpoint, a hub name, or tiny:clip")
    if config is not None and "vision_config" not in config:
        kind = config.get("model_type", "model")
        raise UserError(f"{model!r} is a {kind}, which takes no images: give a vision-language model", key="model")


def folder_config(model: str, cure: str) -> dict[str, Any] | None:
    """The config.json of a model's folder; None for a hub name, which is not looked up. Raises UserError, with the cure, for what
    can be neither."""
    folder = Path(model)
    if not model or not folder.is_dir():
        if not model or model.startswith((".", "/", "~", TINY + ":")) or model.count("/") > 1:
            where = f"; {check_path(model)}" if model.startswith(".") else ""
            raise UserError(f"{model!r} is not a folder: {cure}{where}", key="model")
        return None
    if not (folder / "config.json").is_file():
        raise UserError(f"{model!r} is a folder without config.json: {cure}", key="model")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{model!r}: its config.json can't be read: {shorten(error, 200)}", key="model") from None
    return config if isinstance(config, dict) else {}


def resolve_device(device: str) -> str:
    """`auto` is a GPU if there is one. Raises UserError for a GPU that isn't there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UserError(f"device = {device!r} is unknown: use auto, cpu, cuda or cuda:1")
    if device.startswith("cuda") and int(device[5:] or 0) >= torch.cuda.device_count():
        raise UserError(f"device = {device!r}, but torch sees {torch.cuda.device_count()} GPUs: use cpu or auto")
    return device


def prepared_device(device: str) -> str:
    """The device for a model that is about to be loaded. A GPU is made as exact as for a policy."""
    device = resolve_device(device)
    prepare_device(device, "float32")  # bfloat16 may be emulated here: it was asked for
    return device


def check_room(device: str, batch_size: int) -> None:
    """Raise UserError for a device that isn't there, and for a batch size that can't work."""
    resolve_device(device)
    check_integer("batch_size", batch_size, 1, 65536)


def _named(model: str, family: str) -> str:
    return f"{TINY}:{family}" if model == TINY else model


def dtype_of(dtype: Dtype, device: str) -> ModelDtype:
    """The dtype of a model for verifiers on a device."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if device.startswith("cuda") and has_bfloat16(device) else "float32"


def _of_model(error: UserError) -> UserError:
    """A policy's error about its model as an error about the option `model`."""
    return UserError(error.what, key="model" if error.key else "")


def _unit(found: Any) -> torch.Tensor:
    features = getattr(found, "pooler_output", found).float()
    return features / features.norm(dim=-1, keepdim=True)
