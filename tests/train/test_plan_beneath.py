"""A plan of a policy on a frozen vision-language-action model, against the operations that torch counts of the two."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmrl.api.simulators.types import Observation
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.vla import VLA
from mmrl.policies.load import make_policy
from mmrl.train.plan import predict, sizes_of
from mmrl.train.plan.acting import vla_call
from mmrl.train.plan.acting_passes import Passes
from mmrl.train.plan.machines import machine_by_name
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.workload import Sizes

N = 4
H200 = machine_by_name("h200")
ALONE = {"kind": "vla", "model": "tiny:qwen2_5_vl", "options": {"dims": 3}}


@pytest.mark.parametrize(
    "model, options",
    [
        ("tiny:qwen2_5_vl:hidden=128,layers=3", {"dims": 3, "bins": 16}),
        ("tiny:qwen3_vl:hidden=128,layers=2", {"dims": 3, "bins": 16, "cameras": ["front", "side"], "size": 96}),
        ("tiny:qwen3_vl:hidden=64,layers=2", {"dims": 3, "head": "normal", "state": 2}),
    ],
)
def test_a_model_beneath_is_computed_as_if_it_acted_alone(tmp_path, model, options):
    """The logits of the bins, and what reads the state, are left out."""
    VLA(PolicyConfig(kind="vla", model=model), **options).save(tmp_path)
    given = {"dims": 3, "state": 2, "base": str(tmp_path)}
    config = PolicyConfig(kind="squashed", model="mlp", options=given, attn_implementation="eager")
    policy, found = make_policy(config, device="cpu", seed=0), Passes(config)
    assert found.planned.width == policy.width and found.reads_text
    assert dict(found.shapes.named()) == {name: tuple(p.shape) for name, p in policy.parameters()}
    assert found.beneath.bytes == sum(p.nbytes for p in policy.base.model.parameters())
    names, side = options.get("cameras") or ["front"], options.get("size", 128 if "qwen3" in model else 112)
    images = {name: torch.randint(0, 256, (N, side, side, 3), dtype=torch.uint8) for name in names}
    seen = Observation(images=images, state=torch.zeros(N, 2), instructions=["pick up the red cube"] * N)
    with FlopCounterMode(display=False) as counter:
        policy.act(seen, torch.arange(N), torch.zeros(N, dtype=torch.int64), 1.0)
    sizes = Sizes(text=0, images=len(names), pixels=side**2, steps=1)
    call = vla_call(found.beneath.policy, found.beneath.found.shapes, sizes)
    text = policy.base.seeing.read(seen, policy.base.slot_ids.expand(N, -1)).ids_nS.shape[1] - call.prompt - call.behind
    cost = found.beneath.cost(N, replace(sizes, text=text), H200)
    near = CostModel(found.beneath.found.shapes, H200, "float32").tower(N * len(names) * call.picture, call.picture).attention
    # the tower's attention is one operator, which torch doesn't count on a CPU
    expected = found.act(N, 0).flops + cost.flops - near * H200.flops32 * H200.fused
    assert counter.get_total_flops() == pytest.approx(expected, rel=2e-3)
    assert found.beneath.memory(N, sizes) > 0


def test_pictures_of_a_plan_are_as_the_model_beneath_sees_them(tmp_path):
    """Those of its option `size`, or those that are given; its calls take longer with more of them."""
    found = {}
    for size in (0, 56):
        VLA(PolicyConfig(kind="vla", model="tiny:qwen2_5_vl"), dims=3, size=size).save(tmp_path / str(size))
        policy = {"kind": "squashed", "model": "mlp", "options": {"dims": 3, "state": 2, "base": str(tmp_path / str(size))}}
        data = {"name": "x", "policy": policy, "tasks": [{"id": "robotics/reach", "options": {"dims": 3, "max_steps": 5}}]}
        config = parse_config(data | {"stages": [{"kind": "off-policy", "steps": 1}]})
        shapes = find_shapes(config.policy)
        assert sizes_of(config, shapes).pixels == (size or 224) ** 2 and sizes_of(config, shapes, pixels=400).pixels in (
            400,
            56**2,
        )
        stage = predict(config, H200).stages[0]
        found[size] = next(part.flops for part in stage.seconds if part.name == "act")
        memory = {part.name: part.bytes for part in stage.parts}
        assert memory["base"] == 4 * find_shapes(config.policy.model_copy(update=ALONE)).shapes.parameters
    assert found[0] > 4 * found[56]


def test_a_policy_that_steers_another_has_it_look_once():
    """For the hidden states by which the noise is chosen, and to act from it: as often as one that reads the former alone."""
    base = {"kind": "vla", "model": "tiny:qwen2_5_vl", "options": {"dims": 3, "head": "flow", "size": 56}}
    flops = {}
    for kind, own in (("squashed", {"dims": 3}), ("steered", {})):
        options = {"state": 2, "base": base, "hidden": [1], **own}
        data = {"name": "x", "policy": {"kind": kind, "model": "mlp", "options": options}}
        data["tasks"] = [{"id": "robotics/reach", "options": {"dims": 3, "max_steps": 5}}]
        config = parse_config(data | {"stages": [{"kind": "off-policy", "steps": 1}]})
        flops[kind] = next(part.flops for part in predict(config, H200).stages[0].seconds if part.name == "act")
    assert flops["steered"] == pytest.approx(flops["squashed"], rel=1e-3)


def test_a_base_that_acts_again_for_critics_of_noise_takes_time_and_these_take_memory(tmp_path):
    """In a step of one episode of five calls of two actions: two updates of the critics and three of those of noise a call."""
    base = {"kind": "vla", "model": "tiny:qwen2_5_vl", "options": {"dims": 3, "chunk": 2, "head": "flow"}}
    found = {}
    for name, way in (("plain", {}), ("aliased", {"noise_aliasing": {"updates": 3}})):
        policy = {"kind": "steered", "model": "mlp", "options": {"state": 2, "base": base}}
        data = {"name": "x", "policy": policy, "tasks": [{"id": "robotics/reach", "options": {"dims": 3, "max_steps": 10}}]}
        stage = {"kind": "off-policy", "steps": 1, "prompts_per_step": 1, "updates": 2, "batch_size": 128, "critics": 2} | way
        found[name] = predict(parse_config(data | {"stages": [stage]}), H200).stages[0]
    flops = {key: {part.name: part.flops for part in stage.seconds} for key, stage in found.items()}
    again = flops["aliased"]["update: critics"] - flops["plain"]["update: critics"]
    assert again / flops["plain"]["act"] == pytest.approx(5 * (2 + 3) * 128 / 64, rel=0.02), "which is a pass of 64 environments"
    assert found["aliased"].work.updates == 2 * found["plain"].work.updates == 10
    parts = {key: next(part.bytes for part in stage.parts if part.name == "critics") for key, stage in found.items()}
    assert parts["aliased"] > 1.5 * parts["plain"]
