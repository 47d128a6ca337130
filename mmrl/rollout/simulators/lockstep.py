"""Simulators: episodes in lock-step, many at once. While the policy acts for one lane of environments, the others are stepped."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from mmrl.api.episodes import GUIDED, Trajectory, plain_instruction
from mmrl.api.errors import UserError, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import Demonstration, Observation, Simulation, TrajectoryData
from mmrl.api.types import Prompt, Status
from mmrl.compute.devices import current_gpu
from mmrl.compute.ranks import Reduction, is_first
from mmrl.config.sections import SimulateConfig
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.critic import Critic
from mmrl.policies.shard import Sharded, reshard, unshard, unsharded
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.demonstrations import (
    EpisodeCache,
    as_expert,
    expert_actions,
    in_camera_order,
    observation_at,
    taken_over,
    task_demonstration,
    to_device,
    to_trajectory,
)
from mmrl.rollout.simulators.lane import Lane
from mmrl.rollout.simulators.recorded import EpisodeJob
from mmrl.rollout.simulators.replaced import Elsewhere
from mmrl.rollout.simulators.streams import ActingStream
from mmrl.rollout.simulators.watchdog import Watchdog

Choose = Callable[[Lane, Sequence[int], Observation], ActionSample]
"""(lane, its active environments, their observations) -> actions in them."""
Chooser = Callable[[Observation, torch.Tensor, torch.Tensor, float], ActionSample]
"""(observations, seeds of their episodes, indices of their calls, temperature) -> actions, as `ActingPolicy.act`."""
Stepping = Future[torch.cuda.Event | None] | None
"""A lane that is being stepped in a thread, and the event of its kernels' end."""


