"""Settings of a saved policy that acts, read from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError

SETTINGS, WEIGHTS = "acting.json", "acting.safetensors"
SHOWN = "shown"
"""The setting with the cameras that a policy was shown, which is no option."""


def read_settings(folder: Path) -> dict[str, Any]:
    """All settings that were saved beside the weights; empty if the folder holds no such policy."""
    path = folder / SETTINGS
    found = dict(json.loads(path.read_text())) if path.is_file() else {}
    if found.get("kind") == "vla" and "camera" in found:  # saved when a vla had one camera
        found["cameras"] = [camera] if (camera := found.pop("camera")) else []
    return found


def saved_options(folder: Path) -> dict[str, Any]:
    """The options with which a policy that acts was saved in this folder; empty if there is none."""
    return {name: value for name, value in read_settings(folder).items() if name not in ("model", SHOWN)}


def check_same_kind(folder: Path, kind: str) -> dict[str, Any]:
    """`saved_options` without the kind. Raises UserError if another kind of policy was saved."""
    found = saved_options(folder)
    if (own := found.pop("kind", kind)) != kind:
        raise UserError(
            f"{str(folder)!r} holds a policy of another kind than policy.kind = {kind!r}: set policy.kind = {json.dumps(own)}",
            key="policy.model",
        )
    return found
