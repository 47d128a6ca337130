"""lmms-eval's tasks, shown and scored by lmms-eval itself in an interpreter of its own. Their benchmarks are never trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl import EnvironmentFailed, Prompt, Reply, UserError
from mmrl.api.errors import check_path, is_finite
from mmrl.api.tasks.option_checks import check_type
from mmrl_interop.worlds.processes import WorldProcesses
from mmrl_interop.worlds.task import World, WorldTask, check_worlds


class LmmsTask(WorldTask):
    """A benchmark of lmms-eval, or one in its form: its prompts with images, and its own score of each answer.

    The split test is what lmms-eval evaluates, and no stage trains on it; a task that names a training split of its own has that
    as train. An evaluation gives the mean over the answers, and as `lmms-eval/METRIC` what lmms-eval makes of all of them."""

    held_out = ("test",)
    repeats = False  # a task may draw the wording

    def __init__(
        self,
        task: str,
        config: Mapping[str, Any] | None = None,
        metric: str | None = None,
        include: str | None = None,
        model_name: str | None = None,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        processes: int = 1,
        timeout_s: float = 60.0,
        start_s: float = 600.0,
    ) -> None:
        """task: its name, such as mmstar, or the path of a .yaml file. config: keys of the YAML that differ, such as
        {dataset_path = "data/mmstar", dataset_kwargs = {load_from_disk = true}}. metric: the one of metric_list that scores, if
        there are several. include: a folder with more tasks. model_name: lmms-eval's name of the model whose wording is asked,
        such as qwen3_vl; by default none's. python: an interpreter with lmms-eval, by default this one. environment: variables
        for it, such as the key of a judge. processes: how many at most. timeout_s: seconds of a score. start_s: seconds until the
        data are there."""
        check_type("task", task, str, '"mmstar"')
        for name, value in (("metric", metric), ("include", include), ("model_name", model_name)):
            if value is not None:
                check_type(name, value, str)
        for name, place in (("task", task if task.endswith(".yaml") else None), ("include", include)):
            if place is not None and not Path(place).exists():
                raise UserError(f"{name} = {place!r:.100} does not exist: {check_path(place)}")
        check_type("config", config or {}, Mapping, '{dataset_path = "data"}')
        check_worlds(timeout_s)
        if not is_finite(start_s) or start_s <= 0:
            raise UserError(f"start_s = {start_s!r:.40} must be a number of seconds above 0")
        try:
            own = json.loads(json.dumps(config or {}, default=dict))
        except (TypeError, ValueError) as error:
            raise UserError(f"config must be plain data: {error}") from error
        options = {"task": task, "config": own, "include": include, "model_name": model_name, "metric": metric}
        self.worlds = WorldProcesses(
            "lmms-eval",
            "mmrl_interop.worlds.lmms:Worlds",
            options,
            python=python,
            processes=processes,
            environment=environment,
            timeout_s=timeout_s,
            start_s=start_s,
        )
        self.sizes: dict[str, int] = self.worlds.facts["splits"]
        self.splits = tuple(self.sizes)  # type: ignore[misc]
        self._kept: dict[str, str | None] = {}

    def starts(self, split: str) -> Sequence[Mapping[str, Any]]:
        return [{"split": split, "index": index} for index in range(self.sizes[split])]

    def where(self, start: Mapping[str, Any]) -> Mapping[str, Any]:
        return start

    def environment(self, prompt: Prompt) -> World:
        return Answer(self, prompt)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """lmms-eval's own aggregation of the last answer to each prompt; nothing where an answer was given in another process."""
        kept = [self._kept.get(prompt.id) for prompt, _ in results]
        if not kept or None in kept:
            return {}
        session = self.worlds.open()
        try:
            session.call("start", **results[0][0].meta["where"])
            figures = session.call("aggregate", kept=kept)
        except EnvironmentFailed:
            return {}
        finally:
            session.close()
        return {f"lmms-eval/{metric}": value for metric, value in figures.items()}


class Answer(World):
    """One answer. What the metrics need of it is kept for `summarise`."""

    def __init__(self, task: LmmsTask, prompt: Prompt) -> None:
        super().__init__(task.worlds, prompt, task.repeats)
        self.task = task

    def _reply(self, found: Mapping[str, Any]) -> Reply:
        self.task._kept[self.prompt.id] = found.get("kept")
        return super()._reply(found)
