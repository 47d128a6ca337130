"""Other families beside the learner: one for each form in which vLLM's classes read pictures. `test_parity.py` has more about
Qwen's, and `benchmarks/sampler.py --family all` tries each family."""

import dataclasses
import math
import os
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

import numpy as np
import torch

from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import ComputeConfig, LoraConfig, PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.rollout.generate.vllm_engine import check_engine
from mmrl.rollout.generate.vllm_worker import Banned
from mmrl.testing.vllm_parity import MEAN_GAP, TEMPERATURE, differences, gaps, move, sharpen, shown

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SETTINGS = ComputeConfig(sampler="vllm")
SERVED = {
    "internvl": "float32",  # tiles are items of their own, frames of a video are tiles
    "idefics3": "float32",  # the same, with the tiles of all pictures in one tensor
    "pixtral": "float32",  # pictures are padded to one size, and cut again
    "llava_onevision": "float32",  # tiles of a picture belong together; of several pictures none is cut
    "glm4v": "float32",  # patches beside each other; frames of a video are pictures
    "aya_vision": "float32",  # vLLM has no class of its own, and runs transformers'
    "qwen3_5": "bfloat16",  # layers with a recurrent state
    "qwen2_5_omni": "float32",  # the thinker of a whole model, whose weights have names of their own there
}
VIDEOS = {"internvl", "glm4v", "qwen3_5", "qwen2_5_omni_thinker"}
APART = 4.0
"""A planted fault moves log-probabilities at least so many times as much as what is left without one."""


@pytest.fixture(scope="module", params=[f for f in SERVED if f in os.environ.get("MMRL_TEST_FAMILY", f)])
def pair(request):
    """(family, policy with adapters, its vLLM)."""
    config = PolicyConfig(model=f"tiny:{request.param}:hidden=256,layers=2", dtype=SERVED[request.param])
    policy = VLM(config.model_copy(update={"lora": LoraConfig(rank=2, target_modules=["language"])}))
    sharpen(policy)
    generator = VllmGenerator(policy, SETTINGS, batch_size=32, max_context=1024)
    generator.ready()
    yield request.param, policy, generator
    generator.close()


def means(found):
    return {kind: gap if isinstance(gap, str) else gap.mean for kind, gap in found.items()}


def rounding(family, policy, generator, kinds):
    """Kind of prompt -> nats a token by which a learner in bfloat16 is off what it would say in float32, of tokens that vLLM
    sampled."""
    config = PolicyConfig(model=f"tiny:{family}:hidden=256,layers=2")
    exact = VLM(config.model_copy(update={"lora": LoraConfig(rank=2, target_modules=["language"])}))
    with torch.no_grad():
        for one, other in zip(exact.model.parameters(), policy.model.parameters(), strict=True):
            one.copy_(other)
    found = {}
    for kind in kinds:
        inputs = [policy.encode(prompt) for prompt in shown()[kind]]
        generator.wake_up()
        groups = generator.generate(inputs, 2, SamplingParams(max_tokens=6, temperature=TEMPERATURE, seed=1))
        there, here = (differences(one, inputs, groups, TEMPERATURE) for one in (exact, policy))
        found[kind] = float((there - here).abs().mean())
    return found


def test_it_says_what_the_learner_says_of_text_pictures_and_videos(pair):
    """In bfloat16 up to rounding, that is one and a half times as much as the learner is off what it would say in float32 of
    prompts of the same kind."""
    family, policy, generator = pair
    found = means(gaps(policy, generator, shown()))
    if policy.model.config.model_type not in VIDEOS:
        refused = [found.pop("video"), found.pop("video and picture")]
        assert all(re.search("can't be shown videos|takes no videos|can't be given a video", why) for why in refused)
    own = {} if SERVED[family] == "float32" else rounding(family, policy, generator, found)
    bounds = {kind: 1.5 * own[kind] if own else MEAN_GAP for kind in found}
    assert all(isinstance(gap, float) and gap < bounds[kind] for kind, gap in found.items()), (found, bounds)


