"""verifiers 0.4: a task as a `Taskset`, which `--taskset.id mmrl-interop` finds.

verifiers imports the package `mmrl_interop` by that id and takes the class that its `__all__` names, which is this one.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

from mmrl import NoGold, UserError, open_task, open_verifiers
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.verifiers.parse import with_thinking
from mmrl_interop.rows import read_stored, rows
from mmrl_interop.scoring import score_rows


class MmrlData(vf.TaskData):
    """A prompt on the wire."""

    mmrl: str
    """What scoring needs, its answer too; see `mmrl_interop.rows.read_stored`."""
    gold: str | None = None
    """A completion that deserves the highest score, where the task knows one."""


class MmrlTask(vf.Task[MmrlData]):
    """A prompt, whose reward is the task's: the weighted sum of its verifiers.

    `trace.metrics` has what each verifier gave, and `trace.info["mmrl"]` the judge's remark. A verifier that raises, hangs or
    returns no number is an error of scoring, so that the rollout is left out, and never a 0."""

    @vf.metric
    async def verifiers(self, trace: Any) -> dict[str, float]:
        [score] = await asyncio.to_thread(score_rows, [self.data.mmrl], [_said(trace)], truncated=[bool(trace.is_truncated)])
        trace.info["mmrl"] = {"value": score.value, "detail": score.detail}
        return dict(score.parts)

    @vf.reward
    async def mmrl(self, trace: Any) -> float:
        score = trace.info.get("mmrl") or {}
        if score.get("value") is None:
            raise ValueError(f"no score: {score.get('detail', 'the verifiers were not asked')}")
        return float(score["value"])

    async def validate(self, runtime: Any = None) -> bool | None:
        """Whether the gold completion gets the most that the task's metric can give; None if the task knows none."""
        if self.data.gold is None:
            return None
        [score] = await asyncio.to_thread(score_rows, [self.data.mmrl], [self.data.gold])
        metric = read_stored(self.data.mmrl).metric
        return score.parts.get(metric, -math.inf) >= _highest(metric) - 1e-6


def _said(trace: Any) -> str:
    """The model's last answer, with its thinking, which stands apart in verifiers."""
    last = trace.assistant_messages[-1:]
    thinking = (last[0].reasoning_content or "") if last else ""
    return with_thinking(thinking, trace.last_reply or "", not trace.is_truncated)


class MmrlConfig(vf.TasksetConfig):
    """The task and its prompts, under `--taskset.*`."""

    mmrl_task: str = "classification/digits"
    """Id of an installed task: `mmrl list tasks`."""
    options: dict[str, Any] = {}
    split: str = "train"
    seed: int = 0
    n: int | None = None
    """Number of prompts, the first of the split."""
    model: str | None = None
    """The model that will answer, whose coordinates prompts ask for: a folder or hub name."""
    frame: str | None = None
    max_pixels: int | None = None
    first_turn: bool = False
    """Score the first answer of a task with environments."""


class MmrlTaskset(vf.Taskset[MmrlTask, MmrlConfig]):
    """The prompts of a split."""

    def load(self) -> Iterable[MmrlTask]:
        """Raises UserError for a task that acts in a simulator, and for one with environments unless `first_turn` is set."""
        config = self.config
        encode = ChatEncoder(max_pixels=config.max_pixels)
        settings = {"model": config.model, "frame": config.frame, "max_pixels": config.max_pixels}
        with open_task(config.mmrl_task, config.options, **settings) as task:
            if task.multi_turn and not config.first_turn:
                raise UserError(f"task {task.id!r} has environments: set first_turn to score first answers")
            for row in rows(task, config.split, config.seed, config.n):
                try:
                    gold = task.gold(row.prompt)
                except NoGold:
                    gold = None
                messages, _ = encode(row.prompt.messages)
                yield MmrlTask(MmrlData(id=row.prompt.id, prompt=messages, mmrl=row.stored, gold=gold), config.task)


@functools.cache
def _highest(verifier: str) -> float:
    with open_verifiers({verifier: 1.0}) as opened:
        return opened.value_range[1]
