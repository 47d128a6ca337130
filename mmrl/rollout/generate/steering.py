"""Steer answers to videos during decoding, by the entropy of the next token: V-Reason (Sridhar et al., Video Reasoning without
Training). The model doesn't change; a trained controller is added to its last layer's cached values of the video."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from mmrl.api.errors import UserError
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.vlm import VLM, entropy_of
from mmrl.rollout.generate.cache import ReservedLayer
from mmrl.rollout.generate.processor import LogitsProcessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Measurements of one answer to a video."""

    tokens: int
    entropy: float
    """Mean over its tokens of the entropy that each was taken from, at temperature 1, in nats."""
    peak: int
    """The token, counted from 1, at which the running mean of the entropy was highest: from there on it was only lowered."""


class Steering(LogitsProcessor):
    """Steers answers and measures them. A learning rate of 0 only measures."""

    def __init__(self, learning_rate: float, interval: int, ema: float) -> None:
        """learning_rate: Adam's, of the controller, 0 or more. interval: tokens from one of its steps to the next. ema: decay per
        token of the entropy's running mean, in [0, 1)."""
        self.learning_rate, self.interval, self.ema = learning_rate, interval, ema
        self.traces: list[Trace] = []
        self._steered: Steered | None = None
        """State of the rows that are decoded now; None if no prompt has a video."""

    @contextlib.contextmanager
    def decoding(self, model: torch.nn.Module) -> Iterator[None]:
        """No gradients but those of the controllers."""
        trained = [p for p in model.parameters() if p.requires_grad]
        try:
            for p in trained:  # otherwise autograd would record all layers for unused gradients
                p.requires_grad_(False)
            with torch.inference_mode(False), torch.no_grad():  # tensors made in inference mode can't be in a backward pass
                yield
        finally:
            for p in trained:
                p.requires_grad_(True)

    def begin(self, policy: VLM, cache: DynamicCache, inputs: Sequence[PromptInputs], group_size: int) -> None:
        """Put a controller for each row into the cache, if a prompt has a video."""
        video, longest = getattr(policy.model.config, "video_token_id", None), max(len(i.ids) for i in inputs)
        place_PS = torch.zeros(len(inputs), longest, dtype=torch.bool)
        for row, one in enumerate(inputs):
            place_PS[row, longest - len(one.ids) :] = one.ids == video if video is not None else False
        self._steered = None
        if not place_PS.any():
            return
        place_NS = place_PS.to(policy.device).repeat_interleave(group_size, 0)
        last = cache.layers[-1]
        assert isinstance(last, ReservedLayer)  # so in every family with video input
        layer = SteeredLayer(last, place_NS, self.learning_rate, Switch(self.ema))
        cache.layers[-1] = layer
        self._steered = Steered(policy, layer, self.learning_rate)

    def needs_gradient(self, step: int) -> bool:
        """Whether the controllers take a step."""
        return self._steered is not None and self.learning_rate > 0 and step > 0 and step % self.interval == 0

    def __call__(self, step: int, ids_NT: torch.Tensor, logits_NV: torch.Tensor) -> torch.Tensor:
        """The same logits. Every `interval` tokens the controllers take a step on the token's distribution, for the tokens after
        it."""
        if self._steered:
            self._steered.see(logits_NV, self.needs_gradient(step))
        return logits_NV.detach()

    def end(self, length_N: torch.Tensor) -> None:
        """Record the traces of the answers."""
        if self._steered:
            self.traces += self._steered.traces(length_N)

    def figures(self) -> dict[str, float]:
        """Means of `entropy`, `peak` and `tokens` of the traces; empty if no answer was to a video."""
        names = ("entropy", "peak", "tokens") if self.traces else ()
        return {name: statistics.fmean(getattr(trace, name) for trace in self.traces) for name in names}


class Switch:
    """The sign of the entropy in V-Reason's loss, for each row by its own running mean: -1, which raises the entropy, while the
    mean is at its highest so far; 1, which lowers the entropy, below that."""

    def __init__(self, ema: float) -> None:
        self.ema = ema
        self.mean_N: torch.Tensor | None = None
        self.highest_N = torch.empty(0)

    def __call__(self, entropy_N: torch.Tensor) -> torch.Tensor:
        """Add the entropies of one more token to the mean, which begins with the first. Returns [N] of -1 and 1."""
        if self.mean_N is None:
            self.mean_N = self.highest_N = entropy_N
        else:
            self.mean_N = self.ema * self.mean_N + (1 - self.ema) * entropy_N
            self.highest_N = torch.maximum(self.highest_N, self.mean_N)
        return torch.where(self.mean_N >= self.highest_N, -1.0, 1.0)

    def select(self, rows_N: torch.Tensor) -> None:
        if self.mean_N is not None:
            self.mean_N, self.highest_N = self.mean_N[rows_N], self.highest_N[rows_N]


