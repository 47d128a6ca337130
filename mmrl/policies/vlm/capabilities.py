"""What a model can do, as found by trying it; see `probe`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Head = Literal["plain", "softcap", "scale", "multiply", "divide"]
Way = Literal["dense", "blocks", "flex", "varlen"]
"""How attention is computed, see `attention`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What decides how a model is sampled and trained."""

    packs: bool
    """It takes given positions, and rows that hold a prompt once and several completions equal rows of their own."""
    pads: bool = False
    """Prompts of several lengths may be computed together, padded on the left, and decoded together."""
    head: Head = "plain"
    """What follows the output embeddings; see `logits.Logits`."""
    recurrent: tuple[str, ...] = ()
    """Classes of modules with a recurrent or convolution state, which no mask reaches."""
    continues: bool = True
    """These modules go on from a copied state; otherwise they alone compute the prompt again for each completion."""
    attention: tuple[str, ...] = ()
    """Kinds of its layers, by its configuration: `full_attention`, `sliding_attention`, `linear_attention`, ..."""
    way: Way = "dense"
    """How attention is computed in packed rows and prompts."""
    slower_because: str = ""
    """Why a faster way isn't taken, if one was tried."""
    moves_on: bool = True
    """Positions behind a text are those at a prompt's start, moved on by its length, so that a later turn can be added."""
    looks_ahead: bool = False
    """Tokens of a picture, or of the prompt, see later ones."""
    logprob_difference: float = 0.0
    """Greatest difference between a packed row and rows of their own."""
    gradient_difference: float = 0.0
    """Relative difference of the gradients at the first layer."""
    why_not: str = ""
    """Why rows aren't packed."""

    def described(self, kind: str) -> str:
        """In one line, how a model of this kind is run."""
        if not self.packs:
            return f"{kind}: every completion is computed with its own copy of the prompt ({self.why_not})"
        state = ""
        if self.recurrent:
            how = "a copy of the state of" if self.continues else "the prompt computed again in"
            state = f"; each completion gets {how} {', '.join(self.recurrent)}"
        return f"{kind}: a group shares its prompt in sampling and in the update{state}"


UNKNOWN = Capabilities(packs=False, why_not="it was not tried")
