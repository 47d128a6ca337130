"""Attention by blocks equals attention under a dense mask: for every rule of a mask, with gradients, and without a square."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.masking_utils import (
    blockwise_overlay,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

import other_families
import vlm_cases as cases
from mmrl.config.sections import PolicyConfig, RunConfig
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.vlm import attention, block_masks, probe, varlen, vision
from mmrl.policies.vlm.block_masks import block_mask
from mmrl.policies.vlm.by_blocks import attention_by_blocks
from mmrl.policies.vlm.packed_rows import PackedRows
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.pack_conversations import ConversationPacker, pack

B, H, N, D, SCALE = 2, 6, 2, 16, 0.3
CREDIT = cases.credit(1.0, -0.5, 0.25, 2.0, -1.0, 0.75, 0.5, -2.0)


def segments(prompt: int, completions: list[int], padding: int = 0) -> torch.Tensor:
    own = [torch.full((n,), g) for g, n in enumerate(completions, 1)]
    return torch.cat([torch.zeros(prompt), *own, torch.full((padding,), -1)]).long()[None].expand(B, -1).contiguous()


def rules(length: int) -> dict[str, object]:
    """Rules of transformers' models: plain, windows, chunks, pictures whose tokens see each other."""
    pictures = torch.full((B, length), -1)
    pictures[:, 3:12], pictures[1, 20:33] = 0, 1
    window = sliding_window_causal_mask_function(7)
    return {
        "causal": causal_mask_function,
        "window": window,
        "chunks": chunked_causal_mask_function(13, torch.tensor([0, 3])),
        "pictures": or_masks(causal_mask_function, blockwise_overlay(pictures)),
        "pictures in windows": or_masks(window, blockwise_overlay(pictures)),
    }


def arguments(rule: str, packed: bool, length: int = 90, **more: object) -> dict[str, object]:
    """What transformers gives to a mask function: of packed rows, or of rows with padding on the left."""
    own, padding = rules(length)[rule], torch.ones(B, length, dtype=torch.bool)
    padding[1, :17] = False
    found = {"batch_size": B, "q_length": length, "kv_length": length, "use_vmap": rule == "pictures", "device": "cpu"}
    if packed:
        own = PackedRows(segments(length - 50, [21, 5, 16], 8), object).rule(own)
    return found | {"mask_function": own, "attention_mask": None if packed else padding} | more


