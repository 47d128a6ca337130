"""Demonstrations for policies that act: those of a task's data, and episodes of a simulator's expert."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from mmrl.api.errors import PluginError, UserError, plugin_errors
from mmrl.api.interfaces import Expert, Task
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import Demonstration, Observation, Simulation, TrajectoryData
from mmrl.api.types import Prompt
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.policies.acting.base import ActingPolicy
from mmrl.registry import plugins
from mmrl.rollout.simulators.lane import Lane
from mmrl.rollout.simulators.streams import on_default_stream

BEYOND = 1e-5
"""Actions may be outside [-1, 1] by this much, for rounding."""

# -- a task's own -----------------------------------------------------------------------------------------------------------


def task_demonstration(task: Task, prompt: Prompt) -> Demonstration | None:
    """The task's own demonstration of a prompt. Raises UserError if its data can't be used, and PluginError if it doesn't return
    a demonstration."""
    where = f"task {prompt.task!r}: demonstration() of prompt {prompt.id!r}"
    with plugin_errors(where):
        shown = task.demonstration(prompt)
    if shown is None:
        return None
    return checked(shown, where)


def checked(shown: Any, where: str) -> Demonstration:
    """What a task gave as a demonstration, if it is one. where: begins the errors. Raises UserError if its data can't be used,
    and PluginError if it isn't a demonstration."""
    if not isinstance(shown, Demonstration):
        raise PluginError(f"{where} is a {type(shown).__name__}: return a mmrl.api.simulators.types.Demonstration, or None")
    if problem := _malformed(shown):
        raise PluginError(f"{where}: {problem}")
    if not torch.isfinite(shown.actions_MA).all() or (shown.state is not None and not torch.isfinite(shown.state).all()):
        raise UserError(f"{where} has numbers that are not finite: mend or remove its episode")
    worst = float(shown.actions_MA.abs().max())
    if worst > 1 + BEYOND and not shown.physical_units:
        raise UserError(
            f"{where} has an action of {worst:.4g}, and a simulator's are in [-1, 1]: if they are metres or radians, "
            'set units = "physical" and policy.options.statistics'
        )
    return shown


def in_camera_order(shown: Demonstration, simulation: Simulation | None) -> Demonstration:
    """The demonstration with its cameras in the order of the simulator's, and others behind them: a policy that isn't told its
    cameras takes the first, or all in their order."""
    if simulation is None or not simulation.simulator:
        return shown
    chosen = simulation.options.get("cameras")  # a simulator with several may be told which to render
    order = chosen if isinstance(chosen, list | tuple) else plugins.registry().get("simulators", simulation.simulator).cameras
    names = [*(name for name in order if name in shown.images), *(name for name in shown.images if name not in order)]
    return replace(shown, images={name: shown.images[name] for name in names})


def _malformed(shown: Demonstration) -> str:
    """What is wrong with the shapes, as a text; empty if nothing is."""
    actions, state, T = shown.actions_MA, shown.state, 0
    if not isinstance(actions, torch.Tensor) or actions.ndim != 2 or actions.dtype is not torch.float32 or not actions.numel():
        return "actions_MA must be a float32 tensor [M, A] with at least one action"
    for what, rows, kind, ndim in [
        *((f"images[{camera!r}]", images, torch.uint8, 4) for camera, images in shown.images.items()),
        *([("state", state, torch.float32, 2)] if state is not None else []),
    ]:
        if not isinstance(rows, torch.Tensor) or rows.ndim != ndim or rows.dtype is not kind or not len(rows):
            return f"{what} must be {'uint8 [T, H, W, 3]' if ndim == 4 else 'float32 [T, S]'}"
        if T not in (0, len(rows)):
            return f"{what} has {len(rows)} moments, and others have {T}"
        T = len(rows)
    if not T:
        return "it has neither a picture nor a state"
    if shown.instructions and (len(shown.instructions) != T or shown.instructions[0] != shown.instruction):
        return f"instructions must be {T} texts, of which the first is its instruction, or none"
    return f"it has {len(actions)} actions for {T} moments: give each its own" if len(actions) < T else ""


def to_trajectory(shown: Demonstration, prompt: Prompt, policy: ActingPolicy) -> TrajectoryData:
    """A demonstration as trajectory data of the policy, with a call for each of its steps. The observation after the last step is
    unknown and not learned from; the last one is repeated."""
    if shown.actions_MA.shape[1] != policy.dims:
        raise UserError(
            f"task {prompt.task!r}: an action of its demonstrations has {shown.actions_MA.shape[1]} numbers, and "
            f"policy.options.dims = {policy.dims}: make them equal"
        )
    moments = len(next(iter(shown.images.values())) if shown.images else shown.state if shown.state is not None else ())
    if policy.history and moments == 1:
        raise UserError(
            f"task {prompt.task!r}: its demonstrations are of one moment each, and policy.options.history = {policy.history} "
            "asks for the pictures before it: leave history out"
        )
    track = policy.with_history(single_actions(shown, moments - 1 + policy.ahead, moments + 1))
    whole = policy.chunked(track, shown.physical_units)
    return replace(
        whole,
        choices=whole.choices[:moments],
        logprobs_TKC=whole.logprobs_TKC[:moments],
        tokens_T=None if whole.tokens_T is None else whole.tokens_T[:moments],
        valid_TK=whole.valid_TK[:moments],
        rewards_TK=whole.rewards_TK[:moments],
    )