class SimulatorCollector:
    """Plays the episodes of tasks that act in simulators; the counterpart of `ConversationCollector`."""

    reductions: Mapping[str, Reduction] = {}

    def __init__(
        self,
        policy: ActingPolicy,
        tasks: Mapping[str, Task],
        config: SimulateConfig,
        device: str = "cpu",
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """tasks: label -> task, each with a `simulation`. Simulators are made on first use, by `elsewhere` if given, else on
        `device`."""
        self.policy, self.tasks, self.config, self.device, self.elsewhere = policy, tasks, config, device, elsewhere
        self.critic: Critic | None = None
        """Computes values of observations, if the algorithm has a critic."""
        self.with_expert = False
        """Record at every call what the simulators' experts would do."""
        self.chooser: Chooser | None = None
        """Chooses in place of the policy."""
        self.interventions = 0.0
        """Share of the episodes in which the simulator's expert takes over at some call."""
        self.seconds = {"policy": 0.0, "waiting": 0.0, "stepping": 0.0}
        """Seconds of the policy's calls, of waiting for simulators, and of the simulators' steps."""
        self._lanes: dict[str, list[Lane]] = {}
        self._played = EpisodeCache(config.demonstration_cache_mb * 2**20)
        self._watchdog = None if elsewhere else Watchdog(config.timeout_s)
        self._pool = ThreadPoolExecutor(config.lanes, "simulator") if config.lanes > 1 else None
        self._stream = ActingStream(policy.device, config.lanes)

    @property
    def learns_on(self) -> torch.device:
        """The device that learns from the episodes."""
        return self.policy.device

    @property
    def batch_size(self) -> int:
        """How many episodes an evaluation should request at once."""
        return 4 * self.config.num_envs

    def metrics(self) -> dict[str, float]:
        """Metrics since the last call."""
        lanes = self._every_lane()
        seconds, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        steps, lost = sum(lane.steps for lane in lanes), sum(lane.lost for lane in lanes)
        for lane in lanes:
            lane.steps = lane.lost = 0
        both = seconds["policy"] + seconds["waiting"]
        found = {"simulator/steps": float(steps), "simulator/lost": float(lost)}
        if both:
            found |= {
                "simulator/steps_per_s": steps / both,
                "simulator/busy_share": min(1.0, seconds["stepping"] / both / (self.config.lanes if self._pool else 1)),
                "policy/idle_share": seconds["waiting"] / both,
            }
        return found

    def ready(self) -> None:
        """Make all simulators, and check that the policy fits them and can act on their observations."""
        with unsharded(self.policy.root):
            self._try_all()

    def _try_all(self) -> None:
        tried: list[Lane] = []
        for label, task in self.tasks.items():
            if task.simulation and task.simulation.simulator and (lane := self.lanes(label)[0]) not in tried:
                tried.append(lane)
                if "per-env-seed" in lane.spec.capabilities:  # a reset of others would move their later draws
                    with plugin_errors(lane.who):
                        shown = lane.reset_all([*range(lane.num_envs)])
                    if not self.policy.reads_text and len(texts := [*dict.fromkeys(shown.instructions)]) > 1 and is_first():
                        warnings.warn(
                            f"task {label!r} gives instructions that differ, such as {texts[0]!r:.80} and {texts[1]!r:.80}, and "
                            "this policy reads none: it can only do what it sees is wanted",
                            stacklevel=2,
                        )
                    nothing_n = torch.zeros(1, dtype=torch.int64)
                    self.policy.act(shown.rows(nothing_n), nothing_n, nothing_n, 0.0)

    def encode(self, prompts: Sequence[Prompt]) -> list[Demonstration | None]:
        """The tasks' own demonstrations of these prompts; None where the simulator's expert plays instead."""
        asked = [(self.tasks[prompt.task], prompt) for prompt in prompts]
        found = [(task, task_demonstration(task, prompt)) for task, prompt in asked]
        return [None if shown is None else in_camera_order(shown, task.simulation) for task, shown in found]

    def collect(
        self,
        prompts: Sequence[Prompt],
        inputs: Sequence[Any],
        group_size: int,
        sampling: SamplingParams,
        version: int = 0,
        numbers: Sequence[int] = (),
    ) -> list[Trajectory]:
        """N = len(prompts) * group_size episodes, a group's next to each other; those of a group begin in the same state. A
        prompt's id fixes the random draws of its episodes, so `numbers` is ignored; where a prompt comes again, as of a task with
        few starts (`SamplingParams.earlier`), its episodes are further ones. Raises UserError if an expert is to teach or
        to take over from a policy that chooses several actions at a time, which a checkpoint may say."""
        if (self.with_expert or self.interventions) and self.policy.chunk > 1:
            raise UserError(
                f"an expert gives one action at a time, and by its files the policy carries out {self.policy.chunk} in each "
                "call: set chunk = 1 in policy.options, or for its base in policy.options.base.options"
            )
        jobs = [
            EpisodeJob(prompt=prompt, seed=derive(sampling.seed, prompt.task, prompt.id, number))
            for prompt, before in zip(prompts, sampling.earlier or [0] * len(prompts), strict=True)
            for number in range(before * group_size, (before + 1) * group_size)
        ]
        self._play(jobs, lambda lane, envs, seen: self._act(lane, envs, seen, sampling.temperature))
        self._value_ends(jobs)
        return [_rollout(job, n // group_size, version) for n, job in enumerate(jobs)]

    def demonstrate(
        self, prompts: Sequence[Prompt], inputs: Sequence[Demonstration | None], completions: Sequence[str]
    ) -> list[Trajectory]:
        """The tasks' own demonstrations or, if a task has none, episodes of the simulator's expert from these starts. They are
        not sampled, so logprobs are NaN. A prompt with `meta["call"]` gives only that call of its expert's episode, modulo its
        length."""
        of_expert = self._expert([p for p, shown in zip(prompts, inputs, strict=True) if shown is None])
        tracks = [
            of_expert[_episode(p)] if shown is None else to_trajectory(shown, p, self.policy)
            for p, shown in zip(prompts, inputs, strict=True)
        ]
        moments = [
            observation_at(track, p.meta["call"]) if shown is None and "call" in p.meta else track
            for p, shown, track in zip(prompts, inputs, tracks, strict=True)
        ]
        return [
            Trajectory(prompt=p, group=n, status=Status.FINISHED, data=to_device(track, self.learns_on))
            for n, (p, track) in enumerate(zip(prompts, moments, strict=True))
        ]

    def _expert(self, prompts: Sequence[Prompt]) -> dict[Any, TrajectoryData]:
        """The expert's episodes of these prompts, in the policy's representation; those that aren't cached are played."""
        starts = {_episode(p): p for p in prompts}
        found = {key: self._played[key] for key in starts if key in self._played}
        missing = {key: p for key, p in starts.items() if key not in found}
        jobs = [EpisodeJob(prompt=prompt, seed=derive(prompt.seed, "expert")) for prompt in missing.values()]
        self._play(jobs, as_expert)
        for key, job in zip(missing, jobs, strict=True):
            if job.track is None:
                raise UserError(f"task {job.prompt.task!r}: the expert's episode {job.prompt.id!r} could not be played")
            # the expert acts at each step, and the policy once in a chunk
            # the lane has recorded what was seen of earlier steps
            track = job.track if self.policy.history_of_steps else self.policy.with_history(job.track)
            found[key] = self.policy.chunked(track)
            lasting = "per-env-seed" not in self.lanes(job.prompt.task)[0].spec.capabilities
            self._played.add({key: found[key]}, lasting)
        return found

    def wake_up(self) -> None:
        """Gather the weights of the policy and the critic, if they are sharded over ranks."""
        for root in self._roots():
            unshard(root)

    def sleep(self) -> None:
        """Keep only this rank's shard of the weights."""
        for root in self._roots():
            reshard(root)

    def _roots(self) -> list[Sharded]:
        policies = [self.policy, self.critic.backbone if self.critic else None]
        return [policy.root for policy in policies if policy is not None and policy.root is not None]

    def close(self) -> None:
        for lane in self._every_lane():
            lane.simulator.close()
        self._lanes = {}
        if self._pool:
            self._pool.shutdown()
        if self._watchdog:
            self._watchdog.close()
        if self.elsewhere:
            self.elsewhere.close()

    # -- playing ----------------------------------------------------------------------------------------------------------

    def _play(self, jobs: Sequence[EpisodeJob], choose: Choose) -> None:
        """Plays all episodes."""
        shared: dict[int, tuple[list[Lane], list[EpisodeJob]]] = {}
        for job in jobs:
            made = self.lanes(job.prompt.task)
            shared.setdefault(id(made), (made, []))[1].append(job)
        lanes: deque[tuple[Lane, Stepping]] = deque()
        for made, own in shared.values():
            for lane, dealt in zip(made, _dealt(own, len(made), made[0].draws_for_all), strict=True):
                lanes.append((lane, self._step(lane, None, lane.begin, dealt)))
        begun = [lane for lane, _ in lanes]
        while lanes:
            lane, stepping = lanes.popleft()
            started = time.perf_counter()
            stepped = stepping.result() if stepping else None
            self.seconds["waiting"] += time.perf_counter() - started
            if envs := lane.active:
                started = time.perf_counter()
                with self._stream.after(stepped):
                    chosen = choose(lane, envs, lane.shown(envs))
                    acted = self._stream.mark()
                self.seconds["policy"] += time.perf_counter() - started
                lanes.append((lane, self._step(lane, acted, lane.play, chosen, envs)))
        for lane in begun:
            lane.tracks()

    def _step(self, lane: Lane, acted: torch.cuda.Event | None, work: Callable[..., None], *arguments: Any) -> Stepping:
        """Runs a simulator's work, after the event: in a thread if there are several lanes, else at once."""

        def timed() -> torch.cuda.Event | None:
            started = time.perf_counter()
            with current_gpu(torch.device(self.device)):  # a new thread begins on the machine's first GPU
                self._stream.follow(acted)
                with plugin_errors(lane.who):
                    work(*arguments)
                self.seconds["stepping"] += time.perf_counter() - started
                if not self._pool:
                    self.seconds["waiting"] += time.perf_counter() - started
                return self._stream.mark()

        if self._pool:
            return self._pool.submit(timed)
        timed()
        return None

    def _act(self, lane: Lane, envs: Sequence[int], seen: Observation, temperature: float) -> ActionSample:
        jobs = [job for env in envs if (job := lane.jobs[env])]
        seeds_n = torch.tensor([job.seed for job in jobs], dtype=torch.int64)
        calls_n = torch.tensor([len(lane.calls) - job.start for job in jobs], dtype=torch.int64)
        if self.chooser is not None:
            return self.chooser(seen, seeds_n, calls_n, temperature)
        chosen = self.policy.act(seen, seeds_n, calls_n, temperature, self.critic, _guidance(jobs, seen))
        if self.interventions:
            chosen = taken_over(lane, envs, calls_n, chosen, self.interventions)
        return replace(chosen, expert_actions_nA=expert_actions(lane, envs)) if self.with_expert else chosen

    def _value_ends(self, jobs: Sequence[EpisodeJob]) -> None:
        """Sets the critic's values of the final states of the episodes that are bootstrapped."""
        if self.critic is None:
            return
        bootstraps = self.critic.config.bootstraps
        valued = [job for job in jobs if bootstraps(job.status) and job.last is not None and job.track is not None]
        for start in range(0, len(valued), self.config.num_envs):
            some = valued[start : start + self.config.num_envs]
            seeds_n = torch.tensor([job.seed for job in some], dtype=torch.int64)
            calls_n = torch.tensor([job.end - job.start for job in some], dtype=torch.int64)
            values_n = self.policy.values(_together([job.last for job in some if job.last]), seeds_n, calls_n, self.critic)[:, 0]
            for job, value in zip(some, values_n.tolist(), strict=True):
                assert job.track is not None
                job.track = replace(job.track, bootstrap=value)

    # -- simulators -------------------------------------------------------------------------------------------------------

    def lanes(self, label: str) -> list[Lane]:
        """The lanes of a task, made on first use. Tasks with the same simulation share lanes, such as those that differ only in
        the variant."""
        if label not in self._lanes:
            simulation, count = self.tasks[label].simulation, self.config.lanes
            assert simulation is not None
            for other, lanes in self._lanes.items():
                if self.tasks[other].simulation == simulation:
                    self._lanes[label] = lanes
                    return lanes
            seen = (self.policy.history, self.policy.history_of_steps)
            sizes = [self.config.num_envs // count + (i < self.config.num_envs % count) for i in range(count)]
            self._lanes[label] = [
                make_lane(simulation, size, self.device, self.elsewhere, self._watchdog, *seen) for size in sizes if size
            ]
            first = self._lanes[label][0]
            self.policy.fits(label, first.simulator, first.spec)
        return self._lanes[label]

    def _every_lane(self) -> list[Lane]:
        """Each once."""
        return list({id(lane): lane for lanes in self._lanes.values() for lane in lanes}.values())


def make_lane(
    simulation: Simulation,
    num_envs: int,
    device: str,
    elsewhere: Elsewhere | None = None,
    watchdog: Watchdog | None = None,
    history: int = 0,
    of_steps: bool = False,
) -> Lane:
    """A lane with its own simulator, on this device (see `Registry.make_simulator`), or made by `elsewhere`.

    watchdog: of simulators whose calls have no deadlines of their own. history, of_steps: see `Lane`."""
    registry = plugins.registry()
    simulator = elsewhere.make(simulation, num_envs) if elsewhere else registry.make_simulator(simulation, num_envs, device)
    if getattr(simulator, "own_deadlines", False):
        watchdog = None
    return Lane(simulator, registry.get("simulators", simulation.simulator), simulation, num_envs, watchdog, history, of_steps)


def _guidance(jobs: Sequence[EpisodeJob], seen: Observation) -> Guidance | None:
    """How the texts that were appended to the instructions guide; None if none does. seen: of these episodes."""
    weights = [float(job.prompt.meta.get(GUIDED, 1.0)) for job in jobs]
    if all(weight == 1 for weight in weights):
        return None
    plain = [plain_instruction(text, job.prompt) for text, job in zip(seen.instructions, jobs, strict=True)]
    return Guidance(plain=replace(seen, instructions=plain), weights_n=torch.tensor(weights))


def _episode(prompt: Prompt) -> tuple[str, str]:
    """Key of an expert's episode, which prompts of its single calls share."""
    return prompt.task, f"{prompt.seed} {prompt.meta.get('variant')}" if "call" in prompt.meta else prompt.id


def _dealt(jobs: Sequence[EpisodeJob], count: int, whole: bool) -> list[list[EpisodeJob]]:
    """Deal episodes to `count` lanes in turn, in advance, so that the lanes' speed changes nothing. whole: all episodes of a
    prompt go to one lane, the only one that has their common start."""
    turns: dict[tuple[str, str], int] = {}
    dealt: list[list[EpisodeJob]] = [[] for _ in range(count)]
    for n, job in enumerate(jobs):
        turn = turns.setdefault((job.prompt.task, job.prompt.id), len(turns)) if whole else n
        dealt[turn % count].append(job)
    return dealt


def _rollout(job: EpisodeJob, group: int, version: int) -> Trajectory:
    return Trajectory(prompt=job.prompt, group=group, status=job.status, data=job.track, outcome=job.outcome, version=version)


def _together(rows: Sequence[Observation]) -> Observation:
    states = [row.state for row in rows if row.state is not None]
    return Observation(
        images={camera: torch.cat([row.images[camera] for row in rows]) for camera in rows[0].images},
        state=torch.cat(states) if states else None,
        instructions=[text for row in rows for text in row.instructions],
    )
