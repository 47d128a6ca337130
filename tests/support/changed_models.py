"""Tiny models of other configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mmrl.policies.vlm import tiny

OWN = tiny._checkpoint


def change(patch: pytest.MonkeyPatch, to: Callable[[Any], None]) -> None:
    """Tiny models are made from configurations that `to` has changed, from now on."""

    def checkpoint(*arguments: Any) -> Any:
        found = OWN(*arguments)
        to(found.config)
        return found

    patch.setattr(tiny, "_checkpoint", checkpoint)
