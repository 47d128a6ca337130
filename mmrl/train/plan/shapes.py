"""The shapes of a model: the name and shape of every weight, and the sizes that a plan's arithmetic needs beside its passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mmrl.train.plan.seen import Pictures, Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The MLPs of a layer of the language model of which each token goes through some."""

    count: int
    chosen: int
    """Experts of a token, besides the shared ones."""

    def hit(self, tokens: float) -> float:
        """Share of the experts that any of so many tokens goes through, if they choose at random."""
        return 1.0 - (1 - self.chosen / self.count) ** tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The language model. Sizes of its MLPs are those of its passes, and not told here."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    experts: Experts | None = None
    where: frozenset[int] = frozenset()
    """Numbers of the layers with experts; the others have one MLP."""
    linear: int = 0
    """Number of layers with linear attention, which have a state in the place of a cache."""
    state: int = 0
    """Numbers of the state of one of them, for a sequence."""
    cached: int = 0
    """Numbers of keys and values of a token in all layers."""
    shared: int = 0
    """Numbers of a token that all layers are given besides, such as cosines and sines."""
    copies: int = 1
    """Copies of a token's states that go from layer to layer, such as Gemma 3n's."""
    capped: bool = False
    """Whether scores of attention have a cap: it goes by blocks unless a dense mask is asked for, and then keeps them."""
    bounded: bool = False
    """Whether logits have a bound, whose hyperbolic tangent is kept."""
    masks: int = 1
    """Masks of all pairs of tokens: of windows another than of full attention."""

    @property
    def sparse(self) -> int:
        """Number of layers with experts."""
        return len(self.where)

    @property
    def q(self) -> int:
        """Width of queries."""
        return self.heads * self.head_dim

    @property
    def k(self) -> int:
        """Width of keys."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The shapes of a model."""

    family: str
    text: Text
    listed: tuple[tuple[str, tuple[int, ...]], ...]
    """Every weight's name and shape, as in transformers and in its order; without a tied head."""
    own: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Those of what a policy that acts adds to the model: a head, a projector of the state."""
    traced: bool = False
    """The policy says its passes itself, see `mmrl.train.plan.acting_passes`."""
    reads_text: bool = True
    """False of a policy without a language model."""
    config: str = ""
    """Content of the config.json, of which passes are made; empty of a policy that says them itself."""
    pictures: Pictures | None = None
    """What the model sees; None of a policy that says its passes itself."""
    hears: bool = False
    """It sees nothing, and the sounds that it hears are counted in the place of pictures."""
    taps: int = 0
    """Layers of the tower whose states also go to the language model (DeepStack)."""
    seen: Seen | None = None
    """A picture of the size that is planned for; None without pictures."""

    def named(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """`listed` and `own`."""
        yield from self.listed
        yield from self.own

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.named())

    def seeing(self, pixels: int) -> Shapes:
        """With pictures of so many pixels, or 0 for none."""
        return self if self.pictures is None or not pixels else replace(self, seen=self.pictures.seen(pixels))

    def tokens_of(self, pixels: int) -> int:
        """Tokens of an image of so many pixels, at least one."""
        return self.pictures.tokens(pixels) if self.pictures else 0

    def patches_of(self, pixels: int) -> int:
        return self.pictures.patches(pixels) if self.pictures else 0

    @property
    def pixel_bytes(self) -> float:
        """Bytes of a patch's pixels, in float32."""
        return self.seen.pixels if self.seen else 0.0

    @property
    def vectors(self) -> float:
        """Tokens of a patch."""
        return self.seen.tokens / self.seen.patches if self.seen else 0.0
