"""Fingerprints of prompts, by which a resumed run notices that its data has changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.types import Prompt
from mmrl.data.prompts import Indexable, prompt_at

SAMPLED = 8
"""Prompts that are looked at: making them all would open all of their pictures."""


def fingerprint(items: Indexable, label: str) -> list[Any]:
    """The number of a task's prompts, and a hash of the ids, texts and answers of a few from the first to the last, as JSON data;
    None for a broken one. Media are left out, whose paths may differ between machines."""
    last = len(items) - 1
    places = sorted({last * n // (SAMPLED - 1) for n in range(SAMPLED)})
    return [len(items), *(_hash(items, place, label) for place in places)]


def is_changed(before: list[Any], now: list[Any]) -> bool:
    """Whether two fingerprints are of different prompts, as far as those tell that weren't broken."""
    return before[:1] != now[:1] or any(one != two for one, two in zip(before, now, strict=False) if one and two)


def _hash(items: Indexable, place: int, label: str) -> str | None:
    with contextlib.suppress(UserError):
        prompt: Prompt = prompt_at(items, place, label).without_media()
        content = [prompt.id, prompt.seed, prompt.messages, prompt.answer]
        text = json.dumps(content, default=lambda thing: type(thing).__name__, skipkeys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    return None
