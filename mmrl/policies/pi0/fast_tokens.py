"""FAST: a chunk of actions as tokens (Pertsch et al., FAST: Efficient Action Tokenization for Vision-Language-Action Models,
arXiv 2501.09747, section V). Each number's course over the chunk is turned into frequencies by a discrete cosine transform; these
are scaled, rounded, and read as characters from the lowest frequency to the highest; byte-pair encoding compresses the text.

The files are those of `physical-intelligence/fast` on the hub: `tokenizer.json` and the numbers of `processor_config.json`. The
code that lies beside them is not run.

C actions in a chunk, A numbers in each.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from mmrl.api.errors import UserError, shorten

NAME = "lerobot/fast-action-tokenizer"
"""The one that LeRobot takes."""
TOKENIZER, SETTINGS = "tokenizer.json", "processor_config.json"
INSIDE = "action_tokenizer"
"""The folder in which a saved policy keeps it."""
CURE = f"set policy.options.action_tokenizer to a folder or hub name with {TOKENIZER} and {SETTINGS}, such as {NAME}"
SURROGATES = 0xD800
"""The first number that is no character."""


@cache
def cosines(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64 [frequencies, times], orthonormal (Ahmed et al., Discrete Cosine Transform): its transpose is the inverse."""
    times, frequencies = np.arange(count), np.arange(count)[:, None]
    table = np.sqrt(2 / count) * np.cos(math.pi / count * (times + 0.5) * frequencies)
    table[0] /= math.sqrt(2)
    return np.asarray(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class FastTokenizer:
    """Chunks of actions <-> tokens from 0 to `size` - 1."""

    bpe: Any
    """A `tokenizers.Tokenizer`."""
    scale: float
    """Steps of a coefficient of 1."""
    lowest: int
    """The coefficient whose character has the number 0."""

    @property
    def size(self) -> int:
        return int(self.bpe.get_vocab_size())

    @property
    def digest(self) -> str:
        """Equal for two that make the same tokens."""
        told = f"{self.scale} {self.lowest} {self.bpe.to_str()}"
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def encode(self, chunk_CA: np.ndarray[Any, Any]) -> list[int]:
        """The tokens of a chunk. Coefficients below `lowest` become it, as published. Raises UserError for actions that are far
        beyond those of any data."""
        counts = np.around(cosines(len(chunk_CA)) @ chunk_CA.astype(np.float64) * self.scale).flatten() - self.lowest
        if not np.isfinite(counts).all() or counts.max() >= SURROGATES:
            raise UserError(
                f"a demonstration has an action of {float(np.abs(chunk_CA).max()):g} in the policy's numbers, which FAST can't "
                "say: check policy.options.statistics"
            )
        found: list[int] = self.bpe.encode("".join(map(chr, np.maximum(counts, 0).astype(int)))).ids
        return found

    def decode(self, tokens: Sequence[int], count: int, dims: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """float64 [count, dims], as LeRobot decodes (`PI0FastPolicy.decode_actions_with_fast`): coefficients that are missing are
        0, those too many are left out, bytes that are no character have the number of the replacement character, tokens beyond
        the last one say nothing. One below 0 makes all actions 0."""
        text = "" if any(token < 0 for token in tokens) else self.bpe.decode(list(tokens), skip_special_tokens=False)
        said = np.array([ord(c) + self.lowest for c in text[: count * dims]], dtype=np.float64)
        whole = np.zeros(count * dims)
        whole[: len(said)] = said
        return np.asarray(cosines(count).T @ (whole.reshape(count, dims) / self.scale))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.bpe.save(str(folder / TOKENIZER))
        kept: dict[str, Any] = {
            "scale": self.scale,
            "vocab_size": self.size,
            "min_token": self.lowest,
            "action_dim": None,
            "time_horizon": None,
        }
        kept |= {"processor_class": "UniversalActionProcessor"}
        kept |= {"auto_map": {"AutoProcessor": "processing_action_tokenizer.UniversalActionProcessor"}}
        (folder / SETTINGS).write_text(json.dumps(kept, indent=2))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}, indent=2)
        )


def load_fast(name: str) -> FastTokenizer:
    """That of a folder or hub name. Raises UserError where a file is missing or can't be read."""
    from transformers.utils import cached_file

    read = {}
    for file in (TOKENIZER, SETTINGS):
        try:
            place = cached_file(name, file)
            assert place is not None
            read[file] = Path(place).read_text(encoding="utf-8")
        except Exception as error:
            raise UserError(f"{name!r} has no {file} of a FAST tokenizer that can be read: {CURE}", key="policy.model") from error
    try:
        kept = json.loads(read[SETTINGS])
        scale, lowest = float(kept.get("scale", 10)), int(kept.get("min_token", 0))
        if not scale > 0 or not math.isfinite(scale):
            raise ValueError(f"scale = {scale:g}")
        return FastTokenizer(bpe=Tokenizer.from_str(read[TOKENIZER]), scale=scale, lowest=lowest)
    except Exception as error:
        raise UserError(f"{name!r} is no FAST tokenizer: {shorten(error, 200)}: {CURE}", key="policy.model") from error


def fit_fast(chunks: Sequence[np.ndarray[Any, Any]], scale: float, lowest: int, size: int) -> FastTokenizer:
    """One with at most `size` tokens, whose pairs are merged by how often they are in these chunks [C, A]."""
    from tokenizers import decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
    plain = [np.around(cosines(len(chunk)) @ chunk * scale).flatten() - lowest for chunk in chunks]
    bpe.train_from_iterator(("".join(map(chr, np.maximum(one, 0).astype(int))) for one in plain), trainer)
    return FastTokenizer(bpe=bpe, scale=scale, lowest=lowest)
