"""Estimate of a run's remaining time, from the steps observed so far."""

from __future__ import annotations

from collections.abc import Sequence

from mmrl.config.sections import Training


class TimeEstimator:
    """Estimates remaining seconds of a stage and a run. All times are in seconds of one monotonic clock; the time of an
    evaluation counts towards the steps around it."""

    def __init__(self, stages: Sequence[Training], now: float) -> None:
        """stages: all stages of the run. now: the clock's time."""
        self.stages = stages
        self.number, self.kind, self.done, self.steps = 0, "", 0, 0
        """Of the current stage: its index from 0, its kind, its finished steps, its number of steps."""
        self.began = self.entered = self.last = now
        """Times of the start of observation, of the stage's start and of its last finished step."""
        self.watched = 0
        """Observed steps of the stage; a resumed stage has more finished steps than observed ones."""
        self.per_step: dict[str, float] = {}
        """Kind of stage -> mean seconds per step in the latest stage of that kind."""

    def enter(self, number: int, stage: Training, done: int, now: float) -> None:
        self.number, self.done, self.steps, self.kind = number, done, stage.steps, stage.kind
        self.entered = self.last = now
        self.watched = 0

    def step(self, now: float) -> None:
        self.done, self.watched, self.last = self.done + 1, self.watched + 1, now
        self.per_step[self.kind] = (now - self.entered) / self.watched

    @property
    def run_steps(self) -> tuple[int, int]:
        """(finished steps of the run, all steps of the run)."""
        return sum(s.steps for s in self.stages[: self.number]) + self.done, sum(s.steps for s in self.stages)

    def left(self, now: float) -> float | None:
        """Remaining seconds of the stage; None before its first observed step. The current step's share counts down to 0."""
        if self.done >= self.steps:
            return 0.0
        if not self.watched:
            return None
        step = self.per_step[self.kind]
        return step * (self.steps - self.done - 1) + max(0.0, step - (now - self.last))

    def left_of_run(self, now: float) -> tuple[float, bool] | None:
        """(remaining seconds of the run, whether they include all stages: those of a kind not observed yet are left out); None
        before the stage's first observed step."""
        current, later = self.left(now), self.stages[self.number + 1 :]
        if current is None:
            return None
        known = [s.steps * self.per_step[s.kind] for s in later if s.kind in self.per_step]
        return current + sum(known), len(known) == len(later)
