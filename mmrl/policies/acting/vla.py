"""Vision-language-action models: a picture and an instruction -> a chunk of actions.

Actions are tokens (the last ids of the vocabulary), decoded one by one or in parallel in slots behind the prompt; or they come
from a head on hidden states (normal, flow). Sampling and updates use the same masked distribution at the same temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import DynamicCache

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting import options
from mmrl.policies.acting.action_tokens import ActionTokens
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.heads import Flow, Normal, Tokens, categorical
from mmrl.policies.acting.observed import picture_of
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.acting.saved_policy import SETTINGS
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.lora import adapter_chain
from mmrl.policies.openvla.reading import statistics_file
from mmrl.policies.resizing import center_crop, resize
from mmrl.policies.vlm.families import Family, OpenVLAFamily
from mmrl.policies.vlm.processing import PromptInputs
from mmrl.policies.vlm.vlm import VLM, prefix_mask

HEADS = ("tokens", "normal", "flow")
DECODING = ("parallel", "one-by-one")
INSTRUCTION = "What action should the robot take to {instruction}?"
DEFAULTS: dict[str, Any] = {
    "decoding": "parallel",
    "bins": 256,
    "binning": "uniform",
    "lower_case": False,
    "size": 0,
    "crop": 1.0,
}
NONE = "none"
"""Value of `statistics`: don't use those that come with the model."""


