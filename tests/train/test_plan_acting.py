"""What a plan says of vision-language-action models, against their weights and the bytes that torch holds on a CPU."""

import json
from dataclasses import replace

import pytest
import tomli_w
import torch
from click.testing import CliRunner

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.load import parse_config
from mmrl.config.parts import part_of
from mmrl.config.sections import LoraConfig, PolicyConfig, RlStage
from mmrl.policies.acting.vla import VLA
from mmrl.policies.batches import ActionMicroBatch
from mmrl.train.plan import predict
from mmrl.train.plan.acting import slots, vla_sizes, vla_workload
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.kept import activations
from mmrl.train.plan.machines import GPUS
from mmrl.train.plan.memory import resident
from mmrl.train.plan.published import PUBLISHED
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.traced import saved_by
from mmrl.train.plan.trained import trained
from mmrl.train.plan.workload import Micro
from mmrl.ui.cli import main

CASES = {
    "qwen2_5_vl": ({"dims": 3, "bins": 16}, 0.03),
    "qwen3_vl": ({"dims": 3, "chunk": 2, "head": "normal", "state": 4}, 0.03),
    "internvl": ({"dims": 3, "chunk": 2, "bins": 16, "size": 28}, 0.01),
    "openvla": ({"dims": 3, "bins": 16, "decoding": "oft", "head": "l1", "scale": "network", "size": 56}, 0.03),
}
"""Family -> (options, by what share planned activations may be off)."""


@pytest.mark.parametrize("family", CASES)
def test_weights_and_activations_are_what_torch_keeps(family):
    options, bound = CASES[family]
    config = PolicyConfig(model=f"tiny:{family}:hidden=128,layers=3", kind="vla", options=options)
    policy = VLA(config, **options)
    size = options.get("size", 112)
    shapes = find_shapes(config).shapes.seeing(size**2)
    named = {name: tuple(p.shape) for name, p in policy.parameters()}
    assert dict(shapes.named()) == named
    counted = trained(shapes, None, RlStage(kind="rl", steps=1))
    assert counted.whole == sum(p.numel() for _, p in policy.parameters()) and counted.vision and counted.layer
    seen = Observation(
        images={"front": torch.randint(0, 256, (6, 112, 112, 3), dtype=torch.uint8)},
        state=torch.zeros(6, 4),
        instructions=["pick up the red cube"] * 6,
    )
    sample = policy.act(seen, torch.arange(6), torch.zeros(6, dtype=torch.int64), 1.0)
    some = torch.zeros(len(sample.logprobs_nKC))
    calls = ActionMicroBatch(
        observation=seen,
        choices=sample.choices,
        slots=sample.logprobs_nKC.shape[-1],
        valid_SK=torch.ones(sample.choices.shape[:2], dtype=torch.bool),
        ratio="chunk",
        sampler_logprobs_L=some,
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )
    read = policy.seeing.read(seen, policy.slot_ids.expand(6, -1))
    grid = read.media.get("image_grid_thw")
    patches = int(grid.prod(-1).sum()) if grid is not None else 6 * shapes.patches_of(size**2)
    assert slots(config, shapes.family) == policy.slots
    planned = Micro(rows=6, length=read.ids_nS.shape[1], patches=patches, targets=6 * policy.slots)
    for frozen in ((), ("vision", "projector"), ("language",)):
        stage = RlStage(kind="rl", steps=1, parts=[{"match": part, "freeze": True} for part in frozen])
        for name, weight in policy.parameters():
            weight.requires_grad_(part_of(name) not in frozen)
        found = saved_by(lambda: policy.outputs(calls, 1.0))
        assert activations(shapes, planned, 4, weights=trained(shapes, None, stage)) == pytest.approx(found, rel=bound)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, target_modules=["language"])], ids=["in full", "adapters"])
