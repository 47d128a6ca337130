"""ACT: a transformer reads pictures and the robot's state and foresees a chunk of actions at once; a VAE's latent says how they
were demonstrated (Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, arXiv 2304.13705).

n calls, C actions that the network predicts, K and D those that are carried out and their numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.simulators.layout import asked_until
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig
from mmrl.policies.act import tiny
from mmrl.policies.act.config import CALLED, read_config
from mmrl.policies.act.ensemble import Ensemble
from mmrl.policies.act.network import Network
from mmrl.policies.act.options import ACTOptions
from mmrl.policies.act.planned import planned_act
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.heads import Normal
from mmrl.policies.acting.lerobot_folder import Layout
from mmrl.policies.acting.lerobot_policy import LeRobotPolicy
from mmrl.policies.acting.options import check_sizes
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.randomness import CallRandomness, of_actions
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.critic import Critic

SPREAD = "head.log_spread"
LAYOUT = Layout(
    family=tiny.FAMILY,
    called=CALLED,
    cure="give a folder or hub name of an ACT that LeRobot saved, or tiny:act",
    read_config=read_config,
    parse=tiny.parse,
    tiny=tiny.config,
    network=Network,
    prefix="model.",
)


class Around(Normal):
    """A normal distribution around the actions that the network predicts. The choices of a demonstration are all of them, with a
    further number: 1 where the action is real, 0 beyond the episode's end."""

    def __init__(self, dims: int, spread: float) -> None:
        super().__init__(0, dims, spread)

    def choices_of(self, actions_nKA: torch.Tensor) -> torch.Tensor:
        """[n, C, D + 1]."""
        return torch.cat([actions_nKA, torch.ones_like(actions_nKA[..., :1])], -1)


