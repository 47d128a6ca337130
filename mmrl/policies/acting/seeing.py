"""What a vision-language-action model reads: pictures, an instruction and the robot's state -> the inputs of its network.

n calls, C cameras, S tokens, M tokens behind a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.history import earlier, present
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.transfer import upload
from mmrl.api.types import Prompt, user_message
from mmrl.policies.acting.observed import cameras_of
from mmrl.policies.resizing import resize
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.vlm import VLM

Sizes = tuple[tuple[int, int], ...]
"""(width, height) of each picture of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A prompt with placeholders for pictures of given sizes and, if it is read, for the robot's state."""

    ids: torch.Tensor
    """int64 [S]."""
    positions: torch.Tensor
    """int64 [axes, S]."""
    following: int
    """The position of the first token behind it."""
    state_at: int
    """Index of the state's placeholder; -1 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a pass over n calls; padding is at the ends."""

    ids_nS: torch.Tensor
    segment_nS: torch.Tensor
    """0 for the prompt, 1 for what is behind it, -1 for padding."""
    positions: torch.Tensor
    """int64 [axes, n, S]."""
    media: dict[str, torch.Tensor]
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
            assert found.positions is not None
            ids, positions, at = found.ids, found.positions, -1
            if self.state:
                at = self.family.state_at(ids)
                ids = torch.cat([ids[:at], ids[:1], ids[at:]])  # any id: its embedding is replaced
                behind = positions[:, at:] + 1
                here = behind[:, :1] - 1 if behind.shape[1] else positions.new_full((len(positions), 1), found.next_position)
                positions = torch.cat([positions[:, :at], here, behind], 1)
            self._read[key] = Text(ids=ids, positions=positions, following=int(positions.max()) + 1, state_at=at)
        return self._read[key]

    def media(self, pictures: list[list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The pictures of calls as keyword arguments of the model."""
        return upload(self.vlm.reader.pictures(pictures), self.device, self.family.on_host)

    def read(self, seen: Observation, behind: torch.Tensor | None) -> Inputs:
        """The inputs of a pass. behind: ids after the prompts, int64 [n, M]."""
        pictures, sizes = self.pictures(seen), self.sizes(seen)
        prompts = [self.prompt(text, sizes) for text in seen.instructions]
        more = 0 if behind is None else behind.shape[1]
        lengths = [len(p.ids) for p in prompts]
        longest = max(lengths) + more
        made: dict[int, tuple[torch.Tensor, ...]] = {}
        for key, p in {id(p): p for p in prompts}.items():
            ids, segment = torch.zeros(longest, dtype=torch.long), torch.full((longest,), -1)
            positions = torch.zeros(len(p.positions), longest, dtype=torch.long)
            end = len(p.ids)
            ids[:end], segment[:end], positions[:, :end] = p.ids, 0, p.positions
            segment[end : end + more] = 1
            positions[:, end : end + more] = p.following + torch.arange(more)
            made[key] = (ids, segment, positions, torch.arange(longest) == p.state_at)
        axes = {"ids_nS": 0, "segment_nS": 0, "positions": 1, "state_nS": 0}
        columns = zip(*(made[id(p)] for p in prompts), strict=True)
        stacked = {name: torch.stack(rows, axis) for (name, axis), rows in zip(axes.items(), columns, strict=True)}
        there = upload(stacked | {"last_n": torch.tensor(lengths) - 1}, self.device)
        if behind is not None:
            place_nM = there["last_n"][:, None] + 1 + torch.arange(more, device=self.device)
            there["ids_nS"] = there["ids_nS"].scatter(1, place_nM, behind)
        return Inputs(**there, media=self.media(pictures), padded=len(set(lengths)) > 1)
