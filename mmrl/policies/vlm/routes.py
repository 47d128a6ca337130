"""Which experts the tokens of a conversation went through, as the sampler chose them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

UNKNOWN = -1
"""In place of an expert's number: it isn't known which one was chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Numbers of experts, int16: K of each token in each of the M layers that have experts. A sampler reads every token but the
    last of an answer, which has none."""

    prompt_PMK: torch.Tensor
    """Of the prompt's tokens. The completions of a group have the same tensor."""
    after_AMK: torch.Tensor
    """Of the tokens behind it, from the first. Some may be `UNKNOWN`."""

    def then(self, later: Routes) -> Routes:
        """With those of a later turn, whose prompt is the conversation up to it. Sampled tokens keep theirs."""
        whole = torch.cat([later.prompt_PMK, later.after_AMK])
        return Routes(self.prompt_PMK, torch.cat([self.after_AMK, whole[len(self.prompt_PMK) + len(self.after_AMK) :]]))
