"""The benchmarks that need a GPU, as far as they go without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))


@pytest.mark.parametrize(("size", "tied"), [("3b", True), ("7b", False)])
def test_the_arithmetic_counts_the_weights_of_the_model_that_is_built(size, tied):
    import transformers

    import on_device
    from mmrl.policies.vlm import tiny
    from model_shapes import shape, shape_of

    small, _ = tiny.build("qwen2_5_vl")
    config = on_device.config_of(size, small.config)
    with torch.device("meta"):
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    model.tie_weights()
    built = sum(p.numel() for p in model.parameters())
    assert shape(size).weights == pytest.approx(built, rel=1e-3)
    assert shape(size) == shape_of(config.text_config.to_dict(), config.vision_config.to_dict(), tied)
    assert config.text_config.rope_parameters["mrope_section"] == [16, 24, 24]
    assert config.image_token_id == small.config.image_token_id


def test_weights_are_made_where_the_policy_is_and_no_name_is_looked_up(monkeypatch):
    """A published size made small: what a run reads of it, and that the host's memory and disk have no part in it."""
    import on_device
    from mmrl.policies.vlm import vlm

    known = on_device.CONFIGS["3b"]
    text = {
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    tower = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 256,
        "fullatt_block_indexes": [0],
    }
    small = {**known, "text_config": {**known["text_config"], **text, "vocab_size": 600}}
    small["vision_config"] = {**known["vision_config"], **tower}
    monkeypatch.setitem(on_device.CONFIGS, "3b", small)
    real, made = vlm.load, []
    monkeypatch.setattr(on_device, "built", lambda *given, real=on_device.built: made.append(given) or real(*given))
    policy = on_device.loaded("3b", "cpu", "bfloat16", lora=4)
    assert made == [("3b", "cpu", torch.bfloat16, "sdpa")] and vlm.load is real
    assert policy.model.dtype == torch.bfloat16 and policy.width == 256 and len(policy.bias_V) == 600
    assert policy.bias_V[list(policy.eos)].isinf().all()
    assert 0 < sum(p.numel() for _, p in policy.parameters() if p.requires_grad) < 60_000


def test_a_step_needs_what_its_matrices_come_to():
    """The forward pass of a tiny model by torch's own counter of operations, against the formula."""
    from torch.utils.flop_counter import FlopCounterMode

    import on_device
    import step_gpu
    from model_shapes import shape_of

    policy = on_device.loaded("tiny", "cpu", "float32")
    (prompt,) = step_gpu.prompts_of(policy, 1, 112, 200)
    inputs = policy.encode(prompt)
    patches, length = inputs.media["pixel_values"].shape[0], len(inputs.ids)
    assert 200 <= length <= 202
    config = policy.model.config
    shape = shape_of(config.text_config.to_dict(), config.vision_config.to_dict(), config.tie_word_embeddings)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        policy.family.hidden(
            inputs.ids[None],
            None,
            inputs.positions[:, None],
            {**inputs.media, **{k: v[None] for k, v in inputs.token_types.items()}},
        )
    matrices = shape.text_flops(length, 0, 0) + shape.vision_flops(patches, 0)  # torch's counter leaves the CPU's attention out
    assert counter.get_total_flops() == pytest.approx(matrices, rel=0.005)
    one = step_gpu.flops(shape, 2, 3, length, 10, patches)
    asked = shape.text_flops(length, length / 2, 0) + shape.vision_flops(patches)
    answered = shape.text_flops(10, length + 5, 10)
    assert one == {
        "sample": pytest.approx(2 * asked + 6 * answered),
        "update": pytest.approx(6 * asked + 18 * answered),
        "unshared": pytest.approx(24 * (asked + answered)),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["step_gpu.py", "packing_gpu.py", "gap_gpu.py", "gap_parts.py", "decode_gpu.py", "memory_gpu.py", "prefetch_gpu.py"]
)
def test_it_runs_at_tiny_size_on_a_cpu_and_prints_one_object(script):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, "--size", "tiny", "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["benchmark"] == script.removesuffix(".py") and found["machine"]["cores"]
    if script == "step_gpu.py":
        parts = found["median_s"]
        tokens = found["prompts"] * found["group"] * (found["prompt_tokens"] + found["tokens"])
        assert found["tokens_per_s"] == pytest.approx(tokens / parts["step"], rel=0.01) and found["logprob_gap"] < 0.01
        kernels = {part: {row["name"] for row in rows[1:]} for part, rows in found["kernels"].items()}
        assert kernels.keys() == {"generate", "update"} and all("aten::mm" in names for names in kernels.values())
    elif script == "decode_gpu.py":
        assert [case["rows"] for case in found["cases"]] == found["rows"] == [3, 6]
        assert all(max(case["gap"].values()) < 0.1 and case["graphs_ms"] > 0 for case in found["cases"])
    elif script == "prefetch_gpu.py":
        assert found["micro_batches"] > 2 and found["loss_difference"] == 0 and found["median_s"].keys() == {"ahead", "at_once"}
    elif script == "memory_gpu.py":
        cases = found["cases"].values()
        assert len(cases) == 2 and all(case["update"]["measured"] > 0 and case["within_24gb"] for case in cases)
    elif script == "gap_parts.py":
        rows = found["rows"]
        assert (
            rows["none"] < 1e-5 < rows["all"]
            and len(rows) == 3 + 2 * len(found["parts"])
            and found["layers"].keys() == {"1", "2"}
        )
        assert rows["all"] == pytest.approx(found["bfloat16"], rel=2), "the parts are all that rounds"
    elif script == "gap_gpu.py":
        assert found["float32"]["shared"]["mean"] < 1e-5 < found["bfloat16"]["shared"]["mean"] < 5e-3
        assert found["invariant"]["shared"]["largest"] == found["invariant"]["alone"]["largest"] == 0
    else:
        assert all(case["ratio"] > 0.5 and case["gradient_difference"] < 0.1 for case in found["cases"].values())


