"""Stages that train some weights alone: what a plan says that is kept for them, against what torch keeps on a CPU."""

import pytest

from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, PartConfig, PolicyConfig, RlStage
from mmrl.policies.vlm import attention, tiny
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.plan.families import SHOWN
from mmrl.train.plan.kept import activations, recompute_bytes
from mmrl.train.plan.memory import resident
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.trained import trained
from mmrl.train.update.optimizer import Optimizer
from plan_cases import a_micro_batch, kept

SIDE = 112
FAMILIES = [
    "qwen2_5_vl",
    *(pytest.param(f, marks=pytest.mark.slow) for f in ("qwen3_vl", "internvl", "gemma3n", "glm4v_moe", "qwen3_5_moe")),
]
LAST = ("vision", "projector", "head", "*embed_tokens*", "*layers.0.*", "*layers.1.*")
STAGES = {
    "all": ((), ()),
    "the tower and its projector": (("language", "head"), ()),
    "the language model": (("vision", "projector"), ()),
    "the projector": (("vision", "language", "head"), ()),
    "the last layer": (LAST, ()),
    "adapters of the language model": ((), ("language",)),
    "adapters of the tower": ((), ("vision",)),
    "adapters of one layer": ((), ("*language_model.*layers.1.*",)),
}
"""What is trained -> (what is frozen, what has adapters)."""


def stage_of(frozen):
    return RlStage(kind="rl", steps=1, parts=[PartConfig(match=match, freeze=True) for match in frozen])


def both(family, what, dtype="bfloat16"):
    """(the policy as the stage trains it, its shapes with a picture, the weights that a plan counts, its optimiser)."""
    frozen, adapted = STAGES[what]
    stage, lora = stage_of(frozen), LoraConfig(rank=8, target_modules=list(adapted)) if adapted else None
    config = PolicyConfig(model=f"tiny:{family}:hidden=128,layers=3", dtype=dtype)
    vlm = VLM(config.model_copy(update={"lora": lora}))
    shapes = find_shapes(config).shapes.seeing(SIDE**2)
    optimizer = Optimizer(list(vlm.parameters()), stage)
    return vlm, shapes, trained(shapes, lora, stage), optimizer


@pytest.mark.parametrize("what", STAGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_what_torch_keeps(family, what):
    if family == "gemma3n" and what == "adapters of the tower":
        pytest.skip("its tower has no linear layer")
    vlm, shapes, weights, optimizer = both(family, what)
    assert {name for name, _ in optimizer.named} == set(weights.learning.names or dict(shapes.named()))
    passes = tiny.model_type(f"tiny:{family}:layers=3") in SHOWN
    micro, planned = a_micro_batch(vlm, 70, size=(SIDE, SIDE), patches=shapes.seen.patches if passes else 0)
    capped = 2 * len(micro.target_L) * len(vlm.bias_V) * (vlm.family.capabilities.head == "softcap")  # of the head, too
    with attention.small_blocks():
        found = kept(vlm, micro) - capped
    assert activations(shapes, planned, 2, weights=weights, dense=False) == pytest.approx(found, rel=0.01)


def test_what_checkpointing_keeps_grows_with_the_layers_that_gradients_flow_to():
    _, shapes, weights, _ = both("qwen2_5_vl", "the last layer")
    _, planned = a_micro_batch(VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=128,layers=3", dtype="bfloat16")), 70)
    last, every = (activations(shapes, planned, 2, True, each, False) for each in (weights, None))
    tower = activations(shapes, planned, 2, True, None, False) - activations(
        shapes, planned, 2, True, trained(shapes, None, stage_of(("vision", "projector"))), False
    )
    beside = 2 * 128 * planned.targets  # the states of targets, which a frozen head doesn't keep
    assert every - tower - last == pytest.approx(2 * 2 * 128 * planned.tokens + beside, rel=0.02), "inputs of two layers"
    assert recompute_bytes(shapes, planned, 2, weights, False) < recompute_bytes(shapes, planned, 2, None, False)


@pytest.mark.parametrize("what", ["the projector", "the tower and its projector", "the last layer", "adapters of the tower"])
def test_frozen_weights_have_no_masters_no_moments_and_no_gradients(what):
    vlm, shapes, weights, optimizer = both("qwen2_5_vl", what)
    moved = sum(master.numel() for master in optimizer.masters)
    frozen, adapted = STAGES[what]
    lora = {"lora": {"rank": 8, "target_modules": list(adapted)}} if adapted else {}
    data = {"name": "x", "tasks": [{"id": "classification/digits"}], "stages": [{"kind": "rl", "steps": 1}]}
    config = parse_config(data | {"policy": {"model": "tiny:qwen2_5_vl", "dtype": "bfloat16"} | lora})
    parts = {part.name: part.bytes for part in resident(shapes, config, stage_of(frozen), weights)}
    assert (parts["optimiser"], parts["gradients"]) == (2 * 4 * moved, 4 * moved)
    own = {id(weight) for _, weight in optimizer.named}
    assert parts.get("float32 masters", 0) == sum(m.nbytes for m in optimizer.masters if id(m) not in own)
    assert parts["weights"] + parts.get("adapters", 0) == sum(p.nbytes for p in vlm.model.parameters())
