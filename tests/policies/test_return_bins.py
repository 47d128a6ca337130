"""HL-Gauss: targets by numerical integration, the loss and its gradient by hand, and a critic of bins."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.policies.return_bins import Bins, distributional_loss


def bins(low=-1.0, high=2.0, number=6, smoothing=0.75):
    return Bins(low=low, high=high, number=number, smoothing=smoothing)


def reference(value, of):
    """The mass of a cut-off Gaussian in each bin, summed over many points."""
    width = (of.high - of.low) / of.number
    value, sigma = min(max(value, of.low), of.high), of.smoothing * width
    points = of.low + (np.arange(of.number * 2000) + 0.5) * width / 2000
    mass = np.exp(-((points - value) ** 2) / (2 * sigma**2)).reshape(of.number, 2000).sum(1)
    return mass / mass.sum()


@pytest.mark.parametrize("value", [-7.0, -1.0, -0.3, 0.0, 0.25, 1.9, 2.0, 40.0])
@pytest.mark.parametrize("smoothing", [0.3, 0.75, 2.0])
def test_targets_are_the_masses_of_a_gaussian_that_is_cut_off(value, smoothing):
    of = bins(smoothing=smoothing)
    found = of.targets(torch.tensor([value], dtype=torch.float64))[0]
    np.testing.assert_allclose(found.numpy(), reference(value, of), atol=2e-6)


@given(st.floats(-1.0, 2.0))
def test_the_mean_of_a_target_in_the_middle_of_the_range_is_the_return(value):
    """To within a small part of a bin, for returns that are three deviations from the ends (section 3.1 of the paper)."""
    of = Bins(low=-2.0, high=3.0, number=50, smoothing=0.75)
    found = of.mean(of.targets(torch.tensor([value], dtype=torch.float64)).log())
    assert found.item() == pytest.approx(value, abs=0.01 * of.width)


def test_the_loss_is_a_divergence_with_the_gradient_of_a_cross_entropy():
    of = bins()
    returns = torch.tensor([0.4, math.nan, 5.0], dtype=torch.float64)
    logits = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = distributional_loss(logits.log_softmax(1), returns, of)
    loss.sum().backward()
    for n, value in ((0, 0.4), (2, 5.0)):
        target, predicted = reference(value, of), logits[n].detach().softmax(0).numpy()
        assert loss[n].item() == pytest.approx((target * (np.log(target) - np.log(predicted))).sum(), abs=1e-5)
        np.testing.assert_allclose(logits.grad[n].numpy(), predicted - target, atol=2e-6)
    assert loss[1] == 0 and not logits.grad[1].any()
    best = distributional_loss(of.targets(returns).nan_to_num(1.0).log(), returns, of)
    assert best.abs().max() < 1e-9


def test_no_number_is_lost_far_from_a_narrow_target():
    of = bins(number=1000, smoothing=0.1)
    loss = distributional_loss(torch.zeros(1, 1000).log_softmax(1), torch.tensor([-1.0]), of)
    assert loss.isfinite().all() and of.targets(torch.tensor([-9.0])).sum().item() == pytest.approx(1.0, abs=1e-5)
