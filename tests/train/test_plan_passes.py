"""What a plan says of policies that say what their passes are, against what torch computes and keeps of the same on a CPU."""

from __future__ import annotations

import gc
import json
import weakref
from types import SimpleNamespace

import pytest
import torch
from mmrl_robotics.small import Small
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import embedding, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from mmrl.api.errors import PluginError, UserError
from mmrl.api.simulators.history import earlier
from mmrl.api.simulators.types import Observation
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig, RlStage
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.lerobot_policy import LeRobotPolicy
from mmrl.policies.acting.planned import META
from mmrl.policies.batches import ActionMicroBatch
from mmrl.policies.load import make_policy
from mmrl.registry import plugins
from mmrl.train.plan import predict, sizes_of
from mmrl.train.plan.acting_passes import Passes, passes_of
from mmrl.train.plan.machines import machine_by_name
from mmrl.train.plan.once import once
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.traced import kept_of, saved_by, trace, trace_both
from mmrl.train.plan.trained import trained
from mmrl.train.update.gripper import WithGripper
from mmrl.train.update.replay import Drawn

N = 4
CASES = {
    "pi0": ("tiny:pi0:hidden=32,layers=2,chunk=3", {"dims": 3, "chunk": 2, "state": 2, "steps": 3}),
    "pi05": ("tiny:pi05:hidden=32,layers=2,chunk=3", {"dims": 3, "chunk": 2, "steps": 3, "noisy": "learned"}),
    "pi0_fast": ("tiny:pi0_fast:hidden=32,layers=2,chunk=3", {"dims": 3, "chunk": 2, "action_tokens": 12}),
    "smolvla": ("tiny:smolvla", {"dims": 3, "state": 2, "steps": 3, "noisy": "one"}),
    "gr00t": ("tiny:gr00t", {"dims": 3, "steps": 3}),
    "gr00t_n1d6": ("tiny:gr00t_n1d6", {"dims": 3, "steps": 3}),
    "robotics/small": ("cnn", {"dims": 3, "chunk": 2, "state": 2, "size": 56, "head": "flow"}),
    "act": ("tiny:act", {"dims": 3, "state": 2}),
    "xvla": ("tiny:xvla", {"steps": 3}),
    "diffusion": ("tiny:diffusion", {"dims": 3, "state": 2, "steps": 5, "tuned_steps": 2}),
}

ABOUT = {"act": 1e-3, "xvla": 0.01}
"""By what share their products may differ; those of the others are equal."""


def seen_by(policy, state):
    """Observations of one camera."""
    names, moments = ["front"], 1
    if policy.history_of_steps:
        moments = policy.history + 1
        names += [earlier("front", k) for k in range(1, moments)]
    side = 56
    if isinstance(policy, LeRobotPolicy):
        side = policy.checkpoint.config.shape_of(policy.checkpoint.config.cameras[0])[0]
    return Observation(
        images={name: torch.randint(0, 256, (N, side, side, 3), dtype=torch.uint8) for name in names},
        state=torch.zeros(N, state * moments) if state else None,
        instructions=["pick up the red cube"] * N,
    )


def calls_of(policy, seen, sample):
    some = torch.zeros(N)
    return ActionMicroBatch(
        observation=seen,
        choices=sample.choices,
        slots=sample.logprobs_nKC.shape[-1],
        valid_SK=torch.ones(N, policy.chunk, dtype=torch.bool),
        ratio="chunk",
        tokens_S=sample.tokens_n,
        sampler_logprobs_L=some,
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )


def kept(policy, calls):
    """(floating-point operations that torch counts, on a CPU without those of attention; bytes that a forward pass keeps)."""
    with FlopCounterMode(display=False) as counter:
        size = saved_by(lambda: policy.outputs(calls, 1.0))
    return counter.get_total_flops(), size


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_the_weights_and_passes_are_those_of_the_policy(kind):
    model, options = CASES[kind]
    config = PolicyConfig(kind=kind.removesuffix("_n1d6"), model=model, options=options)
    policy, found = make_policy(config, device="cpu", seed=0), Passes(config)
    assert dict(found.shapes.named()) == {name: tuple(p.shape) for name, p in policy.parameters()}
    counted = trained(found.shapes, None, RlStage(kind="rl", steps=1))
    assert counted.whole == counted.moved == sum(p.numel() for _, p in policy.parameters())
    seen = seen_by(policy, options.get("state", 0))
    with FlopCounterMode(display=False) as counter:
        sample = policy.act(seen, torch.arange(N), torch.zeros(N, dtype=torch.int64), 1.0)
    track = SimpleNamespace(
        instruction=seen.instructions[0],
        told=[*seen.instructions, seen.instructions[0]],
        images={name: shown[:1] for name, shown in seen.images.items()},
        state=seen.state,
        choices=sample.choices,
        valid_TK=torch.ones(N, policy.chunk, dtype=torch.bool),
        tokens_T=sample.tokens_n,
    )
    text = next(n for n in range(60) if found.planned.tokens(n, False) == policy.tokens_per_call([track]))
    assert (found.planned.chunk, found.planned.pictures) == (policy.chunk, len(seen.images))
    assert found.planned.width == policy.width
    acted = found.act(N, text)
    bound = ABOUT.get(kind, 0)
    assert sum(flops for flops, _ in acted.products) == pytest.approx(counter.get_total_flops(), rel=bound, abs=0)
    flops, size = kept(policy, calls_of(policy, seen, sample))
    forward, backward = found.learn(N, text, False, frozenset(), False)
    assert sum(flops for flops, _ in forward.products) == pytest.approx(flops, rel=bound, abs=0)
    assert forward.kept == pytest.approx(size, rel=0.05) and backward.peak >= forward.kept
    assert (acted.attention > 0) == (forward.attention > 0) == (kind not in ("act", "diffusion", "robotics/small"))


