"""Models of text for verifiers: classifiers of pairs of texts (entailment, relevance, rewards), and a policy's tokens as text.

They are frozen and deterministic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.api.services import Dtype
from mmrl.judge.models import TINY, check_room, dtype_of, folder_config, prepared_device

ENTAILMENT = "entailment"
"""The name of the class that counts, in a model with several."""
CURE = "give the folder or hub name of a sequence classification model, such as a reranker, or tiny"
UNBOUNDED = 1 << 20
"""A tokenizer without a limit says a larger length."""


class PairClassifier:
    """A sequence classification model of pairs of texts; see `pair_classifier`."""

    def __init__(self, model: Any, tokenizer: Any, device: str, batch_size: int) -> None:
        self.model, self.tokenizer, self.batch_size = model.to(device).eval(), tokenizer, batch_size
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        places = getattr(model.config.get_text_config(), "max_position_embeddings", UNBOUNDED)
        self.limit = int(tokenizer.model_max_length if tokenizer.model_max_length < UNBOUNDED else places)
        names = {str(name).lower(): int(i) for i, name in model.config.id2label.items()}
        self._class = names.get(ENTAILMENT) if model.config.num_labels > 1 else None
        if self._class is None and model.config.num_labels != 1:
            raise UserError(
                f"its classes are {', '.join(names)[:80]}: a model has one output, or a class named {ENTAILMENT}", key="model"
            )

    def agreement(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """0..1 for each pair: the probability of entailment, of a model with classes; the sigmoid of its output, of a model with
        one, as rerankers are read. The longer text of a pair is cut off where the model reads no further."""
        logits_NC = self._logits([self._encoded(pair) for pair in pairs])
        found_N = logits_NC[:, 0].sigmoid() if self._class is None else logits_NC.softmax(-1)[:, self._class]
        return [float(v) for v in found_N]

    def ratings(self, answered: Sequence[tuple[str, str]]) -> list[float]:
        """The output for each (question, answer), any number. They are written by the tokenizer's chat template, or else as a
        pair. Raises UserError for a model with classes."""
        if self._class is not None:
            raise UserError("a reward model has one output, and this one has classes: give a reward model", key="model")
        written = self._turns if getattr(self.tokenizer, "chat_template", None) else self._encoded
        return [float(v) for v in self._logits([written(pair) for pair in answered])[:, 0]]

    def _encoded(self, pair: tuple[str, str]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = dict(self.tokenizer(*pair, truncation="longest_first", max_length=self.limit))
        return found

    def _turns(self, pair: tuple[str, str]) -> dict[str, list[int]]:
        turns = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), pair, strict=True)]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"][-self.limit :]
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    @torch.inference_mode()
    def _logits(self, encoded: Sequence[dict[str, list[int]]]) -> torch.Tensor:
        """float64 [N, C], on the CPU."""
        found = []
        for start in range(0, len(encoded), self.batch_size):
            batch = self.tokenizer.pad(list(encoded[start : start + self.batch_size]), return_tensors="pt")
            found.append(self.model(**batch.to(self.model.device)).logits.double().cpu())
        return torch.cat(found) if found else torch.zeros(0, self.model.config.num_labels, dtype=torch.float64)


def pair_classifier(model: str, *, device: str = "auto", dtype: Dtype = "auto", batch_size: int = 32) -> PairClassifier:
    """Load a sequence classification model: of entailment, a reranker or a reward model. model: a folder, a hub name, or `tiny`.
    batch_size: pairs at once. Raises UserError with the key `model`."""
    check_pair_classifier(model, device=device, batch_size=batch_size)
    device = prepared_device(device)
    if model == TINY:
        from mmrl.judge import tiny_text

        return PairClassifier(*tiny_text.build(), device, batch_size)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        loaded = AutoModelForSequenceClassification.from_pretrained(
            model, dtype=getattr(torch, dtype_of(dtype, device)), use_safetensors=True
        )
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:
        raise UserError(f"{model!r} can't be loaded: {shorten(error, 300)}: {CURE}", key="model") from error
    return PairClassifier(loaded, tokenizer, device, batch_size)


def check_pair_classifier(model: str, *, device: str = "auto", batch_size: int = 32) -> None:
    """Raise UserError for options that `pair_classifier` can't use, without loading the model. A hub name is not looked up."""
    check_room(device, batch_size)
    config = None if model == TINY else folder_config(model, CURE)
    kinds = (config or {}).get("architectures")
    if isinstance(kinds, list) and kinds and not any("SequenceClassification" in str(kind) for kind in kinds):
        raise UserError(f"{model!r} is a {str(kinds[0])[:60]}: {CURE}", key="model")


@functools.lru_cache(maxsize=4)
def token_decoder(model: str) -> Callable[[Sequence[int]], str]:
    """Token ids of a policy -> their text without special tokens, as `Turn.text` has it behind what the chat template wrote of
    the answer. model: the policy's folder, hub name or `tiny`; its weights aren't read. Raises UserError with the key `model`."""
    from mmrl.policies.vlm.loading import config_and_processor

    try:
        tokenizer = config_and_processor("tiny:qwen2_5_vl" if model == TINY else model, False)[1].tokenizer
    except UserError as error:
        raise UserError(error.what, key="model") from error

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    return decode
