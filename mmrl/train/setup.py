"""What a run file comes to before its first step."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrl.algorithms.presets import Algorithm
from mmrl.api.coordinates import ImageProcessing
from mmrl.api.interfaces import Task
from mmrl.api.specs import PolicySpec, VerifierSpec
from mmrl.config.sections import RunConfig, SftStage, TaskConfig
from mmrl.data.prompts import Indexable, Splits
from mmrl.data.selection import Subset
from mmrl.judge.rewards import Weights


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run file that was checked, with everything that it names looked up and made."""

    config: RunConfig
    """With what its algorithms have by default."""
    device: str
    """The torch device that `policy.device` stands for."""
    policy: PolicySpec
    tasks: Mapping[str, Task]
    """By label, as is all that follows of tasks."""
    weights: Mapping[str, Weights]
    """Verifier id -> its weight in the reward at the beginning and at the end of a stage."""
    metrics: Mapping[str, str]
    """Id of the verifier that evaluates the task."""
    verifiers: Mapping[str, VerifierSpec]
    """Those of rewards and metrics, by the id that asks for them."""
    verifier_options: Mapping[str, Mapping[str, Any]]
    """By the same ids what the run file gives them."""
    algorithms: Sequence[Algorithm | None]
    """Of each stage; None for one that only imitates."""
    splits: Splits
    chosen: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    """(stage, task) -> the numbers of the prompts that the stage's `select` takes; of stages that have one."""

    @functools.cached_property
    def entries(self) -> Mapping[str, TaskConfig]:
        """The `[[tasks]]` entry of each task."""
        return {entry.label: entry for entry in self.config.tasks}

    @property
    def opening(self) -> int:
        """The number of the first stage that isn't a warm start, which is where a run is first evaluated."""
        return next((i for i, s in enumerate(self.config.stages) if not isinstance(s, SftStage)), 0)

    def prompts(self, stage: int, label: str) -> Indexable:
        """The prompts of a task that a stage draws from. stage: its number."""
        items, numbers = self.splits(label, self.config.stages[stage].split), self.chosen.get((stage, label))
        return items if numbers is None else Subset(items, numbers)

    def set_image_processing(self, image_processing: ImageProcessing) -> None:
        """Let the tasks know how the policy sees pictures."""
        for task in self.tasks.values():
            task.image_processing = image_processing
        self.splits.forget()
