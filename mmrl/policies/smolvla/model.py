"""SmolVLA as a policy: it acts and learns as pi0 does, with a network, pictures and checkpoints of its own.

n calls, M times of a flow, C actions that the network predicts, D numbers in each, P tokens of the encoded input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate, pad

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import Chains, Velocity, chains
from mmrl.policies.acting.flow_noise import add_noise
from mmrl.policies.acting.lerobot_cameras import NamedCameras
from mmrl.policies.acting.lerobot_processors import ACTION, STATE, chosen_statistics
from mmrl.policies.acting.look import read_once
from mmrl.policies.acting.options import check_sizes
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.lora import adapter_chain, apply_adapters, save_adapters
from mmrl.policies.names import base_name
from mmrl.policies.pi0.model import EMPHASIS, Foreseen, Pi0
from mmrl.policies.resizing import center_crop
from mmrl.policies.smolvla import tiny
from mmrl.policies.smolvla.config import picture_tokens
from mmrl.policies.smolvla.loading import (
    BACKBONE_CURE,
    Checkpoint,
    check_model,
    check_statistics,
    load_network,
    open_checkpoint,
    save_network,
    skeleton,
)
from mmrl.policies.smolvla.options import SmolVLAOptions
from mmrl.policies.smolvla.planned import planned_smolvla
from mmrl.policies.vlm.weights import check_files


@dataclass(frozen=True, kw_only=True)
class OfRobot(Chains):
    """The loss of a demonstration is that of the robot's numbers alone, not of those that fill up an action, as in LeRobot."""

    dims: int

    def matching(self, velocity: Velocity, actions: torch.Tensor) -> torch.Tensor:
        """[n, C, dims]."""
        return super().matching(velocity, actions)[..., : self.dims]


