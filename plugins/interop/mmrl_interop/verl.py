"""verl: a task as its Parquet rows, and `compute_score` for their completions.

In a run: `reward.custom_reward_function.path=pkg://mmrl_interop.verl reward.custom_reward_function.name=compute_score`. Rows with
episodes are played and scored by `mmrl_interop.agent_loop`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl_interop.rows import Row, image_bytes, read_stored, video_file, with_places
from mmrl_interop.scoring import STAND_INS, score_rows

NAMES = {"fps": "fps", "count": "nframes", "start_s": "video_start", "end_s": "video_end"}
"""Field of a clip -> its key in qwen_vl_utils, which verl reads videos with."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **settings: Any
) -> dict[str, float]:
    """The reward of a completion of an exported row, as verl's reward managers call it.

    settings: `num_workers`, `timeout_s`, `memory_mb`, `isolation` of the judge; verl's
        `reward.custom_reward_function.reward_kwargs`.

    Returns `score`; `acc`, the value of the task's metric; and `missing`, 1 if there is no score: verl can't leave a completion
    out, so `score` is then a stand-in, the mean of the other completions of this prompt (`mmrl_interop.scoring.StandIns`).
    Raises UserError for a row that wasn't exported by mmrl.
    """
    settings = {k: v for k, v in settings.items() if k not in ("reward_router_address", "reward_model_tokenizer")}
    row = (extra_info or {}).get("mmrl")
    if not isinstance(row, str):
        raise UserError(f"the row of {data_source!r} has no extra_info.mmrl: write it with mmrl export TASK --to verl")
    [score] = score_rows([row], [solution_str], **settings)
    [value] = STAND_INS.fill([row], [score], **settings)
    return {"score": value, "acc": score.parts.get(read_stored(row).metric, value), "missing": float(score.failed)}


def columns(row: Row, split: str, max_pixels: int | None) -> dict[str, Any]:
    """A row of verl's Parquet files. max_pixels: limit of the images, which verl keeps if it stands in the row."""
    task = read_stored(row.stored).task
    where = f"prompt {row.prompt.id!r} of task {task!r}"
    limit = {"max_pixels": max_pixels} if max_pixels else {}
    return {
        "data_source": f"mmrl:{task}",
        "prompt": with_places(row.messages, where),
        "images": [{"bytes": image_bytes(image), **limit} for image in row.images],
        "videos": [video_file(video, where, NAMES) for video in row.videos],
        "ability": task.partition("/")[0],
        "reward_model": {"style": "rule", "ground_truth": json.dumps(row.prompt.answer, default=str)},
        "extra_info": {"index": row.index, "split": split, "id": row.prompt.id, "mmrl": row.stored},
    }


def with_episode(row: dict[str, Any], place: str) -> dict[str, Any]:
    """A row whose episode is played by the agent loop. place: see `mmrl_interop.stored_episodes`."""
    return row | {"agent_name": "mmrl", "extra_info": row["extra_info"] | {"episode": place}}


def types(episodes: bool = False) -> dict[str, Any]:
    """Column -> its pyarrow type."""
    import pyarrow as pa

    text = pa.string()
    more = [("episode", text)] if episodes else []
    return {
        **({"agent_name": text} if episodes else {}),
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "images": pa.list_(pa.struct({"bytes": pa.binary(), "max_pixels": pa.int64()})),
        "videos": pa.list_(pa.struct({"video": text, **dict.fromkeys(NAMES.values(), pa.float64())})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct([("index", pa.int64()), ("split", text), ("id", text), ("mmrl", text), *more]),
    }


if __name__ == "__main__":
    print(Path(__file__).parent / "agent_loop.yaml")
