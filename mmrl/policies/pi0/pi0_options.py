"""Checks of pi0's options."""

from __future__ import annotations

from collections.abc import Sequence

from mmrl.api.errors import UserError
from mmrl.policies.acting import options


def check(
    chunk: int, dims: int, state: int, prompt: str, crop: float, text_tokens: int, cameras: Sequence[str], tokenizer: str
) -> None:
    """Raise UserError for an option that can't be meant."""
    for name, value in (("chunk", chunk), ("dims", dims)):
        options.check_integer(name, value, 1, 256)
    options.check_prompt(prompt)
    options.check_crop(crop)
    options.check_integer("state", state, 0, 100_000)
    options.check_integer("text_tokens", text_tokens, 0, 100_000)
    options.check_texts("cameras", cameras)
    options.check_text("tokenizer", tokenizer)


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise UserError for a value that is neither `auto` nor one of those known."""
    if value not in ("auto", *known):
        raise UserError(f"policy.options.{name} = {value!r:.60} is unknown: choose one of auto, {', '.join(known)}")
