"""Calls of policies that act, by captured graphs: they equal calls without, whatever is given and whichever the weights."""

import copy
import warnings
from dataclasses import dataclass

import pytest
import torch
from transformers import DynamicCache

from mmrl.api.transfer import constant
from mmrl.policies.acting import call_graphs
from mmrl.policies.acting.call_graphs import SIGHTS, CallGraphs
from recorded_graph import RecordedCapture

CPU = torch.device("cpu")


@dataclass(slots=True)
class Look:
    """What a policy's look may leave."""

    cache: DynamicCache
    features: torch.Tensor
    after: torch.Tensor | None = None


class Network(torch.nn.Module):
    """Feeds a number of tokens to a cache, and leaves a trace on the look."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def chain(self, tokens, look, noise_n):
        x = look.features + noise_n[:, None]
        for _ in range(tokens):
            keys, values = look.cache.update(x[:, None, None], x[:, None, None], 0)
            x = self.layer(x) + torch.nn.functional.scaled_dot_product_attention(x[:, None, None], keys, values)[:, 0, 0]
        look.after = x * 2
        return x, {"after": look.after}


def look(seed, rows=2, length=3):
    torch.manual_seed(seed)
    cache = DynamicCache()
    cache.update(torch.randn(rows, 1, length, 4), torch.randn(rows, 1, length, 4), 0)
    return Look(cache, torch.randn(rows, 4))


@pytest.fixture
def network():
    torch.manual_seed(0)
    with torch.no_grad():
        yield Network()


def check(graphs, network, seed, tokens=3, **shape):
    """That a call by graphs equals one without, and leaves what it was given as it was."""
    given, noise_n = look(seed, **shape), torch.full((shape.get("rows", 2),), float(seed))
    found = graphs(network.chain, tokens, given, noise_n)
    assert given.cache.get_seq_length() - shape.get("length", 3) in (0, tokens)  # a graph works on its own copy
    wanted = network.chain(tokens, look(seed, **shape), noise_n)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1]["after"], wanted[1]["after"])
    return found


def test_calls_by_graphs_equal_those_without(network):
    graphs = CallGraphs(network, CPU, RecordedCapture)
    earlier = [check(graphs, network, seed) for seed in range(5)]
    again = [check(graphs, network, seed) for seed in range(5)]
    assert graphs.captured == 1
    for one, other in zip(earlier, again, strict=True):
        assert torch.equal(one[0], other[0]), "what a call returned is overwritten by none that follow"


def test_shapes_and_plain_values_have_graphs_of_their_own(network):
    graphs = CallGraphs(network, CPU, RecordedCapture)
    for _ in range(2):
        for rows, length, tokens in ((1, 2, 3), (2, 2, 3), (2, 5, 3), (2, 5, 2), (1, 2, 3)):
            for seed in range(SIGHTS + 2):
                check(graphs, network, seed, tokens, rows=rows, length=length)
    # four shapes; two of them were captured before larger ones came, which need new memory, and so once more
    assert graphs.captured == 6


def test_one_tensor_given_twice_is_not_two(network):
    """Both orders: a graph that reads one place twice doesn't hold for two tensors, nor the other way round."""

    def apart(x, y):
        return x - 2 * y

    for first in (True, False):
        graphs = CallGraphs(network, CPU, RecordedCapture)
        for one in [first] * (SIGHTS + 1) + [not first] * (SIGHTS + 2) + [first]:
            x, y = torch.randn(2), torch.randn(2)
            other = x if one else y
            assert torch.equal(graphs(apart, x, other), apart(x, other))
        assert graphs.captured == 2 + first  # a second place is memory of its own, which drops what was captured without it


def test_what_comes_once_is_not_captured(network):
    graphs = CallGraphs(network, CPU, RecordedCapture)
    for rows in range(1, 30):
        for seed in range(SIGHTS):
            check(graphs, network, seed, rows=rows)
    assert graphs.captured == 0


def test_shapes_that_never_come_again_are_forgotten(network, monkeypatch):
    monkeypatch.setattr(call_graphs, "MOST_SIGHTS", 4)
    graphs = CallGraphs(network, CPU, RecordedCapture)
    for rows in range(1, 12):
        check(graphs, network, 0, rows=rows)
    assert len(graphs._sights) <= 5


def test_new_weights_are_seen(network):
    """Those that are written in place by a replay, those that lie elsewhere by a new capture."""
    graphs = CallGraphs(network, CPU, RecordedCapture)
    for seed in range(4):
        check(graphs, network, seed)
    network.layer.weight.add_(1)
    check(graphs, network, 5)
    assert graphs.captured == 1
    network.layer.weight = torch.nn.Parameter(torch.randn(4, 4))
    check(graphs, network, 6)
    assert graphs.captured == 2


def test_graphs_are_few(network, monkeypatch):
    monkeypatch.setattr(call_graphs, "MOST", 2)
    graphs = CallGraphs(network, CPU, RecordedCapture)
    for length in (6, 5, 4, 6):  # the largest first, so that the memory stays
        for seed in range(4):
            check(graphs, network, seed, length=length)
    assert len(graphs._replays) == 2 and graphs.captured == 4


def test_a_call_that_can_not_be_captured_is_told_once(network):
    def waits(x):
        return x * x.sum().item()

    graphs = CallGraphs(network, CPU, RecordedCapture)
    with pytest.warns(UserWarning, match="can't be captured: it is as exact without, but slower") as told:
        for i in range(6):
            assert torch.equal(graphs(waits, torch.ones(2) * i), waits(torch.ones(2) * i))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(4):
            check(graphs, network, seed)
    assert graphs.captured == 0


class Hidden:
    """Its tensor is in no field that can be listed."""

    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def test_what_hides_a_tensor_is_not_captured(network):
    """Its numbers would be those of the capture in each replay."""
    graphs, hidden = CallGraphs(network, CPU, RecordedCapture), Hidden(torch.zeros(2))

    def twice(hidden):
        return hidden.x * 2

    with pytest.warns(UserWarning, match="given an object whose tensors can't be found"):
        for i in range(SIGHTS + 3):
            hidden.x = torch.ones(2) * i
            assert graphs(twice, hidden)[0] == 2 * i


def test_a_copy_has_graphs_of_its_own_weights(network):
    network.graphs = CallGraphs(network, CPU, RecordedCapture)
    for seed in range(4):
        check(network.graphs, network, seed)
    other = copy.deepcopy(network)
    assert other.graphs.model is other
    other.layer.weight.add_(1)
    for seed in range(4):
        check(other.graphs, other, seed)
        check(network.graphs, network, seed)


def test_a_constant_stays_where_a_graph_reads_it():
    """Replays don't ask for it again, so that it would be the first to be dropped for others."""
    bins = constant((0.25, 0.75), torch.float64, CPU)
    for n in range(1000):
        constant((float(n), -1.0), torch.float64, CPU)
    assert constant((0.25, 0.75), torch.float64, CPU) is bins


def test_released_memory_is_captured_again(network):
    graphs = CallGraphs(network, CPU, RecordedCapture)
    for _ in range(2):
        for seed in range(4):
            check(graphs, network, seed)
        graphs.release()
        assert not graphs._held
    assert graphs.captured == 2
