"""The pairs of tokens whose attention is computed: all of a square under a dense mask, or the blocks of a mask that hold
something, as `mmrl.policies.vlm.attention` chooses."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from mmrl.train.plan.workload import Micro

BLOCK, LONG = 128, 1024
"""As in `mmrl.policies.vlm`, which isn't imported here; a test compares them. LONG: of a CPU."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The choice for a device."""

    setting: str
    """`policy.attn_implementation`."""
    kind: str
    """`gpu` or `cpu`."""

    def by_blocks(self, length: int) -> bool:
        """Whether rows of so many tokens have no dense mask."""
        if self.setting == "auto":
            return self.kind == "gpu" or length > LONG
        return self.setting == "flex_attention"

    def pairs(self, micro: Micro) -> int:
        """Pairs that are computed in all rows of a pass."""
        if not self.by_blocks(micro.length):
            return micro.rows * micro.length**2
        members = micro.members or (0,) * micro.rows
        return BLOCK**2 * sum(blocks(micro.prompt or micro.length, micro.completion, n) for n in members)


@functools.lru_cache(maxsize=4096)
def blocks(prompt: int, completion: int, members: int) -> int:
    """Blocks that hold something in the mask of a row: a prompt and so many completions of it, which don't see each other."""
    total, full = prompt + members * completion, prompt // BLOCK
    found = full * (full + 1) // 2  # those of the prompt alone, which may be of any length
    for i in range(full, -(-total // BLOCK)):
        first, last = i * BLOCK, min(total, (i + 1) * BLOCK) - 1
        of_prompt = -(-min(prompt, last + 1) // BLOCK)
        if last < prompt:
            found += of_prompt
            continue
        own = prompt + (max(first, prompt) - prompt) // completion * completion  # where the first completion here begins
        found += of_prompt + i + 1 - max(of_prompt, own // BLOCK)
    return found
