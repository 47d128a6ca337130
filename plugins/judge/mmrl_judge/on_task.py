"""The base of tasks that are made of another task's prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmrl import Task
from mmrl.api.coordinates import ImageProcessing
from mmrl.api.services import task_of
from mmrl.api.tasks.option_checks import check_type


@dataclass(kw_only=True, eq=False)
class OnTask(Task):
    """A task that poses another task's prompts in its own way: `of`, whose splits and pictures it has."""

    task: str
    """Id of the other task."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that task."""

    def __post_init__(self) -> None:
        check_type("task", self.task, str)
        check_type("options", self.options, Mapping, '{path = "rows.jsonl"}')
        self.of = task_of(self.task, self.options)
        self.splits = self.of.splits  # type: ignore[misc]  # the other task decides
        self.held_out = self.of.held_out  # type: ignore[misc]

    @property  # type: ignore[override]
    def image_processing(self) -> ImageProcessing:
        """How the policy sees images, which the other task needs to know."""
        return self.of.image_processing

    @image_processing.setter
    def image_processing(self, value: ImageProcessing) -> None:
        self.of.image_processing = value
