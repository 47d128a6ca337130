"""Diffusion Policy: pictures and states of the last moments condition a U-Net, which turns noise into a chunk of actions by
denoising (Chi et al., Diffusion Policy: Visuomotor Policy Learning via Action Diffusion, arXiv 2303.04137).

n calls, M moments of a chain, O moments of an episode that are seen, C actions that the network predicts, K and D those that are
carried out and their numbers, P steps that are tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.tokens import TokenKind
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import PLACES
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.lerobot_policy import LeRobotPolicy
from mmrl.policies.acting.look import read_once
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.diffusion import tiny
from mmrl.policies.diffusion.denoising import Denoising, noise_schedule
from mmrl.policies.diffusion.loading import LAYOUT
from mmrl.policies.diffusion.options import DiffusionOptions
from mmrl.policies.diffusion.planned import planned_diffusion


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoised:
    """The part of a head that `ActingPolicy` needs."""

    slots: int
    """P: a step of the whole chunk is a choice, which has a log-probability of its own."""

    def choices_of(self, actions_nCA: torch.Tensor) -> torch.Tensor:
        """[n, 1, C, D]: a chain of its end alone."""
        return actions_nCA[:, None]


class Diffusion(LeRobotPolicy):
    """`policy.model` is a folder or hub name that LeRobot saved, a folder that this class saved, or `tiny:diffusion`.

    The network predicts C actions from that of the first moment that it sees. K of them, from the present one, are carried out,
    and log-probabilities are theirs alone; the rest of the chain is sampled as well, as context. A critic reads the condition,
    which no noise is in.
    """

    options_class: ClassVar[type[Any]] = DiffusionOptions
    layout = LAYOUT
    free = frozenset(
        {"chunk", "steps", "scheduler", "tuned_steps", "exploration_std", "likelihood_std", "eta", "likelihood", "cameras"}
    )
    choice_settings = frozenset({"dims", "chunk"}) | (free - {"cameras"})
    history_of_steps = True
    replays = True
    head: Any
    model: Any

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        asked = DiffusionOptions(**given)
        found, own, place = self.begin(
            config, asked, device, source, chunk="n_action_steps", steps="steps", scheduler="noise_scheduler_type"
        )
        said = found.config
        assert own.chunk and own.steps
        self.chunk, self.likelihood = own.chunk, own.likelihood
        self.history, self.horizon = said.n_obs_steps - 1, said.horizon
        most = {"chunk": self.horizon - self.history, "steps": said.num_train_timesteps, "tuned_steps": own.steps}
        for name, size in most.items():
            if (value := getattr(own, name) or 1) > size:
                raise UserError(f"policy.options.{name} = {value} is too many for this policy: {size} is the most")
        self.chain = Denoising(
            betas_T=noise_schedule(said.beta_schedule, said.num_train_timesteps, said.beta_start, said.beta_end),
            steps=own.steps,
            scheduler=own.scheduler,  # type: ignore[arg-type]  # completed
            predicts=said.prediction_type,  # type: ignore[arg-type]  # checked where it is read
            clip=said.clip_sample_range if said.clip_sample else None,
            tuned_steps=own.tuned_steps or own.steps,
            exploration_std=own.exploration_std,
            likelihood_std=own.likelihood_std,
            eta=own.eta,
        )
        self.model = LAYOUT.load(found, seed).to(self.device).eval()
        self.width, self.head = self.model.width, Denoised(slots=self.chain.tuned_steps)
        if (place / SETTINGS).is_file():
            self.load(place)

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        return planned_diffusion(cls, config)

    @classmethod
    def token_kind(cls, config: PolicyConfig) -> TokenKind:
        return TokenKind.DENOISING_STEP

    @property
    def continuous_dims(self) -> int:
        return self.chunk * self.dims if self.likelihood == "sum" else 1

    def unsampled(self, choices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Each step says the whole chunk; of a demonstration, the chunk's loss does."""
        steps = self.head.slots
        said = choices.new_full((len(choices),), 1 if choices.shape[1] == 1 else steps, dtype=torch.int64)
        return choices.new_full((len(choices), 1, steps), torch.nan), said

    @property
    def ahead(self) -> int:
        """All actions that the network predicts: those that are not carried out are learned as well."""
        return self.horizon

    @property
    def behind(self) -> int:
        return self.history

    @property
    def follows(self) -> bool:
        return True

    def following(self, rollout: Trajectory) -> Trajectory:
        """The expert says one action in each state, so that the others of a chunk weren't shown."""
        made = super().following(rollout)
        assert made.data is not None
        choices = torch.full_like(made.data.choices, torch.nan)
        choices[:, :, self.behind] = made.data.choices[:, :, self.behind]
        return replace(made, data=replace(made.data, choices=choices))

    def choice_terms(self) -> dict[str, Any]:
        return super().choice_terms() | {"actions foreseen": self.horizon, "moments seen": self.history + 1}

    def settings(self) -> Mapping[str, Any]:
        found = {"kind": tiny.FAMILY, "dims": self.dims, "chunk": self.chunk, "state": self.state, "cameras": self.cameras}
        return found | self.chain.settings() | {"likelihood": self.likelihood}

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        shown = any(track.choices.shape[1] == 1 for track in tracks)  # a demonstration
        return max(self.chain.tuned_steps, PLACES if shown else 1) * self.horizon

    # -- acting and learning ----------------------------------------------------------------------------------------------

    @property
    def takes_any_size(self) -> bool:
        return self.checkpoint.config.resize_shape is not None

    @property
    def noise_shape(self) -> tuple[int, int]:
        return self.horizon, self.dims

    @read_once
    def look(self, seen: Observation) -> torch.Tensor:
        """The condition, float32 [n, width]."""
        robot, environment = self._states(seen).split([self.robot, self.state - self.robot], -1)
        found: torch.Tensor = self.model.condition(robot, self._pictures(seen), environment)
        return found

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        condition = self.look(seen)
        return (*self.replayed(self._denoised, condition, draw, temperature), condition)

    def _denoised(self, condition: torch.Tensor, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
        """(actions, choices, log-probabilities) of `choose`."""
        end, choices, logprobs = self.chain.sample(partial(self.model.predict, condition), draw, self.noise_shape, temperature)
        return self._carried_out(end), choices, self._of_steps(logprobs)

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        condition = self.look(calls.observation)
        found, entropy = self.chain.score(partial(self.model.predict, condition), calls.choices, temperature)
        if calls.choices.shape[1] > 1:
            return self._of_steps(found), self._of_steps(entropy), condition
        # a demonstration: the mean is over all predicted actions, so that those that are not carried out are learned as well
        loss, nothing = (x.mean((1, 2, 3)).view(-1, 1, 1).expand(-1, 1, calls.slots) for x in (found, entropy))
        return loss, nothing, condition

    def _carried_out(self, x: torch.Tensor) -> torch.Tensor:
        """[..., C, D] -> [..., K, D]."""
        return x[..., self.history : self.history + self.chunk, :]

    def _of_steps(self, x_nPCD: torch.Tensor) -> torch.Tensor:
        """[n, 1, P]: what each step says of the actions that are carried out."""
        found = self._carried_out(x_nPCD)
        return (found.sum((2, 3)) if self.likelihood == "sum" else found.mean((2, 3)))[:, None]

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        return self.look(seen)

    # -- weights ----------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """A folder that LeRobot loads, with the settings beside it."""
        super().save(folder)
        self.save_network(
            self.model,
            folder,
            n_action_steps=self.chunk,
            num_inference_steps=self.chain.steps,
            noise_scheduler_type=self.chain.scheduler,
        )

    def _own(self) -> Any:
        """None: LeRobot's file has all."""
        return iter(())
