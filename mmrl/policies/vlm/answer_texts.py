"""Ids of an answer -> its text, and back."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from mmrl.api.errors import UserError


class AnswerTexts:
    """The tokenizer as answers are read and written: special tokens have no text, but those that are named, and a given text has
    no others."""

    def __init__(
        self, tokenizer: Any, shown: Sequence[str] = (), placeholders: Sequence[str] = (), eos: Collection[int] = ()
    ) -> None:
        """shown: see `policy.shown_tokens`. placeholders: of media, which are never sampled. eos: ids that end an answer. Raises
        UserError for a shown one that isn't a special token of the tokenizer, for a placeholder, and for one that ends an answer
        or fills it up."""
        self.tokenizer = tokenizer
        special = set(tokenizer.all_special_tokens)
        for token in shown:
            ends = token in (tokenizer.eos_token, tokenizer.pad_token) or tokenizer.convert_tokens_to_ids(token) in eos
            why = "ends answers" if ends else ""
            why = "stands for a picture or a sound" if token in placeholders else why
            if token not in special:
                why = "is a word as others are" if token in tokenizer.get_vocab() else "is none"
            if why:
                raise UserError(f"{token!r} {why}, and no special token within answers: leave it out", key="policy.shown_tokens")
        self.ids = {token: int(tokenizer.convert_tokens_to_ids(token)) for token in shown}
        self._silent = {int(i) for i in tokenizer.all_special_ids} - {*self.ids.values()}
        self._split = re.compile("(" + "|".join(map(re.escape, self.ids)) + ")") if self.ids else None

    def decode(self, ids: Sequence[int]) -> str:
        kept = list(ids) if self._split is None else [i for i in ids if i not in self._silent]
        # earlier versions of transformers take blanks before punctuation out, if the tokenizer's settings ask for it
        how = {"skip_special_tokens": self._split is None, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(kept, **how))

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without one that ends it."""
        pieces = [text] if self._split is None else [piece for piece in self._split.split(text) if piece]
        found: list[int] = []
        for piece in pieces or [""]:
            own = self.ids.get(piece)
            found += self._words(piece) if own is None else [own]
        return found

    def _words(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