@pytest.mark.slow
def test_demonstrations_adapters_and_frozen_parts_change_what_is_kept():
    config = PolicyConfig(kind="pi0", model=CASES["pi0"][0], options=CASES["pi0"][1])
    found, lora = Passes(config), config.model_copy(update={"lora": {"rank": 4}})
    lora = PolicyConfig.model_validate(lora.model_dump(exclude_unset=True))
    plain = found.learn(N, 9, False, frozenset(), False)
    assert found.learn(N, 9, True, frozenset(), False)[0].flops > plain[0].flops, "four times of the flow, not three"
    frozen = frozenset(name for name, _ in found.named if "vision" in name)
    assert found.learn(N, 9, False, frozen, False)[0].kept < plain[0].kept
    adapted = Passes(lora)
    own = make_policy(lora, device="cpu", seed=0)
    counted = trained(adapted.shapes, lora.lora, RlStage(kind="rl", steps=1))
    assert counted.moved == sum(p.numel() for _, p in own.parameters())
    assert adapted.learn(N, 9, False, frozenset(), False)[1].flops < plain[1].flops, "no gradients of the weights beneath"


@pytest.mark.slow
def test_checkpointing_computes_again_and_keeps_less():
    config = PolicyConfig(kind="smolvla", model="tiny:smolvla", options={"dims": 3, "steps": 3})
    found = passes_of(config)
    plain, again = (found.learn(N, 9, False, frozenset(), on) for on in (False, True))
    assert again[0].kept < plain[0].kept / 2 and again[1].peak < plain[1].peak
    assert again[1].flops == pytest.approx(plain[0].flops + plain[1].flops)


def test_attention_is_counted_and_kept_as_fused_kernels_do_it():
    query, key = torch.empty(2, 3, 50, 8), torch.empty(2, 3, 70, 8)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(query, key, key)
    there = [x.to(META).requires_grad_() for x in (query, key, key)]
    forward, backward, _ = trace_both(lambda: scaled_dot_product_attention(*there))
    assert forward.attention == counter.get_total_flops() and backward.attention == 2 * forward.attention
    assert forward.kept <= 4 * (query.numel() + 2 * 3 * 50) + 8, "the output and a number of each row, not all pairs"
    done = trace(lambda: (torch.empty(10, 20, device=META) @ torch.empty(20, 30, device=META)).add_(1).view(-1))
    assert done.products == ((2 * 10 * 20 * 30, 4 * (200 + 600 + 300)),)
    assert (done.operations, done.peak, done.kept) == (5, 4 * 1100, 0), "Python starts a view, too"


def test_of_a_table_what_is_taken_is_read():
    table, taken = torch.empty(1000, 8, device=META), torch.zeros(5, device=META, dtype=torch.int64)
    assert [trace(work).moved for work in (lambda: embedding(taken, table), lambda: table[taken])] == [2 * 4 * 5 * 8] * 2


@pytest.mark.parametrize("count", [saved_by, kept_of, trace_both])
def test_what_was_counted_is_freed(count):
    """An output that is kept for its own pass."""
    made = []

    def work():
        out = torch.empty(9, device=META, requires_grad=True).exp()
        made.append(weakref.ref(out))
        return out * 2

    count(work)
    gc.collect()
    assert [found() for found in made] == [None]


def test_answers_are_remembered_as_long_as_their_object_lives():
    class Counts:
        asked = 0

        @once
        def of(self, n):
            self.asked += 1
            return n + self.asked

    one, other = Counts(), Counts()
    assert [one.of(1), one.of(1), one.of(2), other.of(1)] == [2, 2, 4, 2]
    held = weakref.ref(one)
    del one
    assert held() is None


