"""What verifiers share that ask a model behind an endpoint."""

from __future__ import annotations

import hashlib
from typing import Any

from mmrl.api.endpoints import JUDGE_KEYS
from mmrl.api.endpoints.client import ChatEndpoint
from mmrl.api.errors import UserError

TINY = "tiny"
"""The `model` of a smoke run: no endpoint is asked, and the verifier has a stand-in."""


def judge_endpoint(
    model: str, base_url: str, key_variable: str, *, request_timeout_s: float, **settings: Any
) -> ChatEndpoint | None:
    """The endpoint that a verifier asks; None for `TINY`. request_timeout_s: seconds that one request may take. settings: others
    of `ChatEndpoint`. Raises UserError for ones that can't work, and for a key that a verifier doesn't get."""
    if key_variable not in JUDGE_KEYS:
        raise UserError(f"key_variable = {key_variable!r:.60}: a verifier gets {' and '.join(JUDGE_KEYS)} alone: use one of them")
    if model == TINY:
        return None
    settings["extra"] = settings.get("extra") or {}
    return ChatEndpoint(model=model, base_url=base_url, key_variable=key_variable, timeout_s=request_timeout_s, **settings)


def fenced(text: str) -> str:
    """The text between two lines that it can't contain: they depend on it. The same text has the same lines, for the cache."""
    line = f"===== {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]} ====="
    return f"{line}\n{text}\n{line}"
