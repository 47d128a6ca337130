"""EasyR1: a task as its Parquet rows, and `compute_score` for their completions.

In a run: `worker.reward.reward_function=$(python -m mmrl_interop.easyr1)`, which is the path of this file and the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl import UserError
from mmrl_interop.rows import Row, image_bytes, read_stored, video_file, with_places
from mmrl_interop.scoring import STAND_INS, score_rows

REWARD_NAME = "mmrl"
REWARD_TYPE = "batch"


def compute_score(reward_inputs: Sequence[dict[str, Any]], **settings: Any) -> list[dict[str, float]]:
    """The rewards of completions of exported rows, as EasyR1's batch reward manager asks for them.

    settings: `num_workers`, `timeout_s`, `memory_mb`, `isolation` of the judge, from `worker.reward.reward_function_kwargs`.

    Returns for each `overall`; `accuracy`, the value of the task's metric; and `missing`, 1 if there is no score: `overall` is
    then a stand-in, the mean of the other completions of this prompt (`mmrl_interop.scoring.StandIns`). Raises UserError for rows
    that weren't exported by mmrl.
    """
    stored = [one["ground_truth"] for one in reward_inputs]
    tokens = [int(one["response_length"]) for one in reward_inputs]
    scores = score_rows(stored, [one["response"] for one in reward_inputs], tokens, **settings)
    values = STAND_INS.fill(stored, scores, **settings)
    return [
        {"overall": value, "accuracy": score.parts.get(read_stored(row).metric, value), "missing": float(score.failed)}
        for row, score, value in zip(stored, scores, values, strict=True)
    ]


def columns(row: Row, split: str, max_pixels: int | None) -> dict[str, Any]:
    """A row of EasyR1's files. It has one user message; a system message becomes its beginning. The answer is what is stored for
    scoring, since the reward function gets nothing else. Limits of pixels are keys of EasyR1's own `data`."""
    where = f"prompt {row.prompt.id!r} of task {row.prompt.task!r}"
    messages = with_places(row.messages, where)
    if [m["role"] for m in messages] not in (["user"], ["system", "user"]):
        raise UserError(f"{where}: its messages are a conversation, and EasyR1's rows have one user message: train it elsewhere")
    return {
        "prompt": "\n\n".join(message["content"] for message in messages),
        "answer": row.stored,
        "images": [{"bytes": image_bytes(image), "path": None} for image in row.images],
        "videos": [video_file(video, where)["video"] for video in row.videos],
        "id": row.prompt.id,
    }


def types() -> dict[str, Any]:
    """Column -> its pyarrow type."""
    import pyarrow as pa

    text = pa.string()
    image = pa.struct({"bytes": pa.binary(), "path": text})
    return {"prompt": text, "answer": text, "images": pa.list_(image), "videos": pa.list_(text), "id": text}


if __name__ == "__main__":
    print(f"{__file__}:compute_score")
