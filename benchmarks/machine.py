"""Description of the machine and packages, for every benchmark's JSON."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any


def machine(*packages: str) -> dict[str, Any]:
    from mmrl.run_folder import manifest

    return manifest.machine() | {"versions": {p: version(p) for p in ("torch", "transformers", *packages)}}
