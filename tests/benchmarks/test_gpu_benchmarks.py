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

    import step_gpu
    from mmrl.compute.torchvision import prepare_torchvision
    from mmrl.policies.vlm import tiny
    from model_shapes import shape, shape_of

    prepare_torchvision()
    small, _ = tiny.build("qwen2_5_vl")
    config = step_gpu.config_of(size, small.config)
    with torch.device("meta"):
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    model.tie_weights()
    built = sum(p.numel() for p in model.parameters())
    assert shape(size).weights == pytest.approx(built, rel=1e-3)
    assert shape(size) == shape_of(config.text_config.to_dict(), config.vision_config.to_dict(), tied)
    assert config.text_config.rope_parameters["mrope_section"] == [16, 24, 24]
    assert config.image_token_id == small.config.image_token_id


def test_a_step_needs_what_its_matrices_come_to():
    """The forward pass of a tiny model by torch's own counter of operations, against the formula."""
    from torch.utils.flop_counter import FlopCounterMode

    import step_gpu
    from model_shapes import shape_of

    policy = step_gpu.loaded("tiny", "cpu", "float32")
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
@pytest.mark.parametrize("script", ["step_gpu.py", "packing_gpu.py"])
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
    else:
        assert all(case["ratio"] > 0.5 and case["gradient_difference"] < 0.1 for case in found["cases"].values())
