"""Moments of a run beside sampling and the update's passes: what a plan says that they take, against the bytes of all tensors
that are made in them on a CPU."""

import pytest
import torch
from torch.optim import optimizer as rules
from torch.utils import _foreach_utils as lists

import vlm_cases as cases
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig, SftStage
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.counter import Counter
from mmrl.train.plan.memory import fresh_gradients, update
from mmrl.train.plan.trained import passing_bytes, trained, weight_bytes
from mmrl.train.plan.workload import Sizes, workload
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.pack_conversations import pack


def made(work):
    """(most bytes of tensors that are made in it at a time, those of what is left)."""
    counter = Counter()
    with counter:
        left = work()
    found = counter.peak, counter.now
    counter.forget()
    del left
    return found


def stepping(optimizer, dtype="bfloat16"):
    """(policy, its optimiser with gradients, the weights that a plan counts)."""
    stage = SftStage(kind="sft", steps=1, optimizer=optimizer, ema_decay=0.9)
    vlm = VLM(PolicyConfig(model="tiny:qwen3_vl:hidden=64,layers=2", dtype=dtype))
    rule = Optimizer(list(vlm.parameters()), stage)
    for _ in range(2):  # the first step makes the running means
        for master in rule.masters:
            master.grad = torch.ones_like(master)
        if not rule.steps:
            rule.step(0)
    return vlm, rule, trained(shapes_of(vlm.model.config.to_dict(), ""), None, stage)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "rmsprop", "adafactor", "muon"])
def test_a_step_takes_what_its_rule_computes_with(optimizer, kind, monkeypatch):
    """On a GPU torch steps all weights of some rules at once."""
    if kind == "gpu":
        for module in (rules, lists):
            monkeypatch.setattr(module, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"])
    _, rule, weights = stepping(optimizer)
    peak, left = made(lambda: rule.step(0))
    near = 0.15 if optimizer == "adafactor" else 2e-3  # which has sums of rows and columns besides
    assert peak == pytest.approx(passing_bytes(optimizer, weights, kind), rel=near, abs=1024) and left < 1024


def test_a_step_counts_beyond_the_activations_that_are_gone_by_then():
    _, _, weights = stepping("rmsprop")
    data = {"name": "x", "tasks": [{"id": "classification/digits"}], "stages": [{"kind": "sft", "steps": 1}]}
    config = parse_config(data | {"policy": {"model": "tiny:qwen3_vl"}})
    few, many = ({part.name: part.bytes for part in fresh_gradients(config, weights, n, "rmsprop")} for n in (1000, 10**9))
    assert few == {"what is stepped": 4 * weights.moved - 1000} and not many


def test_copies_take_as_much_as_weights_and_checkpoints_and_mean_weights_nothing(tmp_path):
    vlm, rule, weights = stepping("adamw")
    size = weight_bytes(weights, 2)
    assert made(lambda: vlm.clone(frozen=True)) == (pytest.approx(size, rel=1e-3),) * 2
    assert made(lambda: vlm.save(tmp_path))[0] < 1024 and made(rule.state)[0] < 1024

    def swapped():
        with rule.averaged():
            pass

    assert made(swapped)[0] < 1024, "masters are float32, so that only numbers change"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("budget, passes", [(10_000, 1), (40, 4)])
def test_gradients_of_a_single_backward_pass_grow_while_activations_are_freed(dtype, budget, passes):
    """Gradients are kept from the second one on."""
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=128,layers=3", dtype=dtype))
    data = {"name": "x", "tasks": [{"id": "classification/digits"}], "train": {"micro_batch_tokens": budget}}
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 4, "group_size": 4}
    config = parse_config(data | {"policy": {"model": "tiny:qwen2_5_vl:hidden=128,layers=3", "dtype": dtype}, "stages": [stage]})
    rollouts = cases.rollouts(vlm, [cases.prompt(0, size=(112, 112)) for _ in range(4)], group=4, longest=1)
    micro = pack(rollouts, Credit(advantages=torch.ones(16)), vlm, shared_prefix=True, budget=budget).micro
    shapes, seen = shapes_of(vlm.model.config.to_dict(), ""), rollouts[0].inputs.model_sizes[0]
    text = len(rollouts[0].inputs.ids) - shapes.tokens_of(seen[0] * seen[1]) - 2
    work = workload(config, config.stages[0], shapes, Sizes(text=text, pixels=seen[0] * seen[1], completion=1))
    assert len(micro) == work.micro.total() == passes and work.alone == (passes == 1)
    weights = trained(shapes, None, config.stages[0])
    rule = Optimizer(list(vlm.parameters()), config.stages[0])

    def learned():
        for each in micro:
            rule.backward(-vlm.logprobs(each, 1.0)[0].sum())

    parts = {part.name: part.bytes for part in update(shapes, config, work, weights, "cpu")}
    planned = sum(parts.get(name, 0) for name in ("activations", "logits", "fresh gradients"))
    pictures = shapes.pixel_bytes * max(m.patches for m in work.micro)  # which are there before
    found = made(learned)[0]
    assert planned + parts.get("gradients", 4 * weights.moved) - pictures == pytest.approx(found, rel=0.1)
