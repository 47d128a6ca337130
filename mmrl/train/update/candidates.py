"""Actions that a policy samples where transitions of a memory begin and end, for critics to choose from; and what it imitates."""

from __future__ import annotations

from typing import Protocol

import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.transfer import upload_one
from mmrl.api.types import Prompt, Status
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.squashed import Squashed
from mmrl.train.update.replay import Drawn
from mmrl.train.update.scenes import BothScenes

AT_ONCE = 64
"""Observations for which a policy samples candidates in one pass."""


class Candidates(Protocol):
    """Where a policy's candidates come from."""

    def renew(self, seed: int) -> None:
        """The policy has changed: sample anew. seed: of the samples."""

    def of(self, drawn: Drawn, after: bool, generator: torch.Generator) -> torch.Tensor:
        """[n, M, K * A]: candidates before drawn transitions, or after them."""
        ...

    def imitations(self, drawn: Drawn, actions: torch.Tensor) -> list[Trajectory]:
        """Demonstrations of one call each: these actions [n, K * A] where the transitions begin."""
        ...


class OfFeatures:
    """Of a policy that acts by what the memory keeps: it samples anew at each draw."""

    def __init__(self, policy: Squashed, many: int) -> None:
        self.policy, self.many = policy, many

    def renew(self, seed: int) -> None:
        """Nothing is kept."""

    @torch.no_grad()
    def of(self, drawn: Drawn, after: bool, generator: torch.Generator) -> torch.Tensor:
        features = drawn.after_nF if after else drawn.seen_nF
        noise = torch.randn(len(features), self.many, self.policy.dims, generator=generator)
        return self.policy.actor.sample(features, upload_one(noise, features.device))[0]

    def imitations(self, drawn: Drawn, actions: torch.Tensor) -> list[Trajectory]:
        nothing = Observation(images={}, state=None, instructions=[""] * len(actions))
        return calls_to_imitate(self.policy.imitated(drawn.seen_nF, actions), nothing, self.policy)


class OfScenes:
    """Of any policy that acts: it sees the scenes again. One observation's samples serve all draws until the policy changes."""

    def __init__(self, policy: ActingPolicy, many: int, scenes: BothScenes) -> None:
        self.policy, self.many, self.scenes = policy, many, scenes
        self._known: dict[tuple[bool, int], torch.Tensor] = {}
        self._seed = 0

    def renew(self, seed: int) -> None:
        self._known, self._seed = {}, seed

    def of(self, drawn: Drawn, after: bool, generator: torch.Generator) -> torch.Tensor:
        keys = self.scenes.keys(drawn.last_n if after else drawn.places_n, after)
        missing = sorted({key for key in keys if key not in self._known})
        for first in range(0, len(missing), AT_ONCE):
            some = missing[first : first + AT_ONCE]
            # a call's number makes the sample a function of the observation alone, whatever is drawn with it
            calls_n = torch.tensor([2 * row + is_old for is_old, row in some])
            seeds_n = torch.full_like(calls_n, self._seed)
            found = self.policy.candidates(self.scenes.shown(some), seeds_n, calls_n, self.many).flatten(2)
            self._known |= zip(some, found.cpu(), strict=True)
        return upload_one(torch.stack([self._known[key] for key in keys]), drawn.seen_nF.device)

    def imitations(self, drawn: Drawn, actions: torch.Tensor) -> list[Trajectory]:
        seen = self.scenes.shown(self.scenes.keys(drawn.places_n, after=False)).on(self.policy.device)
        chunks_nKA = actions.unflatten(1, (self.policy.chunk, self.policy.dims)).to(self.policy.device)
        return calls_to_imitate(self.policy.choices_of(chunks_nKA, seen), seen, self.policy)


def calls_to_imitate(
    choices: torch.Tensor, seen: Observation, policy: ActingPolicy, valid_nK: torch.Tensor | None = None
) -> list[Trajectory]:
    """Demonstrations of one call each. choices: [n, ...], in the policy's representation; seen: where they are made. valid_nK:
    bool, actions that were carried out; by default all."""
    found = []
    if valid_nK is None:
        valid_nK = torch.ones(len(choices), policy.chunk, dtype=torch.bool, device=choices.device)
    logprobs_nKC, tokens_n = policy.unsampled(choices)
    for n in range(len(choices)):
        track = TrajectoryData(
            instruction=seen.instructions[n],
            images={camera: rows[[n, n]] for camera, rows in seen.images.items()},  # what follows isn't learned from
            state=None if seen.state is None else seen.state[[n, n]],
            choices=choices[n : n + 1],
            logprobs_TKC=logprobs_nKC[n : n + 1],
            tokens_T=None if tokens_n is None else tokens_n[n : n + 1],
            valid_TK=valid_nK[n : n + 1],
            rewards_TK=torch.zeros(1, policy.chunk, device=choices.device),
        )
        found.append(Trajectory(prompt=Prompt(messages=[]), group=n, status=Status.FINISHED, data=track))
    return found