def inputs(queries: int = 90, keys: int = 90, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    noise = torch.Generator().manual_seed(0)
    shapes = [(B, H, queries, D), (B, N, keys, D), (B, N, keys, D)]
    return [torch.randn(shape, generator=noise).to(dtype).requires_grad_() for shape in shapes]


def dense(mask: torch.Tensor, softcap: float | None = None) -> tuple[torch.Tensor, ...]:
    """(output, gradients) in float64."""
    q, k, v = (x.detach().double().requires_grad_() for x in inputs(*mask.shape[2:]))
    scores = q @ k.repeat_interleave(H // N, 1).mT * SCALE
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    shares = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1).nan_to_num(0.0)
    output = shares @ v.repeat_interleave(H // N, 1)
    return output, *torch.autograd.grad(output, (q, k, v), output.detach().sin())


def near(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...], bound: float) -> bool:
    return all((a.double() - b).norm() / b.norm() < bound for a, b in zip(found, wanted, strict=True))


# -- the lists ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.integers(1, 40),
    completions=st.lists(st.integers(1, 30), max_size=4),
    padding=st.integers(0, 20),
    rule=st.sampled_from(["causal", "window", "chunks", "pictures in windows"]),
    size=st.sampled_from([4, 8, 16]),
    at_once=st.sampled_from([1, 500, 10**6]),
)
def test_the_lists_are_those_of_the_dense_mask(prompt, completions, padding, rule, size, at_once):
    segment = segments(prompt, completions, padding)
    length = segment.shape[1]
    asked = arguments(rule, False, max(length, 40)) | {"q_length": length, "kv_length": length, "attention_mask": None}
    asked["mask_function"] = PackedRows(segment, object).rule(asked["mask_function"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_masks, "AT_ONCE", at_once)
        found = block_mask(size, **asked)
    mask = sdpa_mask(**asked, allow_is_causal_skip=False)
    partial, full = flex._convert_mask_to_block_mask(mask, size, size, separate_full_blocks=True)
    assert torch.equal(found.to_dense(), (partial + full).int())
    assert torch.equal(flex._ordered_to_dense(found.full_kv_num_blocks, found.full_kv_indices, full.shape[-1]), full.int())
    wanted = flex._create_sparse_block_from_block_mask((partial, full), None, (length, length), size, size)
    for name in ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rule", rules(40))
def test_the_rule_inside_blocks_is_the_dense_masks(rule, packed):
    asked = arguments(rule, packed, q_length=40, q_offset=0 if packed else 50)
    found = block_mask(8, **asked)
    rows = [block_masks.seen(found, b, torch.arange(40), torch.arange(90)) for b in range(B)]
    assert torch.equal(torch.stack(rows)[:, None], sdpa_mask(**asked, allow_is_causal_skip=False))


# -- attention ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rule", rules(40))
def test_by_blocks_with_gradients(rule, packed, softcap):
    asked = arguments(rule, packed)
    wanted = dense(sdpa_mask(**asked, allow_is_causal_skip=False), softcap)
    for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        query = inputs(dtype=dtype)
        output = attention_by_blocks(*query, block_mask(8, **asked), SCALE, softcap)
        assert output.dtype == dtype
        assert near((output, *torch.autograd.grad(output, query, output.detach().sin())), wanted, bound)


def test_tokens_that_follow_a_cache_see_it():
    asked = arguments("window", False, q_length=30, q_offset=60)
    query = inputs(queries=30)
    output = attention_by_blocks(*query, block_mask(8, **asked), SCALE)
    wanted = dense(sdpa_mask(**asked, allow_is_causal_skip=False))
    assert near((output, *torch.autograd.grad(output, query, output.detach().sin())), wanted, 1e-6)


def test_a_block_that_is_left_out_is_missed():
    """Of planted faults: the lists decide what is computed."""
    asked = arguments("causal", True)
    blocks, query = block_mask(8, **asked), inputs()
    exact = attention_by_blocks(*query, blocks, SCALE)
    blocks = block_mask(8, **asked)
    blocks.full_kv_num_blocks[:, :, 8] -= 1
    gap = (attention_by_blocks(*query, blocks, SCALE) - exact).abs().amax((0, 1, 3))
    assert gap[64:72].min() > 1e-3 and gap[:64].max() == gap[72:].max() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "packed"), [("window", True), ("chunks", True), ("pictures in windows", True), ("causal", False)]
)
def test_the_kernels_that_torch_compiles_take_the_same_lists(rule, packed):
    """On a CPU they have no gradients."""
    asked = arguments(rule, packed, 300)
    query = [x.detach() for x in inputs(300, 300)]
    blocks = block_mask(**asked)
    torch._dynamo.reset()
    with torch.no_grad():
        found = attention.Kernel()._flex(*query, blocks, SCALE, None)
    exact = dense(sdpa_mask(**asked, allow_is_causal_skip=False))[0]
    assert near((found,), (exact,), 1e-6)


