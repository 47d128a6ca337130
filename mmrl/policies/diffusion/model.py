"""Diffusion Policy: pictures and states of the last moments condition a U-Net, which turns noise into a chunk of actions by
denoising (Chi et al., Diffusion Policy: Visuomotor Policy Learning via Action Diffusion, arXiv 2303.04137).

n calls, M moments of a chain, O moments of an episode that are seen, C actions that the network predicts, K and D those that are
carried out and their numbers, P steps that are tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.history import earlier, present
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.flow import PLACES
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.lerobot_processors import ACTION, STATE, Files, chosen_statistics
from mmrl.policies.acting.observed import cameras_of, state_of
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.diffusion import tiny
from mmrl.policies.diffusion.config import ENVIRONMENT
from mmrl.policies.diffusion.denoising import Denoising, noise_schedule
from mmrl.policies.diffusion.loading import (
    Checkpoint,
    check_model,
    check_statistics,
    load_network,
    open_checkpoint,
    pixel_scales,
    save_network,
)
from mmrl.policies.diffusion.options import DiffusionOptions
from mmrl.policies.vlm.weights import check_files

PICTURE, PICTURES = "observation.image", "observation.images."
"""LeRobot's key of pictures where there is one camera, and the beginning of its keys of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoised:
    """The part of a head that `ActingPolicy` needs."""

    slots: int
    """P: a step of the whole chunk is a choice, which has a log-probability of its own."""

    def choices_of(self, actions_nCA: torch.Tensor) -> torch.Tensor:
        """[n, 1, C, D]: a chain of its end alone."""
        return actions_nCA[:, None]


