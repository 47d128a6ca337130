"""Answers of endpoints on disk, by the content of their question."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIELDS = {"text": str, "thinking": str, "finished": bool, "num_tokens": int}


class AnswerCache:
    """A folder with one file for each answer. Several processes may share it. A file that is damaged counts as missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, base_url: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """The fields of the kept answer; None if there is none."""
        try:
            kept = json.loads(self._path(base_url, body).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        kept = {"thinking": "", **kept} if isinstance(kept, dict) else kept  # earlier versions kept none
        whole = isinstance(kept, dict) and kept.keys() == FIELDS.keys()
        return kept if whole and all(isinstance(kept[k], kind) for k, kind in FIELDS.items()) else None

    def put(self, base_url: str, body: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Keep an answer. A disk that is full or can't be written keeps none."""
        path = self._path(base_url, body)
        with contextlib.suppress(OSError):  # the answer is there; it is only asked for again
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump(dict(answer), file)
                os.replace(temporary, path)
            except OSError:
                os.unlink(temporary)
                raise

    def _path(self, base_url: str, body: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps([base_url, dict(body)], sort_keys=True).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest}.json"
