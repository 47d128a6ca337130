"""What a vision-language-action model reads: pictures, an instruction and the robot's state -> the inputs of its network.

n calls, C cameras, S tokens, M tokens behind a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.history import earlier, present
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.transfer import upload
from mmrl.api.types import Prompt, user_message
from mmrl.policies.acting.observed import cameras_of
from mmrl.policies.resizing import resize
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.prompt_rows import rows_of
from mmrl.policies.vlm.vlm import VLM

Sizes = tuple[tuple[int, int], ...]
"""(width, height) of each picture of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A prompt with placeholders for pictures of given sizes and, if it is read, for the robot's state."""

    inputs: PromptInputs
    """Without the pictures themselves."""
    state_at: int
    """Index of the state's placeholder; -1 without one."""

    @property
    def ids(self) -> torch.Tensor:
        """int64 [S]."""
        return self.inputs.ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a pass over n calls."""

    ids_nS: torch.Tensor
    segment_nS: torch.Tensor
    """0 for the prompt, 1 for what is behind it, -1 for padding."""
    positions: torch.Tensor
    """int64 [axes, n, S]."""
    media: dict[str, torch.Tensor]
    token_types: Mapping[str, torch.Tensor]
    """See `PromptInputs`, [n, S] each."""
    last_n: torch.Tensor
    """Index of each prompt's last token."""
    padded: bool
    """The prompts have several lengths."""
    state_nS: torch.Tensor
    """bool: the placeholder of the state."""


