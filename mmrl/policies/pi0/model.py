"""pi0: pictures and an instruction are encoded once per call, and an action expert turns noise into a chunk of actions (Black et
al., pi0: A Vision-Language-Action Flow Model for General Robot Control). The network is transformers'.

n calls, M times of a flow, C actions that the network predicts, D numbers in each, K and A those that are executed, P tokens of
the encoded input, H the expert's width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch.nn.functional import pad

from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import chains
from mmrl.policies.acting.flow_noise import add_noise, weights_without_noise, with_noise
from mmrl.policies.acting.flow_policy import FlowPolicy
from mmrl.policies.acting.look import read_once
from mmrl.policies.acting.options import check_sizes
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS, SHOWN, read_settings
from mmrl.policies.layers import cache_argument
from mmrl.policies.lora import adapter_chain, apply_adapters, save_adapters
from mmrl.policies.names import base_name
from mmrl.policies.pi0 import tiny
from mmrl.policies.pi0.lerobot_layout import LIMITS, PICTURES, TOKENIZER, Description, published
from mmrl.policies.pi0.lerobot_names import saved_weights
from mmrl.policies.pi0.loading import lerobot_file, load_model, statistics_of
from mmrl.policies.pi0.options import Pi0Options
from mmrl.policies.pi0.planned import EMPHASIS, planned_pi0
from mmrl.policies.pi0.reading import PiReader
from mmrl.policies.pi0.scene import Prefix, Reading, Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """The part of a head that `ActingPolicy` needs for demonstrations."""

    numbers: int
    """D."""
    slots: int = 1

    def choices_of(self, actions_nCA: torch.Tensor) -> torch.Tensor:
        """[n, 1, C, D]: a chain of its end alone; numbers that the robot doesn't have are 0, as in pi0's training."""
        return pad(actions_nCA, (0, self.numbers - actions_nCA.shape[-1]))[:, None]


class Pi0(FlowPolicy, PiReader):
    """`policy.model` is a folder or hub name that transformers' `PI0ForConditionalGeneration` loads, a folder that this class
    saved, or `tiny:pi0`.

    The network predicts C actions of D numbers; the first K are executed, A numbers of each, and log-probabilities are those of
    their chain alone. The rest of the chain is sampled as well, as context: its likelihood would add noise of unused numbers to
    every ratio (pi_RL does the same: the openpi policy of RLinf cuts log-probabilities to the executed chunk and the
    environment's numbers).

    A critic reads the expert's output for the robot's state. That token sees pictures, instruction and state, but no action, so a
    value depends on no noise and needs no chain; a mean over the action tokens, as in pi_RL, would.
    """

    kind: ClassVar = "pi0"
    options_class: ClassVar[type[Any]] = Pi0Options
    layouts: ClassVar[tuple[str, ...]] = ("transformers", "lerobot")
    free = frozenset(
        {"chunk", "steps", "noise_level", "noisy", "noise_range", "cameras", "resize", "text_tokens", "layout", SHOWN}
    )
    choice_settings = frozenset({"dims", "chunk", "steps", "noise_level", "noisy", "noise_range"})
    head: Any

    def __init__(
        self, config: PolicyConfig, *, device: str | torch.device = "cpu", seed: int = 0, source: Path | None = None, **given: Any
    ) -> None:
        own: Pi0Options = self.options_class(**given)
        self.device, self.lora, self.dims, self.chunk = torch.device(device), config.lora, own.dims, own.chunk
        self.state, self.text, self.cameras, self.crop = own.state, own.prompt, list(own.cameras), own.crop
        self.chains = chains(own, own.steps, emphasis=EMPHASIS)
        files = published(adapter_chain(config.model)[1])
        self.use_statistics(statistics_of(config, files, own.statistics, own.state), own)
        self.check_state_statistics(own.state)
        self.layout = own.layout if own.layout != "auto" else "lerobot" if files else self.layouts[0]
        limit = files.text_tokens if files else LIMITS[self.kind] if self.layout == "lerobot" else 0
        self.text_tokens = own.text_tokens or limit
        place = source or Path(config.model)
        self.origin, self.shown = files, dict(files.cameras if files else read_settings(place).get(SHOWN, {}))
        """`shown`: camera -> LeRobot's name of its pictures, in the order in which they were last read."""
        self.cameras = self.cameras or list(files.cameras if files else ())
        self.base = base_name(config.model, seed, tiny.NAMES[self.kind].full_name)
        adapters, name = adapter_chain(str(source) if source and not config.lora else config.model)
        model, self.tokenizer = load_model(config, self.kind, name, own.tokenizer, files, seed)
        apply_adapters(model, config.lora, adapters, source, seed)
        self.numbers = model.config.max_action_dim
        add_noise(model, self.chains, model.action_out_proj.in_features, self.numbers, seed)
        self.model = model.to(self.device).eval()
        settings = self.model.config
        most = {"chunk": settings.chunk_size, "dims": settings.max_action_dim, "state": settings.max_state_dim}
        check_sizes(self.kind, {name: (getattr(own, name), size) for name, size in most.items()})
        self.width = self._critic_width()
        self.head = Foreseen(numbers=self.numbers)
        eye = settings.vlm_config.vision_config
        self.side, self.picture_tokens = eye.image_size, (eye.image_size // eye.patch_size) ** 2
        self._read: dict[tuple[str, int], list[int]] = {}
        usual = "lerobot" if lerobot_file(name) else "openpi"
        self.resize = own.resize if own.resize != "auto" else read_settings(place).get("resize", usual)
        if (place / SETTINGS).is_file():
            self.load(place)

    @classmethod
    def planned(cls, config: PolicyConfig) -> Planned:
        return planned_pi0(cls, config)

    @property
    def ahead(self) -> int:
        """All actions that the network predicts, C: those that are not executed are learned as well, as in openpi."""
        return int(self.model.config.chunk_size)

    def choice_terms(self) -> dict[str, Any]:
        return super().choice_terms() | {"actions foreseen": self.ahead, "numbers of an action": self.numbers}

    def settings(self) -> Mapping[str, Any]:
        found = {"kind": self.kind, "dims": self.dims, "chunk": self.chunk, "state": self.state, "cameras": self.cameras}
        found |= self.chains.settings()
        found |= {"prompt": self.text, "crop": self.crop, "resize": self.resize}
        found |= {"text_tokens": self.text_tokens, "layout": self.layout}
        return found | ({SHOWN: self.shown} if self.shown else {})  # for an export: transformers' files have no cameras

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        return self._longest(tracks) + self._moments(tracks) * self.ahead

    def _longest(self, tracks: Sequence[TrajectoryData]) -> int:
        """Tokens of pictures, text and state."""
        read = {(text, len(self.cameras or track.images)) for track in tracks for text in track.told}
        return max((len(self._ids(*one)) for one in read), default=0) + 1

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _ids(self, instruction: str, pictures: int) -> list[int]:
        """Placeholders of the pictures, a BOS token, the text, a newline (openpi, PaligemmaTokenizer)."""
        key = (instruction, pictures)
        if key not in self._read:
            self._read[key] = self._placed(f"{self._said(instruction)}\n", pictures)
        return self._read[key]

    def _placed(self, text: str, pictures: int) -> list[int]:
        placeholders = [self.model.config.vlm_config.image_token_id] * self.picture_tokens * pictures
        return placeholders + self._words(text)

    def _rows(self, seen: Observation, pictures: int) -> list[list[int]]:
        """The tokens that each call reads."""
        return [self._ids(text, pictures) for text in seen.instructions]

    def _state(self, seen: Observation) -> torch.Tensor:
        """float32 [n, D of states]: normalised if there are statistics, padded with zeros."""
        most = self.model.config.max_state_dim
        if not self.state:
            return torch.zeros(len(seen), most, device=self.device)
        return pad(self.normalised_state(seen, self.state), (0, most - self.state))

    @read_once
    def look(self, seen: Observation) -> Scene:
        """One pass over pictures and instruction. Padding is on the right, and nothing sees it."""
        pixels = self._pictures(seen)
        rows = self._rows(seen, pixels.shape[1])
        ids_nP, real_nP = self._padded(rows, self._length_of(rows))
        return self.encoded(seen, pixels, ids_nP, real_nP)

    def encoded(self, seen: Observation, pixels: torch.Tensor, ids_nP: torch.Tensor, real_nP: torch.Tensor) -> Scene:
        """pixels: [n, cameras, 3, side, side]. ids_nP: int64; real_nP: bool, False for padding. Of `seen` the state is read."""
        inner = self.model.model
        embeds = inner.embed_prefix(ids_nP, pixels, torch.ones(pixels.shape[:2], dtype=torch.bool, device=self.device))
        reading = Reading(config=inner.config.vlm_config.text_config)
        read = inner.vlm(
            inputs_embeds=embeds,
            attention_mask=real_nP.long(),
            position_ids=(real_nP.long().cumsum(-1) - 1),
            token_type_ids=torch.zeros_like(ids_nP),
            use_cache=True,
            **{cache_argument(inner.vlm): reading},
        )
        return self._scene(Prefix(reading), real_nP, seen, read.last_hidden_state)

    def _scene(self, cache: Prefix, real_nP: torch.Tensor, seen: Observation, hidden_nPH: torch.Tensor) -> Scene:
        """hidden_nPH: what the vision-language model computes for each token."""
        state = self.model.embed_action_time.state_proj(self._state(seen))
        return Scene(cache=cache, real_nP=real_nP, state_nH=state)

    def _critic_width(self) -> int:
        return int(self.model.config.dit_config.hidden_size)

    # -- the expert -------------------------------------------------------------------------------------------------------

    def velocity(
        self, scene: Scene, x_nMCD: torch.Tensor, times_nM: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """float32 [n, M, C, D], see `Velocity`. All M times follow one copy of the encoded input and don't see each other, so
        one pass equals M passes."""
        count, moments, ahead = x_nMCD.shape[:3]
        assert scene.state_nH is not None
        rows = [scene.state_nH[:, None]]
        if moments:
            nothing = x_nMCD.new_zeros(count * moments, self.model.config.max_state_dim)
            embedded = self.model.embed_action_time(nothing, x_nMCD.flatten(0, 1).float(), times_nM.flatten().float())
            rows.append(embedded[:, 1:].reshape(count, moments * ahead, -1))
        mask, position_ids = self._places(scene, moments, 1)
        dit = self.model.model.dit
        hidden = dit(
            inputs_embeds=torch.cat(rows, 1).to(self._dtype),
            attention_mask=mask,
            position_ids=position_ids,
            use_cache=False,
            **{cache_argument(dit): scene.cache},
        ).last_hidden_state
        scene.seen_nH = hidden[:, 0]
        return self._moves(hidden[:, 1:].unflatten(1, (moments, ahead)))

    def _moves(self, hidden_nMCH: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """What the expert computes for each action -> the velocity, with learned noise if there is any."""
        hidden = hidden_nMCH.float()
        return with_noise(self.model, self.model.action_out_proj(hidden), hidden)

    def _places(self, scene: Scene, moments: int, states: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(attention mask [n, 1, S, P + S], positions [n, S]) of the expert's tokens: `states` of the robot's state, which all
        see, then C actions for each of the M times."""
        ahead, first, device = self.ahead, torch.arange(states, device=self.device), self.device
        block_S = torch.cat([torch.zeros_like(first), torch.arange(1, moments + 1, device=device).repeat_interleave(ahead)])
        own_SS = (block_S[:, None] == block_S) | (block_S == 0)
        count, size = len(scene.real_nP), len(block_S)
        mask = torch.cat([scene.real_nP[:, None].expand(-1, size, -1), own_SS.expand(count, -1, -1)], -1)[:, None]
        place_S = torch.cat([first, torch.arange(states, states + ahead, device=device).repeat(moments)])
        return self._as_attention_wants(mask), scene.real_nP.sum(1, keepdim=True) + place_S

    # -- acting and learning ----------------------------------------------------------------------------------------------

    @property
    def noise_shape(self) -> tuple[int, int]:
        return self.ahead, self.numbers

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        scene = self.look(seen)
        nothing = torch.zeros(len(seen), 0, self.ahead, self.numbers, device=self.device)
        self.velocity(scene, nothing, nothing[:, :, 0, 0])
        assert scene.seen_nH is not None
        return scene.seen_nH

    # -- weights ----------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """A folder that transformers or LeRobot loads again, with the settings beside it; with `policy.lora`, its adapters."""
        super().save(folder)
        if self.lora:
            save_adapters(self.model, folder, self.base)
        elif self.layout == "lerobot":
            save_file(saved_weights(self.model, self.kind), folder / "model.safetensors", metadata={"format": "pt"})
            self._description().write(folder)
        else:
            self.model.save_pretrained(folder, state_dict=weights_without_noise(self.model))
        self.tokenizer.save_pretrained(folder)

    def _description(self) -> Description:
        return Description(
            kind=self.kind,
            dims=self.dims,
            state=self.state,
            own={
                "n_action_steps": self.chunk,
                "num_inference_steps": self.chains.steps,
                **{name: getattr(self.model.config, name) for name in ("min_period", "max_period")},
            },
            text_tokens=self.text_tokens or LIMITS[self.kind],
            dtype="bfloat16" if self._dtype == torch.bfloat16 else "float32",
            cameras={name: self.shown.get(name, PICTURES + name) for name in self.cameras} or self.shown,
            statistics=self.statistics,
            network=self.model.config,
            tokenizer=self.origin.tokenizer if self.origin else TOKENIZER,
            kept=self.origin.config if self.origin else {},
        )
