"""Recorded rollouts as the rows of a table with pictures, for trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmrl.run_folder.reader import read_jsonl

PICTURES = 4
"""Most pictures of a row; the others are in the run folder."""


def rollout_rows(folder: Path, step: int) -> list[dict[str, Any]]:
    """The rollouts of a step in a run folder, with equal keys as `mmrl.api.interfaces.RolloutTracker` says."""
    kept = read_jsonl(folder / "rollouts" / f"step-{step:06d}.jsonl")
    verifiers = sorted({name for row in kept for name in row["score"]["parts"]})
    pictures = [list(_pictures(row, folder / "rollouts"))[:PICTURES] for row in kept]
    width = max(map(len, pictures), default=0)
    return [
        {
            **{"image" if i == 0 else f"image {i + 1}": shown[i] if i < len(shown) else None for i in range(width)},
            "task": row["task"],
            "prompt_id": row["prompt_id"],
            "prompt": "\n\n".join(_text(message) for message in row["messages"]),
            "answer": row["answer"] if isinstance(row["answer"], str) else repr(row["answer"]),
            "completion": row["completion"],
            "reward": row["reward"],
            "advantage": row.get("advantage"),
            **{name: row["score"]["parts"].get(name) for name in verifiers},
            "status": row["status"],
            "source": row["source"],
        }
        for row, shown in zip(kept, pictures, strict=True)
    ]


def _pictures(row: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """The pictures of a row, what its task draws first."""
    if row.get("drawing"):
        yield folder / row["drawing"]
    for message in row["messages"]:
        yield from (folder / part["path"] for part in message["content"] if part["type"] in ("image", "video") and "path" in part)


def _text(message: Mapping[str, Any]) -> str:
    said = (part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in message["content"])
    return f"{message['role']}: {' '.join(said)}"


def picture(path: Path | None) -> Any:
    """A PIL image, of a video the first frame; None for None."""
    from PIL import Image

    if path is None:
        return None
    with Image.open(path) as image:
        return image.convert("RGB")
