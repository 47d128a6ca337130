"""A run file with everything it names looked up: `Setup`."""

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
from mmrl.data.fingerprint import fingerprint
from mmrl.data.prompts import Indexable, Splits
from mmrl.data.selection import Subset
from mmrl.judge.rewards import Weights
from mmrl.train.alarms import PluginAlarm


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A checked run file, with everything that it names looked up and made."""

    config: RunConfig
    """The run file with the defaults of its algorithms."""
    device: str
    """The torch device that `policy.device` stands for."""
    policy: PolicySpec
    tasks: Mapping[str, Task]
    """By label, as all following mappings of tasks."""
    weights: Mapping[str, Weights]
    """Verifier id -> its weight in the reward at the beginning and at the end of a stage."""
    metrics: Mapping[str, str]
    """Id of the verifier that evaluates the task."""
    verifiers: Mapping[str, VerifierSpec]
    """The verifiers of rewards and metrics, by the id in the run file."""
    verifier_options: Mapping[str, Mapping[str, Any]]
    """By the same ids, the options from the run file."""
    algorithms: Sequence[Algorithm | None]
    """One per stage; None for a stage that only imitates."""
    splits: Splits
    chosen: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    """(stage, task) -> the numbers of the prompts that the stage's `select` takes; only for stages with `select`."""
    alarms: Sequence[PluginAlarm] = ()
    """Those of plugins."""

    @functools.cached_property
    def entries(self) -> Mapping[str, TaskConfig]:
        """The `[[tasks]]` entry of each task."""
        return {entry.label: entry for entry in self.config.tasks}

    @property
    def opening(self) -> int:
        """The index of the first stage that isn't an sft stage. The run is first evaluated before it."""
        return next((i for i, s in enumerate(self.config.stages) if not isinstance(s, SftStage)), 0)

    def prompts(self, stage: int, label: str) -> Indexable:
        """The prompts of a task from which a stage draws. stage: its index."""
        items, numbers = self.splits(label, self.config.stages[stage].split), self.chosen.get((stage, label))
        return items if numbers is None else Subset(items, numbers)

    def fingerprints(self, stage: int) -> dict[str, list[Any]]:
        """Task -> fingerprint of the prompts from which a stage draws. stage: its index."""
        labels = self.config.weights(self.config.stages[stage])
        return {label: fingerprint(self.prompts(stage, label), label) for label in labels}

    def set_image_processing(self, image_processing: ImageProcessing) -> None:
        """Set the policy's image processing on all tasks."""
        for task in self.tasks.values():
            task.image_processing = image_processing
        self.splits.forget()
