"""A small policy that steers a frozen one: it chooses the noise with which the flow of the frozen one's actions begins.

Wagenmaker et al., Steering Your Diffusion Policy with Latent Space Reinforcement Learning (DSRL), arXiv 2506.15799. Whatever it
chooses, the actions are those of the frozen policy, and nothing is differentiated through its flow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.specs import Bounds, SimulatorSpec
from mmrl.api.tokens import TokenKind
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.look import Look
from mmrl.policies.acting.observed import present_state_of
from mmrl.policies.acting.options import Layer, PolicyOptions, Width
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.randomness import Begun, CallRandomness
from mmrl.policies.actors import Actor, NoisyTanh, SquashedNormal
from mmrl.policies.load import BASE, errors_of_base, named, policy_beneath
from mmrl.policies.planned_base import planned_base
from mmrl.policies.squashed import Squashed, planned_actor

if TYPE_CHECKING:
    from mmrl.api.interfaces import Simulator


@dataclass(frozen=True, kw_only=True)
class SteeredOptions(PolicyOptions):
    base: str | Mapping[str, Any] = ""
    """The frozen policy that is steered, whose actions come from noise by a flow or by denoising. Its folder, or for one that
    mmrl didn't save a table with its kind, model and options."""
    state: Width = 0
    """Numbers of the simulator's state that is read beside the base's hidden states; 0 reads none."""
    reach: Annotated[float, Bounds(above=0, high=10)] = 1.5
    """Largest size of a number of the noise, which is standard normal where nobody steers."""
    each: bool = False
    """Each action of a chunk begins with noise of its own; false: all begin with the same."""
    noise: Annotated[float, Bounds(low=0, high=2)] = 0.0
    """Standard deviation around tanh of what is chosen, in units of `reach`, for TD3; 0: it is learned, before tanh."""
    hidden: Sequence[Layer] = (256, 256)
    """Widths of its hidden layers; `stages.hidden` has those of the critics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise UserError("policy.options.hidden = [] must be a list of widths, such as [256, 256]")
        if not self.base:
            raise UserError("policy.options.base is empty, and somebody must be steered: give a policy with a flow")

    def actor(self, width: int, noise_shape: tuple[int, int] | None) -> Actor:
        """The perceptron. width: of the features. Raises UserError for a base without noise."""
        if noise_shape is None:
            raise UserError(
                f"{named(self.base)} doesn't act by a flow from noise: give one that does, such as pi0, or use policy.kind = "
                '"squashed"',
                key=BASE,
            )
        rows, numbers = noise_shape
        numbers *= rows if self.each else 1
        sizes: dict[str, Any] = {"hidden": list(self.hidden)}
        return NoisyTanh(width, numbers, noise=self.noise, **sizes) if self.noise else SquashedNormal(width, numbers, **sizes)


class Steered(Squashed):
    """A perceptron whose action, in [-1, 1], is the noise with which the base's flow begins, divided by `reach`.

    Features [n, F] are the base's hidden states and the simulator's state. The base adds no noise of its own to a flow's steps,
    so that what is done is a function of what is chosen; a choice is one for all actions of a chunk.
    """

    options_class = SteeredOptions
    imitates = False
    choice_settings = frozenset({"state", "base", "reach", "each", "noise"})
    base: ActingPolicy

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        own = self.own = SteeredOptions(**given)
        self.device, self.state, self.residual = torch.device(device), own.state, 0.0
        self.base = policy_beneath(own.base, config, device)
        self.dims, self.chunk = self.base.dims, self.base.chunk
        self.history, self.history_of_steps = self.base.history, self.base.history_of_steps
        self.reads_text = self.base.reads_text
        self.noise_of = json.dumps([own.base, own.reach], default=str, sort_keys=True)
        self.width = self.base.width + own.state
        self.begin(config, lambda: own.actor(self.width, self.base.noise_shape), seed, source)

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        own = SteeredOptions(**config.options)
        base = planned_base(own.base, config)
        width = base.width + own.state
        return planned_actor(lambda: own.actor(width, base.noise_shape), width, base, base.dims, base.chunk)

    @classmethod
    def token_kind(cls, config: PolicyConfig) -> TokenKind:
        """The one choice of a call is where its denoising begins."""
        return TokenKind.DENOISING_STEP

    def unsampled(self, choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        said = torch.ones(len(choices), dtype=torch.int64, device=choices.device)
        return choices.new_full((len(choices), 1, 1), torch.nan), said

    def fits(self, task: str, simulator: Simulator, spec: SimulatorSpec) -> None:
        with errors_of_base(self.own.base):
            self.base.fits(task, simulator, spec)

    def settings(self) -> Mapping[str, Any]:
        own = self.own
        found = {"kind": "steered", "model": "mlp", "state": own.state, "reach": own.reach, "each": own.each}
        return found | {"base": own.base, "noise": own.noise, "hidden": list(own.hidden)}

    # -- what it sees and does --------------------------------------------------------------------------------------------

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        """The base reads once, for the features and to act."""
        return super().choose(Look.at(seen), draw, temperature, guidance)

    @torch.no_grad()
    def reading(self, seen: Observation, draw: CallRandomness | None) -> torch.Tensor:
        with errors_of_base(self.own.base):
            found = [self.base.states_of(seen, draw)]
        if self.state:
            found.append(present_state_of(seen, self.state, self.state_moments))
        return torch.cat([x.float() for x in found], 1)

    def played(self, seen: Observation, draw: CallRandomness, actions_nA: torch.Tensor) -> torch.Tensor:
        assert self.base.noise_shape is not None
        ahead, numbers = self.base.noise_shape
        return self._begun(seen, draw, (self.own.reach * actions_nA).view(len(seen), -1, numbers).expand(-1, ahead, -1))

    def unsteered(self, seen: Observation, draw: CallRandomness) -> torch.Tensor:
        """[n, K, A]: what the simulator gets where the base begins with standard normal noise, as it does of itself."""
        assert self.base.noise_shape is not None
        return self._begun(seen, draw, draw.normal(0, *self.base.noise_shape))

    @torch.no_grad()
    def actions_of(self, seen: Observation, noise_nA: torch.Tensor) -> torch.Tensor:
        """[n, K * A] in [-1, 1]: what the simulator gets where this noise is chosen, in units of `reach`."""
        nothing_n = torch.zeros(len(seen), dtype=torch.int64, device=self.device)
        draw = CallRandomness(seeds_n=nothing_n, calls_n=nothing_n)
        return self.played(seen.on(self.device), draw, noise_nA).flatten(1).float().clamp(-1, 1)

    def _begun(self, seen: Observation, draw: CallRandomness, start: torch.Tensor) -> torch.Tensor:
        """[n, K, A]: the actions of flows that begin with `start`, see `ActingPolicy.noise_shape`."""
        begun = Begun(seeds_n=draw.seeds_n, calls_n=draw.calls_n, start=start)
        return self.base.simulated(self.base.choose(seen, begun, 0.0)[0], seen)

    def imitated(self, features: torch.Tensor, actions_nA: torch.Tensor) -> torch.Tensor:
        raise UserError("a steered policy chooses noise, which nobody else's actions have: train its base by imitation")

    def transitions(self, track: TrajectoryData) -> tuple[torch.Tensor, torch.Tensor]:
        if track.corrected_T is not None and bool(track.corrected_T.any()):
            raise UserError(
                "a steered policy can't learn from steps in which another acted, as their actions have no noise: set "
                "stages.noise_aliasing"
            )
        return super().transitions(track)


class Acted:
    """What critics of actions see of a steered policy: its features, and in place of the noise the actions that were carried
    out, which may be another's."""

    noise_of = ""

    def __init__(self, policy: Steered) -> None:
        self.policy, self.width, self.numbers = policy, policy.width, policy.chunk * policy.dims

    def remembered(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        return self.policy.remembered(seen, draw)

    def remembered_of(self, track: TrajectoryData) -> torch.Tensor:
        return self.policy.remembered_of(track)

    def transitions(self, track: TrajectoryData) -> tuple[torch.Tensor, torch.Tensor]:
        """(features [T + 1, F], chunks of actions [T, K * A] in [-1, 1]) of an episode that was played."""
        assert track.actions_TKA is not None
        return self.policy.seen_in(track), track.actions_TKA.flatten(1).float().clamp(-1, 1)
