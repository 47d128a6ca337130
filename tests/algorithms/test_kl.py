"""KL estimates on a distribution small enough to sum over, and the adaptive coefficient by hand."""

import numpy as np
import pytest
import torch

from mmrl.algorithms.kl import ESTIMATES, adapted, k1, k2, k3

LOGITS = [0.3, -1.0, 0.8]
REFERENCE = torch.tensor([0.0, 0.5, -0.5], dtype=torch.float64).log_softmax(0)


def policy():
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    return logits, logits.log_softmax(0)


def gradient(loss, logits):
    return torch.autograd.grad(loss, logits, retain_graph=True)[0]


def test_they_equal_their_definitions():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p, q = rng.normal(-2, 1, (2, int(rng.integers(1, 50))))
        slow = {"k1": p - q, "k2": (p - q) ** 2 / 2, "k3": np.exp(q) / np.exp(p) - 1 - (q - p)}
        assert slow.keys() == ESTIMATES.keys()
        for name, estimate in ESTIMATES.items():
            np.testing.assert_allclose(estimate(torch.tensor(p), torch.tensor(q)).numpy(), slow[name], rtol=1e-5)


def test_k1_and_k3_are_unbiased_and_k2_is_not():
    _, logp = policy()
    exact = (logp.exp() * (logp - REFERENCE)).sum().item()
    k1s, k2s, k3s = ((logp.exp() * k(logp, REFERENCE)).sum().item() for k in (k1, k2, k3))
    assert k1s == pytest.approx(exact, rel=1e-9) and k3s == pytest.approx(exact, rel=1e-9) and abs(k2s - exact) > 0.02
    assert (k3(logp, REFERENCE) >= 0).all() and (k2(logp, REFERENCE) >= 0).all() and (k1(logp, REFERENCE) < 0).any()
    assert k3(logp, logp).tolist() == k1(logp, logp).tolist() == [0.0, 0.0, 0.0]


def test_expected_gradients_under_the_policys_samples():
    """As terms of a loss: k1 has none, k2 that of the KL, k3 that of the other KL."""
    logits, logp = policy()
    sampled = logp.exp().detach()
    forward = gradient((logp.exp() * (logp - REFERENCE)).sum(), logits)
    backward = gradient((REFERENCE.exp() * (REFERENCE - logp)).sum(), logits)
    found = [gradient((sampled * k(logp, REFERENCE)).sum(), logits) for k in (k1, k2, k3)]
    for have, want in zip(found, (torch.zeros(3, dtype=torch.float64), forward, backward), strict=True):
        torch.testing.assert_close(have, want)


def test_a_token_that_the_reference_finds_far_likelier_leaves_numbers():
    """Where the exponential of the log-ratio overflows; up to 20 nats, and on the other side, it is the definition."""
    logp = torch.tensor([-100.0, -21.0, -0.5, -0.5], requires_grad=True)
    found = k3(logp, torch.tensor([-0.5, -1.5, -0.5, -90.5]))
    assert found.tolist() == pytest.approx([np.exp(20) - 21, np.exp(19.5) - 20.5, 0.0, 89.0])
    found.sum().backward()
    assert logp.grad.tolist() == pytest.approx([0.0, 1 - np.exp(19.5), 0.0, 1.0])


@pytest.mark.parametrize(("kl", "expected"), [(6.0, 0.2), (6.6, 0.202), (60.0, 0.204), (5.4, 0.198), (0.0, 0.196), (-3.0, 0.196)])
def test_the_coefficient_follows_the_error_up_to_a_fifth(kl, expected):
    assert adapted(0.2, kl, 6.0, 10.0) == pytest.approx(expected)
