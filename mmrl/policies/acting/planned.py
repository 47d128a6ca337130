"""What `mmrl plan` reads of a policy that acts: its network without weights, and passes of it over made-up inputs.

Everything is on torch's meta device, where tensors have shapes and no numbers: nothing is loaded or computed, and whoever plans
counts what the passes would compute and keep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mmrl.config.policy import PolicyConfig
from mmrl.policies.acting.flow import PLACES, Chains

META = torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A policy's numbers, from its configuration alone. text: tokens of an instruction in its prompt, 0 or more. rows: calls."""

    model: nn.Module
    """On the meta device, with the names of `policy.model`, in the types of `policy.dtype`."""
    width: int
    """Of the hidden states that a critic reads."""
    chunk: int
    """Actions of a call that are carried out."""
    dims: int
    """Numbers of an action."""
    steps: int
    """Passes over the actions of a call that acts: steps of a flow or of denoising, or tokens one after the other; else 1."""
    pictures: int
    """Of a call: of each camera, and of each moment that is seen."""
    pixels: int
    """Of a picture, as the network sees it; 0: as they are given."""
    prefix: Callable[[int], int]
    """text -> tokens of pictures, text and state that the actions follow."""
    tokens: Callable[[int, bool], int]
    """(text, whether calls are demonstrations) -> tokens of a call in an update; see `ActingPolicy.tokens_per_call`."""
    act: Callable[[int, int], Any]
    """(rows, text): the passes of calls that act, as `choose` makes them; with `step`, those before it."""
    learn: Callable[[int, int, bool], torch.Tensor]
    """(rows, text, whether they are demonstrations) -> what the loss is computed from, as `scored` makes it."""
    step: Callable[[int, int], Any] | None = None
    """(rows, text): one of the `steps` - 1 passes that follow, so that many alike are counted once."""
    frozen: nn.Module | None = None
    """A policy beneath it that never changes, whose weights are on the device as well."""
    computed: PolicyConfig | None = None
    """A frozen vision-language-action model beneath it, with all its options. What it takes, `mmrl plan` computes from sizes:
    nothing else here has any of it."""
    look: Callable[[int, int], Any] | None = None
    """(rows, text): the passes of `act` before what `ActingPolicy.replayed` runs; None where it runs nothing."""
    noise_shape: tuple[int, int] | None = None
    """See `ActingPolicy.noise_shape`."""
    reads_text: bool | None = None
    """Whether its passes depend on an instruction; None: as its class says."""

    def call(self, rows: int, text: int) -> None:
        """All passes of calls that act."""
        self.act(rows, text)
        for _ in range(self.steps - 1):
            if self.step is not None:
                self.step(rows, text)


def planned_flow(
    *,
    chains: Chains,
    ahead: int,
    numbers: int,
    each: int,
    read: Callable[[int, int], Any],
    velocity: Callable[[Any, torch.Tensor, torch.Tensor], Any],
    prefix: Callable[[int], int],
    state: int = 0,
    **others: Any,
) -> Planned:
    """That of a policy with `Chains`. ahead, numbers: of a chunk [C, D] that the network predicts. each: tokens of a moment of
    the flow. read: (rows, text) -> the encoded inputs. velocity: (inputs, x [n, M, C, D], times [n, M]) -> what a step needs.
    state: tokens of the robot's state that aren't in the prefix."""
    moments = 1 if chains.noisy == "one" else chains.steps

    def moved(scene: Any, rows: int, many: int) -> Any:
        return velocity(scene, torch.empty(rows, many, ahead, numbers, device=META), torch.empty(rows, many, device=META))

    def act(rows: int, text: int) -> None:
        scene = read(rows, text)
        for _ in range(chains.steps):
            moved(scene, rows, 1)

    def learn(rows: int, text: int, demonstrated: bool) -> torch.Tensor:
        found = moved(read(rows, text), rows, PLACES if demonstrated else moments)
        both = found if isinstance(found, tuple) else (found,)
        return torch.stack([one.sum() for one in both]).sum()

    return Planned(
        steps=chains.steps,
        prefix=prefix,
        tokens=lambda text, demonstrated: prefix(text) + state + (max(moments, PLACES) if demonstrated else moments) * each,
        act=act,
        learn=learn,
        look=read,
        noise_shape=(ahead, numbers),
        **others,
    )


def in_dtype(model: nn.Module, dtype: str, precise: Callable[[str], bool] = lambda name: False) -> nn.Module:
    """The model with its weights in `policy.dtype`, but for those that stay float32. precise: by name."""
    for name, weight in model.named_parameters():
        weight.data = weight.data.to(torch.float32 if precise(name) else getattr(torch, dtype))
    return model.eval()