class Seeing:
    """Prepares observations for a model."""

    def __init__(
        self,
        vlm: VLM,
        family: Family,
        *,
        cameras: Sequence[str],
        size: int,
        crop: float,
        text: str,
        lower_case: bool,
        state: bool,
        history: int = 0,
    ) -> None:
        """See the options of `VLA`. state: whether the robot's state is read."""
        self.history = history
        self.vlm, self.family, self.device = vlm, family, vlm.device
        self.cameras, self.size, self.crop = list(cameras), size, crop
        self.text, self.lower_case, self.state = text, lower_case, state
        self._read: dict[tuple[str, Sizes], Text] = {}

    def names(self, seen: Observation | TrajectoryData) -> list[str]:
        """The cameras that it looks through, the first one if none is named: their earlier pictures, the oldest first, then their
        present ones."""
        named = cameras_of(seen, self.cameras, list(present(seen.images))[:1])
        found = [earlier(camera, k) for k in range(self.history, -1, -1) for camera in named]
        if any(name not in seen.images for name in found):
            raise UserError(f"policy.options.history = {self.history}, and the observation has no earlier pictures: leave it out")
        return found

    def sizes(self, seen: Observation | TrajectoryData) -> Sizes:
        """The sizes of a call's pictures, as they are given to the model's processor."""
        found = [seen.images[name].shape[1:3] for name in self.names(seen)]
        return tuple((self.size, self.size) if self.size else (int(width), int(height)) for height, width in found)

    def pictures(self, seen: Observation) -> list[list[torch.Tensor]]:
        """n times C uint8 [3, H, W], cropped and scaled for the model: the pictures of each call."""
        shown = [self._scaled(seen.images[name].to(self.device).permute(0, 3, 1, 2)) for name in self.names(seen)]
        return [[pictures[row] for pictures in shown] for row in range(len(seen))]

    def _scaled(self, pictures: torch.Tensor) -> torch.Tensor:
        height, width = (self.size, self.size) if self.size else pictures.shape[2:]
        return self.family.cropped(pictures, self.crop, height, width) if self.crop < 1 else resize(pictures, height, width)

    def prompt(self, instruction: str, sizes: Sizes) -> Text:
        """The prompt with pictures of these sizes in it, encoded once; their pixels are put in later."""
        key = (instruction, sizes)
        if key not in self._read:
            from PIL import Image

            text = self.text.replace("{instruction}", instruction.lower() if self.lower_case else instruction)
            blank = [Image.new("RGB", size) for size in sizes]
            found = self.vlm.encode(Prompt(messages=[user_message(text, *blank)], id=instruction))
            if all(known != sizes for _, known in self._read):
                self._check_pictures(blank, found)
            found = replace(found, media={}, clocks={})
            at = self.family.state_at(found.ids) if self.state else -1
            self._read[key] = Text(inputs=self._with_state(found, at) if self.state else found, state_at=at)
        return self._read[key]

    def _check_pictures(self, pictures: Sequence[Any], encoded: PromptInputs) -> None:
        """Raise UserError if the pictures of a call would become other tensors than the same in a prompt."""
        shown = [torch.from_numpy(np.array(picture)).permute(2, 0, 1).to(self.device) for picture in pictures]
        found, wanted = ({name: tuple(x.shape) for name, x in media.items()} for media in (self.media([shown]), encoded.media))
        if found != wanted:
            kind = self.vlm.model.config.model_type
            raise UserError(
                f"policy.kind = 'vla': a {kind} model's image processor makes {found} of a call's pictures, and in a prompt they "
                f"are {wanted}: choose another model"
            )

    def _with_state(self, found: PromptInputs, at: int) -> PromptInputs:
        """With a placeholder of the robot's state at this index."""
        ids, positions, text = found.ids, found.positions, self.family.completion_type
        assert positions is not None
        behind = positions[:, at:] + 1
        here = behind[:, :1] - 1 if behind.shape[1] else positions.new_full((len(positions), 1), found.next_position)
        types = {name: torch.cat([x[:at], x.new_full((1,), text), x[at:]]) for name, x in found.token_types.items()}
        return replace(
            found,
            ids=torch.cat([ids[:at], ids[:1], ids[at:]]),  # any id: its embedding is replaced
            positions=torch.cat([positions[:, :at], here, behind], 1),
            token_types=types,
        )

    def media(self, pictures: list[list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The pictures of calls as keyword arguments of the model."""
        return upload(self.vlm.reader.pictures(pictures), self.device, self.family.on_host)

    def read(self, seen: Observation, behind: torch.Tensor | None, side: Literal["left", "right"] = "right") -> Inputs:
        """The inputs of a pass. behind: ids after the prompts, int64 [n, M]. side: where shorter rows are padded."""
        pictures, sizes = self.pictures(seen), self.sizes(seen)
        prompts = [self.prompt(text, sizes) for text in seen.instructions]
        more = 0 if behind is None else behind.shape[1]
        slots = torch.zeros(more, dtype=torch.long)
        whole = {id(p): p.inputs.answered(slots, self.family.completion_type) for p in {id(p): p for p in prompts}.values()}
        lengths = torch.tensor([len(p.ids) for p in prompts])
        longest = int(lengths.max())
        first = longest - lengths if side == "left" else torch.zeros_like(lengths)
        beside = {"last": first + lengths - 1, "first": first, "state": first + torch.tensor([p.state_at for p in prompts])}
        rows = rows_of([whole[id(p)] for p in prompts], self.device, side, beside)
        assert rows.positions is not None
        first_n1, last_n1 = (rows.beside[name][:, None] for name in ("first", "last"))
        place_S = torch.arange(longest + more, device=self.device)
        segment_nS = (place_S > last_n1).long().masked_fill((place_S < first_n1) | (place_S > last_n1 + more), -1)
        ids_nS = rows.ids_NS
        if behind is not None:
            ids_nS = ids_nS.scatter(1, last_n1 + 1 + torch.arange(more, device=self.device), behind)
        return Inputs(
            ids_nS=ids_nS,
            segment_nS=segment_nS,
            positions=rows.positions,
            media=self.media(pictures),
            token_types=rows.token_types,
            last_n=rows.beside["last"],
            padded=rows.mask_NS is not None,
            state_nS=(place_S == rows.beside["state"][:, None]) & bool(self.state),
        )
