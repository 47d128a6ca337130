"""`policy.batch_invariant`: a token's numbers are the same bits whatever else is in a pass."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import flash_kernels
import footages
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.media.clips import Clip
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import LoraConfig, PolicyConfig, RunConfig
from mmrl.policies.batches import ones
from mmrl.policies.vlm import attention, batch_invariant, sequence_attention
from mmrl.policies.vlm.sequences import CachedSequences, PackedSequences
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.decode_graphs import DecodeGraphs
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.room_rows import RoomRows
from mmrl.rollout.generate.rows import Rows
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.testing.cases import some_of
from mmrl.train.start import load_teacher
from mmrl.train.update.pack_conversations import pack

FAMILIES = (
    *("qwen2_5_vl", "internvl", "qwen2_vl", "qwen3_vl", "glm4v", "glm46v", "llava", "smolvlm", "idefics3", "llava_onevision"),
    *("ovis2", "llava_next", "qwen2_5_omni", "deepseek_vl", "internvl3_5", "glm_ocr", "paddleocr_vl"),
    *("hunyuan_vl", "video_llama_3"),
)
ALONE = ("granite4_vision", "openvla", "perception_lm")
"""With a picture in each prompt, or several of one size."""
SAMPLING = SamplingParams(max_tokens=12, temperature=0.8, seed=3)
PROMPTS = [cases.prompt(1), cases.prompt(2, 2), cases.prompt(4)]
"""Of three lengths, with pictures of several sizes."""


@functools.cache
def policy(family: str, dtype: str = "float32", invariant: bool = True, lora: bool = False) -> VLM:
    adapters = LoraConfig(rank=4, target_modules=["vision", "language"]) if lora else None
    model = f"tiny:{family}:hidden=64,layers=2"
    made = VLM(PolicyConfig(model=model, dtype=dtype, device="cpu", batch_invariant=invariant, lora=adapters))
    with torch.no_grad():
        for name, p in made.parameters():
            if lora and "lora_B" in name:  # else they would add nothing
                p.normal_(0, 0.1, generator=torch.Generator().manual_seed(len(name)))
    return made


def gaps(vlm: VLM, shared: bool, prompts=PROMPTS, sampled_by: LocalGenerator | None = None) -> torch.Tensor:
    """[L]: the learner's log-probabilities of sampled tokens less the sampler's."""
    inputs = [vlm.encode(p) for p in prompts]
    groups = (sampled_by or LocalGenerator(vlm)).generate(inputs, 3, SAMPLING)
    rollouts = cases.as_rollouts(prompts, inputs, groups)
    with torch.no_grad():
        batch = pack(rollouts, ones(rollouts), vlm, shared_prefix=shared, budget=80)
        assert len(batch.micro) > 1
        return torch.cat([vlm.logprobs(m, 0.8)[0] - m.sampler_logprobs_L for m in batch.micro])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", some_of((*FAMILIES, *ALONE), ("qwen2_5_vl", "internvl")))
def test_sampler_and_learner_compute_the_same_bits(family, dtype):
    vlm = policy(family, dtype)
    assert vlm.family.capabilities.way == "varlen"
    for shared in (True, False):
        gap_L = gaps(vlm, shared, PROMPTS[::2] if family in ALONE else PROMPTS)
        assert len(gap_L) > 40 and not gap_L.any()


@pytest.mark.parametrize(
    "family",
    some_of(
        (
            *("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "internvl", "internvl3_5", "glm4v", "glm46v", "smolvlm", "llava_onevision"),
            *("qwen2_5_omni", "perception_lm"),
        ),
        ("qwen3_vl",),
    ),
)
def test_videos_have_the_same_bits(family, tmp_path):
    """Also beside a prompt with a picture."""
    long = footages.write(tmp_path / "long.mp4", footages.frames(50), fps=10)
    short = footages.write(tmp_path / "short.mp4", footages.frames(12, 112, 84), fps=4)
    shown = (Clip(path=str(long), count=6), Clip(path=str(short), fps=2), cases.picture(3))
    prompts = [Prompt(id=str(i), messages=[user_message("What happens?", one)]) for i, one in enumerate(shown)]
    for shared in (True, False):
        gap_L = gaps(policy(family, "bfloat16"), shared, prompts)
        assert len(gap_L) > 40 and not gap_L.any()


@pytest.mark.parametrize("family", ["mistral3", "pixtral", "lighton_ocr"])
def test_towers_that_see_all_pictures_as_one_row_have_the_same_bits_in_bfloat16_alone(family):
    assert not gaps(policy(family, "bfloat16"), True, PROMPTS[::2]).any()
    with pytest.raises(UserError, match="have other bits than with another prompt beside it"):
        policy(family)


def test_without_it_they_differ():
    assert gaps(policy("qwen2_5_vl", invariant=False), True).any()
    assert gaps(policy("qwen2_5_vl", "bfloat16", invariant=False), True).abs().max() > 1e-4


def test_it_computes_what_the_model_computes():
    """Log-probabilities and gradients, also with adapters."""
    for lora in (False, True):
        ours, plain = (policy("qwen2_5_vl", invariant=on, lora=lora) for on in (True, False))
        rollouts = cases.rollouts(plain, PROMPTS)
        found, wanted = (
            cases.logprobs_and_gradient(vlm, pack(rollouts, ones(rollouts), vlm, shared_prefix=True, budget=400))
            for vlm in (ours, plain)
        )
        assert (found[0] - wanted[0]).abs().max() < 1e-5
        assert wanted[1].any() and (found[1] - wanted[1]).norm() < 1e-5 * wanted[1].norm()


def test_adapters_are_computed_alike():
    for dtype in ("float32", "bfloat16"):
        assert not gaps(policy("qwen2_5_vl", dtype, lora=True), True).any()
    assert gaps(policy("qwen2_5_vl", invariant=False, lora=True), True).any()


def test_a_copy_computes_the_same_bits_with_its_own_weights():
    vlm = policy("qwen2_5_vl")
    other = vlm.clone()
    with torch.no_grad():
        for _, p in other.parameters():
            p.mul_(1.01)
    assert not gaps(other, True).any() and not gaps(vlm, True).any()
    rollouts = cases.rollouts(vlm, PROMPTS[:1])
    (micro,) = pack(rollouts, ones(rollouts), vlm, shared_prefix=True, budget=4000).micro
    with torch.no_grad():
        assert (vlm.logprobs(micro, 0.8)[0] - other.logprobs(micro, 0.8)[0]).abs().max() > 1e-3


def test_rows_in_a_room_of_fixed_shape_have_the_same_bits():
    vlm = policy("qwen3_vl")
    sampler, graphs = LocalGenerator(vlm), DecodeGraphs(vlm, 16)
    graphs.failure = "the test captures nothing"
    inputs = [vlm.encode(p) for p in PROMPTS]
    with torch.inference_mode():
        rows, fixed = Rows(sampler, inputs, 2), RoomRows(sampler, inputs, 2, graphs, 9)
        kept_N = torch.tensor([0, 3, 5])
        for t in range(6):
            token_N = torch.arange(6) + 20 + t
            assert torch.equal(rows.step(token_N, t), fixed.step(token_N, t))
            if t == 2:
                rows.keep(kept_N)
                fixed.keep(kept_N)


def test_a_cache_that_is_computed_anew_has_the_same_bits():
    vlm = policy("qwen2_5_vl")
    inputs = [vlm.encode(p) for p in PROMPTS]
    with torch.inference_mode():
        rows = Rows(LocalGenerator(vlm), inputs, 2)
        tokens_NT = torch.arange(24).view(6, 4) + 20
        for t in range(4):
            logits = rows.step(tokens_NT[:, t], t)
        assert torch.equal(rows.again(tokens_NT), logits)


def test_later_turns_have_the_same_bits():
    """The second turn is sampled behind a prompt that holds the first, and trained behind a shared one."""
    vlm = policy("qwen2_5_vl")
    told = cases.two_turns(vlm, "What is it?", 1)
    assert told.final_inputs is not None
    (samples,) = LocalGenerator(vlm).generate([told.final_inputs], 2, SAMPLING)
    both = [
        replace(told, turns=(told.turns[0], replace(told.turns[1], token_ids=s.token_ids, logprobs=s.logprobs))) for s in samples
    ]
    with torch.no_grad():
        (micro,) = pack(both, ones(both), vlm, shared_prefix=True, budget=4000).micro
        found_L = vlm.logprobs(micro, 0.8)[0]
    later_L = micro.sampler_logprobs_L != -1.0
    assert later_L.sum() == sum(len(s.token_ids) for s in samples)
    assert torch.equal(found_L[later_L], micro.sampler_logprobs_L[later_L])


def test_a_teacher_needs_no_such_model():
    """It computes probabilities of the student's tokens once."""
    stage = {"kind": "distill", "steps": 1, "prompts_per_step": 2, "teacher": "tiny:qwen3_vl_moe"}
    told = {"policy": {"model": "tiny:qwen3_vl", "batch_invariant": True}, "tasks": [{"id": "t"}], "stages": [stage]}
    config = RunConfig.model_validate({"name": "d", **told})
    assert load_teacher(SimpleNamespace(config=config, device="cpu"), 0, VLM(config.policy)) is not None


