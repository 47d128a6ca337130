"""Episodes that a simulator's expert plays, to save or to inspect them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from mmrl.api.errors import UserError, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.simulators.types import ActionSpec, Demonstration, TrajectoryData
from mmrl.api.types import Prompt, Status
from mmrl.data.prompts import load_prompts, prompt_at
from mmrl.registry import plugins
from mmrl.rollout.simulators.demonstrations import as_expert
from mmrl.rollout.simulators.lockstep import make_lane
from mmrl.rollout.simulators.recorded import EpisodeJob


class Episodes:
    """The first episodes of a task's split, played by the expert of its simulator, as in a stage that imitates the split.
    Iterating gives pairs of a demonstration and its outcome."""

    def __init__(self, id: str, options: Mapping[str, Any], count: int, *, split: str = "demo", environments: int = 16) -> None:
        """id, options: of the task. environments: number of episodes played at a time. Raises UserError if the task has no
        simulator or too few episodes."""
        task = plugins.registry().make_task(id, options)
        if task.simulation is None:
            raise UserError(f"task {id!r} is answered in words: it has no simulator whose expert could play it")
        self.paid = task.simulation.reward != "none"
        """Whether the simulator pays for actions."""
        self.starts = list(islice(_starts(id, task, split), count))
        if len(self.starts) < count:
            raise UserError(
                f"split {split!r} of task {id!r} has {len(self.starts)} episodes, and {count} are requested: request fewer"
            )
        self.lane = make_lane(task.simulation, min(environments, count), "cpu")
        self.hz = self.lane.spec.control_hz
        """Steps per second of simulated time; 0 if unknown."""
        self.action: ActionSpec | None = getattr(self.lane.simulator, "action", None) or self.lane.spec.action

    def __iter__(self) -> Iterator[tuple[Demonstration, Mapping[str, float]]]:
        for job in self.jobs():
            assert job.track is not None
            shown = _shown(job.track)
            if self.paid:
                rewards_T = job.track.rewards_TK.sum(1).float().cpu()
                shown = replace(shown, rewards_T=rewards_T, terminated=job.status is Status.FINISHED)
            yield shown, job.outcome

    def jobs(self) -> Iterator[EpisodeJob]:
        """The same as they were played."""
        at_once = 4 * self.lane.num_envs  # episodes in memory
        for first in range(0, len(self.starts), at_once):
            for job in self._played(self.starts[first : first + at_once]):
                if job.track is None:
                    raise UserError(f"task {job.prompt.task!r}: the expert's episode {job.prompt.id!r} could not be played")
                yield job

    def trajectories(self) -> Iterator[tuple[TrajectoryData, Mapping[str, float]]]:
        """The same as trajectory data, with the final observation of each episode."""
        for job in self.jobs():
            assert job.track is not None
            yield job.track, job.outcome

    def close(self) -> None:
        self.lane.simulator.close()

    def _played(self, prompts: Sequence[Prompt]) -> list[EpisodeJob]:
        lane, jobs = self.lane, [EpisodeJob(prompt=prompt, seed=0) for prompt in prompts]
        with plugin_errors("a simulator"):
            lane.begin(list(jobs))
            while envs := lane.active:
                lane.play(as_expert(lane, envs, lane.shown(envs)), envs)
            lane.tracks()
        return jobs


def _starts(id: str, task: Task, split: str) -> Iterator[Prompt]:
    """One prompt for each episode, of those that share one."""
    seen: set[tuple[int, Any]] = set()
    prompts = load_prompts(id, task, split, 0)
    for number in range(len(prompts)):
        prompt = prompt_at(prompts, number, id)
        key = (prompt.seed, prompt.meta.get("variant"))
        if key not in seen:
            seen.add(key)
            yield prompt


def _shown(track: TrajectoryData) -> Demonstration:
    return Demonstration(
        instruction=track.instruction,
        instructions=track.instructions[:-1],
        images={camera: rows[:-1].cpu() for camera, rows in track.images.items()},
        state=None if track.state is None else track.state[:-1].cpu(),
        actions_MA=track.choices[:, 0].float().cpu().clamp(-1, 1),  # as the simulator takes them
    )
