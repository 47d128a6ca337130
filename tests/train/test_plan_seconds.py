"""What a plan says of time: floating-point operations as torch counts them, and what follows from a machine by hand."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.parts import part_of
from mmrl.config.sections import PolicyConfig, RlStage
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.plan import check_fits, predict, sizes_of
from mmrl.train.plan.advice import Change, changes
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.cost import Cost
from mmrl.train.plan.machines import GB, GPUS, MIB, cpu, current_machine, machine_by_name
from mmrl.train.plan.published import PUBLISHED
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.trained import trained
from mmrl.train.plan.workload import Micro, Sizes
from plan_cases import MACHINE, a_micro_batch, run_file, seconds


@pytest.mark.parametrize("family", [*cases.FAMILIES, "qwen3_vl_moe", "glm4v_moe"])
def test_floating_point_operations_are_those_that_torch_counts(family):
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=64,layers=3", attn_implementation="eager"))
    if "moe" in family:  # torch doesn't count grouped products
        vlm.model.set_experts_implementation("eager")
    clock = CostModel(shapes_of(vlm.model.config.to_dict(), family), MACHINE, "float32", "eager")
    from mmrl.policies.batches import Credit
    from mmrl.train.update.pack_conversations import pack

    def counted(size):
        rollouts = cases.rollouts(vlm, [cases.prompt(0, size=size)], longest=20)
        (micro,) = pack(rollouts, Credit(advantages=torch.ones(4)), vlm, shared_prefix=True, budget=10_000).micro
        counter = FlopCounterMode(display=False)
        with counter:
            vlm.logprobs(micro, 1.0)
        patches = int(micro.media["image_grid_thw"].prod(-1).sum())
        planned = Micro(rows=1, length=micro.ids_BS.shape[1], patches=patches, targets=len(micro.target_L))
        return counter, planned

    counter, planned = counted((56, 56))
    operators = counter.get_flop_counts()["Global"]
    told = sum(n for op, n in operators.items() if "attention" not in str(op))
    tower = clock.tower(planned.patches, planned.patches)
    near = 0 if "glm" in family else tower.attention * clock.rate
    # Qwen's tower's attention is one operator, which torch doesn't count on a CPU; tables of positions are products too
    expected = clock.forward(planned, planned.patches).flops - near
    assert told == pytest.approx(expected, rel=2e-3)


def test_a_forward_pass_by_hand():
    """2 operations a weight and token in bfloat16 at 100 teraflops; 4 x queries x length in attention."""
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    cost = CostModel(shapes, MACHINE, "bfloat16").text(2, 1000)
    layer = 2048 * (2 * 2048 + 2 * 256 + 3 * 11008)
    assert cost.products == pytest.approx(2 * layer * 36 * 2000 / 1e14)
    assert cost.attention == pytest.approx(4 * 2048 * 1000 * 36 * 2000 / 1e14)
    half = CostModel(shapes, MACHINE, "float32").text(2, 1000)
    assert half.products == pytest.approx(10 * cost.products), "float32 has its own rate"


def test_rows_that_share_a_prompt_compute_the_blocks_of_their_mask():
    """A GPU skips what a dense mask of the same row hides, and reads no mask."""
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    row = Micro(rows=1, length=2000, patches=0, targets=1000, prompt=1000, completion=200, members=((5, 1),))
    clocks = [CostModel(shapes, MACHINE, "bfloat16", setting) for setting in ("auto", "sdpa")]
    skipped, dense = (clock.states(row, 1) for clock in clocks)
    assert dense.attention == clocks[1].text(1, 2000).attention == pytest.approx(4 * 2048 * 2000**2 * 36 / 1e14)
    pairs = clocks[0].attention.pairs(row)
    assert skipped.attention == pytest.approx(4 * 2048 * pairs * 36 / (1e14 * MACHINE.blocks)) and pairs < 0.55 * 2000**2
    assert dense.streaming - skipped.streaming == pytest.approx(2 * 2000**2 * 36 / 1e12)


def test_decoding_few_rows_waits_for_the_weights():
    clock = CostModel(shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], ""), MACHINE, "bfloat16")
    layer = 2048 * (2 * 2048 + 2 * 256 + 3 * 11008)
    assert clock.text(1, 1, 100).products == clock.text(8, 1, 100).products == pytest.approx(2 * layer * 36 / 1e12, rel=2e-4)
    assert clock.text(1000, 1, 100).products > 5 * clock.text(8, 1, 100).products


def test_a_token_pays_for_its_experts_and_few_tokens_read_few():
    """Of 128 experts of three matrices of 2048 x 768 in each of 48 layers, 8 are multiplied with. One token reads 8 of them,
    eight that choose at random 128 x (1 - (15/16)^8), and 1,000 all."""
    clock = CostModel(shapes_of(PUBLISHED["Qwen/Qwen3-VL-30B-A3B"], ""), MACHINE, "bfloat16")
    attending, router, expert = 2048 * (2 * 4096 + 2 * 512), 2048 * 128, 3 * 2048 * 768
    assert clock.text(2, 1000).products == pytest.approx(2 * 48 * (attending + router + 8 * expert) * 2000 / 1e14)
    for rows, read in ((1, 8), (8, 128 * (1 - (15 / 16) ** 8))):
        assert clock.text(rows, 1, 100).products == pytest.approx(2 * 48 * (attending + router + read * expert) / 1e12, rel=1e-4)


def test_backward_passes_cost_what_is_trained():
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    clock, micro = CostModel(shapes, MACHINE, "bfloat16"), Micro(rows=1, length=1000, patches=400, targets=10)
    stage = RlStage(kind="rl", steps=1)
    whole = trained(shapes, None, stage)
    forward = clock.forward(micro, 400)
    back, again = clock.backward(micro, 400, whole, False), clock.backward(micro, 400, whole, True)
    assert back.products == pytest.approx(2 * forward.products) and back.attention == pytest.approx(2.5 * forward.attention)
    recomputed = clock.text(1, 1000) + clock.tower(400, 400)
    assert again.products - back.products == pytest.approx(recomputed.products) and again.flops == back.flops
    adapters = trained(shapes, PolicyConfig(model="x", lora={}).lora, stage)
    light = clock.backward(micro, 400, adapters, False)
    assert light.products == pytest.approx((clock.text(1, 1000) + clock.head(10)).products), "no weights' gradients, no tower"


@pytest.mark.parametrize("frozen", [(), ("language", "head"), ("vision", "projector")], ids=str)
def test_backward_passes_compute_no_gradients_of_frozen_weights(frozen):
    """Against the products that torch counts, whose tower needs no gradients of pixels."""
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=128,layers=3", attn_implementation="eager"))
    shapes = shapes_of(vlm.model.config.to_dict(), "")
    stage = RlStage(kind="rl", steps=1, parts=[{"match": part, "freeze": True} for part in frozen])
    for name, weight in vlm.parameters():
        weight.requires_grad_(part_of(name) not in frozen)
    micro, planned = a_micro_batch(vlm, 70, prompts=1)
    clock = CostModel(shapes, replace(MACHINE, bandwidth=1e30), "float32", "eager")
    found = vlm.logprobs(micro, 1.0)
    with FlopCounterMode(display=False) as counter:
        found[0].sum().backward()
    seen = clock.text(planned.rows, planned.length).attention * clock.rate * clock.machine.attention
    back = clock.backward(planned, planned.patches, trained(shapes, None, stage), False)
    pixels = 0 if "vision" in frozen else 2 * planned.patches * vlm.model.model.visual.patch_embed.proj.weight.numel()
    told = back.products * clock.rate * clock.machine.matmul - pixels
    assert counter.get_total_flops() - 2 * seen == pytest.approx(told, rel=2e-3)


def test_a_gpu_starts_operations_while_it_computes_and_a_cpu_before():
    cost = Cost(products=1.0, attention=0.5, streaming=0.25, starting=2.0)
    assert cost.seconds(MACHINE) == 2.0 and cost.seconds(replace(MACHINE, kind="cpu")) == 3.75
    assert cost.limit == "starting operations"


def test_collectives_by_hand():
    n = 3_754_622_976
    config = run_file(compute={"learners": 4, "weights": "replicated"})
    assert seconds(predict(config, MACHINE), "collectives") == pytest.approx(2 * 4 * n * 0.75 / 1e11)
    many = run_file(compute={"learners": 16, "weights": "replicated"})
    assert seconds(predict(many, MACHINE), "collectives") == pytest.approx(2 * 4 * n * 15 / 16 / 5e10), "between nodes"
    assert "collectives" not in {part.name for part in predict(run_file(), MACHINE).stages[0].seconds}


def test_a_team_exchanges_heads_by_hand():
    """16 heads of 128 for queries and outputs, 2 for keys and values, in 36 layers, of which a half goes to the other learner:
    forward, backward and again in what checkpointing computes."""
    config = run_file(compute={"learners": 2, "sequence_parallel": 2})
    plan = predict(config, MACHINE)
    tokens = sum(m.tokens for m in plan.stages[0].work.micro.elements())
    assert seconds(plan, "all-to-all") == pytest.approx(3 * tokens * 36 * 2 * (2 * 2048 + 2 * 256) / 2 / 1e11)
    assert "all-to-all" not in {part.name for part in predict(run_file(compute={"learners": 2}), MACHINE).stages[0].seconds}
    with pytest.raises(UserError, match=r"compute\.sequence_parallel = 2 doesn't divide 3 learners: change one of them"):
        predict(config, MACHINE, gpus=3)


def test_sampling_apart_and_late_hides_the_shorter_side():
    apart = {"sampler": "vllm", "placement": "separate", "engines": 2, "learners": 2}
    now, late = (predict(run_file(compute={**apart, "staleness": k}), MACHINE).stages[0] for k in (0, 1))
    total = sum(part.seconds for part in now.seconds)
    assert now.step_s == pytest.approx(total) and late.step_s < 0.99 * total
    assert late.step_s >= max(part.seconds for part in late.seconds)
    assert "weight sync" in {part.name for part in now.seconds}


def test_devices_are_divided_by_what_they_do():
    apart = {"sampler": "vllm", "placement": "separate", "engines": 2, "tensor_parallel": 2}
    made = predict(run_file(compute=apart), MACHINE, gpus=8)
    assert (made.learners, made.engines, made.stages[0].work.prompts) == (4, 4, 2)
    with pytest.raises(UserError, match=r"--gpus 4: with compute.engines and tensor_parallel, one learner needs 5: give more"):
        predict(run_file(compute=apart), MACHINE, gpus=4)
    for placement, wanted in (("colocated", (4, 4)), ("hybrid", (2, 6))):
        made = predict(
            run_file(compute=apart | {"placement": placement, "engines": 2 if placement == "hybrid" else 1}), MACHINE, gpus=8
        )
        assert (made.learners, made.engines) == wanted, "each learner's vLLM takes two"


@pytest.mark.parametrize("placement", ["colocated", "separate"])
def test_an_engine_has_to_hold_the_model_once(placement):
    for share, fits in ((0.95, True), (0.05, False)):
        compute = {"sampler": "vllm", "placement": placement, "gpu_memory_utilization": share}
        plan = predict(run_file(compute=compute), MACHINE)
        assert plan.engine_fits == plan.as_json()["engine_fits"] == fits


def test_what_is_supposed_stays_within_the_run_file():
    config = run_file(generate={"max_tokens": 100})
    model = find_shapes(config.policy)
    assert sizes_of(config, model) == Sizes(text=128, images=1, pixels=262144, completion=100)
    assert sizes_of(config, model, pixels=10**7, completion=500) == Sizes(pixels=262144, completion=100)
    assert sizes_of(run_file(policy={"max_pixels": None}), model).pixels == 2**20


CHECKPOINTED = {"train": {"gradient_checkpointing": True}}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, [{"train.gradient_checkpointing"}]),
        ({**CHECKPOINTED, "policy": {"max_pixels": 12_845_056}}, [{"policy.max_pixels"}, {"policy.lora"}]),
    ],
)
def test_what_to_change_makes_it_fit(given, named):
    config = run_file(**given)
    made = predict(config, GPUS["h100"])
    assert not made.fits and made.changes
    assert all(keys in [set(change.settings) for change in made.changes] for keys in named)
    for change in made.changes:
        assert change.fits
        sections: dict = copy.deepcopy(given)
        for key, value in change.settings.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        then = predict(run_file(**sections), GPUS["h100"])
        assert then.fits, change.words
        assert (then.stages[0].peak, then.stages[0].step_s) == (change.bytes, change.step_s), change.words
    assert predict(config, GPUS["b200"]).changes == ()


def test_where_neither_sampling_nor_learning_fits_one_device_is_advised():
    policy = {"model": "Qwen/Qwen2.5-VL-7B-Instruct", "max_pixels": None, "lora": {"rank": 32}}
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 16, "group_size": 8}
    config = run_file(policy=policy, generate={"max_tokens": 512}, stages=[stage])
    made = predict(config, GPUS["rtx-4090"])
    assert not made.fits
    whole = [set(change.settings) for change in made.changes]
    assert {"generate.batch_size", "train.gradient_checkpointing"} in whole
    assert any({"policy.lora", "train.micro_batch_tokens"} <= keys for keys in whole), "over 4 bits"
    assert any("compute.learners" in keys for keys in whole)
    assert len(whole) == len(set(map(frozenset, whole))), "one set of values for the same keys"


def test_what_needs_half_precision_and_more_is_advised_with_both():
    def peak(config):
        return 100 >> (config.policy.dtype == "bfloat16") + config.train.gradient_checkpointing, 30

    config = run_file(policy={"model": "Qwen/Qwen2.5-VL-7B-Instruct", "dtype": "float32"})
    mildest = changes(config, peak, step=lambda _: 1.0, smallest=2**20, pixels=0)[0]
    assert mildest.fits and mildest.words == 'policy.dtype = "bfloat16", train.gradient_checkpointing = true'
    halved = changes(config, lambda one: (100 >> (one.policy.dtype == "bfloat16"), 30), lambda _: 1.0, smallest=2**20, pixels=0)
    assert [(one.words, one.fits) for one in halved] == [('policy.dtype = "bfloat16"', False)], "others save nothing besides"


def test_a_table_is_advised_key_by_key_so_that_its_other_keys_stay():
    settings = {"policy.lora": {"nf4": ["language"]}, "train.offload_optimizer": True}
    change = Change(settings=settings, bytes=1, fits=True, cost="", step_s=1.0)
    assert change.words == 'policy.lora.nf4 = ["language"], train.offload_optimizer = true'
    assert replace(change, settings={"policy.lora": {}}).words == "policy.lora = {}"


def test_offload_does_not_pay_where_the_link_is_slow_beside_the_device():
    """A layer of 3B keeps 130,120 bytes of a token in bfloat16. At 0.8 x 64 GB/s they take 2.5 us to move; an H100 needs some 0.5
    us for the layer's forward pass, beside which the first of them are hidden."""
    config = run_file()
    made = predict(config, GPUS["h100"]).offload
    assert made.bytes == 16 * 2048 + 8 + 4 * (2048 + 256) + 4 * 16 + 8 * 11008
    assert made.move_s == pytest.approx(130_120 / (0.8 * 64e9))
    assert made.exposed_s == pytest.approx(2 * made.move_s - 3 * made.forward_s) and not made.pays
    assert predict(config, replace(GPUS["h100"], host=210 * GB)).offload.pays
    close = predict(config, GPUS["rtx-4090"]).offload
    assert close.exposed_s < close.forward_s and not close.pays, "a hundredth of an update is not worth it"
    assert predict(config, replace(MACHINE, kind="cpu")).offload is None


