"""The interface of a run that its stages use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mmrl.api.interfaces import Task
from mmrl.api.sampling import Group
from mmrl.config.sections import RunConfig
from mmrl.judge import Judge
from mmrl.policies.policy import Policy
from mmrl.rollout.collector import Collector
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.run_folder.writer import RunFolder
from mmrl.train.metrics import StepTimer
from mmrl.train.position import Position
from mmrl.train.setup import Setup
from mmrl.train.trackers import Trackers
from mmrl.train.update.packer import Packer


class StageContext(Protocol):
    """The parts of a `mmrl.train.run.Run` that stages use."""

    setup: Setup
    config: RunConfig
    tasks: Mapping[str, Task]
    folder: RunFolder
    trackers: Trackers
    policy: Policy
    judge: Judge
    collector: Collector
    packer: Packer
    at: Position
    clock: StepTimer
    teacher: Callable[[int], Policy | None]
    consistent: bool

    def sampling(self, task: str, seed: int, temperature: float | None = None) -> SamplingParams: ...
    def report_failures(self, groups: Sequence[Group]) -> None: ...
    def warn(self, where: str, what: str, step: int | None = None) -> None: ...
