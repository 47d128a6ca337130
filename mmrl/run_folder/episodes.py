"""Videos of evaluation episodes: the first successes and the first failures."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.api.types import Rollout
from mmrl.run_folder import files, webp

ROWS = "episodes.jsonl"
"""The file that describes the videos of a folder of episodes."""


class EpisodePicker:
    """Picks the first successes and the first failures among episodes; the choice depends only on the order of prompts."""

    def __init__(self, limit: int) -> None:
        """limit: maximal number of successes, and of failures."""
        self.limit = limit
        self._rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}

    def see(self, rollouts: Sequence[Rollout], temperature: float) -> None:
        """Consider rollouts. temperature: their sampling temperature."""
        for rollout in rollouts:
            kept = self._rows[bool(rollout.outcome.get("success"))]
            if len(kept) < self.limit and (row := episode_row(rollout, temperature)):
                kept.append(row)

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """The rows of the picked episodes, successes first."""
        return (*self._rows[True], *self._rows[False])


def episode_row(rollout: Rollout, temperature: float) -> dict[str, Any] | None:
    """The row of an episode: plain data and a video. None if the episode was lost or has no images."""
    prompt, track = rollout.prompt, rollout.filmed
    film = webp.trajectory_video(track) if track else None
    if track is None or film is None:
        return None
    return {
        "task": prompt.task,
        "prompt_id": prompt.id,
        "seed": prompt.seed,
        "variant": prompt.meta.get("variant"),
        "temperature": temperature,
        "instruction": track.script,
        "status": rollout.status,
        "outcome": dict(rollout.outcome),
        "video": film,
    }


def write_episodes(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `episodes.jsonl` and a WebP file for each row, named by task and outcome. Replaces the folder atomically."""
    aside = folder.with_name(f".{folder.name}.tmp")
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    counts: dict[tuple[str, str], int] = {}
    lines = []
    with files.disk_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            for one in rows:
                end = "success" if one["outcome"].get("success") else "failure"
                key = (one["task"], end)
                counts[key] = counts.get(key, 0) + 1
                label = re.sub(r"[^0-9A-Za-z._-]+", "-", one["task"])[:80]
                name = f"{tasks.index(one['task']) + 1:02d}-{label}-{end}-{counts[key]}.webp"
                (aside / name).write_bytes(webp.encode_webp(one["video"]))
                lines.append(files.line({**one, "video": name}))
            (aside / ROWS).write_bytes(b"".join(lines))
            if folder.exists():
                shutil.rmtree(folder)
            os.rename(aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
