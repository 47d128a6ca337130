"""One simulator and the episodes that go on in it. An environment begins its next episode as soon as one has ended."""

from __future__ import annotations

import warnings
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from mmrl.api.errors import UserError, warns_of_loss
from mmrl.api.interfaces import Simulator
from mmrl.api.simulators.history import follow
from mmrl.api.simulators.rules import EpisodeRules, step_limit
from mmrl.api.simulators.types import Observation, Simulation
from mmrl.api.specs import SimulatorSpec
from mmrl.api.transfer import upload_one
from mmrl.api.types import Status
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.rollout.simulators.recorded import EpisodeJob, PolicyCall, set_tracks, spread, told
from mmrl.rollout.simulators.shapes import check_interventions, check_observation, check_parts, check_reward, check_transition
from mmrl.rollout.simulators.watchdog import Watchdog

TRIES = 3
"""Number of attempts at an episode whose environment fails."""


class Lane:
    """N environments of one simulator."""

    def __init__(
        self,
        simulator: Simulator,
        spec: SimulatorSpec,
        simulation: Simulation,
        num_envs: int,
        watchdog: Watchdog | None = None,
        history: int = 0,
        of_steps: bool = False,
    ) -> None:
        """watchdog: of the simulator's calls, if it is in this process. history, of_steps: the policy's `history` and
        `history_of_steps`."""
        self.watchdog, self.history, self.of_steps = watchdog, history, of_steps
        self.simulator, self.spec, self.simulation, self.num_envs = simulator, spec, simulation, num_envs
        max_steps = step_limit(simulation, simulator, spec.max_steps)
        if max_steps < 1:
            raise UserError(f"simulator {spec.id!r} has no max_steps: set it in the task's simulation")
        self.queue: deque[EpisodeJob] = deque()
        self.jobs: list[EpisodeJob | None] = [None] * num_envs
        self.calls: list[PolicyCall] = []
        self.ended: list[EpisodeJob] = []
        self.lost = self.steps = 0
        self._starts: dict[tuple[str, str, str | None], Any] = {}
        self._observation: Observation | None = None
        self._seen: tuple[Observation, int, Observation] | None = None
        """(an observation, the number of moments before it, the same with its history)."""
        self._before_step: Observation | None = None
        """What was seen before the last step, if the history is of steps."""
        self._went = 0
        """Number of steps of the simulator."""
        self._parts: frozenset[str] | None = None
        """The names in the first step."""
        self.rules = EpisodeRules(simulation, num_envs, max_steps)
        self._paid_N = torch.zeros(num_envs)
        self._taken_N = torch.zeros(num_envs)
        """Steps of the episode in which another than the policy acted."""
        self._asked_anew_N = torch.zeros(num_envs, dtype=torch.bool)
        """Whose instruction changed in the last step."""
        self._waiting: list[int] = []
        """Environments with an episode in which the last step was none, as the rest of their chunk was dropped."""
        self._taken_over = False
        """Whether another than the policy may act."""
        self._best: dict[str, torch.Tensor] = {}

    @property
    def who(self) -> str:
        """Its name in errors."""
        return f"simulator {self.spec.id!r}"

    @property
    def last_seen(self) -> Observation | None:
        """What it showed last, without a history; None if it has shown nothing yet."""
        return self._observation

    @property
    def device(self) -> torch.device:
        """The device of its observations."""
        assert self._observation is not None
        return self._observation.device

    def _watched(self, call: str) -> AbstractContextManager[None]:
        """Within it, the simulator has a deadline. call: the name of its method."""
        return self.watchdog.watch(f"{call}() of {self.who}") if self.watchdog else nullcontext()

    @property
    def draws_for_all(self) -> bool:
        """Whether a seed alone doesn't fix a start, so that equal starts need snapshots."""
        return "per-env-seed" not in self.spec.capabilities and "snapshot" in self.spec.capabilities

    # -- episodes begin ---------------------------------------------------------------------------------------------------

    def begin(self, jobs: list[EpisodeJob]) -> None:
        """Queues these episodes and starts as many as there are free environments."""
        self.queue.extend(jobs)
        self.calls, self.ended = [], []
        self._refill()

    def _refill(self) -> None:
        """Starts waiting episodes in free environments. Without partial resets: when all are free, those of one variant."""
        free = [i for i, job in enumerate(self.jobs) if job is None]
        together = "partial-reset" not in self.spec.capabilities
        if together and len(free) < self.num_envs:
            return
        taken: dict[str | None, list[tuple[int, EpisodeJob]]] = {}
        while free and self.queue:
            if together and taken and self.queue[0].prompt.meta.get("variant") not in taken:
                break
            job = self.queue.popleft()
            job.env, job.start = free.pop(0), len(self.calls)
            job.tries += 1
            self.jobs[job.env] = job
            taken.setdefault(job.prompt.meta.get("variant"), []).append((job.env, job))
        for variant, started in taken.items():
            self._start([env for env, _ in started], [job for _, job in started], variant)

    def _start(self, envs: list[int], jobs: list[EpisodeJob], variant: str | None) -> None:
        """Resets environments to the starts of their episodes: equal starts for equal prompts."""
        if self.draws_for_all:
            keys = [(job.prompt.task, job.prompt.id, variant) for job in jobs]
            new: dict[tuple[str, str, str | None], int] = {}
            for i, key in enumerate(keys):
                if key not in self._starts:
                    new.setdefault(key, i)
            if new:
                self._reset([envs[i] for i in new.values()], [jobs[i].prompt.seed for i in new.values()], variant)
            for key, i in new.items():
                with self._watched("snapshot"):
                    self._starts[key] = self.simulator.snapshot(self._ids([envs[i]]))
            others = sorted(set(range(len(envs))) - set(new.values()))  # after the reset, which may have moved all of them
            self._restore([envs[i] for i in others], [self._starts[keys[i]] for i in others])
        else:
            self._reset(envs, [job.prompt.seed for job in jobs], variant)
        self.rules.begin(envs)
        for earned in (self._paid_N, self._taken_N, *self._best.values()):
            earned[envs] = 0

    def _reset(self, envs: list[int], seeds: list[int], variant: str | None) -> None:
        if "partial-reset" in self.spec.capabilities:
            ids, seeds_n = self._ids(envs), torch.tensor(seeds, dtype=torch.int64)
            with self._watched("reset"):
                shown = self.simulator.reset(seeds_n, ids, variant)
            self._place(ids, shown)
        else:  # environments without an episode start anywhere
            every = dict(zip(envs, seeds, strict=True))
            self.reset_all([every.get(i, seeds[0]) for i in range(self.num_envs)], variant)

    def _restore(self, envs: list[int], states: list[Any]) -> None:
        """Puts each environment into its state, all at once if the simulator can: a restore may cost an observation of all N."""
        join = getattr(self.simulator, "join", None)
        if join and envs:
            with self._watched("join"):
                parts = [(envs, join(states))]
        else:
            parts = [([env], state) for env, state in zip(envs, states, strict=True)]
        for some, state in parts:
            with self._watched("restore"):
                shown = self.simulator.restore(self._ids(some), state)
            self._place(self._ids(some), shown)

    def reset_all(self, seeds: list[int], variant: str | None = None) -> Observation:
        """Resets all environments, active ones too; returns their observations."""
        with self._watched("reset"):
            shown = self.simulator.reset(torch.tensor(seeds, dtype=torch.int64), None, variant)
        check_observation(f"reset() of {self.who}", shown, self.num_envs, self._observation)
        self._observation = shown
        return self.observation

    def _ids(self, envs: list[int]) -> torch.Tensor:
        return torch.tensor(envs, dtype=torch.int64)

    def _place(self, ids_n: torch.Tensor, shown: Observation) -> None:
        """Writes the observations of some environments into those of all."""
        check_observation(f"reset() or restore() of {self.who}", shown, len(ids_n), self._observation)
        old = self._observation
        if old is None:
            old = _blank(shown, self.num_envs)
        self._observation = _with_rows(old, ids_n, shown)

    def shown(self, envs: list[int]) -> Observation:
        """The policy's observations of these environments: a prompt's additional text follows the instruction."""
        seen = self.observation if len(envs) == self.num_envs else self.observation.rows(self._ids(envs))
        texts = [told(text, self.jobs[env]) for text, env in zip(seen.instructions, envs, strict=True)]
        return replace(seen, instructions=texts)

    # -- episodes go on ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> list[int]:
        """The environments in which an episode goes on."""
        return [i for i, job in enumerate(self.jobs) if job is not None]

    @property
    def observation(self) -> Observation:
        """Observations of all environments with their history; rows of inactive ones mean nothing."""
        assert self._observation is not None
        if not self.history:
            return self._observation
        moment = self._went if self.of_steps else len(self.calls)
        if self._seen is None or self._seen[0] is not self._observation or self._seen[1] != moment:
            before = self._before_step if self.of_steps else self.calls[-1].observation if self.calls else None
            fresh_N = torch.tensor([job is None or job.start == len(self.calls) for job in self.jobs])
            seen = follow(self._observation, before, fresh_N, self.history, self.of_steps)
            if self.of_steps and before is not None and self._waiting:  # no step of theirs has passed
                seen = _with_rows(seen, self._ids(self._waiting), before.rows(self._ids(self._waiting)))
            self._seen = (self._observation, moment, seen)
        return self._seen[2]

    def play(self, chosen: ActionSample, envs: list[int]) -> None:
        """Executes a chunk of actions, one after the other; if an episode ends or its instruction changes, the rest of its chunk
        is dropped."""
        envs_n = upload_one(self._ids(envs), chosen.actions_nKA.device)
        actions_NKA = spread(chosen.actions_nKA.float(), envs_n, self.num_envs)
        if actions_NKA.device != self.device:  # a simulator beside the policy takes them where they are
            actions_NKA = actions_NKA.cpu()
        count = actions_NKA.shape[1]
        call = PolicyCall(
            observation=self.observation,
            chosen=chosen,
            envs_n=envs_n,
            valid_NK=torch.zeros(self.num_envs, count, dtype=torch.bool),
            rewards_NK=torch.zeros(self.num_envs, count),
        )
        self.calls.append(call)
        if chosen.corrected_n is not None:
            by_expert_n = chosen.corrected_n.cpu()
            call.taken(actions_NKA.shape[2])[envs_n.cpu()[by_expert_n]] = chosen.actions_nKA.float().cpu()[by_expert_n]
        active_N = torch.zeros(self.num_envs, dtype=torch.bool)
        active_N[envs] = True
        for k in range(count):
            call.valid_NK[:, k] = active_N
            ended_N = self._step(call, k, actions_NKA[:, k], active_N)
            active_N = active_N & ~ended_N & ~self._asked_anew_N
            if not active_N.any():
                break
        self._refill()

    def _step(self, call: PolicyCall, k: int, actions_NA: torch.Tensor, active_N: torch.Tensor) -> torch.Tensor:
        """One step of the simulator, with action k of a call; returns which episodes ended with it. Writes rewards into the call,
        and the actions of those who took over."""
        rewards_N = call.rewards_NK[:, k]
        if self.of_steps:
            self._before_step = self.observation
            self._went += 1
        with self._watched("step"):
            found = self.simulator.step(actions_NA, active_N)
        before = self._observation
        check_transition(f"step() of {self.who}", found, self.num_envs, before, self._parts)
        self._parts, self._observation = frozenset(found.parts), found.observation
        assert before is not None
        texts = zip(before.instructions, found.observation.instructions, strict=True)
        self._asked_anew_N = torch.tensor([was != now for was, now in texts]) & active_N
        going = active_N.tolist()
        self._waiting = [env for env in self.active if not going[env]]
        if self._waiting:  # their rows mean nothing now
            self._place(self._ids(self._waiting), before.rows(self._ids(self._waiting)))
        self.steps += int(active_N.sum())
        ruled = self.rules(found, active_N)
        for number, env in enumerate(ruled.unstable_N.nonzero()[:, 0].tolist(), self.lost + 1):
            if warns_of_loss(number):
                why = found.observation.rows(self._ids([env])).not_finite()
                warnings.warn(f"{self.who}: environment {env} was lost (loss number {number}): {why}", stacklevel=2)
        sound_N = active_N & ~ruled.lost_N  # a lost environment's rows mean nothing
        check_parts(f"step() of {self.who}", ruled.parts, sound_N)
        check_reward(f"step() of {self.who}", ruled.rewards_N, sound_N)
        if found.interventions_NA is not None:
            taken_nA = found.interventions_NA.cpu()[sound_N]
            check_interventions(f"step() of {self.who}", taken_nA, actions_NA.shape[1])
            before_NA = call.taken(actions_NA.shape[1])[:, k]
            before_NA[sound_N] = torch.where(taken_nA.isnan(), before_NA[sound_N], taken_nA)
        if call.taken_NKA is not None:
            self._taken_over = True
            self._taken_N += (sound_N & ~call.taken_NKA[:, k].isnan().any(1)).float()
        rewards_N += ruled.rewards_N
        self._paid_N += rewards_N
        for name, value in ruled.parts.items():
            best = self._best.setdefault(name, torch.zeros(self.num_envs))
            best.copy_(torch.where(sound_N, torch.maximum(best, value), best))
        terminated_N = ruled.terminated_N
        ended_N = active_N & (terminated_N | ruled.truncated_N | ruled.lost_N)
        for env in ended_N.nonzero()[:, 0].tolist():
            if ruled.lost_N[env]:
                self._lose(env)
            else:
                self._end(env, Status.FINISHED if terminated_N[env] else Status.TRUNCATED_TIME, bool(ruled.success_N[env]))
        return ended_N

    # -- episodes end -----------------------------------------------------------------------------------------------------

    def _end(self, env: int, status: Status, success: bool) -> None:
        job = self.jobs[env]
        assert job is not None
        job.status, job.end = status, len(self.calls)
        job.last = self.observation.rows(self._ids([env]))
        job.outcome = {name: float(best[env]) for name, best in self._best.items()} | {
            "success_at_end": float(success),
            "return": float(self._paid_N[env]),
            "steps": float(self.rules.elapsed_N[env]),
        }
        if self._taken_over:
            job.outcome |= {
                "intervened": float(self._taken_N[env] > 0),
                "intervened_share": float(self._taken_N[env] / self.rules.elapsed_N[env]),
            }
            job.outcome |= {} if self._taken_N[env] else {"success_alone": float(self._best["success"][env])}
        self.ended.append(job)
        self.jobs[env] = None

    def _lose(self, env: int) -> None:
        """The environment failed: the episode is restarted, up to `TRIES` attempts."""
        job = self.jobs[env]
        assert job is not None
        self.lost += 1
        self.jobs[env] = None
        if job.tries < TRIES:
            self.queue.append(job)
        else:
            self.ended.append(job)

    def tracks(self) -> None:
        """Sets the trajectory data of every episode that ended since `begin`, and lets go of what they were made of, which would
        stay on the device while the policy learns."""
        set_tracks(self.calls, self.ended, self.spec)
        self.calls = []


def _blank(shown: Observation, num_envs: int) -> Observation:
    """N rows of nothing, in the shapes of an observation."""
    return Observation(
        images={camera: rows.new_zeros(num_envs, *rows.shape[1:]) for camera, rows in shown.images.items()},
        state=None if shown.state is None else shown.state.new_zeros(num_envs, *shown.state.shape[1:]),
        instructions=[""] * num_envs,
    )


def _with_rows(of_all: Observation, ids_n: torch.Tensor, shown: Observation) -> Observation:
    """Observations of all environments, with other ones of some."""
    there_n = upload_one(ids_n, shown.device)
    instructions = list(of_all.instructions)
    for env, text in zip(ids_n.tolist(), shown.instructions, strict=True):
        instructions[env] = text
    state = None
    if of_all.state is not None and shown.state is not None:
        state = of_all.state.index_copy(0, there_n, shown.state)
    return Observation(
        images={camera: of_all.images[camera].index_copy(0, there_n, rows) for camera, rows in shown.images.items()},
        state=state,
        instructions=instructions,
    )
