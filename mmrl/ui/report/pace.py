"""How long what is left of a run takes, by the steps that were watched."""

from __future__ import annotations

from collections.abc import Sequence

from mmrl.config.sections import Training


class Pace:
    """Times are seconds of any one clock that only goes forward; evaluations count as part of the steps around them."""

    def __init__(self, stages: Sequence[Training], now: float) -> None:
        """stages: all of the run's."""
        self.stages = stages
        self.number, self.kind, self.done, self.steps = 0, "", 0, 0
        """Of the stage that is under way: its place from 0, its kind, its finished steps, all its steps."""
        self.began = self.entered = self.last = now
        """When watching began, when the stage did, and when its last step was finished."""
        self.watched = 0
        """Steps of the stage; a resumed one began elsewhere."""
        self.per_step: dict[str, float] = {}
        """Kind of stage -> seconds of a step in the latest stage of that kind."""

    def enter(self, number: int, stage: Training, done: int, now: float) -> None:
        self.number, self.done, self.steps, self.kind = number, done, stage.steps, stage.kind
        self.entered = self.last = now
        self.watched = 0

    def step(self, now: float) -> None:
        self.done, self.watched, self.last = self.done + 1, self.watched + 1, now
        self.per_step[self.kind] = (now - self.entered) / self.watched

    @property
    def run_steps(self) -> tuple[int, int]:
        """(finished steps of the run, all its steps)."""
        return sum(s.steps for s in self.stages[: self.number]) + self.done, sum(s.steps for s in self.stages)

    def left(self, now: float) -> float | None:
        """Seconds that the stage still takes; None before anything is known. The step under way counts down to nothing."""
        if self.done >= self.steps:
            return 0.0
        if not self.watched:
            return None
        step = self.per_step[self.kind]
        return step * (self.steps - self.done - 1) + max(0.0, step - (now - self.last))

    def left_of_run(self, now: float) -> tuple[float, bool] | None:
        """(seconds that all stages still take, whether that is all): a kind of stage that is yet to come isn't known."""
        own, later = self.left(now), self.stages[self.number + 1 :]
        if own is None:
            return None
        known = [s.steps * self.per_step[s.kind] for s in later if s.kind in self.per_step]
        return own + sum(known), len(known) == len(later)
