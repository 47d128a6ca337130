"""Rewards without labels, from the agreement of answers to one prompt. A blank or None is a completion without an answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mmrl.api.votes import majority


def frequency_entropy(
    answers: Sequence[str | None], voters: Sequence[str | None] | None = None, *, entropy_weight: float = 0.75
) -> list[float]:
    """An answer's share of the votes minus entropy_weight times the entropy of the answers, scaled to 0..1 (TTRV).

    The entropy is divided by the logarithm of the number of different answers. A blank answer gets the share 0 and doesn't count
    in the entropy, but it counts in the number of votes, so that blank answers never pay.

    voters: the answers that vote, these among them; by default these.
    Returns a reward per answer, -entropy_weight..1: 1 if all agree.
    """
    voters = answers if voters is None else voters
    votes = Counter(answer for answer in voters if answer and answer.strip())
    shares = [n / votes.total() for n in votes.values()]
    entropy = -sum(p * math.log(p) for p in shares) / math.log(len(shares)) if len(shares) > 1 else 0.0
    return [(votes[answer] if answer else 0) / len(voters) - entropy_weight * entropy for answer in answers]


def co_reward(answers: Sequence[str | None], others: Sequence[str | None]) -> list[float]:
    """1 for answers that equal the majority answer to the rephrased question, else 0 (Zhang et al., Co-Reward).

    others: the answers to the rephrased question; swap the arguments for its own rewards. All rewards are 0 if all `others` are
    blank.
    """
    label = majority(others)
    return [float(answer == label != "") for answer in answers]