# -- what is refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("gemma3", "its mask is more than causal"),
        ("qwen3_5", "Qwen3_5GatedDeltaNet have a state"),
        ("qwen3_vl_moe", "how many tokens an expert is given"),
        ("exaone4_5", "its attention has windows"),
    ],
)
def test_models_that_cannot_are_refused(family, why):
    with pytest.raises(UserError, match=rf"policy\.batch_invariant: a .* model can't be computed alike.*{why}.*leave it out"):
        policy(family)


def test_a_layer_that_depends_on_the_batch_is_found_when_the_model_is_loaded(monkeypatch):
    monkeypatch.setattr(batch_invariant, "by_rows", lambda function, x: function(x))
    with pytest.raises(UserError, match=r"logits of .* have other bits than with another prompt beside it"):
        VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=128,layers=2", device="cpu", batch_invariant=True))


# -- the kernel of a GPU, whose semantics a stand-in has ------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(sequence_attention, "KERNELS", flash_kernels)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).double()


def test_the_kernel_is_given_each_sequence_of_packed_rows(kernels):
    segment_BS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 1, 2, 2, -1, -1, -1]])
    sequences, given = PackedSequences.of(segment_BS), [drawn(2, 4, 8, 8), drawn(2, 2, 8, 8), drawn(2, 2, 8, 8) + 1]
    q, k, v = (x.transpose(1, 2).flatten(0, 1).requires_grad_() for x in given)
    found = sequence_attention._Flash.apply(q, k, v, sequences, 0.3).view(2, 8, 4, 8)
    same, other = (segment_BS[:, :, None] == segment_BS[:, None, :]), segment_BS[:, None, :] == 0
    seen = (same | (other & (segment_BS[:, :, None] > 0))) & torch.ones(8, 8, dtype=torch.bool).tril()
    heads = [x.view(2, 8, -1, 8).transpose(1, 2) for x in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *heads, attn_mask=seen[:, None], scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(found, wanted)
    slope = drawn(2, 8, 4, 8)
    ours, theirs = (torch.autograd.grad(x, (q, k, v), slope, retain_graph=True) for x in (found, wanted))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)  # gradients of keys are added up in float32


