"""What a folder says of the policy that acts which was saved in it, and whether a policy can learn from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError

SETTINGS, WEIGHTS = "acting.json", "acting.safetensors"


def read_settings(folder: Path) -> dict[str, Any]:
    """Everything that was saved beside the weights; nothing where there is no such policy."""
    path = folder / SETTINGS
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def saved_options(folder: Path) -> dict[str, Any]:
    """The options with which a policy that acts was saved in this folder; nothing where there is none."""
    return {name: value for name, value in read_settings(folder).items() if name != "model"}


def check_same_kind(folder: Path, kind: str) -> dict[str, Any]:
    """Those options, without the kind. Raises UserError where another kind of policy was saved."""
    found = saved_options(folder)
    if found.pop("kind", kind) != kind:
        raise UserError(f"{str(folder)!r} holds a policy of another kind than policy.kind = {kind!r}", key="policy.model")
    return found