@pytest.mark.slow
def test_a_model_as_deep_as_published_ones_shares_its_prompts_and_differs_least_in_float32():
    work = ["--prompts", "1", "--group", "3", "--tokens", "6", "--pixels", "56", "--prompt-tokens", "40"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gap_gpu.py", "--size", "narrow", "--device", "cpu", *work],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    half, least, whole = (found[dtype]["shared"]["mean"] for dtype in ("bfloat16", "float16", "float32"))
    assert max(whole, found["float32"]["alone"]["mean"]) < 1e-6 < least < half / 3, "a number of float16 has three bits more"
    assert half < 5e-3 and found["invariant"]["shared"]["largest"] == 0


def test_memory_that_runs_out_lowers_what_is_asked_and_keeps_what_was_found(capsys):
    import argparse

    import step_gpu

    args, tried = argparse.Namespace(budget=64), []

    def measure(args, found):
        tried.append(args.budget)
        found["rows"] = len(tried)
        if args.budget > enough:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    def lower():
        args.budget //= 2

    enough = 32
    assert step_gpu.lowering(measure, args, lower) == {
        "budget": 32, "error": ["CUDA out of memory. Tried to allocate 2.00 GiB"], "rows": 2
    }  # fmt: skip
    enough, args.budget, tried[:] = 1, 64, []
    found = step_gpu.lowering(measure, args, lower)
    assert tried == [64, 32, 16] and found["rows"] == 3 and len(found["error"]) == 3
    assert "out of memory" in capsys.readouterr().err


def test_losses_are_compared_up_to_the_step_where_a_sample_fell_differently():
    import digits_gpu

    def steps(*rows):
        return [{"loss": loss, "grad_norm": norm, "reward/mean": reward} for loss, norm, reward in rows]

    here = steps((1.0, 2.0, 0.25), (0.5, 4.0, 0.5), (0.25, 1.0, 0.5))
    there = steps((1.0, 2.0, 0.25), (0.5625, 5.0, 0.5), (9.0, 1.0, 0.625))
    found = digits_gpu.compared(here, there)
    assert (found["first_other_sample"], found["first"], found["largest"]) == (3, 0.0, 0.0625)
    assert found["gradient_norm"] == pytest.approx(0.2)
    assert digits_gpu.compared(here, here)["first_other_sample"] is None
    nothing = digits_gpu.compared(here, steps((1.0, 2.0, 0.5), *[(0, 0, 0)] * 2))
    assert (nothing["first_other_sample"], nothing["largest"]) == (1, None)


def test_curves_agree_if_the_last_intervals_overlap_and_both_have_ended():
    import curves_gpu
    import learning

    def run(seconds, *values):
        return learning.Run([{"step": i, "value": v, "low": v - 0.1, "high": v + 0.1} for i, v in enumerate(values)], seconds)

    found = curves_gpu.compared({"cpu": run(9.0, 0.2, 0.8), "device": run(5.0, 0.2, 0.65)})
    assert found["within"] and found["last"]["device"] == [1, 0.65, 0.55, 0.75]
    assert not curves_gpu.compared({"cpu": run(9.0, 0.2, 0.8), "device": run(5.0, 0.2, 0.55)})["within"]
    assert "within" not in curves_gpu.compared({"cpu": run(9.0, 0.2, 0.8), "device": run(0.0, 0.2)})
