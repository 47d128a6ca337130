"""A question as the policy proposes it: its form, and what the others of the step are worth beside it.

He et al. 2025, VisPlay: Self-Evolving Vision-Language Models from Images, arXiv 2511.15661; its code,
github.com/bruno686/VisPlay, commit 3aa895b (`train_examples/reward_function/cot_val.py`,
`vllm_service_init/start_vllm_server.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmrl import Case
from mmrl.api.votes import majority
from mmrl_vqa.verifiers import letter, normalise, said, value

if TYPE_CHECKING:
    import numpy

ORDERS = 4
"""BLEU counts runs of up to so many words."""
NO_MATCH = 0.1
"""What BLEU counts for an order without a match (Chen and Cherry 2014, smoothing 1)."""
SAME_FROM = 0.5
"""Questions whose mean distance is below this are of one cluster."""
KINDS = {"numerical": "number", "regression": "number"}
"""Type of a question as it is proposed -> kind of its answer; that of a choice is seen from the answer."""


class Proposal(NamedTuple):
    """A question that the policy proposes, with the answer that it holds to be right."""

    type: str
    question: str
    answer: str

    @property
    def is_whole(self) -> bool:
        """Nothing of it is blank."""
        return all(self)

    @property
    def kind(self) -> str:
        """Of the answer: choice, number, yes-no or text."""
        if self.type in KINDS:
            return KINDS[self.type]
        if self.type != "multiple choice":
            return "text"
        return "yes-no" if normalise(self.answer) in ("yes", "no") else "choice"


def written(proposal: Proposal) -> str:
    """The completion that proposes it."""
    return "\n".join(f"<{name}>{getattr(proposal, name)}</{name}>" for name in Proposal._fields)


def read(completion: str) -> Proposal | None:
    """The first type, question and answer, each in its tag and in this order, which may be blank; None if a tag is missing."""
    pieces = re.split("([<>/])", completion)  # blanks around these signs don't count
    last = len(pieces) - 1
    text = "".join(p.rstrip() if not n else p.lstrip() if n == last else p.strip() for n, p in enumerate(pieces))
    found, place = [], 0
    for name in Proposal._fields:
        start = text.find(f"<{name}>", place)
        place = text.find(f"</{name}>", start)
        if start < 0 or place < 0:
            return None
        found.append(text[start + len(name) + 2 : place].strip())
    return Proposal(*found)


def well_formed(case: Case) -> float:
    """1 for a completion that proposes a question, else 0.

    Known exploits: any words in the three tags are a question; that it is a good one is for `vqa/self-play` to pay.
    """
    proposal = read(case.completion)
    return float(proposal is not None and proposal.is_whole)


def canonical(answer: str, kind: str) -> str:
    """The form in which an answer of a kind, which isn't blank, votes."""
    if kind == "number":
        number = value(answer)
        return normalise(answer) if number is None else f"{number:.12g}"
    if kind == "choice":
        first = answer.split(maxsplit=1)[0]
        return letter(answer) or (len(first) > 1 and letter(first)) or normalise(answer)  # "B", "(b) a red car"
    return (kind == "yes-no" and said(answer)) or normalise(answer)


def difficulty(votes: Sequence[str]) -> float:
    """What a question is paid for the answers to it: the share of the most frequent one or the rest, whichever is less, 0 to
    0.5."""
    share = _supporters(votes) / len(votes)
    return min(share, 1 - share)


def agreement(votes: Sequence[str]) -> float:
    """The share of the most frequent answer among those that aren't blank; 0 without any."""
    return _supporters(votes) / max(1, sum(map(bool, votes)))


def _supporters(votes: Sequence[str]) -> int:
    most = majority(votes)
    return sum(vote == most != "" for vote in votes)


def cluster_shares(questions: Sequence[str]) -> list[float]:
    """For each question of a step, the share of the step's questions that are of its cluster, above 0 to 1: clusters by average
    linkage over 1 - BLEU. Blank questions are like no other."""
    if len(questions) < 2:
        return [1.0] * len(questions)
    from sklearn.cluster import AgglomerativeClustering

    apart = distances(questions)
    linked = AgglomerativeClustering(n_clusters=None, distance_threshold=SAME_FROM, metric="precomputed", linkage="average")
    labels = linked.fit_predict(apart).tolist()
    sizes = Counter(labels)
    return [sizes[label] / len(labels) for label in labels]


def distances(texts: Sequence[str]) -> numpy.ndarray:
    """float64 [N, N]: 1 - BLEU of the earlier text against the later one, 0 on the diagonal.

    The matches of a pair are clipped counts, and min(a, b) is the number of k with a >= k and b >= k: so one product of sparse
    matrices for each order counts those of all pairs."""
    import numpy
    from scipy.sparse import csr_matrix

    words = [text.split() for text in texts]
    lengths = numpy.array([len(one) for one in words], dtype=numpy.float64)
    log = numpy.zeros((len(texts),) * 2)
    shares_a_word = numpy.zeros(log.shape, dtype=bool)
    for order in range(1, ORDERS + 1):
        numbers: dict[tuple[object, ...], int] = {}
        rows, columns = [], []
        for row, one in enumerate(words):
            counts = Counter(zip(*(one[k:] for k in range(order)), strict=False))
            for gram, count in counts.items():
                rows += [row] * count
                columns += [numbers.setdefault((*gram, k), len(numbers)) for k in range(count)]
        shape = (len(texts), max(1, len(numbers)))
        held = csr_matrix((numpy.ones(len(rows), dtype=numpy.int32), (rows, columns)), shape=shape)
        matches = (held @ held.T).toarray()
        shares_a_word |= matches > 0  # a longer run is one of words too
        said_by_one = numpy.maximum(lengths - order + 1, 1)[:, None]
        log += numpy.log(numpy.where(matches > 0, matches, NO_MATCH) / said_by_one) / ORDERS
    short = lengths[:, None] <= lengths[None, :]
    brevity = numpy.where(short, 1 - lengths[None, :] / numpy.maximum(lengths, 1)[:, None], 0.0)
    upper = numpy.triu(numpy.where(shares_a_word, numpy.exp(log + brevity), 0.0), 1)
    found: numpy.ndarray = 1 - (upper + upper.T)
    numpy.fill_diagonal(found, 0.0)
    return found