def test_it_follows_adapters_and_these_checks_see_what_it_is_not_given(pair, monkeypatch):
    _, policy, generator = pair
    pictures = {kind: prompts for kind, prompts in shown().items() if kind == "two pictures"}
    before = means(gaps(policy, generator, pictures))["two pictures"]
    move(policy, 0)
    with monkeypatch.context() as patched:
        patched.setattr(generator, "sync", lambda: None)
        assert means(gaps(policy, generator, pictures))["two pictures"] > APART * before, "old adapters"
    syncs = generator.syncs
    now = means(gaps(policy, generator, pictures))["two pictures"]
    assert now < 2 * before + 1e-6
    assert generator.syncs == syncs + 1 and generator.sent < sum(4 * p.numel() for p in policy.model.parameters())
    handed = generator.prompt
    monkeypatch.setattr(generator, "prompt", lambda one: handed(dataclasses.replace(one, media=darkened(one.media))))
    assert means(gaps(policy, generator, pictures))["two pictures"] > APART * now, "other pictures"


def test_times_of_frames_are_not_rounded_to_the_type_of_the_weights(pair, monkeypatch):
    """bfloat16 has 8 bits: 0.74 s would be a position less at 25 positions a second."""
    _, policy, generator = pair
    if not policy.family.hears:
        pytest.skip("it is told no times")
    frames = VideoFrames(frames_THWC=np.zeros((4, 56, 56, 3), np.uint8), times_s=(0.0, 0.37, 0.74, 1.11), duration_s=1.48)
    inputs = policy.encode(Prompt(messages=[user_message("What moves?", frames)]))
    monkeypatch.setattr(type(policy.model), "dtype", torch.bfloat16)
    (item,) = generator.prompt.items(inputs)["video"]
    assert float(item["second_per_grid_ts"].data) == pytest.approx(0.74, abs=1e-6)


def darkened(media):
    return {name: value * 0.1 if name.startswith("pixel_values") else value for name, value in media.items()}


def row(family):
    """A family's row of the table: (served, videos)."""
    reason = ""
    for dtype in ("float32", "bfloat16"):
        policy = VLM(PolicyConfig(model=f"tiny:{family}:hidden=256,layers=2", dtype=dtype))
        try:
            with tempfile.TemporaryDirectory() as folder:
                _, inputs = check_engine(policy, SETTINGS, 4, 512, folder, policy.device)
        except UserError as error:
            reason = reason or shortened(re.sub(r'.*? model: (.*?): use "local".*', r"\1", str(error)))
            continue
        return f"{'yes' if not reason else 'yes, but ' + reason} | {videos(policy, inputs)}"
    return f"no: {reason} | "


def shortened(reason):
    """Without what a library adds to it in parentheses, folders, and what is behind the kind of an error."""
    reason = re.sub(r" \(.*\)$|: \w*Error: .*|(?<=: )/\S+ is ", "", reason)
    return reason.replace("prompt '' of task '' can't be processed", "its processor refuses pictures of two sizes in a prompt")


def videos(policy, inputs):
    try:
        prompt = policy.encode(shown()["video"][0])
    except UserError:
        return ""
    try:
        inputs(prompt)
    except UserError as error:
        return re.sub(r'.*? model: (.*?): use "local".*', r"no: \1", str(error))
    return "yes"


@pytest.mark.timeout(1200)  # each family is read by vLLM
def test_the_table_in_the_documentation_says_what_is_served():
    rows = "\n".join(f"| `{family}` | {row(family)} |" for family in tiny.FAMILIES)
    table = f"| model_type | served by vLLM 0.32 | videos |\n|---|---|---|\n{rows}"
    between = re.compile(r"(<!-- vllm -->\n).*?(<!-- end of vllm -->)", re.DOTALL)
    text = PAGE.read_text("utf-8")
    wanted = between.sub(lambda m: m[1] + table + "\n" + m[2], text)
    if os.environ.get("MMRL_UPDATE_DOCS"):
        PAGE.write_text(wanted, "utf-8")
    assert text == wanted or os.environ.get("MMRL_UPDATE_DOCS"), "MMRL_UPDATE_DOCS=1 pytest tests/vllm/test_families.py"


def test_ids_without_an_output_are_not_banned():
    """Molmo 2's placeholders lie behind the last row of its output embeddings."""
    banned = Banned(SimpleNamespace(additional_config={"mmrl_banned": [1, 7]}), torch.device("cpu"), False)
    assert banned.apply(torch.zeros(2, 4)).tolist() == [[0, -math.inf, 0, 0]] * 2