def test_a_gpu_that_can_not_hold_what_stays_is_refused_and_a_tight_one_is_remarked():
    """16 bytes a weight and two of its gradient's: 63 GiB for a 3B model."""
    config = run_file()
    with pytest.raises(UserError) as refused:
        check_fits(config, GPUS["a100-40gb"])
    told = str(refused.value)
    assert "is too small: weights, gradients and optimiser of stages.0 take 62.9 GiB, but it has 40.0 GiB" in told
    assert "\n" not in told and "set " in told
    assert "may run out" in check_fits(config, GPUS["h100"])
    assert check_fits(config, GPUS["b200"]) == ""
    assert check_fits(config, GPUS["a100-40gb"], learners=8) == "", "eight of them share it"
    assert check_fits(run_file(policy={"model": "nobody/has-this"}), GPUS["l4"]) == "", "not known is not refused"


def test_machines_have_names():
    assert machine_by_name("NVIDIA H200") is machine_by_name("h200") is GPUS["h200"] and GPUS["h200"].memory == 143_771 * MIB
    assert machine_by_name("RTX_4090") is GPUS["rtx-4090"]
    with pytest.raises(UserError, match=r"'h20' is unknown. Did you mean 'h200'\?"):
        machine_by_name("h20")


@pytest.mark.parametrize(
    ("name", "known"), [("NVIDIA L4", "l4"), ("NVIDIA L40S", "l40s"), ("NVIDIA L40", ""), ("NVIDIA A100-SXM4-40GB", "a100-40gb")]
)
def test_a_gpu_is_known_by_its_whole_number(monkeypatch, name, known):
    there = SimpleNamespace(name=name, total_memory=48 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: there)
    found, count = current_machine("cuda:0", measured=False)
    assert found == replace(GPUS[known or "l40s"], name=name, memory=48 * 2**30) and count == 1


def test_this_cpu_is_measured():
    found = cpu(256)
    assert found.kind == "cpu" and found.memory > 2**28
    assert 1e8 < found.flops32 < 1e14 and 1e8 < found.bandwidth < 1e13 and 1e-8 < found.launch < 1e-2
    assert 0 < found.thin <= 1
