"""Passes of which alike layers are counted once, against passes that compute every layer."""

import dataclasses
import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.train.plan import alike as alike_layers
from mmrl.train.plan.kinds import META, alike
from mmrl.train.plan.learning import ALL, Learning
from mmrl.train.plan.pictures import Pictures
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.traced import kept_of, trace


class Layer(nn.Module):
    """Counts its passes."""

    def __init__(self, width=4, returns=lambda made, given: made):
        super().__init__()
        self.linear, self.returns, self.passes = nn.Linear(width, width, device=META), returns, []

    def forward(self, x, scale=None, splits=None):
        self.passes.append(1)
        parts = [x] if splits is None else x.split(splits.tolist())
        made = torch.cat([self.linear(part).exp() for part in parts]) * (1 if scale is None else scale)
        return self.returns(x + made.tanh_(), x)


def both_ways(layers, work):
    """(what is counted of a pass, and what autograd keeps, without alike layers; the same with them; passes of each layer)."""
    kinds = {layers[i]: n for n, numbers in enumerate(alike(layers)) for i in numbers}
    run = lambda **kinds: (trace(work, **kinds), kept_of(lambda: work().sum(), layers, **kinds))  # noqa: E731
    plain = run()
    for layer in layers:
        layer.passes.clear()
    once = run(kinds=kinds)
    return plain, once, [len(layer.passes) for layer in layers]


def through(layers, *args, start=lambda: torch.empty(3, 4, device=META)):
    def work():
        x = start()
        for layer in layers:
            x = layer(x, *args)
            x += 1  # of what a layer returns, which is no leaf
        return x

    return work


@pytest.mark.parametrize("args", [(), (2.0,), (torch.empty(3, 1, device=META),), (None, torch.tensor([1, 2]))])
def test_one_of_alike_layers_is_computed_and_all_are_counted(args):
    layers = [Layer() for _ in range(5)]
    plain, once, passes = both_ways(layers, through(layers, *args))
    assert once == plain and plain[1][0] > 0
    assert passes == [2, 1, 0, 0, 0], "once without gradients; with them, none flow to what goes into the first"


def test_a_layer_with_other_arguments_is_computed():
    layers = [Layer() for _ in range(4)]
    lengths = [torch.tensor([1, 2]), torch.tensor([1, 1, 1])]  # of one type, and not of one shape

    def work():
        x = torch.empty(3, 4, device=META)
        for i, layer in enumerate(layers):
            x = layer(x, None, lengths[i % 2])
        return x

    plain, once, passes = both_ways(layers, work)
    assert once == plain and passes == [2, 2, 1, 0]
    lengths[1] = torch.tensor([2, 1])  # tensors that differ in their numbers alone
    plain, once, passes = both_ways(layers, work)
    assert once == plain and passes == [2, 2, 1, 0]


def test_a_layer_after_one_that_gives_gradients_is_computed():
    """To the input of the first no gradients flow, so that it keeps less."""
    layers = [Layer() for _ in range(4)]
    for weight in layers[0].parameters():
        weight.requires_grad_(False)
    plain, once, passes = both_ways(layers, through(layers))
    assert once == plain and passes == [2, 2, 1, 0]


@pytest.mark.parametrize(
    "returns", [lambda made, given: given, lambda made, given: made[:2], lambda made, given: (made, made)[0:1]]
)
def test_what_is_no_new_whole_tensor_is_computed_in_each_layer(returns):
    layers = [Layer(returns=returns) for _ in range(3)]

    def work():
        x = torch.empty(3, 4, device=META)
        for layer in layers:
            made = layer(x)
            x = (made[0] if isinstance(made, tuple) else made).sin()
            x = x if len(x) == 3 else torch.cat([x, x[:1]])
        return x

    plain, once, _ = both_ways(layers, work)
    assert once == plain


@pytest.mark.parametrize("states", ["by name", "by place"])
def test_what_a_checkpoint_is_given_by_name_is_kept_as_long_as_its_graph(states):
    layers = [Layer() for _ in range(4)]

    def work():
        x = torch.empty(3, 4, device=META)
        for layer in layers:
            again = functools.partial(layer, scale=torch.empty(3, 1, device=META))
            again, args = (again, (x,)) if states == "by place" else (functools.partial(again, x=x), ())
            x = checkpoint(again, *args, use_reentrant=False, preserve_rng_state=False)
        return x

    plain, once, passes = both_ways(layers, work)
    assert once == plain and passes == [2, 1, 0, 0]


def test_a_layer_whose_input_has_no_gradients_gives_them_if_its_weights_are_trained():
    layers = [Layer() for _ in range(3)]
    plain, once, passes = both_ways(layers, lambda: sum(layer(torch.empty(3, 4, device=META)).sin() for layer in layers))
    assert once == plain and passes == [2, 0, 0]


def test_the_most_bytes_at_once_may_be_those_of_a_layer_that_is_not_computed():
    layers = [Layer() for _ in range(3)]

    def work():
        x = layers[1](layers[0](torch.empty(3, 4, device=META)))
        beside = torch.empty(99, device=META)
        return layers[2](x) + beside.sum()

    plain, once, _ = both_ways(layers, work)
    assert once == plain


def test_layers_with_other_classes_or_settings_are_of_another_kind():
    layers = [nn.Sequential(nn.Linear(2, 2), act) for act in (nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.Tanh())]
    assert alike(layers) == [[0, 3], [1], [2]]
    layers[3][0].weight.requires_grad_(False)
    assert alike(layers) == [[0], [1], [2], [3]]


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if family != "openvla"])
def test_figures_of_a_picture_are_those_of_passes_through_every_layer(family, monkeypatch):
    shapes = find_shapes(PolicyConfig(model=f"tiny:{family}:hidden=128,layers=3")).shapes.seeing(112**2)
    seen, learning = shapes.seen, Learning(names=frozenset(name for name, _ in shapes.listed if ".mlp." in name))
    replayed = []
    monkeypatch.setattr(alike_layers, "_again", lambda *args, own=alike_layers._again: replayed.append(1) or own(*args))

    def figures():
        one = dataclasses.replace(seen)  # that remembers nothing
        return [one.forward(2), *(count(2, each) for count in (one.kept, one.inputs) for each in (ALL, learning))]

    once = figures()
    assert replayed or family != "qwen2_5_vl", "towers of some have one layer of a kind"
    monkeypatch.setattr(Pictures, "_kinds", lambda *_: {})
    replayed.clear()
    assert figures() == once and not replayed