class SteeredLayer(ReservedLayer):
    """A layer of the cache with a controller for each row, which is added to the values of the video's tokens. Controllers follow
    their rows when rows are selected."""

    def __init__(self, layer: ReservedLayer, place_NS: torch.Tensor, learning_rate: float, switch: Switch) -> None:
        """place_NS: bool, which tokens of the prompts, padded on the left, are the video's."""
        super().__init__(layer, 1)
        columns = place_NS.any(0).nonzero()[:, 0]
        self.first, self.end = int(columns[0]), int(columns[-1]) + 1
        self.place_N1S1 = place_NS[:, None, self.first : self.end, None]
        batch, heads, _, width = self.values.shape
        shape = (batch, heads, self.end - self.first, width)
        self.controller = torch.nn.Parameter(torch.zeros(shape, device=place_NS.device))  # float32, or small steps would be lost
        self.adam = torch.optim.Adam([self.controller], lr=learning_rate)
        self.switch, self.row_N, self.shown_N = switch, torch.arange(batch, device=place_NS.device), place_NS.any(1)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        added = (self.controller * self.place_N1S1).to(values.dtype)
        steered = values[:, :, self.first : self.end] + added
        return keys, torch.cat([values[:, :, : self.first], steered, values[:, :, self.end :]], 2)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.controller.grad = None
        kept = self.adam.state[self.controller]
        kept.update({name: x[beam_idx] for name, x in kept.items() if x.shape == self.controller.shape})
        self.controller.data = self.controller.data[beam_idx]
        self.place_N1S1, self.row_N, self.shown_N = (x[beam_idx] for x in (self.place_N1S1, self.row_N, self.shown_N))
        self.switch.select(beam_idx)

    def learn(self, loss: torch.Tensor) -> None:
        """One step of the controllers."""
        (self.controller.grad,) = torch.autograd.grad(loss, [self.controller])
        self.adam.step()


class Steered:
    """Decoding of rows with controllers."""

    def __init__(self, policy: VLM, layer: SteeredLayer, learning_rate: float) -> None:
        self.policy, self.layer, self.learning_rate = policy, layer, learning_rate
        self.total = len(layer.row_N)
        self.entropy_TN: list[torch.Tensor] = []
        self.sign_TN: list[torch.Tensor] = []

    def see(self, logits_NV: torch.Tensor, learns: bool) -> None:
        """Take in the logits of the next token. learns: the controllers take a step."""
        with torch.set_grad_enabled(learns):
            entropy_N = entropy_of(self.policy.distribution(logits_NV, 1.0))
            sign_N = self._kept(entropy_N.detach())
            if learns:
                self.layer.learn((sign_N * entropy_N).sum())  # each row's own: no controller is in another row's entropy

    def traces(self, length_N: torch.Tensor) -> list[Trace]:
        """The traces of the answers, which have these numbers of tokens."""
        entropy_NT, sign_NT = (torch.stack(x, 1).cpu() for x in (self.entropy_TN, self.sign_TN))
        found = []
        for row, tokens in enumerate(length_N.tolist()):
            raised = (sign_NT[row, :tokens] < 0).nonzero()
            if len(raised):  # always of its first token, where a video is shown
                mean = float(entropy_NT[row, :tokens].mean())
                found.append(Trace(tokens=tokens, entropy=mean, peak=int(raised[-1]) + 1))
        return found

    def _kept(self, entropy_N: torch.Tensor) -> torch.Tensor:
        """The signs, see `Switch`. Raises UserError for entropies that are not finite."""
        if not torch.isfinite(entropy_N).all():
            raise UserError(
                f"evaluate.steering.learning_rate = {self.learning_rate:g} made the model's logits not finite: lower it"
            )
        sign_N, layer = self.layer.switch(entropy_N), self.layer
        for seen, values in ((self.entropy_TN, entropy_N), (self.sign_TN, sign_N * layer.shown_N)):
            seen.append(torch.zeros(self.total, device=values.device).index_copy_(0, layer.row_N, values))
        return sign_N
