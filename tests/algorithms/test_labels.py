"""Rewards of answers from answers."""

import math
from collections import Counter

import numpy as np
import pytest

from mmrl.algorithms.labels import co_reward, frequency_entropy
from mmrl.api.votes import majority


def test_majority_ignores_what_could_not_be_read_and_prefers_the_first_of_equals():
    assert majority(["", None, " ", "a", "", ""]) == "a"
    assert majority(["b", "a", "a", "b"]) == "b"
    assert majority(["b", "a", "a"]) == "a"
    assert majority(["", None]) == majority([]) == ""


def test_frequency_entropy_equals_its_definition():
    rng = np.random.default_rng(0)
    for _ in range(200):
        answers = list(rng.choice(["a", "b", "c", "", None], int(rng.integers(1, 12))))
        counts = Counter(a for a in answers if a)
        p = np.array(list(counts.values())) / max(sum(counts.values()), 1)
        entropy = -(p * np.log(p)).sum() / math.log(len(p)) if len(p) > 1 else 0.0
        expected = [counts[a] / len(answers) - 0.5 * entropy for a in answers]
        assert frequency_entropy(answers, entropy_weight=0.5) == pytest.approx(expected)


def test_silence_never_pays():
    assert frequency_entropy(["", "", ""]) == [0.0, 0.0, 0.0]
    assert frequency_entropy(["", " ", "a"]) == pytest.approx([0.0, 0.0, 1 / 3])


def test_co_reward_is_the_others_majority():
    assert co_reward(["1", "2", "", None], ["2", "2", "1"]) == [0.0, 1.0, 0.0, 0.0]
    assert co_reward(["", None, "1"], ["", ""]) == [0.0, 0.0, 0.0]
    rng = np.random.default_rng(1)
    for _ in range(200):
        answers, others = (list(rng.choice(["a", "b", ""], int(rng.integers(1, 9)))) for _ in range(2))
        votes = [a for a in others if a]
        best = max(dict.fromkeys(votes), key=votes.count) if votes else None
        assert co_reward(answers, others) == [1.0 if a == best else 0.0 for a in answers]