def test_what_a_policy_adds_is_float32_and_trained_beside_adapters(lora):
    options = {"dims": 3, "chunk": 2, "head": "normal", "state": 4}
    config = PolicyConfig(model="tiny:qwen3_vl:hidden=64,layers=2", kind="vla", options=options, dtype="bfloat16", lora=lora)
    policy, stage = VLA(config, **options), RlStage(kind="rl", steps=1)
    shapes = find_shapes(config).shapes
    counted = trained(shapes, lora, stage)
    assert counted.moved == sum(p.numel() for _, p in policy.parameters())
    data = {"name": "x", "tasks": [{"id": "robotics/reach"}], "stages": [{"kind": "rl", "steps": 1}]}
    run = parse_config(data | {"policy": config.model_dump(exclude_unset=True)})
    parts = {part.name: part.bytes for part in resident(shapes, run, stage, counted)}
    assert parts["weights"] + parts.get("adapters", 0) == sum(p.nbytes for p in policy.model.parameters())
    assert parts.get("float32 masters", 0) == sum(4 * p.numel() for _, p in policy.parameters() if p.dtype == torch.bfloat16)


def plan(recipe, *arguments):
    done = CliRunner().invoke(main, ["plan", f"configs/recipes/{recipe}.toml", "--machine", "h200", "--json", *arguments])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.slow
def test_a_7b_in_full_needs_several_devices():
    """One H200 doesn't hold the weights, masters, moments and gradients of SimpleVLA-RL's model; eight with a share each do."""
    code, one = plan("simplevla-rl", "--gpus", "1")
    assert code == 1 and not one["fits"] and one["stages"][0]["memory"]["certain"] > 110 * 2**30
    code, eight = plan("simplevla-rl", "--gpus", "8", "--episode-steps", "512")
    assert code == 0 and eight["fits"] and eight["sizes"]["steps"] == 512
    named = {part["name"]: part["bytes"] for part in eight["stages"][0]["memory"]["parts"]}
    assert named["optimiser"] * 8 == pytest.approx(2 * 4 * eight["model"]["parameters"], rel=1e-6)
    assert {part["name"] for part in eight["stages"][0]["seconds"]["parts"]} >= {"act", "update: backward", "collectives"}


def stage_of(kind, **keys):
    """The work of a step of four starts with episodes of 10 steps, in calls of two actions: 20 calls."""
    policy = PolicyConfig(
        model="tiny:qwen2_5_vl:hidden=32,layers=2", kind="vla", options={"dims": 3, "chunk": 2} | keys.pop("of", {})
    )
    data = {
        "name": "x",
        "policy": policy.model_dump(exclude_unset=True),
        "tasks": [{"id": "robotics/reach", "options": {"max_steps": 10}}],
    }
    config = parse_config(data | {"stages": [{"kind": kind, "steps": 2, "prompts_per_step": 4} | keys]})
    shapes = find_shapes(config.policy).shapes
    sizes = vla_sizes(config, 24, 64**2, 0)
    work = vla_workload(config, config.stages[0], shapes, sizes, 1)
    parts = resident(shapes, config, config.stages[0], trained(shapes, None, config.stages[0]))
    return work, {part.name: part.bytes for part in parts}


def test_a_recap_step_has_its_updates_and_a_frozen_copy_that_sees_what_was_played():
    work, parts = stage_of("recap", updates=7, batch_size=12)
    assert (work.rollouts, work.calls, work.updates, work.epochs, work.passes) == (4, 5, 7, 7, 1)
    assert sum(m.rows for m in work.micro.elements()) == 12 and work.watched == 4 * (5 + 1)
    assert parts["frozen copy"] == parts["weights"]
    assert stage_of("recap", guidance=2.0)[0].passes == 2, "with the text and without it"


def test_a_step_of_hg_dagger_has_its_updates_and_no_other_copy():
    work, parts = stage_of("hg-dagger", updates=7, batch_size=12)
    assert (work.rollouts, work.calls, work.updates, work.epochs, work.passes, work.watched) == (4, 5, 7, 7, 1, 0)
    assert sum(m.rows for m in work.micro.elements()) == 12 and not parts.get("frozen copy")


