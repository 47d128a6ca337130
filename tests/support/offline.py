"""Attacks name data sets and models that nobody may ask the Hub for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import datasets
import huggingface_hub.constants


@contextlib.contextmanager
def offline(caches: Path) -> Iterator[None]:
    """No request leaves this process for the Hub, and `datasets` writes its caches into this folder."""
    with (
        mock.patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
        mock.patch.object(datasets.config, "HF_HUB_OFFLINE", True),
        mock.patch.object(datasets.config, "HF_DATASETS_CACHE", caches),
    ):
        yield