def to_device(track: TrajectoryData, device: torch.device, of: torch.device | None = None) -> TrajectoryData:
    """An episode with its tensors on a device, so that several sources fit into one batch. of: only those on this device move."""

    def moved(rows: torch.Tensor) -> torch.Tensor:
        return rows.to(device) if of in (None, rows.device) else rows

    parts = {field.name: getattr(track, field.name) for field in fields(track)}
    own: dict[str, Any] = {name: moved(part) for name, part in parts.items() if isinstance(part, torch.Tensor)}
    return replace(track, images={camera: moved(rows) for camera, rows in track.images.items()}, **own)


def single_actions(shown: Demonstration, count: int, moments: int) -> TrajectoryData:
    """The first actions of a demonstration, at most so many, one in a call, and what was seen in so many moments: the last one
    that is known is repeated."""
    known = len(next(iter(shown.images.values())) if shown.images else shown.state if shown.state is not None else ())
    rows, done_MA = torch.arange(moments).clamp_max(known - 1), shown.actions_MA[:count]
    return TrajectoryData(
        instruction=shown.instruction,
        instructions=tuple(shown.instructions[row] for row in rows.tolist()) if shown.instructions else (),
        images={camera: images[rows] for camera, images in shown.images.items()},
        state=None if shown.state is None else shown.state[rows],
        choices=done_MA[:, None],
        logprobs_TKC=torch.full((len(done_MA), 1, 1), torch.nan),
        valid_TK=torch.ones(len(done_MA), 1, dtype=torch.bool),
        rewards_TK=torch.zeros(len(done_MA), 1),
    )


# -- an expert's ------------------------------------------------------------------------------------------------------------


def expert_actions(lane: Lane, envs: Sequence[int]) -> torch.Tensor:
    """What the simulator's expert would do in these environments now, float32 [n, A]."""
    if not isinstance(lane.simulator, Expert):
        raise UserError(f"simulator {lane.spec.id!r} has no expert: take another teacher")
    expert = lane.simulator.expert
    return on_default_stream(lane.device, lambda: expert()[torch.tensor(envs)])


def as_expert(lane: Lane, envs: Sequence[int], seen: Observation) -> ActionSample:
    """The expert's actions as a policy's sample."""
    actions_nA = expert_actions(lane, envs)
    return ActionSample(
        actions_nKA=actions_nA[:, None], choices=actions_nA[:, None], logprobs_nKC=torch.full((len(envs), 1, 1), torch.nan)
    )


def taken_over(lane: Lane, envs: Sequence[int], calls_n: torch.Tensor, chosen: ActionSample, share: float) -> ActionSample:
    """A policy's sample, in which the expert acts where it takes over: in a share of the episodes, from a call on that is drawn
    from the first half of the longest episode. Both are functions of the episode's seed. Chunks must have one action."""
    half, takes = max(1, lane.rules.max_steps // 2), []
    for env, call in zip(envs, calls_n.tolist(), strict=True):
        job = lane.jobs[env]
        assert job is not None
        chance = random.Random(derive(job.seed, "intervention"))
        takes.append(chance.random() < share and call >= chance.randrange(half))
    takes_n = torch.tensor(takes, device=chosen.logprobs_nKC.device)
    if not takes_n.any():
        return replace(chosen, corrected_n=takes_n)
    there = takes_n[:, None, None]
    actions_n1A = expert_actions(lane, envs)[:, None].to(chosen.actions_nKA)
    return replace(
        chosen,
        actions_nKA=torch.where(there, actions_n1A, chosen.actions_nKA),
        logprobs_nKC=torch.where(there, torch.nan, chosen.logprobs_nKC),
        corrected_n=takes_n,
    )


def observation_at(track: TrajectoryData, call: int) -> TrajectoryData:
    """One call of an episode, with its observation."""
    at = call % len(track.choices)
    return replace(
        track,
        instruction=track.told[at],
        instructions=(),
        images={camera: shown[at : at + 2] for camera, shown in track.images.items()},
        state=None if track.state is None else track.state[at : at + 2],
        choices=track.choices[at : at + 1],
        logprobs_TKC=track.logprobs_TKC[at : at + 1],
        valid_TK=track.valid_TK[at : at + 1],
        rewards_TK=track.rewards_TK[at : at + 1],
        actions_TKA=None if track.actions_TKA is None else track.actions_TKA[at : at + 1],
        corrected_TK=None if track.corrected_TK is None else track.corrected_TK[at : at + 1],
        tokens_T=None if track.tokens_T is None else track.tokens_T[at : at + 1],
    )


class EpisodeCache:
    """A bounded cache of an expert's newest episodes. Evicted episodes are played again, with the same result."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        """Bytes of the episodes that may be evicted."""
        self._tracks: OrderedDict[Any, TrajectoryData] = OrderedDict()
        self._kept: dict[Any, TrajectoryData] = {}

    def __contains__(self, key: Any) -> bool:
        return key in self._tracks or key in self._kept

    def __len__(self) -> int:
        return len(self._tracks) + len(self._kept)

    def __getitem__(self, key: Any) -> TrajectoryData:
        if key in self._kept:
            return self._kept[key]
        self._tracks.move_to_end(key)
        return self._tracks[key]

    def add(self, tracks: Mapping[Any, TrajectoryData], lasting: bool) -> None:
        """lasting: never evict these, because the simulator's episodes are not functions of a seed."""
        if lasting:
            self._kept |= tracks
            return
        for key, track in tracks.items():
            self._tracks[key] = track
            self.bytes += num_bytes(track)
        while self.bytes > self.most_bytes:
            self.bytes -= num_bytes(self._tracks.popitem(last=False)[1])


def num_bytes(track: TrajectoryData) -> int:
    """Bytes of its tensors."""
    held = [*track.images.values(), track.choices, track.logprobs_TKC, track.valid_TK, track.rewards_TK]
    return sum(t.numel() * t.element_size() for t in [*held, *([] if track.state is None else [track.state])])
