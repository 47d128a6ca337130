"""The critics of an `off-policy` stage whose policy is as small as they are, so that they take most of a step's time."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from mmrl.config.sections import OffPolicyStage, Stage
from mmrl.policies.acting.planned import META, Planned
from mmrl.policies.action_values import ActionValues
from mmrl.policies.actors import Actor
from mmrl.policies.batch_renorm import BatchRenorm
from mmrl.policies.return_bins import Bins
from mmrl.train.plan.counter import Pass
from mmrl.train.plan.traced import trace, trace_both


@dataclass(frozen=True, slots=True, kw_only=True)
class Critics:
    """Passes over a batch of transitions."""

    target: Pass
    """Of the target critics, without gradients."""
    forward: Pass
    backward: Pass
    weights: int
    calls: int
    """Calls of the policy in a step, each of which is learned from `updates` times."""
    updates: int
    noise: tuple[Pass, Pass] | None = None
    """Forwards and backwards of the critics of noise, if there are any, by which the policy learns in each of the updates."""
    noise_updates: int = 0
    """Updates of the critics of noise for each call."""
    noise_weights: int = 0
    acted: int = 0
    """Calls in which the base acts again, in a step."""
    gripper: tuple[Pass, ...] = ()
    """Of an update of the gripper's own critic, if there is one: without gradients, forwards, and backwards."""
    gripper_weights: int = 0

    @property
    def bytes(self) -> int:
        """Weights, AdamW's moments and gradients, the target's weights if there is one, and activations. Those of the gripper are
        the policy's, but for the target's."""
        own = (4 + bool(self.target.flops)) * self.weights
        return 4 * (own + 4 * self.noise_weights + self.gripper_weights) + self.backward.peak


def critics_of(stage: Stage, planned: Planned, updates: int) -> Critics | None:
    """None for another stage or policy. updates: of the policy in a step."""
    actor, features = planned.model, planned.width
    if not isinstance(stage, OffPolicyStage) or stage.improve is not None or not isinstance(actor, Actor):
        return None
    aliasing, rows = stage.noise_aliasing, stage.batch_size
    dims = planned.chunk * planned.dims if aliasing else actor.dims
    calls = updates // policy_updates(stage)
    bins = Bins(low=stage.low, high=stage.high, number=stage.bins, smoothing=stage.smoothing) if stage.bins else None
    with META:
        renorm = BatchRenorm if stage.crossq else None
        made = ActionValues(features, dims, critics=stage.critics, hidden=stage.hidden, bins=bins, renorm=renorm)
    both = 2 * rows if stage.crossq else rows  # CrossQ's critics value what follows in the same pass

    def passed() -> torch.Tensor:
        seen, chosen = torch.empty(both, features, device=META), torch.empty(both, dims, device=META)
        found = made.outputs(seen, chosen)
        if stage.conservative:  # at random, of the policy here, and of the policy after it
            many = torch.empty(rows, 3 * stage.conservative_samples, dims, device=META)
            found = torch.cat([found.flatten(), made(seen, many).flatten()])
        return found

    forward, backward, _ = trace_both(passed)
    noise, noise_weights = None, 0
    if aliasing:
        with META:
            of_noise = ActionValues(features, actor.dims, critics=stage.critics, hidden=stage.hidden)
        noise_weights = sum(p.numel() for p in of_noise.parameters())
        noise = trace_both(
            lambda: of_noise.outputs(torch.empty(rows, features, device=META), torch.empty(rows, actor.dims, device=META))
        )[:2]
    gripper, chooses = tuple[Pass, ...](), actor.gripper
    if chooses is not None:
        valued = functools.partial(chooses, torch.empty(rows, features, device=META))
        after = trace(valued)
        gripper = (after, after, *trace_both(valued)[:2])  # what its own weights choose is valued by its target's
    alone = 2 * rows - both  # rows of the target critics
    return Critics(
        target=trace(lambda: made.outputs(torch.empty(alone, features, device=META), torch.empty(alone, dims, device=META))),
        forward=forward,
        backward=backward,
        weights=sum(p.numel() for p in made.parameters()),
        calls=calls,
        updates=stage.updates,
        noise=noise,
        noise_updates=aliasing.updates if aliasing else 0,
        noise_weights=noise_weights,
        acted=calls * (stage.updates + aliasing.updates) * rows if aliasing else 0,
        gripper=gripper,
        gripper_weights=sum(p.numel() for p in chooses.parameters()) if chooses else 0,
    )


def policy_updates(stage: OffPolicyStage) -> int:
    """Updates of a policy that isn't improved for each of its calls."""
    return stage.updates if stage.noise_aliasing else 1