class VLA(ActingPolicy):
    """A `VLM` with actions. `policy.model` is a VLM's checkpoint, or a folder that this class saved."""

    free = frozenset({"camera", "flow_steps"})
    choice_settings = frozenset({"dims", "chunk", "head", "bins", "binning", "flow_steps"})

    def __init__(
        self,
        config: PolicyConfig,
        *,
        device: str | torch.device = "cpu",
        seed: int = 0,
        source: Path | None = None,
        dims: int = 7,
        chunk: int = 1,
        head: str = "tokens",
        decoding: str | None = None,
        bins: int | None = None,
        binning: str | None = None,
        prompt: str = INSTRUCTION,
        lower_case: bool | None = None,
        camera: str = "",
        size: int | None = None,
        crop: float | None = None,
        flow_steps: int = 4,
        spread: float = 0.6,
        statistics: str | Mapping[str, Any] = "",
        statistics_key: str = "",
        statistics_kind: str = "",
        gripper: str = "",
    ) -> None:
        """dims: numbers of an action. chunk: actions of a call. head: tokens, normal or flow. decoding: of tokens, `parallel` in
        slots that see each other, or `one-by-one`, each seeing those before it. bins, binning: see `ActionTokens`. prompt: the
        text, with {instruction} in it. lower_case: convert instructions. camera: the first one when empty. size: pixels that
        pictures are scaled to, 0 leaves them. crop: the share of a picture's area around its middle that is kept.
        flow_steps: Euler steps of a flow head. spread: initial standard deviation of a normal head. statistics, statistics_key,
        statistics_kind, gripper: normalisation of its numbers, see `units.load_statistics`; when statistics is empty, those that
        come with an OpenVLA checkpoint, with "none" none of them. Options that are None: `DEFAULTS`, or those of the model's
        family."""
        asked = {"decoding": decoding, "bins": bins, "binning": binning, "lower_case": lower_case, "size": size, "crop": crop}
        _check(head, prompt, dims, chunk, camera, flow_steps, spread, DEFAULTS | _given(asked))
        self.vlm = VLM(config, device=device, seed=seed, source=source)
        self.family = _acting_family(self.vlm)
        way = DEFAULTS | self.family.acting() | _given(asked)
        self.lower_case, self.size, self.crop = way["lower_case"], way["size"], way["crop"]
        self.device, self.lora, self.dims, self.chunk = self.vlm.device, config.lora, dims, chunk
        self.head_kind, self.decoding = head, way["decoding"] if head == "tokens" else "parallel"
        self.camera, self.text = camera, prompt
        self.use_statistics(self._published(config, statistics), statistics_key, statistics_kind, gripper)
        self.tokens = ActionTokens(bins=way["bins"], kind=way["binning"])
        self.slots = dims * chunk if head == "tokens" else chunk
        self._place_ids(self.family.action_end, way["bins"])
        wide = self.vlm.model.config.get_text_config().hidden_size
        self.width = wide * (dims if head == "tokens" and self.decoding == "parallel" else 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if head == "tokens":
                self.head = Tokens(self.tokens, dims)
            else:
                self.head = Flow(wide, dims, flow_steps) if head == "flow" else Normal(wide, dims, spread)
        self.own = nn.ModuleDict({"head": self.head}).to(self.device)
        self.model = nn.ModuleDict({"vlm": self.vlm.model, "own": self.own})
        self._read: dict[tuple[str, int, int], PromptInputs] = {}
        given = source or Path(config.model)
        if (given / SETTINGS).is_file():
            self.load(given)

    @staticmethod
    def check(config: PolicyConfig) -> None:
        """See `VLM.check`."""
        VLM.check(config)

    def _published(self, config: PolicyConfig, given: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
        """The statistics to use: the given ones, or those that come with the model."""
        mine = config.model.startswith("tiny:") or (Path(config.model) / SETTINGS).is_file()  # its settings name its statistics
        if given == NONE or given or mine or not isinstance(self.family, OpenVLAFamily):
            return "" if given == NONE else given
        found = statistics_file(adapter_chain(config.model)[1])
        if found is None:
            raise UserError(
                f"{config.model!r} comes without statistics of its data (norm_stats, dataset_statistics.json): set "
                f"policy.options.statistics to a file, or to {NONE!r} where the policy's numbers are the simulator's",
                key="policy.model",
            )
        return found

    def _place_ids(self, rows: int, bins: int) -> None:
        """Set the ids of the bins, at the end of the vocabulary, and before them an id for each slot."""
        ids = self.tokens.ids(rows)
        first = rows - bins - self.slots
        if first < 0 or self.tokens.bins > 1024:
            raise UserError(f"policy.options.bins = {bins}: the vocabulary has {rows} ids: give fewer bins")
        self.action_ids = torch.tensor(ids, device=self.device)
        self.slot_ids = torch.arange(first, first + self.slots, device=self.device)

    def settings(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"kind": "vla", "head": self.head_kind, "dims": self.dims, "chunk": self.chunk}
        if self.head_kind == "tokens":
            found |= {"decoding": self.decoding, "bins": self.tokens.bins, "binning": self.tokens.kind}
        if isinstance(self.head, Flow):
            found["flow_steps"] = self.head.steps
        found |= {"prompt": self.text, "lower_case": self.lower_case}
        return found | {"camera": self.camera, "size": self.size, "crop": self.crop}

    def tokens_per_call(self, tracks: Sequence[TrajectoryData]) -> int:
        read = set()
        for track in tracks:
            height, width = picture_of(track, self.camera).shape[1:3]
            read.add((track.instruction, *((self.size, self.size) if self.size else (width, height))))
        return max((len(self._prompt(*one).ids) for one in read), default=0) + self.slots

    # -- seeing -----------------------------------------------------------------------------------------------------------

    def _pictures(self, seen: Observation) -> list[torch.Tensor]:
        """uint8 [3, H, W] each, cropped and scaled for the model."""
        pictures = picture_of(seen, self.camera).to(self.device).permute(0, 3, 1, 2)
        if self.crop < 1:
            height, width = pictures.shape[2:]
            pictures = center_crop(pictures, self.crop)
            if not self.size:
                pictures = resize(pictures, height, width)
        if self.size and pictures.shape[2:] != (self.size, self.size):
            pictures = resize(pictures, self.size, self.size)
        return list(pictures)

    def _prompt(self, instruction: str, width: int, height: int) -> PromptInputs:
        """The prompt with a picture of this size in it, encoded once; its pixels are put in later."""
        key = (instruction, width, height)
        if key not in self._read:
            from PIL import Image

            text = self.text.replace("{instruction}", instruction.lower() if self.lower_case else instruction)
            self._read[key] = self.vlm.encode(
                Prompt(messages=[user_message(text, Image.new("RGB", (width, height)))], id=instruction)
            )
        return self._read[key]

    def _media(self, pictures: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        processor, pixels = self.vlm.processor.image_processor, self.vlm.reader.pixels
        size = {"size": {**dict(processor.size), **pixels}} if pixels else {}
        return {name: value.to(self.device) for name, value in processor(images=pictures, return_tensors="pt", **size).items()}

    def _inputs(
        self, seen: Observation, behind: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
        """(ids [n, S], segment [n, S], positions [axes, n, S], media, the index of each prompt's last token [n]). behind: ids
        after the prompts, int64 [n, M], which are in segment 1."""
        pictures = self._pictures(seen)
        height, width = pictures[0].shape[1:]
        prompts = [self._prompt(text, width, height) for text in seen.instructions]
        more = 0 if behind is None else behind.shape[1]
        lengths = [len(p.ids) for p in prompts]
        longest = max(lengths) + more
        kinds = {id(p): p for p in prompts}
        made: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        for key, p in kinds.items():
            ids, segment = torch.zeros(longest, dtype=torch.long), torch.full((longest,), -1)
            assert p.positions is not None
            positions = torch.zeros(len(p.positions), longest, dtype=torch.long)
            end = len(p.ids)
            ids[:end], segment[:end], positions[:, :end] = p.ids, 0, p.positions
            segment[end : end + more] = 1
            positions[:, end : end + more] = p.next_position + torch.arange(more)
            made[key] = (ids, segment, positions)
        rows = [made[id(p)] for p in prompts]
        ids_nS = torch.stack([r[0] for r in rows]).to(self.device)
        segment_nS = torch.stack([r[1] for r in rows]).to(self.device)
        positions = torch.stack([r[2] for r in rows], 1).to(self.device)
        ends_n = torch.tensor(lengths, device=self.device)
        if behind is not None:
            ids_nS = ids_nS.scatter(1, ends_n[:, None] + torch.arange(more, device=self.device), behind)
        return ids_nS, segment_nS, positions, self._media(pictures), ends_n - 1

    def _hidden(self, seen: Observation, behind: torch.Tensor, at_nM: torch.Tensor, together: bool) -> torch.Tensor:
        """Hidden states [n, M, H] at places relative to the prompts' last tokens. together: the tokens `behind` all see each
        other."""
        ids, segment, positions, media, last_n = self._inputs(seen, behind)
        mask = prefix_mask(segment, self.vlm.model.dtype)
        if together:
            mask.masked_fill_((segment[:, None, :, None] == 1) & (segment[:, None, None, :] == 1), 0.0)
        source = (torch.arange(len(ids), device=self.device)[:, None] * ids.shape[1] + last_n[:, None] + at_nM).flatten()
        values = self.family.hidden(ids, mask, positions, media).flatten(0, 1).index_select(0, source)
        return values.view(len(ids), at_nM.shape[1], -1)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the bins alone, [..., B]."""
        return linear(hidden, self.vlm.model.get_output_embeddings().weight[self.action_ids])

    def features(self, seen: Observation) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(seen)
        behind = self.slot_ids.expand(count, -1)
        at = torch.arange(1, self.slots + 1, device=self.device).expand(count, -1)
        hidden = self._hidden(seen, behind, at, together=True)
        if self.head_kind != "tokens":
            return hidden, hidden[:, 0]
        logits = self._logits(hidden).view(count, self.chunk, self.dims, -1)
        return logits, hidden[:, : self.dims].flatten(1)

    # -- one token after the other ----------------------------------------------------------------------------------------

    def choose(self, seen: Observation, draw: CallRandomness, temperature: float) -> tuple[torch.Tensor, ...]:
        if self.decoding == "parallel":
            return super().choose(seen, draw, temperature)
        cache = DynamicCache(config=self.vlm.model.config)
        hidden, padding, places = self._prefilled(seen, cache)
        uniform = draw.uniform(0, self.slots) if temperature else None
        states, chosen, logprobs = hidden, [], []
        for m in range(self.slots):
            one, logprob = categorical(self._logits(hidden), temperature, None if uniform is None else uniform[:, m])
            chosen.append(one)
            logprobs.append(logprob)
            if m + 1 == self.slots:
                break
            padding = torch.cat([padding, padding.new_ones(len(padding), 1)], 1)
            hidden = self._stepped(self.action_ids[one][:, None], padding, (places + m)[..., None], {}, cache)
        shape = (len(seen), self.chunk, self.dims)
        bins = torch.stack(chosen, 1).view(shape)
        return self.tokens.action_of(bins), bins, torch.stack(logprobs, 1).view(shape), states

    def _prefilled(self, seen: Observation, cache: DynamicCache) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(hidden states at the prompts' ends [n, H], mask without padding [n, S], the next positions [axes, n]); padding is on
        the left."""
        ids, segment, positions, media, last_n = self._inputs(seen, None)
        size = ids.shape[1]
        shift = (torch.arange(size, device=self.device)[None] + last_n[:, None] + 1) % size  # the padding comes first
        ids, segment = ids.gather(1, shift), segment.gather(1, shift)
        positions = positions.gather(2, shift.expand(len(positions), -1, -1))
        following = (positions.amax((0, 2)) + 1).expand(len(positions), -1)
        padding = (segment == 0).long()
        return self._stepped(ids, padding, positions, media, cache), padding, following

    def _stepped(
        self, ids: torch.Tensor, padding: torch.Tensor, positions: torch.Tensor, media: Mapping[str, torch.Tensor], cache: Any
    ) -> torch.Tensor:
        return self.family.hidden(ids, None if bool(padding.all()) else padding, positions, media, cache)[:, -1]

    def scored(self, calls: ActionMicroBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if self.decoding == "parallel":
            return super().scored(calls, temperature)
        bins = calls.choices.flatten(1)
        count = torch.arange(self.slots, device=self.device).expand(len(bins), -1)
        hidden = self._hidden(calls.observation, self.action_ids[bins], count, together=False)
        logits = self._logits(hidden).view(*calls.choices.shape, -1)
        return (*self.head.score(logits, calls.choices, temperature), hidden[:, 0])

    def states_of(self, seen: Observation, draw: CallRandomness | None = None) -> torch.Tensor:
        if self.decoding == "parallel":
            return self.features(seen)[1]
        nothing = self.action_ids[:1].expand(len(seen), -1)
        return self._hidden(seen, nothing, torch.zeros(len(seen), 1, dtype=torch.long, device=self.device), together=False)[:, 0]

    # -- weights ----------------------------------------------------------------------------------------------------------

    def parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        yield from self.vlm.parameters()
        for name, parameter in self.own.named_parameters():
            yield f"own.{name}", parameter

    def save(self, folder: Path) -> None:
        super().save(folder)
        self.vlm.save(folder)

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.own.named_parameters()


def _acting_family(vlm: VLM) -> Family:
    if not vlm.family.shares_prefix or vlm.family.capabilities.attention != ("full_attention",):
        kind = vlm.model.config.model_type
        raise UserError(f"policy.kind = 'vla': models of type {kind} can't act yet: take a Qwen-VL or a checkpoint of OpenVLA")
    return vlm.family


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def _check(
    head: str, prompt: str, dims: int, chunk: int, camera: str, flow_steps: int, spread: float, way: Mapping[str, Any]
) -> None:
    for name, value, known in (
        ("head", head, HEADS),
        ("decoding", way["decoding"], DECODING),
        ("binning", way["binning"], ("uniform", "openvla")),
        ("lower_case", way["lower_case"], (True, False)),
    ):
        if value not in known:
            raise UserError(f"policy.options.{name} = {value!r} is unknown: choose one of {', '.join(map(str, known))}")
    options.check_prompt(prompt)
    options.check_crop(way["crop"])
    options.check_integer("dims", dims, 1, 256)
    options.check_integer("chunk", chunk, 1, 256)
    options.check_integer("bins", way["bins"], 2, 1024)
    options.check_integer("size", way["size"], 0, 4096)
    options.check_text("camera", camera)
    options.check_integer("flow_steps", flow_steps, 1, 1000)
    options.check_number("spread", spread, 0, 10)
