"""What a lane of environments records of its episodes, and the trajectory data that come of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmrl.api.episodes import SAID
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.specs import SimulatorSpec
from mmrl.api.transfer import upload, upload_one
from mmrl.api.types import Prompt, Status
from mmrl.policies.acting.action_sample import ActionSample


@dataclass(kw_only=True)
class EpisodeJob:
    """An episode to play, and later its result."""

    prompt: Prompt
    seed: int
    """Fixes the policy's random draws in this episode."""
    tries: int = 0
    status: Status = Status.ENVIRONMENT_ERROR
    outcome: dict[str, float] = dataclasses.field(default_factory=dict)
    track: TrajectoryData | None = None
    env: int = 0
    start: int = 0
    """Index of its first call among those of its lane."""
    end: int = 0
    last: Observation | None = None
    """One row: the final observation."""


@dataclass(kw_only=True)
class PolicyCall:
    """One call of the policy: observations of all N environments, choices for those at `envs_n`, and rewards."""

    observation: Observation
    chosen: ActionSample
    envs_n: torch.Tensor
    valid_NK: torch.Tensor
    rewards_NK: torch.Tensor
    taken_NKA: torch.Tensor | None = None
    """On the host: the actions of those who took over, NaN where nobody did; None if nobody could."""

    def taken(self, dims: int) -> torch.Tensor:
        """`taken_NKA`, made if it wasn't. dims: numbers of an action."""
        if self.taken_NKA is None:
            self.taken_NKA = torch.full((*self.rewards_NK.shape, dims), torch.nan)
        return self.taken_NKA


def set_tracks(calls: Sequence[PolicyCall], ended: Sequence[EpisodeJob], spec: SimulatorSpec) -> None:
    """Sets the trajectory data of episodes that ended. calls: those of their lane, from the first of the oldest episode on."""
    if not calls:
        return
    device, n = calls[0].chosen.choices.device, len(calls[0].valid_NK)
    images = {camera: torch.stack([c.observation.images[camera] for c in calls]) for camera in calls[0].observation.images}
    states = [c.observation.state for c in calls]
    known = [s for s in states if s is not None]
    state = torch.stack(known) if len(known) == len(states) else None
    choices = torch.stack([spread(c.chosen.choices, c.envs_n, n) for c in calls])
    actions = torch.stack([spread(c.chosen.actions_nKA.float(), c.envs_n, n) for c in calls])
    logprobs = torch.stack([spread(c.chosen.logprobs_nKC, c.envs_n, n) for c in calls])
    valued = [spread(c.chosen.values_nU, c.envs_n, n) for c in calls if c.chosen.values_nU is not None]
    values = torch.stack(valued) if valued else None
    advised = [spread(c.chosen.expert_actions_nA, c.envs_n, n) for c in calls if c.chosen.expert_actions_nA is not None]
    advice = torch.stack(advised) if advised else None
    counted = [spread(c.chosen.tokens_n, c.envs_n, n) for c in calls if c.chosen.tokens_n is not None]
    tokens = torch.stack(counted) if counted else None
    corrected = None
    if any(c.taken_NKA is not None for c in calls):
        taken = upload_one(torch.stack([c.taken(actions.shape[-1]) for c in calls]), device)
        actions = torch.where(taken.isnan(), actions, taken)
        corrected = ~taken.isnan().all(3)
        logprobs = logprobs.masked_fill(corrected.any(2)[:, :, None, None], torch.nan)
    sent = upload({name: torch.stack([getattr(c, name) for c in calls]) for name in ("valid_NK", "rewards_NK")}, device)
    valid, rewards = sent["valid_NK"], sent["rewards_NK"]
    timed: dict[str, Any] = {"step_s": 1 / spec.control_hz} if spec.control_hz else {}
    for job in ended:
        if job.last is None:
            continue
        at = (slice(job.start, job.end), job.env)
        seen = [*(c.observation.instructions[job.env] for c in calls[at[0]]), *job.last.instructions]
        texts = [told(text, job) for text in seen]
        job.track = TrajectoryData(
            instruction=texts[0],
            instructions=tuple(texts) if len(set(texts)) > 1 else (),
            images={camera: torch.cat([shown[at], job.last.images[camera]]) for camera, shown in images.items()},
            state=None if state is None or job.last.state is None else torch.cat([state[at], job.last.state]),
            choices=choices[at],
            logprobs_TKC=logprobs[at],
            valid_TK=valid[at],
            rewards_TK=rewards[at],
            values_TU=None if values is None else values[at],
            expert_actions_TA=None if advice is None else advice[at],
            actions_TKA=actions[at],
            corrected_TK=None if corrected is None else corrected[at],
            tokens_T=None if tokens is None else tokens[at],
            **timed,
        )


def spread(rows_n: torch.Tensor, envs_n: torch.Tensor, num_envs: int) -> torch.Tensor:
    """[n, ...] -> [N, ...], 0 in the environments without a choice."""
    return rows_n.new_zeros(num_envs, *rows_n.shape[1:]).index_copy_(0, upload_one(envs_n, rows_n.device), rows_n)


def told(instruction: str, job: EpisodeJob | None) -> str:
    """The instruction, followed by the prompt's additional text."""
    said = job.prompt.meta.get(SAID, "") if job else ""
    return f"{instruction} {said}".strip()