class Diffusion(ActingPolicy):
    """`policy.model` is a folder or hub name that LeRobot saved, a folder that this class saved, or `tiny:diffusion`.

    The network predicts C actions from that of the first moment that it sees. K of them, from the present one, are carried out,
    and log-probabilities are theirs alone; the rest of the chain is sampled as well, as context. A critic reads the condition,
    which no noise is in.
    """

    options_class: ClassVar[type[Any]] = DiffusionOptions
    trained_whole = True
    says_chunks = True
    free = frozenset(
        {"chunk", "steps", "scheduler", "tuned_steps", "exploration_std", "likelihood_std", "eta", "likelihood", "cameras"}
    )
    choice_settings = frozenset({"dims", "chunk"}) | (free - {"cameras"})
    history_of_steps = True
    head: Any
    model: Any

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        asked = DiffusionOptions(**given)
        self.device, place = torch.device(device), source or Path(config.model)
        found = self.checkpoint = _opened(str(source or config.model), asked)
        said = found.config
        numbers = {"dims": said.numbers(ACTION), "state": said.numbers(STATE) + said.numbers(ENVIRONMENT)}
        own = asked.completed(**numbers, chunk=said.n_action_steps, steps=said.steps, scheduler=said.noise_scheduler_type)
        for name, size in numbers.items():
            if getattr(own, name) != size:
                raise UserError(f"policy.options.{name} = {getattr(own, name)}, and {found.name!r} has {size}: leave it out")
        assert own.dims and own.chunk and own.steps and own.state
        self.dims, self.chunk, self.state, self.likelihood = own.dims, own.chunk, own.state, own.likelihood
        self.history, self.horizon, self.cameras = said.n_obs_steps - 1, said.horizon, list(own.cameras)
        most = {"chunk": self.horizon - self.history, "steps": said.num_train_timesteps, "tuned_steps": own.steps}
        for name, size in most.items():
            if (value := getattr(own, name) or 1) > size:
                raise UserError(f"policy.options.{name} = {value} is too many for this policy: {size} is the most")
        if self.cameras and len(self.cameras) != len(said.cameras):
            raise UserError(
                f"policy.options.cameras names {len(self.cameras)} cameras, and the policy looks through {len(said.cameras)}"
            )
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
        self.robot = said.numbers(STATE)
        self.use_statistics(chosen_statistics(own.statistics, found.files, found.processors, place, self.dims, self.robot), own)
        self.check_state_statistics(self.robot)
        self.scales = {key: [x.to(self.device) for x in pair] for key, pair in pixel_scales(found).items()}
        self.model = load_network(found, seed).to(self.device).eval()
        self.width, self.head = self.model.width, Denoised(slots=self.chain.tuned_steps)
        if (place / SETTINGS).is_file():
            self.load(place)

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for a `model` that can't be loaded or lacks statistics, without loading it. A hub name is not looked
        up."""
        check_model(config.model)
        if Path(config.model).is_dir():
            if not (Path(config.model) / SETTINGS).is_file() and not config.options.get("statistics"):
                check_statistics(config.model)
            check_files(config.model, lambda: None)

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

    def choice_terms(self) -> dict[str, Any]:
        return super().choice_terms() | {"actions foreseen": self.horizon, "moments seen": self.history + 1}

    def settings(self) -> Mapping[str, Any]:
        found = {"kind": tiny.FAMILY, "dims": self.dims, "chunk": self.chunk, "state": self.state, "cameras": self.cameras}
        return found | self.chain.settings() | {"likelihood": self.likelihood}

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        shown = any(track.choices.shape[1] == 1 for track in tracks)  # a demonstration
        return max(self.chain.tuned_steps, PLACES if shown else 1) * self.horizon

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _names(self, seen: Observation) -> list[str]:
        """The simulator's cameras in the order of the network's: the option, or those with the checkpoint's names. The single
        camera of a policy whose key names none is the first one."""
        trained, there = self._trained(), present(seen.images)
        if self.cameras or not trained:
            return cameras_of(seen, self.cameras, []) if trained else []
        if all(name in there for name in trained):
            return cameras_of(seen, list(trained), [])
        if list(trained.values()) == [PICTURE]:
            return cameras_of(seen, [], list(there)[:1])
        raise UserError(
            f"the policy was trained with the cameras {', '.join(trained)}, and the simulator has {', '.join(there) or 'none'}: "
            "set policy.options.cameras to the latter in the order of the former"
        )

    def _trained(self) -> dict[str, str]:
        """Name of a camera, as a simulator may have it -> the network's key."""
        renamed = self.checkpoint.processors.renamed if self.checkpoint.processors else {}
        before = {new: old for old, new in renamed.items()}
        return {before.get(key, key).rpartition(".")[2]: key for key in self.checkpoint.config.cameras}

    def _pictures(self, seen: Observation) -> list[torch.Tensor]:
        """Of each camera float32 [n, O, 3, H, W], normalised, the present moment last."""
        found, config = [], self.checkpoint.config
        for name, key in zip(self._names(seen), config.cameras, strict=True):
            moments = [earlier(name, k) for k in range(self.history, -1, -1)]
            if moments[0] not in seen.images:
                raise UserError(f"the policy sees {self.history + 1} moments, and the observation has no earlier pictures")
            shown = torch.stack([seen.images[moment] for moment in moments], 1).to(self.device).movedim(-1, 2)
            if config.resize_shape is None and tuple(shown.shape[3:]) != config.picture_shape:
                (high, wide), (have_high, have_wide) = config.picture_shape, shown.shape[3:]
                raise UserError(
                    f"camera {name!r} shows {have_wide} x {have_high} pixels, and the policy was trained with {wide} x {high}: "
                    "make them equal"
                )
            pixels = shown.float() / 255
            if key in self.scales:
                less, by = self.scales[key]
                pixels = (pixels - less) / by
            found.append(pixels)
        return found

    def _states(self, seen: Observation) -> torch.Tensor:
        """float32 [n, O, state]: those of the robot are normalised if there are statistics of them."""
        state = state_of(seen, self.state, self.history + 1).to(self.device).float().unflatten(1, (self.history + 1, -1))
        if self.statistics is None or self.statistics.state is None:
            return state
        robot, rest = state.split([self.robot, self.state - self.robot], -1)
        return torch.cat([self.statistics.state.normalize(robot), rest], -1)

    def look(self, seen: Observation) -> torch.Tensor:
        """The condition, float32 [n, width]."""
        robot, environment = self._states(seen).split([self.robot, self.state - self.robot], -1)
        found: torch.Tensor = self.model.condition(robot, self._pictures(seen), environment)
        return found

    # -- acting and learning ----------------------------------------------------------------------------------------------

    def choose(
        self, seen: Observation, draw: CallRandomness, temperature: float, guidance: Guidance | None = None
    ) -> tuple[torch.Tensor, ...]:
        condition, shape = self.look(seen), (self.horizon, self.dims)
        end, choices, logprobs = self.chain.sample(partial(self.model.predict, condition), draw, shape, temperature)
        return self._carried_out(end), choices, self._of_steps(logprobs), condition

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
        renamed = dict(self.checkpoint.processors.renamed) if self.checkpoint.processors else {}
        if self.cameras:
            pairs = zip(self.cameras, self.checkpoint.config.cameras, strict=True)
            renamed = {PICTURES + name: key for name, key in pairs if PICTURES + name != key}
        save_network(
            self.model,
            folder,
            self.checkpoint,
            self.statistics,
            renamed,
            n_action_steps=self.chunk,
            num_inference_steps=self.chain.steps,
            noise_scheduler_type=self.chain.scheduler,
        )

    def _own(self) -> Any:
        """None: LeRobot's file has all."""
        return iter(())


def _opened(name: str, asked: DiffusionOptions) -> Checkpoint:
    """The checkpoint of a name; that of a tiny one is made for the options."""
    if not name.startswith("tiny:"):
        return open_checkpoint(name)
    keys = [PICTURES + camera for camera in asked.cameras] or [PICTURE]
    config, table = tiny.config(name, keys, asked.state or 0, asked.dims or 7)
    return Checkpoint(name=name, table=table, config=config, files=Files(name), processors=None)
