"""Tasksets and environments of verifiers 0.4 as tasks, with their own rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import UserError
from mmrl.api.errors import is_finite
from mmrl.api.tasks.image_sources import split_of
from mmrl.api.tasks.option_checks import check_integer, check_type
from mmrl_interop.worlds.processes import WorldProcesses
from mmrl_interop.worlds.task import WorldTask, check_worlds


class VerifiersTask(WorldTask):
    """verifiers plays the episodes, of one turn or of several, and the policy answers where it asks a model. The reward is the
    weighted sum of the taskset's rewards, and outcomes have each of them and each metric. What raises or takes too long loses the
    episode. Tasksets that offer tools are refused, since policies answer with text."""

    def __init__(
        self,
        taskset: str,
        config: Mapping[str, Any] | None = None,
        test_config: Mapping[str, Any] | None = None,
        test_share: float = 0.1,
        env: Mapping[str, Any] | None = None,
        num_tasks: int = 10_000,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        processes: int = 1,
        timeout_s: float = 120.0,
    ) -> None:
        """taskset: its id, such as owner/name or the name of a package. config: of the taskset, as under `--env.taskset`.
        test_config: what differs for the split test, such as {split = "test"}; without it, that split is test_share of the tasks,
        drawn by their keys. env: of the environment, as under `--env`, such as {id = "user-sim", user = {client = {...}}}; agents
        without a client are the policy. num_tasks: the most that are read of a taskset. python: an interpreter with verifiers and
        the taskset, by default this one. environment: variables for it. processes: how many at most; one plays many episodes.
        timeout_s: seconds of a turn, with what scores the last."""
        check_type("taskset", taskset, str, '"gsm8k"')
        for name, table in (("config", config), ("test_config", test_config), ("env", env)):
            check_type(name, table or {}, Mapping, '{split = "train"}')
        if not is_finite(test_share) or not 0 <= test_share < 1:
            raise UserError(f"test_share = {test_share!r:.60} must be a number from 0, below 1")
        check_integer("num_tasks", num_tasks, 1)
        check_worlds(timeout_s)
        self.test_share = test_share
        try:
            tables = json.loads(json.dumps({"config": config or {}, "test_config": test_config, "env": env or {}}, default=dict))
        except (TypeError, ValueError) as error:
            raise UserError(f"config and env must be plain data: {error}") from error
        self.worlds = WorldProcesses(
            "verifiers",
            "mmrl_interop.worlds.verifiers:Worlds",
            {"taskset": taskset, **tables, "num_tasks": num_tasks},
            python=python,
            processes=processes,
            environment=environment,
            timeout_s=timeout_s,
        )

    def starts(self, split: str) -> Sequence[Mapping[str, Any]]:
        keys: dict[str, list[str]] = self.worlds.facts["keys"]
        if "test" in keys:
            return [{"split": split, "index": index} for index in range(len(keys[split]))]
        shares = {"train": 1 - self.test_share, "test": self.test_share}
        drawn = [split_of(key, 0, shares) for key in keys["train"]]
        return [{"split": "train", "index": index} for index, found in enumerate(drawn) if found == split]

    def where(self, start: Mapping[str, Any]) -> Mapping[str, Any]:
        return start