def test_a_step_of_pa_rl_looks_at_candidates_where_transitions_end():
    """20 calls: each is seen when it is chosen and when it is kept; critics learn 3 times for each from 8 transitions, and the
    policy 5 times from 6."""
    how = {"candidates": 4, "keep": 2, "updates": 0.25, "batch_size": 6}
    stage = {"updates": 3, "batch_size": 8, "improve": how}
    work, parts = stage_of("off-policy", **stage)
    assert (work.updates, work.epochs, sum(m.rows for m in work.micro.elements())) == (5, 5, 6) and "frozen copy" in parts
    assert work.watched == 2 * 20 + 4 + 20 * 3 * 8 + 5 * 6 and work.passes == 1
    assert stage_of("off-policy", **stage, conservative=1.0)[0].watched == 44 + 2 * 480 + 30, "here and there"
    assert stage_of("off-policy", **stage | {"improve": how | {"expectile": 0.7}})[0].watched == 44 + 30, "IQL asks for none"
    assert stage_of("off-policy", **stage, capacity=100)[0].watched == 44 + 100, "not more than there are"
    alone = stage_of("off-policy", **stage, of={"decoding": "one-by-one"})[0]
    assert alone.passes == 4 and alone.watched == 44 + 4 * 510, "tokens that see those before them take a pass for each"


def test_wrong_options_and_families_are_refused():
    for options, why in (({"dims": "7"}, "dims = '7' must be a whole number"), ({"cameras": "front"}, "must be a list of texts")):
        with pytest.raises(UserError, match=why):
            find_shapes(PolicyConfig(model="tiny:openvla", kind="vla", options=options))
    with pytest.raises(UserError, match="policy 'vlm' has no option 'foo'"):
        find_shapes(PolicyConfig(model="tiny:qwen2_5_vl", options={"foo": 1}))
    with pytest.raises(UserError, match=r"is a gemma3, whose windows of attention keep it from acting: choose another model$"):
        find_shapes(PolicyConfig(model="tiny:gemma3", kind="vla"))


@pytest.mark.parametrize("decoding, decoded", [("one-by-one", True), ("parallel", False)])
def test_tokens_that_are_decoded_one_after_the_other_take_a_pass_each(decoding, decoded):
    """The first follows from the prompt's pass, and each other reads all weights once more."""
    work, _ = stage_of("rl", of={"dims": 7, "chunk": 1, "decoding": decoding})
    assert (work.decoded, work.completion) == (decoded, 7)
    clock = CostModel(shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-7B"], ""), GPUS["h200"], "bfloat16")
    found, seen = clock.call(8, work), clock.tower(8 * work.patches, work.picture_patches)
    fed = work.prompt_tokens + 7 - decoded  # nothing follows from the last token
    assert found.flops == pytest.approx(clock.text(8, fed).flops + seen.flops, rel=0.01), "fewer pairs are hidden"
    read = 6 * (clock.text(8, 1, work.prompt_tokens).products) + clock.text(8, work.prompt_tokens).products
    once = clock.text(8, work.prompt_tokens + 7).products
    assert found.products == pytest.approx((read if decoded else once) + seen.products) and read > 1.3 * once


def acting_run(policy):
    tasks = [{"id": "tabletop/table", "options": {"max_steps": 4}}]
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 4, "group_size": 2, "ratio": "chunk", "credit": "chunk"}
    return parse_config({"name": "acts", "policy": policy, "tasks": tasks, "stages": [stage], "simulate": {"num_envs": 4}})