@pytest.mark.slow
def test_what_torch_compiles_has_the_same_gradients_and_is_compiled_few_times(monkeypatch):
    """Through torch's tracing, with its formula of the gradients in place of a kernel, for rows of many lengths."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    kernel = attention.Kernel()
    torch._dynamo.reset()
    kernel.__dict__["compiled"] = torch.compile(flex.flex_attention, fullgraph=True, backend="aot_eager")
    before = counters["stats"]["unique_graphs"]
    for softcap in (None, 2.0):
        for length in (140, 175, 260, 290):
            asked = arguments("window", True, length)
            query = inputs(length, length)
            output = kernel._flex(*query, block_mask(**asked), SCALE, softcap)
            wanted = dense(sdpa_mask(**asked, allow_is_causal_skip=False), softcap)
            assert near((output, *torch.autograd.grad(output, query, output.detach().sin())), wanted, 1e-6)
    assert counters["stats"]["unique_graphs"] - before <= 4


def test_a_kernel_that_does_not_compile_is_told_once_and_replaced(monkeypatch):
    kernel, calls = attention.Kernel(), []

    def fails(*_, **__):
        calls.append(1)
        raise RuntimeError("no C compiler\nwas found")

    monkeypatch.setattr(attention, "KERNEL", kernel)
    monkeypatch.setattr(attention.Kernel, "usable", lambda self, query: not self.failure)
    kernel.__dict__["compiled"] = fails
    asked = arguments("causal", True)
    wanted = dense(sdpa_mask(**asked, allow_is_causal_skip=False))
    config = {"config": type("Config", (), {})(), "dtype": torch.float32}
    given_ = {k: v for k, v in arguments("causal", False, 300).items() if k != "attention_mask"} | config
    padding = torch.ones(B, 300, dtype=torch.bool)
    padding[0, :5] = False
    assert isinstance(attention.mask("flex", **given_, attention_mask=padding), flex.BlockMask)
    with pytest.warns(UserWarning, match="kernel can't be used: attention is as exact without it, but slower .*no C compiler"):
        found = kernel(*inputs(), block_mask(8, **asked), SCALE, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(*inputs(), block_mask(8, **asked), SCALE, None)
    assert near((found,), wanted[:1], 1e-6) and len(calls) == 1
    assert isinstance(attention.mask("flex", **given_, attention_mask=padding), torch.Tensor), "short rows are dense now"


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that is made inside."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        self.numbers = max([self.numbers, *(x.untyped_storage().nbytes() // x.element_size() for x in tensors)])
        return found


def test_the_lists_of_32k_tokens_take_no_square():
    """Sizes alone: nothing is computed."""
    sizes = {}
    for length in (8192, 32768):
        with FakeTensorMode(), Largest() as seen:
            rows = PackedRows(segments(length // 2, [length // 8] * 4)[:1], object)
            asked = {"batch_size": 1, "q_length": length, "kv_length": length, "device": "cpu"}
            block_mask(**asked, mask_function=rows.rule(causal_mask_function))
        sizes[length] = seen.numbers
    assert sizes == {8192: block_masks.AT_ONCE, 32768: block_masks.AT_ONCE} and block_masks.AT_ONCE <= 4096**2


# -- models -------------------------------------------------------------------------------------------------------------------


def update(vlm, way, checkpointing=False):
    found = vlm.family.capabilities
    batch = pack(cases.rollouts(vlm, [cases.prompt(1, 1), cases.prompt(2, 2)]), CREDIT, vlm, shared_prefix=True, budget=10_000)
    vlm.family.use(replace(found, way=way))
    try:
        with attention.small_blocks(), gradient_checkpointing(vlm.model, checkpointing):
            return cases.logprobs_and_gradient(vlm, batch)
    finally:
        vlm.family.use(found)


@pytest.mark.parametrize("family", ["mistral3", "gemma3"])
def test_updates_of_models_are_the_same(family, monkeypatch):
    vlm = other_families.policy(family)
    logprobs, gradient = update(vlm, "dense")
    ran = []
    monkeypatch.setattr(attention, "attention_by_blocks", lambda *given: ran.append(1) or attention_by_blocks(*given))
    for checkpointing in (False, True):
        found = update(vlm, "flex", checkpointing)
        assert (found[0] - logprobs).abs().max() < 1e-5 and (found[1] - gradient).norm() / gradient.norm() < 1e-5
    assert ran


def test_scores_with_a_cap_keep_it():
    """transformers' `sdpa` leaves Gemma 2's cap out."""
    vlm = VLM(PolicyConfig(model="tiny:paligemma"))
    config = vlm.model.config.get_text_config()
    assert config.attn_logit_softcapping and vlm.family.capabilities.way == "blocks"
    before, config.attn_logit_softcapping = config.attn_logit_softcapping, 0.05
    for layer in vlm.model.model.language_model.layers:
        layer.self_attn.attn_logit_softcapping = 0.05
    try:
        logprobs, gradient = update(vlm, "dense")
        found = update(vlm, "blocks")
    finally:
        config.attn_logit_softcapping = before
    assert (found[0] - logprobs).abs().max() < 1e-5 and (found[1] - gradient).norm() / gradient.norm() < 1e-5
    plain = VLM(PolicyConfig(model="tiny:paligemma", attn_implementation="sdpa"))
    assert plain.model.config.get_text_config()._attn_implementation == "eager"
    assert (update(plain, "dense")[0] - logprobs).abs().max() > 1e-6, "the cap shows"


def test_prompts_of_several_lengths_are_sampled_the_same():
    vlm = cases.policy("qwen2_5_vl")
    found, prompts = vlm.family.capabilities, [vlm.encode(cases.prompt(k, k)) for k in (1, 2)]
    sampling = SamplingParams(max_tokens=6, temperature=1.0)
    drawn = {}
    for way in ("dense", "flex"):
        vlm.family.use(replace(found, way=way))
        with attention.small_blocks():
            drawn[way] = LocalGenerator(vlm).generate(prompts, 3, sampling, [1, 2])
    vlm.family.use(found)
    for one, other in zip(*([c for group in drawn[way] for c in group] for way in ("dense", "flex")), strict=True):
        assert one.token_ids == other.token_ids and torch.tensor(one.logprobs).allclose(torch.tensor(other.logprobs), atol=1e-5)


@pytest.mark.parametrize("way", ["dense", "flex"])
def test_no_row_of_a_mask_is_empty(way, monkeypatch):
    """Padding on the left would see nothing. What kernels of GPUs make of such a row may be anything."""
    vlm = cases.policy("qwen2_5_vl")
    found, seen = vlm.family.capabilities, []
    real = torch.nn.functional.scaled_dot_product_attention

    def recorded(*args, attn_mask=None, **kwargs):
        seen.append(attn_mask)
        return real(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    vlm.family.use(replace(found, way=way))
    LocalGenerator(vlm).first([vlm.encode(cases.prompt(k, k)) for k in (1, 2)])
    vlm.family.use(found)
    masks = [mask if mask.dtype == torch.bool else mask == 0 for mask in seen if mask is not None]
    assert masks and all(mask.any(-1).all() for mask in masks)
    assert any(not mask[0, 0, -1].all() for mask in masks), "there is padding"


def test_rows_beyond_the_bound_take_no_square(monkeypatch):
    """1,100 tokens on a CPU, which the policy computes by blocks by itself."""
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1"))
    prompt = cases.prompt(1, 1)
    prompt.messages[0]["content"].append({"type": "text", "text": "x" * 900})
    batch = pack(cases.rollouts(vlm, [prompt], longest=60), CREDIT, vlm, shared_prefix=True, budget=10_000)
    length = batch.micro[0].ids_BS.shape[1]
    monkeypatch.setattr(block_masks, "AT_ONCE", 2**18)
    with Largest() as seen:
        vlm.logprobs(batch.micro[0], 1.0)[0].sum().backward()
    assert length > attention.LONG["cpu"] and seen.numbers < length**2


def test_what_a_run_file_names_is_taken():
    assert cases.policy("qwen2_5_vl").family.capabilities.way == "blocks"
    for setting, way, name in (("sdpa", "dense", "sdpa"), ("eager", "dense", "eager"), ("flex_attention", "flex", "mmrl_flex")):
        vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=64,layers=2", attn_implementation=setting))
        assert vlm.family.capabilities.way == way and not vlm.family.capabilities.slower_because
        assert vlm.model.config.get_text_config()._attn_implementation == name
        assert vlm.clone().model.config.get_text_config()._attn_implementation == name
    assert attention.ways("auto", torch.device("cpu")) == ("blocks",)


def test_a_saved_model_does_not_name_it(tmp_path):
    vlm = cases.policy("qwen2_5_vl")
    vlm.save(tmp_path)
    assert "mmrl" not in (tmp_path / "config.json").read_text()


def test_the_probe_sees_faults_of_a_way(monkeypatch):
    """Of planted faults: blocks that are left out, gradients that are, and what attention by blocks lacks."""
    vlm, policy = other_families.policy("mistral3"), {"policy": {"model": "tiny:mistral3"}}
    found = vlm.family.capabilities

    def verdict():
        made = probe.probe(vlm.family, vlm.reader.encode, ("blocks",))
        assert made.packs
        return made

    try:
        assert verdict().way == "blocks"
        with monkeypatch.context() as m:

            def short(size, **given_):
                made = block_mask(size, **given_)
                made.full_kv_num_blocks[..., -2] = 0
                return made

            m.setattr(attention, "block_mask", short)
            assert "log-probabilities of a packed row differ" in verdict().slower_because and verdict().way == "dense"
        with monkeypatch.context() as m:
            m.setattr(attention, "attention_by_blocks", lambda q, k, v, *rest: attention_by_blocks(q, k.detach(), v, *rest))
            assert "gradients of a packed row differ" in verdict().slower_because
        with monkeypatch.context() as m:
            whole = attention.attention
            m.setattr(attention, "NOT_COMPILED", lambda *a, **k: whole(*a, **k, s_aux=torch.zeros(1)))
            attention.register.cache_clear()
            assert "attention by blocks has no s_aux" in verdict().slower_because
            config = RunConfig.model_validate(
                {"name": "x", "tasks": [{"id": "t/t"}], "stages": [{"kind": "rl", "steps": 1}]} | policy
            )
            assert "slower than it could be (blocks: NotImplementedError" in ConversationPacker(config, vlm).remark
    finally:
        attention.register.cache_clear()
        vlm.family.use(found)


# -- pictures -----------------------------------------------------------------------------------------------------------------


def test_pictures_of_several_sizes_go_to_one_kernel(monkeypatch):
    """The kernel itself needs a GPU."""

    def kernel(q, k, v, ends, other, longest, longest_key):
        assert ends.dtype == torch.int32 and ends is other and longest == longest_key == int(ends.diff().max())
        pieces = [x.split(ends.diff().tolist()) for x in (q, k, v)]
        outputs = [scaled_dot_product_attention(*(x.transpose(0, 1) for x in one)) for one in zip(*pieces, strict=True)]
        return torch.cat([x.transpose(0, 1) for x in outputs])

    query = torch.randn(3, 1, 4, 30, 8, generator=torch.Generator().manual_seed(0))
    given_ = {"scaling": 8**-0.5, "cu_seq_lens_q": torch.tensor([0, 12, 18, 30])}
    wanted = vision.stacked_attention(None, *query, **given_)[0]
    assert not varlen.VARLEN.usable(query, 0.0)
    monkeypatch.setattr(vision, "VARLEN", varlen.Varlen())
    monkeypatch.setattr(varlen.Varlen, "usable", lambda self, *_: not self.failure)
    monkeypatch.setattr(varlen, "_kernel", lambda: kernel)
    assert torch.allclose(vision.stacked_attention(None, *query, **given_)[0], wanted, atol=1e-6)
    monkeypatch.setattr(varlen, "_kernel", lambda: 1 / 0)
    with pytest.warns(UserWarning, match="size by size .ZeroDivisionError"):
        assert torch.equal(vision.stacked_attention(None, *query, **given_)[0], wanted)
    assert torch.equal(vision.stacked_attention(None, *query, **given_)[0], wanted)
