"""Where the files of a GR00T lie: in a folder, or in one that is fetched from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmrl.api.errors import UserError, shorten
from mmrl.policies.names import refuse_path

CURE = "give a folder or hub name of a GR00T N1.7 or N1.6, or tiny:gr00t"
CONFIG = "config.json"


def json_files(name: str) -> Path:
    """The folder with the JSON files of a folder or hub name, and LeRobot's statistics. Raises UserError if there is no
    config.json."""
    found = downloaded(name, ["*.json", "policy_*.safetensors"])
    if not (found / CONFIG).is_file():
        raise UserError(f"{name!r} has no {CONFIG}: {CURE}", key="policy.model")
    return found


def downloaded(name: str, files: Sequence[str]) -> Path:
    """The folder with the files that these patterns match."""
    if Path(name).is_dir():
        return Path(name)
    refuse_path(name, CURE)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except Exception as error:
        raise UserError(f"{name!r} can't be loaded: {shorten(error, 300)}: {CURE}", key="policy.model") from error
