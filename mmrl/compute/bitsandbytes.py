"""bitsandbytes (Dettmers et al.), which stores optimisers' states in 8 bits and weights in 4. It is an extra."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import torch

from mmrl.api.errors import UserError

CURE = 'pip install "multimodal-rl[quantized]"'


def check_installed(what: str, cure: str) -> None:
    """Raise UserError if bitsandbytes isn't installed. what: begins the error. cure: another way out."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(f"{what} needs bitsandbytes, which is not installed: {CURE}, or {cure}")


def import_bitsandbytes(what: str, cure: str) -> Any:
    """Import bitsandbytes. what: begins the UserError if it isn't installed, or has no library for torch's CUDA. cure: another
    way out."""
    check_installed(what, cure)
    logger = logging.getLogger("bitsandbytes")
    before = logger.level
    logger.setLevel(logging.CRITICAL)  # it warns of kernels that aren't used here; the error below has one line
    try:
        import bitsandbytes
        from bitsandbytes.cextension import lib
    finally:
        logger.setLevel(before)
    if torch.version.cuda and torch.cuda.is_available() and not lib.compiled_with_cuda:
        raise UserError(f"{what}: bitsandbytes {bitsandbytes.__version__} has no library for CUDA {torch.version.cuda}: {cure}")
    return bitsandbytes