class ACT(LeRobotPolicy):
    """`policy.model` is a folder or hub name that LeRobot saved, a folder that this class saved, or `tiny:act`.

    The network predicts C actions, of which K are carried out; log-probabilities are theirs. A critic reads the mean of the
    hidden states of all C. The latent is 0, but where a demonstration is imitated: its loss is that of the VAE.
    """

    options_class: ClassVar[type[Any]] = ACTOptions
    layout = LAYOUT
    free = frozenset({"chunk", "cameras", "spread", "learn_spread", "ensemble", "kl_weight", "dropout"})
    head: Around
    model: Any

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        asked = ACTOptions(**given)
        found, own, place = self.begin(
            config, asked, device, source, chunk="n_action_steps", kl_weight="kl_weight", dropout="dropout"
        )
        said = found.config
        if not said.use_vae and asked.kl_weight not in (None, said.kl_weight):
            raise UserError(
                f"policy.options.kl_weight = {asked.kl_weight:g} weighs the divergence of a latent, and this ACT has no VAE: "
                "leave it out"
            )
        assert own.chunk and own.kl_weight is not None and own.dropout is not None
        self.chunk, self.chunk_size, self.kl_weight, self.dropout = own.chunk, said.chunk_size, own.kl_weight, own.dropout
        check_sizes("ACT", {"chunk": (self.chunk, said.chunk_size)})
        if asked.ensemble is not None and self.chunk > 1:
            raise UserError(
                f"policy.options.ensemble = {asked.ensemble} needs a call at each step, and chunk = {self.chunk}: set chunk = 1, "
                "or leave ensemble out"
            )
        beside = said.temporal_ensemble_coeff if self.chunk == 1 else None
        self.ensemble = beside if asked.ensemble is None else asked.ensemble
        self.ensembling = None if self.ensemble is None else Ensemble(self.ensemble, said.chunk_size)
        self.learn_spread, self.first_spread = own.learn_spread, own.spread
        self.head = Around(self.dims, own.spread)
        config_now = replace(said, dropout=self.dropout)
        self.model = nn.ModuleDict({"act": LAYOUT.load(replace(found, config=config_now), seed), "head": self.head})
        self.model = self.model.to(self.device).eval()
        self.width = said.dim_model
        if (place / SETTINGS).is_file():
            self.load(place)
        if not self.learn_spread:
            self.head.log_spread.data.fill_(torch.tensor(own.spread).log())
            self.head.log_spread.requires_grad_(False)

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        return planned_act(cls, config)

    @property
    def ahead(self) -> int:
        """All actions that the network predicts: those that are not carried out are learned as well."""
        return self.chunk_size

    @property
    def follows(self) -> bool:
        return True

    def choice_terms(self) -> dict[str, Any]:
        return super().choice_terms() | {"actions foreseen": self.ahead}

    def settings(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"kind": tiny.FAMILY, "dims": self.dims, "chunk": self.chunk, "state": self.state}
        found |= {"cameras": self.cameras, "spread": self.first_spread, "learn_spread": self.learn_spread}
        return found | {"kl_weight": self.kl_weight, "dropout": self.dropout}

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        shown = any(track.choices.shape[-1] > self.dims for track in tracks)  # a demonstration
        found: int = self.checkpoint.config.tokens(vae=shown)
        return found

    # -- acting -----------------------------------------------------------------------------------------------------------

    def look(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """(the robot's state [n, S], what else is known [n, E], pictures), as the network reads them."""
        robot, environment = self._states(seen)[:, 0].split([self.robot, self.state - self.robot], -1)
        return robot, environment, [pictures[:, 0] for pictures in self._pictures(seen)]

    def foresee(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        """(the actions that are predicted [n, C, D], states [n, width])."""
        hidden = self.model["act"].foresee(*self.look(seen))
        return self.model["act"].action_head(hidden), hidden.mean(1)

    def features(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        predicted, states = self.foresee(seen)
        return predicted[:, : self.chunk], states

    def act(
        self,
        seen: Observation,
        seeds_n: torch.Tensor,
        calls_n: torch.Tensor,
        temperature: float,
        critic: Critic | None = None,
        guidance: Guidance | None = None,
    ) -> ActionSample:
        """With temporal ensembling, an action at temperature 0 also depends on the episode's earlier calls."""
        found = super().act(seen, seeds_n, calls_n, temperature, critic, guidance)
        if self.ensembling is None or temperature:
            return found
        chosen = self.ensembling(seeds_n, calls_n, found.choices)[:, None]
        return replace(found, actions_nKA=self.simulated(chosen, seen.on(self.device)), choices=chosen)

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        if self.ensembling is None or temperature:
            return super().choose(seen, draw, temperature, guidance)
        predicted, states = self.foresee(seen)
        actions, _, logprobs = self.head.sample(predicted[:, : self.chunk], draw, temperature)
        return actions, predicted, logprobs, states

    # -- learning ---------------------------------------------------------------------------------------------------------

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if calls.choices.shape[-1] == self.dims:
            return super().scored(calls, temperature)
        error_n, divergence_n, states = self.imitated(calls.observation, calls.choices)
        loss_nK1 = (error_n + self.kl_weight * divergence_n)[:, None, None].expand(-1, self.chunk, 1)
        return -loss_nK1, torch.zeros_like(loss_nK1), states

    def imitated(self, seen: Observation, choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of demonstrations: (mean distance of their real actions from those that the network predicts given their latents [n],
        the latents' divergence from a standard normal distribution in nats [n], states). The latents are drawn by numbers that
        are functions of the actions and of the weights: so they differ from step to step, and not where a run goes on again."""
        network, actions, real_nC = self.model["act"], choices[..., :-1], choices[..., -1] > 0.5
        robot, environment, pictures = self.look(seen)
        draw = of_actions(actions, network.action_head.bias)
        latent, divergence_n = None, actions.new_zeros(len(actions))
        with self._dropping(draw):
            if self.checkpoint.config.use_vae:
                mean, log_variance = network.told(robot, actions, real_nC)
                latent = mean + (log_variance / 2).exp() * draw.normal(0, mean.shape[1])
                divergence_n = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1)
            hidden = network.foresee(robot, environment, pictures, latent)
        errors_nC = (actions - network.action_head(hidden)).abs().mean(-1).where(real_nC, 0.0)
        return errors_nC.sum(1) / real_nC.sum(1).clamp_min(1), divergence_n, hidden.mean(1)

    @contextlib.contextmanager
    def _dropping(self, draw: CallRandomness) -> Iterator[None]:
        """Inside, the network is in training mode, if gradients are asked for: a pass of reinforcement never is."""
        if not self.dropout or not torch.is_grad_enabled():
            yield
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(draw.seeds_n.sum()))
            self.model["act"].train()
            try:
                yield
            finally:
                self.model["act"].eval()

    def chunked(self, track: TrajectoryData, physical: bool = False) -> TrajectoryData:
        """The actions beyond the end of the episode, or of its instruction, are marked as not real."""
        made, count = super().chunked(track, physical), len(track.choices)
        steps = torch.arange(count, device=self.device)[:, None] + torch.arange(self.ahead, device=self.device)
        ends_T1 = torch.tensor(asked_until(track), device=self.device)[:, None]
        real = (steps < ends_T1)[..., None].to(made.choices.dtype)
        return replace(made, choices=torch.cat([made.choices[..., :-1], real], -1))

    def following(self, rollout: Trajectory) -> Trajectory:
        """The expert says one action in each state, so that only the first of a chunk is real."""
        made = super().following(rollout)
        assert made.data is not None
        choices = made.data.choices.clone()
        choices[:, 1:, -1] = 0
        return replace(made, data=replace(made.data, choices=choices))

    # -- weights ----------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """A folder that LeRobot loads, with the settings and the standard deviation beside it."""
        super().save(folder)
        changed = {"temporal_ensemble_coeff": self.ensemble, "kl_weight": self.kl_weight, "dropout": self.dropout}
        self.save_network(self.model["act"], folder, n_action_steps=self.chunk, **changed)

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The standard deviation: LeRobot's file has all others."""
        yield SPREAD, self.head.log_spread
