"""What verifiers share that ask a model behind an endpoint."""

from __future__ import annotations

import hashlib

from mmrl.api.endpoints.client import ChatEndpoint
from mmrl.api.endpoints.options import TINY, EndpointOptions


def judge_endpoint(options: EndpointOptions) -> ChatEndpoint | None:
    """The endpoint that a verifier asks; None for the model `TINY`. Raises UserError if it can't be asked."""
    if options.model == TINY:
        return None
    return ChatEndpoint(model=options.model, timeout_s=options.request_timeout_s, **options.settings())


def fenced(text: str) -> str:
    """The text between two lines that it can't contain: they depend on it. The same text has the same lines, for the cache."""
    line = f"===== {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]} ====="
    return f"{line}\n{text}\n{line}"