def test_tokens_that_a_graph_replays_are_started_by_none():
    """What the GPU computes stays, and the prompt's pass is started as before."""
    work, _ = stage_of("rl", of={"dims": 7, "chunk": 1, "decoding": "one-by-one"})
    clock = CostModel(shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-7B"], ""), GPUS["h200"], "bfloat16")
    plain, by_graphs = clock.call(8, work), clock.call(8, work, graphs=True)
    token = clock.text(8, 1, work.prompt_tokens)
    assert plain.starting - by_graphs.starting == pytest.approx(6 * token.starting) and by_graphs.starting > 0
    assert replace(plain, starting=0.0) == replace(by_graphs, starting=0.0)


@pytest.mark.parametrize("kind", ["pi0", "diffusion"])
def test_the_steps_of_a_flow_that_a_graph_replays_are_started_by_none(kind):
    options = {"dims": 4, "chunk": 2, "state": 8, "steps": 2}
    model = {"pi0": "tiny:pi0:hidden=32,layers=1,chunk=3", "diffusion": "tiny:diffusion:width=8,horizon=4,times=2"}[kind]
    config = acting_run({"kind": kind, "model": model, "options": options})
    seconds = {}
    for graphs in (False, True):
        own = config.model_copy(update={"generate": config.generate.model_copy(update={"cuda_graphs": graphs})})
        machine = replace(GPUS["h200"], launch=1.0, flops=1e30, flops32=1e30, bandwidth=1e30)
        (part,) = [part for part in predict(own, machine, online=False).stages[0].seconds if part.name == "act"]
        seconds[graphs] = part.seconds
    assert 0 < seconds[True] < 0.8 * seconds[False]


def test_a_graph_s_copies_of_keys_and_values_are_in_memory():
    base = acting_run({"kind": "vla", "model": "Qwen/Qwen2.5-VL-7B", "options": {"dims": 7, "decoding": "one-by-one"}})
    own = base.model_copy(update={"generate": base.generate.model_copy(update={"cuda_graphs": True})})
    parts = {part.name: part.bytes for part in predict(own, GPUS["h200"], online=False).stages[0].parts}
    assert "graphs" not in {part.name for part in predict(base, GPUS["h200"], online=False).stages[0].parts}
    layers, width = 28, 4 * 128  # keys, and values
    assert parts["graphs"] % (2 * 2 * layers * width) == 0 and parts["graphs"] > 0


@pytest.mark.parametrize("way", [{"iql": {}}, {"improve": {"candidates": 4, "keep": 2, "updates": 0.5}}], ids=["iql", "pa-rl"])
def test_a_stage_that_learns_offline_alone_plays_nothing(way, tmp_path):
    policy = {"kind": "squashed", "model": "mlp", "options": {"dims": 4, "state": 8, "hidden": [16]}}
    stage = {"kind": "off-policy", "steps": 3, "offline": "expert", "offline_steps": 3, "offline_updates": 200, "updates": 2}
    data = {"name": "offline", "policy": policy, "tasks": [{"id": "robotics/pick", "options": {"dims": 4}}]}
    run = lambda **more: parse_config(data | {"stages": [stage | way | more]})  # noqa: E731
    machine, seconds = replace(GPUS["h200"], flops=1e30, flops32=1e30, bandwidth=1e30), {}
    for updates in (200, 400):
        found = predict(run(offline_updates=updates), machine, online=False).stages[0]
        seconds[updates] = {part.name: part.seconds for part in found.seconds}
        assert not found.work.sampled and "act" not in seconds[updates] and "calls" not in {part.name for part in found.parts}
    for name in ("update: critics", "update: backward") if "iql" in way else ("update: backward",):
        assert seconds[400][name] == pytest.approx(2 * seconds[200][name]) and seconds[200][name] > 0
    plays = predict(run(offline_steps=2), machine, online=False).stages[0]
    assert plays.work.sampled and "act" in {part.name for part in plays.seconds}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(data | {"stages": [stage | way]}))
    told = CliRunner().invoke(main, ["plan", str(tmp_path / "run.toml"), "--machine", "h200"]).output
    assert "a step that plays nothing: " in told and "episodes are sampled" not in told and "no prompt" not in told
