"""What a plan asks of the pictures of a model: `mmrl.train.plan.pictures` counts it.

b is the bytes of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mmrl.train.plan.cost import Cost
from mmrl.train.plan.learning import Learning
from mmrl.train.plan.machines import Machine

if TYPE_CHECKING:
    from mmrl.train.plan.counter import Pass


SECONDS = 30
"""Of the sound that a model hears that sees nothing: Qwen2-Audio's tower always reads so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes that a pass over a picture keeps for the backward pass."""

    whole: int
    layer: int
    """Of the layer that keeps most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Bytes that it keeps where layers are computed again, and keep what goes into them."""

    whole: int
    moved: int
    """Those that are in the host's memory with `train.offload_activations`: the inputs of all layers but two."""


@dataclass(frozen=True, slots=True)
class PerToken:
    """What a model with pictures computes of each token of text outside its language model: in most families nothing, but
    Gemma 3n looks each token up among those of pictures and sounds, too."""

    flops: float
    """Of matrix products."""
    moved: float
    """Bytes that the other operations read and write."""
    kept: float
    """Bytes that are kept for the backward pass."""

    def times(self, tokens: int) -> PerToken:
        return PerToken(tokens * self.flops, tokens * self.moved, tokens * self.kept)


class Seen(Protocol):
    """A square picture as a model sees it."""

    @property
    def tokens(self) -> int:
        """Tokens of its prompt that there are for the picture."""
        ...

    @property
    def patches(self) -> int:
        """Vectors that the tower's first layer goes through."""
        ...

    @property
    def pixels(self) -> float:
        """Bytes of pixels of a patch, in float32."""
        ...

    @property
    def kept_token(self) -> int:
        """Numbers that a frozen tower's sight has for a token; 0 if none is kept."""
        ...

    def forward(self, b: int) -> Pass: ...

    def kept(self, b: int, learning: Learning) -> Kept: ...

    def inputs(self, b: int, learning: Learning) -> Inputs: ...

    def per_token(self, b: int, learning: Learning) -> PerToken: ...

    def cost(self, patches: int, picture: int, machine: Machine, b: int, rate: float) -> Cost:
        """Of a pass over so many patches without gradients. picture: patches of a picture. rate: floating-point operations a
        second."""
        ...


class Pictures(Protocol):
    """The pictures of a model."""

    def seen(self, pixels: int) -> Seen:
        """A square picture of so many pixels, or one that stands for it. Raises UserError if a pass over it needs numbers of
        weights."""
        ...

    def tokens(self, pixels: int) -> int:
        """Of a picture of so many pixels."""
        ...

    def patches(self, pixels: int) -> int: ...