@pytest.mark.parametrize("tokens", [1, 3, 7])
@pytest.mark.parametrize("room", [7, 11])
def test_the_kernel_is_given_rows_of_a_cache(kernels, tokens, room):
    """With padding on the left, and in a room that isn't full; a prompt of seven tokens fills its row."""
    pad_N, S = torch.tensor([0, 2, 3]), 7
    k, v = (drawn(3, 2, room, 8)[:, :, :S] + i for i in range(2))
    q = drawn(3, 4, tokens, 8)
    real = (torch.arange(S) >= pad_N[:, None]).long()
    asked = {"batch_size": 3, "q_length": tokens, "q_offset": S - tokens, "device": "cpu", "attention_mask": real}
    sequences = CachedSequences.of(asked)
    found = sequence_attention.within_sequences(q, k, v, sequences, 0.3)
    assert torch.equal(found, sequence_attention._cached(q, k, v, sequences, 0.3, sequence_attention._flash_output))
    seen = real.bool()[:, None] & torch.ones(S, S, dtype=torch.bool).tril()[None, S - tokens :]
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], scale=0.3, enable_gqa=True)
    for n, pad in enumerate(pad_N):
        first = max(0, int(pad) - (S - tokens))  # padding has no meaning
        torch.testing.assert_close(found[n, first:], wanted[n].transpose(0, 1)[first:])
        assert torch.isfinite(found[n]).all()


def test_what_the_kernel_of_a_gpu_lacks_is_refused(monkeypatch):
    given = [SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32, shape=(1, 2, 3, 8))] * 3
    with pytest.raises(NotImplementedError, match=r"no heads of 8 numbers in torch\.float32"):
        sequence_attention.within_sequences(*given, None, 1.0)
    monkeypatch.setattr(sequence_attention, "_implementation", lambda: "FA3")
    half = [SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, shape=(1, 2, 3, 8))] * 3
    with pytest.raises(NotImplementedError, match="FlashAttention 3 takes other blocks of keys"):
        sequence_attention.within_sequences(*half, None, 1.0)
    assert attention.ways("auto", torch.device("cpu"), True) == ("varlen",)
