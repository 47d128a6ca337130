"""An action in the vocabulary of pi0-FAST: words that introduce it, FAST's tokens from the end of the vocabulary, a bar (openpi,
`FASTTokenizer`; lerobot 0.6.1, `ActionTokenizerProcessorStep` and `PI0FastPolicy.detokenize_actions`).

n calls, M the room for a call's tokens, C actions in a chunk, A numbers in each, B ids that may be sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmrl.api.errors import UserError
from mmrl.api.transfer import upload_one
from mmrl.policies.pi0.fast_tokens import FastTokenizer

BEFORE, END = "Action: ", "|"
NOTHING = -1
"""Behind a call's last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionWords:
    """Chunks of actions <-> ids of the words' tokenizer."""

    fast: FastTokenizer
    before: tuple[int, ...]
    """The words before an action."""
    end: int
    first: int
    """The id of FAST's token 0; those of the others count down from it."""
    given: bool
    """The words before an action are not sampled, and only actions and the end can be."""
    checked: bool
    """An action without the words before it is not understood: LeRobot's `validate_action_token_prefix`."""
    room: int
    """M."""
    ahead: int
    """C."""
    dims: int
    """A."""

    slots = 1
    """See `Head`: no action has choices of its own."""

    @property
    def ids(self) -> list[int]:
        """With `given`, the ids that may be sampled: the end, then FAST's tokens."""
        return [self.end, *range(self.first, self.first - self.fast.size, -1)]

    def index_of(self, ids: torch.Tensor) -> torch.Tensor:
        """With `given`, the places of ids in `ids`."""
        return torch.where(ids == self.end, 0, self.first - ids + 1)

    def choices_of(self, actions_nCA: torch.Tensor) -> torch.Tensor:
        """int64 [n, M]: actions in the policy's numbers as tokens. Raises UserError for those that need more."""
        found = [self._row(chunk) for chunk in actions_nCA.float().cpu().numpy()]
        if (longest := max(map(len, found), default=0)) > self.room:
            raise UserError(
                f"a chunk of a demonstration takes {longest} tokens, and a call has {self.room}: set "
                f"policy.options.action_tokens = {longest}, or give shorter chunks"
            )
        rows = [row + [NOTHING] * (self.room - len(row)) for row in found]
        return torch.tensor(rows, dtype=torch.long, device=actions_nCA.device).view(len(found), self.room)

    def _row(self, chunk_CA: np.ndarray[Any, Any]) -> list[int]:
        said = [self.first - token for token in self.fast.encode(chunk_CA)]
        return [*(() if self.given else self.before), *said, self.end]

    def actions_of(self, choices_nM: torch.Tensor) -> torch.Tensor:
        """float32 [n, C, A]: tokens as actions. What can't be understood is 0, as in LeRobot."""
        rows = [self._understood([token for token in row if token != NOTHING]) for row in choices_nM.tolist()]
        return upload_one(torch.from_numpy(np.stack(rows)).float(), choices_nM.device)

    def _understood(self, row: Sequence[int]) -> np.ndarray[Any, Any]:
        told = list(row[: row.index(self.end)]) if self.end in row else list(row)
        if not self.given:
            if self.checked and tuple(told[:2]) != self.before[:2]:
                return np.zeros((self.ahead, self.dims))
            told = self._without_words(told)
        return self.fast.decode([self.first - one for one in told], self.ahead, self.dims)

    def _without_words(self, told: list[int]) -> list[int]:
        """Without the words before an action, wherever they stand."""
        size, at = len(self.before), 0
        while at <= len(told) - size:
            if tuple(told[at : at + size]) == self.before:
                told = told[:at] + told[at + size :]
            else:
                at += 1
        return told


def words_before(tokenizer: Any) -> tuple[int, ...]:
    return tuple(tokenizer(BEFORE, add_special_tokens=False)["input_ids"])


def check_room(name: str, tokenizer: Any, fast: FastTokenizer, first: int) -> int:
    """The id of the end. Raises UserError for a tokenizer of words that has none, or no room for FAST's tokens."""
    end = tokenizer.convert_tokens_to_ids(END)
    if end is None or end == tokenizer.unk_token_id:
        raise UserError(f"{name!r}: the tokenizer of words has no token {END!r}: give PaliGemma's", key="policy.model")
    last = first - fast.size + 1
    if last <= end:
        raise UserError(
            f"{name!r}: the tokenizer of words has {tokenizer.vocab_size} tokens, and no room at their end for the {fast.size} "
            "of the FAST tokenizer: set policy.options.tokenizer and action_tokenizer to those that it was trained with",
            key="policy.model",
        )
    return int(end)