@pytest.mark.slow
def test_a_run_is_planned_and_needs_more_with_more_calls_at_once():
    data = {
        "name": "x",
        "policy": {"kind": "pi0", "model": CASES["pi0"][0], "options": CASES["pi0"][1] | {"dims": 4}},
        "tasks": [{"id": "robotics/reach", "options": {"dims": 4, "max_steps": 9}}],
        "stages": [{"kind": "rl", "steps": 1, "algorithm": "ppo", "prompts_per_step": 8, "group_size": 2, "critic": {}}],
    }
    plans = []
    for more in ({}, {"train": {"micro_batch_tokens": 400}}):
        config = parse_config(data | more)
        plans.append(predict(config, machine_by_name("h200"), sizes=sizes_of(config, find_shapes(config.policy))))
    one, small = (json.loads(json.dumps(plan.as_json())) for plan in plans)
    assert one["sizes"]["steps"] == 9 and one["sizes"]["images"] == 1 and one["fits"] and one["offload"] is None
    stage, other = one["stages"][0], small["stages"][0]
    assert stage["work"]["tokens"] == other["work"]["tokens"] == 8 * 2 * 5 * (16 + 24 + 1 + 3 * 3), "5 calls of two actions"
    parts, fewer = ({part["name"]: part["bytes"] for part in found["memory"]["parts"]} for found in (stage, other))
    assert parts["activations"] > 2 * fewer["activations"] and parts["calls"] == fewer["calls"] > 0
    assert {part["name"] for part in stage["seconds"]["parts"]} >= {"act", "update: forward", "update: backward"}


def a_base(folder, chunk, **options):
    Small(PolicyConfig(model="cnn"), dims=3, size=56, chunk=chunk, hidden=[16], **options).save(folder)
    return str(folder)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_perceptron_on_a_frozen_base_has_the_passes_of_both(tmp_path, noise):
    options = {"dims": 3, "state": 2, "base": a_base(tmp_path, 1, state=2), "residual": 0.2, "noise": noise}
    config = PolicyConfig(kind="squashed", model="mlp", options=options)
    policy, found = make_policy(config, device="cpu", seed=0), Passes(config)
    assert dict(found.shapes.named()) == {name: tuple(p.shape) for name, p in policy.parameters()}
    assert found.planned.width == policy.width and not found.reads_text
    assert [p.shape for p in found.planned.frozen.parameters()] == [p.shape for p in policy.base.model.parameters()]
    seen = seen_by(policy, 2)
    with FlopCounterMode(display=False) as counter:
        sample = policy.act(seen, torch.arange(N), torch.zeros(N, dtype=torch.int64), 1.0)
    assert found.act(N, 0).flops == counter.get_total_flops()
    flops, _ = kept(policy, calls_of(policy, seen, sample))
    assert found.learn(N, 0, False, frozenset(), False)[0].flops == flops


def test_a_correction_has_the_passes_of_its_base_once_a_chunk(tmp_path):
    options = {"base": a_base(tmp_path, 3), "state": 2}
    config = PolicyConfig(kind="robotics/residual", model="mlp", options=options)
    policy, found = make_policy(config, device="cpu", seed=0), Passes(config)
    assert dict(found.shapes.named()) == {name: tuple(p.shape) for name, p in policy.parameters()}
    seen, each = seen_by(policy, 2), []
    for call in range(3):
        with FlopCounterMode(display=False) as counter:
            sample = policy.act(seen, torch.arange(N), torch.full((N,), call), 1.0)
        each.append(counter.get_total_flops())
    assert each[0] > each[1] == each[2] and found.act(N, 0).flops == sum(each)
    flops, _ = kept(policy, calls_of(policy, seen, sample))
    assert found.learn(N, 0, False, frozenset(), False)[0].flops == 3 * flops, "of a call's three actions"
    assert found.planned.chunk == 3 and found.planned.tokens(0, False) == 3


def test_critics_take_their_time_where_the_policy_is_small(tmp_path):
    """A policy of two layers of 256 learns once for each of 16 x 9 calls, and ten critics of its size 20 times."""
    data = {
        "name": "x",
        "policy": {"kind": "squashed", "model": "mlp", "options": {"dims": 4, "state": 5}},
        "tasks": [{"id": "robotics/reach", "options": {"dims": 4, "max_steps": 9}}],
        "stages": [{"kind": "off-policy", "steps": 1}],
    }
    config = parse_config(data)
    stage = predict(config, machine_by_name("h200")).stages[0]
    assert (stage.work.updates, [m.rows for m in stage.work.micro.elements()]) == (16 * 9, [256])
    critics = next(part for part in stage.seconds if part.name == "update: critics")
    own = 10 * ((5 + 4) * 256 + 256 * 256 + 256)  # multiplications of a transition in all critics
    assert critics.flops == pytest.approx(16 * 9 * 256 * own * 2 * (20 * 4 + 3), rel=0.02), (
        "a third of a pass less, by the inputs"
    )
    assert "frozen copy" not in {part.name for part in stage.parts}, "nothing trains what it sees by"
    named = {part.name: part.bytes for part in stage.parts}
    weights = 10 * ((5 + 4 + 1) * 256 + 257 * 256 + 257)
    assert named["critics"] > 20 * weights


