"""The answer on which several completions agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def majority(answers: Sequence[str | None]) -> str:
    """The most frequent answer, the first among equals. Blank answers don't vote; `""` if there are only blank ones."""
    votes = Counter(answer for answer in answers if answer and answer.strip())
    return votes.most_common(1)[0][0] if votes else ""
