"""Answers that are interrupted: new weights between two tokens, and what is recorded of them."""

import threading
from dataclasses import replace

import pytest
import torch

import other_families
import vlm_cases as cases
from mmrl.rollout.generate.exchange import Versions, WeightExchange
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.snapshot import SnapshotGenerator

SAMPLING = SamplingParams(max_tokens=12, temperature=1.0, seed=3)


class Planned(WeightExchange):
    """An exchange whose learner comes after chosen numbers of tokens, in the sampler's own thread."""

    def __init__(self, plan):
        """plan: number of tokens -> what the learner does then."""
        self.plan, self.tokens, self.new = plan, 0, 100
        super().__init__()

    @property
    def wanted(self):
        self.tokens += 1
        return self.tokens in self.plan

    @wanted.setter
    def wanted(self, value):
        assert not value

    def _begin(self):
        """Nobody else takes turns."""

    _end = _begin

    def let_in(self):
        self.plan[self.tokens]()
        self.new += 1
        self.version = self.new


def sampler(vlm, plan, batch_size=256):
    made = SnapshotGenerator(vlm, batch_size, interrupt=True)
    made.exchange = Planned(plan)
    made.exchange.version = 100
    return made


def nothing():
    """The learner's weights are what they were."""


def inputs_of(vlm):
    return [vlm.encode(p) for p in (cases.prompt(1), cases.prompt(4, 2), cases.prompt(2, 0))]


@pytest.mark.parametrize("family", [*cases.FAMILIES, *other_families.BUILDERS])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_with_the_same_weights_an_interrupted_answer_is_the_uninterrupted_one(family, temperature):
    """Its tokens are equal, and so are the log-probabilities before; later ones come from a cache that was computed in other
    shapes."""
    vlm = cases.policy(family) if family in cases.FAMILIES else other_families.policy(family)
    inputs, sampling = inputs_of(vlm), replace(SAMPLING, temperature=temperature)
    plain = SnapshotGenerator(vlm).generate(inputs, 3, sampling)
    for at in ({1}, {3, 4, 9}):
        found = sampler(vlm, dict.fromkeys(at, nothing)).generate(inputs, 3, sampling)
        for one, other in zip(sum(plain, []), sum(found, []), strict=True):
            assert one.token_ids == other.token_ids and one.finished == other.finished
            assert one.logprobs[: min(at)] == other.logprobs[: min(at)] and one.versions == ()
            assert (torch.tensor(other.logprobs) - torch.tensor(one.logprobs)).abs().max() < 2e-5
            assert sum(tokens for _, tokens in other.versions) == len(other.token_ids)
