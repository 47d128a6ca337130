"""bitsandbytes (Dettmers et al.), which stores optimisers' states in 8 bits and weights in 4. It is an extra."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterator
from typing import Any

import torch

from mmrl.api.errors import UserError

CURE = 'pip install "multimodal-rl[quantized]"'


def check_installed(what: str, cure: str) -> None:
    """Raise UserError if bitsandbytes isn't installed. what: begins the error. cure: another way out."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(f"{what} needs bitsandbytes, which is not installed: {CURE}, or {cure}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, bitsandbytes logs nothing: imported, also by peft, it warns of kernels that aren't used here, and of libraries."""
    logger = logging.getLogger("bitsandbytes")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def import_bitsandbytes(what: str, cure: str) -> Any:
    """Import bitsandbytes. what: begins the UserError if it isn't installed, or has no library for torch's CUDA. cure: another
    way out."""
    check_installed(what, cure)
    with quiet():
        import bitsandbytes
        from bitsandbytes.cextension import lib
    if torch.version.cuda and torch.cuda.is_available() and not lib.compiled_with_cuda:
        raise UserError(f"{what}: bitsandbytes {bitsandbytes.__version__} has no library for CUDA {torch.version.cuda}: {cure}")
    return bitsandbytes
