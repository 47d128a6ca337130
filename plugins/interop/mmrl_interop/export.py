"""A task's prompts as a data set file for another trainer."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mmrl import OpenTask, UserError, open_task
from mmrl_interop.peers import peer
from mmrl_interop.rows import Row, refuse_held_out, rows
from mmrl_interop.stored_episodes import place

FORMS = {
    "verl": "reward.custom_reward_function.path=pkg://mmrl_interop.verl reward.custom_reward_function.name=compute_score",
    "easyr1": "worker.reward.reward_function=$(python -m mmrl_interop.easyr1)",
    "swift": "--external_plugins $(python -m mmrl_interop.swift) --reward_funcs mmrl",
}
"""Peer, whose module has `columns` and `types` -> what its run needs to score the rows."""
EPISODES = {
    "verl": "actor_rollout_ref.rollout.agent.agent_loop_config_path=$(python -m mmrl_interop.verl)",
    "swift": "--external_plugins $(python -m mmrl_interop.swift) --multi_turn_scheduler gym_scheduler --use_gym_env true",
}
"""Peer, whose module has `with_episode` -> what its run needs to play the episodes of rows."""
WITHOUT_OPENING = ("verl", "easyr1")
"""Peers whose completions lack what the chat template has written of them; ms-swift's begin with it."""
MEDIA = ("images", "videos")
GROUP = 256
"""Rows in memory at once."""


def export(
    id: str,
    file: Path,
    to: str,
    options: Mapping[str, Any] | None = None,
    *,
    split: str = "train",
    seed: int = 0,
    n: int | None = None,
    first_turn: bool = False,
    opening: str | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> tuple[int, str]:
    """Write the first n prompts of a split, or all, as a Parquet file for a trainer; returns their number and
    what its run needs, from `FORMS` or `EPISODES`.

    id, options, settings: of `mmrl.open_task`; give `model`, the model that is trained, if the task has coordinates.
    to: one of `FORMS`. A task with environments needs one of `EPISODES`. first_turn: let the first answer be the whole episode.
    opening: what the trainer writes of each answer into its prompt, such as "<think>", so that its completions lack it; by
        default what the model's chat template writes unless it is told otherwise. Empty for thinking that is switched off.

    Raises UserError if the file is there and not to be overwritten, and for a task that the form can't hold. A file is complete
    or not there.
    """
    if to not in FORMS:
        raise UserError(f"--to {to!r} is unknown: choose one of {', '.join(FORMS)}")
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists: name another file, or give --overwrite")
    if file.suffix != ".parquet":
        raise UserError(f"{file}: the file is written as Parquet: name it .parquet")
    parquet = peer("pyarrow.parquet", "", "mmrl export")
    form = importlib.import_module(f"mmrl_interop.{to}")
    with open_task(id, options, **settings) as task:
        plays = task.multi_turn and not first_turn
        if plays and to not in EPISODES:
            raise UserError(f"task {id!r} has environments, which {to} can't play: give --first-turn to score first answers")

        def columns(row: Row) -> dict[str, Any]:
            made: dict[str, Any] = form.columns(row, split, settings.get("max_pixels"))
            return form.with_episode(made, place(id, options, settings, split, seed, row.index)) if plays else made

        refuse_held_out(task, split)
        begun = (task.opening if to in WITHOUT_OPENING else "") if opening is None else opening
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            types = form.types(episodes=True) if plays else form.types()
            count = _write(parquet, partial, task, rows(task, split, seed, n, opening=begun), columns, types, split)
            os.replace(partial, file)
        finally:
            partial.unlink(missing_ok=True)
    return count, (EPISODES if plays else FORMS)[to]


def _write(
    parquet: Any,
    file: Path,
    task: OpenTask,
    found: Iterator[Row],
    columns: Callable[[Row], dict[str, Any]],
    types: dict[str, Any],
    split: str,
) -> int:
    """Write rows with these columns; returns their number."""
    import pyarrow as pa

    kinds: dict[str, Any] = {}
    count, writer = 0, None
    try:
        while group := list(itertools.islice(found, GROUP)):
            table = list(map(columns, group))
            kinds = kinds or _kinds(types, table[0])
            if odd := next((row for row, made in zip(group, table, strict=True) if not _fits(made, kinds, table[0])), None):
                raise UserError(f"prompt {odd.prompt.id!r} of task {task.id!r} has other media than the first prompt")
            schema = pa.schema(kinds)
            writer = writer or parquet.ParquetWriter(file, schema)
            writer.write_table(pa.Table.from_pylist(table, schema=schema))
            count += len(group)
    finally:
        if writer:
            writer.close()
    if not count:
        raise UserError(f"task {task.id!r} gives no rows of split {split!r}: check -n and its data")
    return count


def _kinds(types: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Column -> type, without a column of media that the first row has none of: EasyR1 reads no videos beside images. An image or
    video has the keys that it has in the first row, since readers take null for a value."""
    import pyarrow as pa

    kinds = dict(types)
    if not row["videos"]:
        del kinds["videos"]
    elif not row["images"]:
        del kinds["images"]
    for name in MEDIA:
        if given := _keys(row, name):
            kinds[name] = pa.list_(pa.struct([field for field in kinds[name].value_type if field.name in given]))
    return kinds


def _fits(made: Mapping[str, Any], kinds: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    """Whether a row has no other media than the first."""
    return all((name in kinds or not made[name]) and _keys(made, name) in ([], _keys(first, name)) for name in MEDIA)


def _keys(row: Mapping[str, Any], name: str) -> list[str]:
    """The keys of a row's first image or video, if it has one that is a table."""
    return sorted(row[name][0]) if row[name] and isinstance(row[name][0], dict) else []
