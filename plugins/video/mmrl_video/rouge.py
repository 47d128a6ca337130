"""ROUGE of short texts as in the package rouge_score with its stemmer (C.-Y. Lin, "ROUGE: A Package for Automatic
Evaluation of Summaries", 2004)."""

from __future__ import annotations

import re
from itertools import pairwise

from mmrl_video.stems import stem
from mmrl_video.words import common, f1, f_measure

_OTHER = re.compile(r"[^a-z0-9]+")


def mean_rouge(true: str, found: str) -> float:
    """The mean of ROUGE-1, ROUGE-2 and ROUGE-L, each as F1: 0 to 1."""
    a, b = tokens(true), tokens(found)
    pairs = [list(pairwise(words)) for words in (a, b)]
    return (f1(a, b) + f1(*pairs) + f_measure(common(a, b), len(a), len(b))) / 3


def tokens(text: str) -> list[str]:
    """The words of a text in lower case, only a to z and digits, those of more than three letters as stems."""
    return [stem(word) if len(word) > 3 else word for word in _OTHER.sub(" ", text.lower()).split()]
