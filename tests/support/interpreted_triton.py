"""Triton's interpreter in the place of its CPU backend, which its wheels lack, so that vLLM's Model Runner V2 runs on a CPU."""

from __future__ import annotations

import os
from types import SimpleNamespace

ASKED = "MMRL_TEST_TRITON"
"""Environment variable; "interpreted" for tests that need it."""


def interpret() -> None:
    """Let vLLM find a Triton for CPUs, whose kernels are Python functions. To be called before vLLM or Triton is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton import backends

    backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
