"""ms-swift: a task as its rows, and the reward `mmrl` for their completions.

In a run: `--external_plugins $(python -m mmrl_interop.swift) --reward_funcs mmrl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl_interop.peers import peer
from mmrl_interop.rows import Row, image_bytes, video_file, with_places
from mmrl_interop.scoring import STAND_INS, score_rows
from mmrl_interop.swift_env import EpisodeEnv, prompt_texts

VERSIONS = ">=4.6,<4.7"


def reward(
    completions: Sequence[str],
    mmrl: Sequence[str] | None = None,
    response_token_ids: Sequence[Any] | None = None,
    is_truncated: Sequence[bool] | None = None,
    **columns: Any,
) -> list[float]:
    """The rewards of completions of exported rows, as ms-swift asks for them. mmrl: what each row stores.

    A score that is missing gets a stand-in, the mean of the other completions of its prompt (`mmrl_interop.scoring.StandIns`):
    ms-swift takes None for 0.

    Raises UserError for rows that weren't exported by mmrl."""
    if not mmrl or not all(isinstance(row, str) for row in mmrl):
        raise UserError("the data set has no column mmrl: write it with mmrl export TASK --to swift")
    tokens = [sum(len(turn) for turn in ids) for ids in response_token_ids] if response_token_ids else []
    scores = score_rows(mmrl, completions, tokens if all(tokens) and tokens else None, truncated=is_truncated)
    return STAND_INS.fill(mmrl, scores)


def columns(row: Row, split: str, max_pixels: int | None) -> dict[str, Any]:
    """A row of ms-swift's files. It knows limits of pixels by the variable MAX_PIXELS, and not by row."""
    where = f"prompt {row.prompt.id!r} of task {row.prompt.task!r}"
    return {
        "messages": with_places(row.messages, where),
        "images": [{"bytes": image_bytes(image), "path": None} for image in row.images],
        "videos": [video_file(video, where)["video"] for video in row.videos],
        "mmrl": row.stored,
        "id": row.prompt.id,
    }


def with_episode(row: dict[str, Any], place: str) -> dict[str, Any]:
    """A row whose episode is played by `mmrl_interop.swift_env`. place: see `mmrl_interop.stored_episodes`."""
    prompt_texts(row["messages"])
    return row | {"env_config": {"name": "mmrl", "mmrl": row["mmrl"], "episode": place}}


def types(episodes: bool = False) -> dict[str, Any]:
    """Column -> its pyarrow type."""
    import pyarrow as pa

    text = pa.string()
    return {
        **({"env_config": pa.struct({"name": text, "mmrl": text, "episode": text})} if episodes else {}),
        "messages": pa.list_(pa.struct({"role": text, "content": text})),
        "images": pa.list_(pa.struct({"bytes": pa.binary(), "path": text})),
        "videos": pa.list_(text),
        "mmrl": text,
        "id": text,
    }


def register() -> None:
    """Add the reward and the gym environment to ms-swift's, each under the name `mmrl`."""
    rewards = peer("swift.rewards.orm", VERSIONS, "mmrl_interop.swift", "ms-swift")

    class Mmrl(rewards.ORM):  # type: ignore[misc, name-defined]
        def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
            return reward(completions, **columns)

    rewards.orms["mmrl"] = Mmrl
    peer("swift.rollout.gym_env", VERSIONS, "mmrl_interop.swift", "ms-swift").envs["mmrl"] = EpisodeEnv


if __name__ == "__main__":
    print(Path(__file__).parent / "external" / "mmrl_swift.py")
