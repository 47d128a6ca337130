"""Rules whose pay changes as they learn: what a memory has of it is corrected whenever they have learned (Wang et al., RL-VLM-F,
arXiv 2402.03681; Lee et al., PEBBLE, section 4.3, arXiv 2106.05091)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmrl.api.sampling import SamplingRule
from mmrl.api.simulators.types import Observation
from mmrl.train.update.replay import Replay
from mmrl.train.update.scenes import Scenes

AT_ONCE = 256
"""Observations that are paid for in one call of a rule."""


class Paying:
    """The rules with a `revision`, and for which of their revisions each memory has been paid."""

    def __init__(self, rules: Sequence[SamplingRule]) -> None:
        self.rules = rules
        self._corrected: dict[int, list[int | None]] = {}

    def __bool__(self) -> bool:
        return bool(self.rules)

    def now(self, after: Observation) -> torch.Tensor:
        """float32 [n]: what all of them pay by now for calls that led to these observations."""
        return torch.stack([rule.pay_for(after).cpu().float() for rule in self.rules]).sum(0)

    def correct(self, memory: Replay | None, scenes: Scenes | None) -> None:
        """Pay again for all that a memory has, if a rule has learned since. scenes: what was seen in its episodes."""
        if memory is None or not self.rules or self._corrected.get(id(memory)) == self._revisions or not len(memory):
            return
        assert scenes is not None
        rows = scenes.rows_of(torch.arange(len(memory)), after=True)
        parts = [self.now(scenes.shown(rows[first : first + AT_ONCE])) for first in range(0, len(rows), AT_ONCE)]
        memory.pay_again(torch.cat(parts))
        self.corrected(memory)

    def corrected(self, memory: Replay) -> None:
        """The memory has what the rules pay by now."""
        self._corrected[id(memory)] = self._revisions

    @property
    def _revisions(self) -> list[int | None]:
        return [rule.revision for rule in self.rules]