def test_a_critic_of_the_gripper_takes_what_its_updates_take():
    """By what torch counts of one: its own pass and its target's over what follows, forwards and backwards."""
    found = {}
    for choices, dims in ((3, 4), (0, 3)):  # the other critics then read as many numbers
        options = {"dims": dims, "state": 5, "gripper_choices": choices}
        stage = {"kind": "off-policy", "steps": 1, "updates": 2, "critics": 2, "batch_size": 32}
        data = {"name": "x", "policy": {"kind": "squashed", "model": "mlp", "options": options}, "stages": [stage]}
        config = parse_config(data | {"tasks": [{"id": "robotics/reach", "options": {"dims": 4, "max_steps": 9}}]})
        planned = predict(config, machine_by_name("h200")).stages[0]
        flops = next(part.flops for part in planned.seconds if part.name == "update: critics")
        found[choices] = flops, next(part.bytes for part in planned.parts if part.name == "critics")
    own = PolicyConfig(kind="squashed", model="mlp", options={"dims": 4, "state": 5, "gripper_choices": 3})
    policy = make_policy(own, device="cpu")
    assert dict(Passes(own).shapes.named()) == {name: tuple(p.shape) for name, p in policy.parameters()}
    agent = WithGripper(policy.actor, 5, config.stages[0], 0)
    zeros = dict.fromkeys(("rewards_n", "discounts_n", "paid_n", "weights_n", "places_n", "last_n"), torch.zeros(32))
    drawn = Drawn(seen_nF=torch.zeros(32, 5), after_nF=torch.zeros(32, 5), actions_nA=torch.zeros(32, 4), **zeros)
    with FlopCounterMode(display=False) as counter:
        agent.learn_beside(drawn, torch.Generator(), 0)
    assert found[3][0] - found[0][0] == 16 * 9 * 2 * counter.get_total_flops() > 0
    weights = sum(p.numel() for p in agent.gripper_target.parameters())
    assert found[3][1] - found[0][1] == 4 * weights, "the others are the policy's"


def test_policies_without_text_have_none(tmp_path):
    config = PolicyConfig(kind="act", model=CASES["act"][0], options=CASES["act"][1])
    data = {"name": "x", "policy": config.model_dump(exclude_unset=True), "tasks": [{"id": "robotics/reach"}]}
    file = parse_config(data | {"stages": [{"kind": "sft", "steps": 1}]})
    plan = predict(file, machine_by_name("h200"), sizes=sizes_of(file, find_shapes(config), text=99))
    assert plan.sizes.text == 0 and plan.parameters.keys() == {"network", "head"}
    assert sum(plan.parameters.values()) == plan.found.shapes.parameters
    reading = PolicyConfig(kind="smolvla", model="tiny:smolvla", options=CASES["smolvla"][1])
    assert passes_of(reading).reads_text and find_shapes(reading).shapes.reads_text


def test_kinds_that_say_nothing_are_refused_in_one_line(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r'^mmrl plan supports policy\.kind = "vlm" and policies that act, not \'reward\'$'):
        find_shapes(PolicyConfig(kind="reward", model="tiny:qwen2_5_vl"))
    for kind, options, why in (
        ("squashed", {"base": str(tmp_path)}, r"policy\.options\.base: '.*' has no \S+: give a folder with a policy that acts$"),
        ("robotics/residual", {"base": "nowhere"}, r"^policy\.options\.base: 'nowhere' is no folder here: "),
    ):
        with pytest.raises(UserError, match=why):
            find_shapes(PolicyConfig(kind=kind, model="mlp", options=options))

    class Silent(ActingPolicy):
        def __init__(self, config, *, device="cpu", seed=0, source=None):
            pass

    class Broken(Silent):
        @classmethod
        def planned(cls, config):
            return {}["nothing"]

    monkeypatch.setattr(type(plugins.registry()), "target", lambda self, spec: Silent)
    with pytest.raises(UserError, match=r"^policy\.kind = 'squashed' has no planned\(\), which says what its passes are: .*"):
        find_shapes(PolicyConfig(kind="squashed", model="mlp", options={}))
    monkeypatch.setattr(type(plugins.registry()), "target", lambda self, spec: Broken)
    with pytest.raises(PluginError, match=r"^policy 'squashed': its planned\(\) raised KeyError: 'nothing'$"):
        find_shapes(PolicyConfig(kind="squashed", model="mlp", options={}))
