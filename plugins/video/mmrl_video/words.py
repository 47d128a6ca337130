"""Similarity of texts by words: edit distance and common words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def edits(true: Sequence[str], found: Sequence[str]) -> int:
    """The minimal number of words to insert, delete or change (Levenshtein). Time grows with the product of the lengths."""
    row = list(range(len(found) + 1))
    for i, word in enumerate(true, 1):
        corner, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (word != other))
    return row[-1]


def rightness(true: Sequence[str], found: Sequence[str]) -> float:
    """1 minus the word error rate, at least 0. Time depends only on the truth: an answer of twice as many words is 0."""
    if not true:
        return float(not found)
    return 0.0 if len(found) >= 2 * len(true) else max(0.0, 1.0 - edits(true, found) / len(true))


def common(true: Sequence[str], found: Sequence[str]) -> int:
    """The length of the longest common subsequence, with bit-parallel integers (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for i, word in enumerate(true):
        places[word] = places.get(word, 0) | 1 << i
    every = (1 << len(true)) - 1
    free = every
    for word in found:
        if here := free & places.get(word, 0):
            free = (free + here | free - here) & every
    return len(true) - free.bit_count()


def f1(true: Sequence[object], found: Sequence[object]) -> float:
    """The F1 of two bags of items, with repetitions. 0 if either is empty."""
    return f_measure((Counter(true) & Counter(found)).total(), len(true), len(found))


def f_measure(hits: int, true: int, found: int) -> float:
    """The harmonic mean of precision and recall; 0 without a hit."""
    if not hits:
        return 0.0
    precision, recall = hits / found, hits / true
    return 2 * precision * recall / (precision + recall)
