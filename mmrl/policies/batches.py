"""Data of an update: an algorithm's credit, micro-batches of targets, and the outputs of a forward pass.

S calls or tokens in a row, K actions in a chunk, C choices in an action, L targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmrl.api.simulators.layout import Ratio, per_target, places, values_per_target
from mmrl.api.simulators.types import Observation
from mmrl.api.types import Rollout
from mmrl.compute.teams import Team


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The L targets of a micro-batch: the inputs of losses, metrics and critics for every kind of policy."""

    sampler_logprobs_L: torch.Tensor
    """float32, as the sampler reported them; NaN where nothing was sampled, as in a demonstration."""
    advantages_L: torch.Tensor
    """float32 credit of each target."""
    rollout_L: torch.Tensor
    """int64 index of the rollout, 0..N-1 over the whole batch."""
    place_L: torch.Tensor
    """int64 index of the target within its rollout, from 0."""
    off_policy_L: torch.Tensor
    """bool: `Rollout.off_policy`."""
    values_L: torch.Tensor | None = None
    """float32: the critic's values before the update."""
    returns_L: torch.Tensor | None = None
    """float32: targets of the critic; NaN where it isn't trained."""


def ones(rollouts: Sequence[Rollout]) -> Credit:
    """Credit with advantage 1 for every rollout."""
    return Credit(advantages=torch.ones(len(rollouts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionMicroBatch(Targets):
    """One forward pass of a policy that acts: S calls of it, and the L targets in them. The counterpart of `MicroBatch`.

    A target is a token, an action or a whole chunk, as the stage's `ratio` says: its log-probability is the sum of its choices'.
    """

    observation: Observation
    """S rows."""
    choices: torch.Tensor
    """[S, ...], in the head's representation."""
    slots: int
    """Choices in an action; see `Head.slots`."""
    valid_SK: torch.Tensor
    """bool: actions that were executed."""
    ratio: Ratio
    tokens_S: torch.Tensor | None = None
    """int64: see `TrajectoryData.tokens_T`."""
    at_L: torch.Tensor | None = None
    """int64: where the targets are among all places of the S calls; see `mmrl.api.simulators.layout.per_target`."""

    def targets(self, x_SKC: torch.Tensor) -> torch.Tensor:
        """Values of all choices -> [L]: sums over each target's executed actions."""
        return per_target(x_SKC, self.valid_SK, self.ratio, self.at_L, self.tokens_S)

    def critic_values(self, values_SU: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A critic's values, of each action (U = K) or of the chunk (U = 1) -> ([L], none: the collector has those of final
        states)."""
        found = values_per_target(values_SU, self.valid_SK, self.slots, self.ratio, self.at_L, self.tokens_S)
        return found, values_SU.new_zeros(0)

    @property
    def through_call_L(self) -> torch.Tensor:
        """float32: how far through its call each target is, see `mmrl.algorithms.loss.MEASURED`."""
        there_SU = places(self.valid_SK, self.slots, self.ratio, self.tokens_S)
        shares_SU = (there_SU.cumsum(1) - 1) / (there_SU.sum(1, keepdim=True) - 1).clamp_min(1)
        shares_SU = shares_SU.masked_fill(there_SU.sum(1, keepdim=True) == 1, 1.0)
        return shares_SU[there_SU] if self.at_L is None else shares_SU.flatten()[self.at_L]

    @property
    def final_rollout_R(self) -> torch.Tensor:
        return self.rollout_L.new_zeros(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A pass that a team of ranks computes together. All have the same rows, and each the targets of other rollouts."""

    team: Team
    kept_K: torch.Tensor
    """int64, ascending: the flat positions in the rows from which some rank's targets or final states are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutputs:
    """Outputs of one forward pass for a micro-batch's targets."""

    logprobs_L: torch.Tensor
    """float32, with gradient."""
    entropy_L: torch.Tensor
    """float32, of the distribution each target was taken from, in nats."""
    states_QH: torch.Tensor | None = None
    """Hidden states that a critic reads, if requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch(Targets):
    """One forward pass: B rows of at most S tokens, and the L tokens in them that are trained.

    A row is a group, `[prompt][completion 1]..[completion G]`, or one `[prompt][completion]`. A completion of several turns also
    contains the observations between them.
    """

    ids_BS: torch.Tensor
    """int64 token ids; padding on the right."""
    segment_BS: torch.Tensor
    """int64: 0 prompt, 1..G the completion a token belongs to, -1 padding. A token sees the prompt and its own segment."""
    positions: torch.Tensor | None
    """[axes, B, S] rotary positions as in `PromptInputs`, restarting after the prompt in every segment; None lets the model
    count."""
    media: Mapping[str, torch.Tensor]
    """Keyword arguments of the model's forward: pixels, grids; concatenated over the rows' prompts. They come to a GPU when they
    are read, see `mmrl.train.update.prefetch`."""
    pictures: tuple[int, ...] = ()
    """Numbers of all pictures in `media`, see `mmrl.policies.vlm.vision_cache`."""
    source_L: torch.Tensor
    """int64 index into the flattened [B * S] rows of the position that predicts each trained token."""
    target_L: torch.Tensor
    """int64 id that was sampled there."""
    final_R: torch.Tensor
    """int64 index into the flattened rows of the last token of each rollout: its final state."""
    final_rollout_R: torch.Tensor
    """int64 index of the rollout of each of these."""
    shared: Shared | None = None
    """Who computes the pass together; None: this rank alone."""
    routes_MTK: torch.Tensor | None = None
    """int16, on the host: the experts with which each of the T = B * S tokens was sampled, in each layer that has some; -1 where
    they aren't known. See `mmrl.policies.vlm.routes`."""
    masked: MicroBatch | None = None
    """The same pass with less of the images, see `[stages.perception]`, if the policy that sees less learns too."""
    masked_logprobs_L: torch.Tensor | None = None
    """float32: the log-probabilities of the policy before the update that sees less; None where they aren't known."""

    def critic_values(self, values_QU: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A critic's values [L + R, 1] -> before each trained token [L], and after each rollout [R]."""
        length = len(self.source_L)
        return values_QU[:length, 0], values_QU[length:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What an algorithm computes from a step's rewards. T is the longest rollout's number of trained tokens."""

    advantages: torch.Tensor
    """float32 [N] or [N, T]; NaN for rollouts that are left out of the update."""
    values_NT: torch.Tensor | None = None
    """The critic's value before each token, if there is a critic."""
    returns_NT: torch.Tensor | None = None
    """Targets of the critic; NaN where it isn't trained."""

    @property
    def taught(self) -> list[bool]:
        """For each rollout, whether it has a nonzero advantage."""
        nonzero = self.advantages.nan_to_num(0.0) != 0
        found: list[bool] = (nonzero if nonzero.ndim == 1 else nonzero.any(1)).tolist()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Everything one update needs; the gradient doesn't depend on the split into micro-batches."""

    micro: tuple[Any, ...]
    """`Targets` with the other inputs of the policy's forward pass: `MicroBatch`, `ActionMicroBatch`, or a plugin's class."""
    num_tokens: int
    """Trained tokens over all micro-batches and ranks: the normaliser of token means."""
    num_rollouts: float
    """Trained rollouts over all micro-batches and ranks: the normaliser of sequence means. Of an episode whose calls are dealt to
    several mini-batches, each counts its share."""
    lengths_N: torch.Tensor
    """int64 trained tokens per rollout."""
    groups_N: torch.Tensor | None = None
    """int64 group of each rollout; None from a packer that doesn't say."""
    credits_N: torch.Tensor | None = None
    """float32 credit of each rollout, the mean of its tokens'; NaN for rollouts that aren't in this batch."""
    looks: bool = True
    """Some rollout that is computed saw a picture, or heard a sound if the model sees none. Where weights are spread over ranks,
    blank pictures stand in for none."""
    hears: bool = True
    """Some rollout that is computed heard a sound; likewise."""