class SmolVLA(NamedCameras, Pi0):
    """`policy.model` is a folder or hub name that LeRobot saved, a folder that this class saved, or `tiny:smolvla`.

    Everything that follows from flow matching by an expert is `Pi0`'s: what is executed, its likelihood, demonstrations. A critic
    reads what the language model makes of the robot's state, the last token of the prefix.
    """

    options_class = SmolVLAOptions
    free = frozenset({"chunk", "steps", "noise_level", "noisy", "noise_range", "cameras"})

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        asked = SmolVLAOptions(**given)
        self.device, self.lora = torch.device(device), config.lora
        self.base = base_name(config.model, seed, tiny.full_name)
        adapters, name = adapter_chain(str(source) if source and not config.lora else config.model)
        found = self.checkpoint = open_checkpoint(name, asked.backbone)
        said, place = found.config, source or Path(config.model)
        own = asked.completed(
            dims=said.numbers(ACTION) or 7, chunk=said.n_action_steps, state=said.numbers(STATE), steps=said.num_steps
        )
        self.dims, self.chunk, self.state = own["dims"], own["chunk"], own["state"]
        most = {"chunk": said.chunk_size, "dims": said.max_action_dim, "state": said.max_state_dim}
        check_sizes("SmolVLA", {name: (own[name], size) for name, size in most.items()})
        self.text, self.cameras, self.crop = asked.prompt, list(asked.cameras), asked.crop
        self.chains = chains(asked, own["steps"], OfRobot, emphasis=EMPHASIS, dims=self.dims)
        statistics = chosen_statistics(asked.statistics, found.files, found.processors, place, self.dims, self.state)
        self.use_statistics(statistics, asked)
        self.check_state_statistics(self.state)
        self.tokenizer = found.tokenizer
        model: Any = load_network(found, seed, getattr(torch, config.dtype), config.dense_attention)
        apply_adapters(model, config.lora, adapters, source, seed)
        self.numbers = said.max_action_dim
        add_noise(model, self.chains, model.action_out_proj.in_features, self.numbers, seed)
        self.model = model.to(self.device).eval()
        self.width = found.backbone.text_config.hidden_size
        self.head = Foreseen(numbers=self.numbers)
        self.side, self.picture_tokens = said.resize_imgs_with_padding[0], picture_tokens(said, found.backbone)
        self._marks = _marks(found) if said.add_image_special_tokens else ([], [])
        self._read: dict[tuple[str, int], list[int]] = {}
        if (place / SETTINGS).is_file():
            self.load(place)

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """Raise UserError for a `model` that can't be loaded or lacks statistics, without loading it. A hub name is not looked
        up."""
        check_model(config.model)
        name = adapter_chain(config.model)[1]
        if Path(name).is_dir() and not (Path(config.model) / SETTINGS).is_file() and not config.options.get("statistics"):
            check_statistics(name, config.options.get("dims"), config.options.get("state"))
        check_files(config.model, lambda: SmolVLA.skeleton(config))

    @staticmethod
    def skeleton(config: PolicyConfig) -> Any:
        """The model of a configuration with all its weights' names and shapes, on torch's meta device."""
        name = adapter_chain(config.model)[1]
        return skeleton(open_checkpoint(name, config.options.get("backbone", ""), words=False))

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        return planned_smolvla(config)

    def settings(self) -> Mapping[str, Any]:
        found = {"kind": "smolvla", "dims": self.dims, "chunk": self.chunk, "state": self.state, "cameras": self.cameras}
        return found | self.chains.settings() | {"prompt": self.text, "crop": self.crop}

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        read = {(text, len(self._names(track))) for track in tracks for text in track.told}
        return max((len(self._ids(*one)) for one in read), default=0) + 1 + self._moments(tracks) * self.ahead

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _pictures(self, seen: Observation) -> torch.Tensor:
        """[n, cameras, 3, side, side] in [-1, 1]: cropped, scaled to fit and filled up with black at the left and above."""
        found = [_framed(seen.images[name].to(self.device), self.crop, self.side) for name in self._names(seen)]
        return torch.stack(found, 1)

    def _ids(self, instruction: str, pictures: int) -> list[int]:
        """Placeholders of the pictures, special tokens around them if they are trained with, and the text."""
        key = (instruction, pictures)
        if key not in self._read:
            said = self.checkpoint.processors
            text = self.text.replace("{instruction}", instruction)
            if (said is None or said.newline) and not text.endswith("\n"):
                text += "\n"
            longest = said.longest if said else self.checkpoint.config.tokenizer_max_length
            words = self.tokenizer(text, truncation=True, max_length=longest)["input_ids"]
            self._read[key] = self._placeholders(pictures) + list(words)
        return self._read[key]

    def _placeholders(self, pictures: int) -> list[int]:
        """Of a camera that is empty, the marks alone are seen."""
        first, last = self._marks
        shown = [*first, *[self.checkpoint.backbone.image_token_id] * self.picture_tokens, *last]
        config = self.checkpoint.config
        missing = sum(value.get("type") == "VISUAL" for value in config.input_features.values()) - pictures
        return shown * pictures + [*first, *last] * max(0, min(missing, config.empty_cameras))

    @read_once
    def look(self, seen: Observation) -> Any:
        """One pass over pictures, instruction and state. Padding is behind the words, and nothing sees it."""
        pixels = self._pictures(seen)
        rows = [self._ids(text, pixels.shape[1]) for text in seen.instructions]
        ids_nP, real_nP = self._padded(rows, self._length_of(rows))
        words_at = len(self._placeholders(pixels.shape[1]))
        return self.model.read(ids_nP, words_at, real_nP, pixels, self._state(seen))

    # -- the expert -------------------------------------------------------------------------------------------------------

    def velocity(
        self, scene: Any, x_nMCD: torch.Tensor, times_nM: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """float32 [n, M, C, D]; see `Velocity` and `Network.hidden`."""
        return self._moves(self.model.hidden(scene, x_nMCD, times_nM))

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        found: torch.Tensor = self.look(seen).seen_nH
        return found

    # -- weights ----------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """A folder that LeRobot loads, with the settings beside it; with `policy.lora`, its adapters."""
        super(Pi0, self).save(folder)
        if self.lora:
            save_adapters(self.model, folder, self.base)
            return
        inputs, outputs, renamed = self.described(self.side, self.side)
        save_network(
            self.model,
            folder,
            self.checkpoint,
            self.statistics,
            chunk=self.chunk,
            steps=self.chains.steps,
            inputs=inputs,
            outputs=outputs,
            renamed=renamed,
        )


def _framed(pictures_nHWC: torch.Tensor, crop: float, side: int) -> torch.Tensor:
    """uint8 [n, H, W, 3] -> float32 [n, 3, side, side] in [-1, 1]: interpolated between neighbouring pixels, even where it
    shrinks (lerobot 0.6.1, policies/common/vla_utils.py, resize_with_pad)."""
    pictures = center_crop(pictures_nHWC.permute(0, 3, 1, 2), crop).float() / 255
    if pictures.shape[2:] != (side, side):
        ratio = max(pictures.shape[2:]) / side
        high, wide = (max(1, int(s / ratio)) for s in pictures.shape[2:])
        pictures = interpolate(pictures, (high, wide), mode="bilinear", align_corners=False)
        pictures = pad(pictures, (side - wide, 0, side - high, 0))
    return pictures * 2 - 1


def _marks(found: Checkpoint) -> tuple[list[int], list[int]]:
    """Ids of the special tokens before and behind a picture."""
    fake, whole = (
        getattr(found.tokenizer, name, None) or tiny.NAMED[name] for name in ("fake_image_token", "global_image_token")
    )
    ids = {word: found.tokenizer.convert_tokens_to_ids(word) for word in (fake, whole)}
    for word, one in ids.items():
        if one is None or one == found.tokenizer.unk_token_id:
            raise UserError(f"{found.name!r}: its tokenizer has no {word}: {BACKBONE_CURE}", key="policy.model")
    return [ids[fake], ids[whole]], [ids[fake]]
