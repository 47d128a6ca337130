"""A VLM as a policy: it sees, it knows its sizes and its ids, a large vocabulary is scored in pieces, any family loads."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from transformers import processing_utils

import vlm_cases as cases
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.errors import UserError
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm import vlm as vlm_module
from mmrl.policies.vlm.capabilities import UNKNOWN
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.processing import PromptProcessor
from mmrl.policies.vlm.vision import embed_patches, stacked_attention
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.pack_conversations import pack


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_the_model_sees(family):
    vlm = cases.policy(family)
    rollout = cases.rollouts(vlm, [cases.prompt(1)], group=1)[0]
    blank = replace(
        rollout.inputs, media={**rollout.inputs.media, "pixel_values": torch.zeros_like(rollout.inputs.media["pixel_values"])}
    )
    seen, unseen = (
        vlm.logprobs(pack([replace(rollout, inputs=i)], cases.credit(1.0), vlm, shared_prefix=True, budget=1).micro[0], 1.0)[0]
        for i in (rollout.inputs, blank)
    )
    assert (seen - unseen).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("family", "size", "coordinate_format"),
    [
        ("qwen2_vl", (84, 56), CoordinateFormat.THOUSANDTHS),
        ("qwen2_5_vl", (84, 56), CoordinateFormat.MODEL_PIXELS),
        ("qwen3_vl", (96, 64), CoordinateFormat.THOUSANDTHS),
    ],
)
def test_sizes_and_coordinate_formats(family, size, coordinate_format):
    inputs = cases.policy(family).encode(Prompt(messages=[user_message("x", cases.picture(0, 90, 60))]))
    assert inputs.image_sizes == ((90, 60),) and inputs.model_sizes == (size,) and inputs.coordinate_format == coordinate_format
    grid = inputs.media["image_grid_thw"][0].tolist()
    assert inputs.ids.tolist().count(cases.policy(family).model.config.image_token_id) == grid[1] * grid[2] // 4


def test_a_prompt_is_processed_without_a_warning(monkeypatch):
    """Types of tokens were asked for where they come unasked, which transformers 5.24 calls deprecated."""
    said = []
    monkeypatch.setattr(processing_utils.logger, "warning_once", lambda text, *args: said.append(text))
    for family in cases.FAMILIES:
        cases.policy(family).encode(cases.prompt(1))
    assert said == []


def test_pixel_limits_change_what_the_model_sees():
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl", max_pixels=28 * 28 * 4))
    assert vlm.encode(Prompt(messages=[user_message("x", cases.picture(0, 280, 280))])).model_sizes == ((56, 56),)
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl", min_pixels=28 * 28 * 16))
    assert vlm.encode(Prompt(messages=[user_message("x", cases.picture(0, 28, 28))])).model_sizes == ((112, 112),)


def test_a_one_pixel_image_is_enlarged_and_a_ribbon_is_refused_by_name():
    vlm = cases.policy("qwen2_5_vl")
    assert vlm.encode(Prompt(messages=[user_message("x", cases.picture(0, 1, 1))])).model_sizes == ((56, 56),)
    with pytest.raises(UserError, match="30000"):
        vlm.encode(Prompt(id="ribbon", messages=[user_message("x", cases.picture(0, 30000, 2))]))


def test_scoring_in_pieces_changes_nothing(monkeypatch):
    vlm = cases.policy("qwen2_5_vl")
    batch = pack(cases.rollouts(vlm, [cases.prompt(1)]), cases.credit(1.0, -1.0, 2.0, 0.5), vlm, shared_prefix=True, budget=999)
    whole = cases.logprobs_and_gradient(vlm, batch)
    monkeypatch.setattr(vlm_module, "LOGIT_CHUNK", 3 * 512)
    pieces = cases.logprobs_and_gradient(vlm, batch)
    assert torch.allclose(whole[0], pieces[0], atol=1e-6) and torch.allclose(whole[1], pieces[1], atol=1e-6)


def test_entropy_of_a_known_distribution():
    vlm = cases.policy("qwen2_5_vl")
    allowed = len(vlm.bias_V) - len(vlm.banned)
    _, entropy = vlm._score(torch.zeros(2, len(vlm.bias_V)), torch.nn.Identity(), torch.tensor([5, 6]), 1.0, False)
    assert entropy.tolist() == pytest.approx([torch.tensor(float(allowed)).log().item()] * 2, rel=1e-5)


def test_stacked_attention_equals_a_loop_for_even_and_ragged_lengths():
    torch.manual_seed(0)
    for lengths in ([4, 4, 4], [3, 5, 3, 1]):
        q, k, v = torch.randn(3, 1, 2, sum(lengths), 8)
        ends = torch.tensor([0, *lengths]).cumsum(0)
        found, _ = stacked_attention(None, q, k, v, scaling=0.3, cu_seq_lens_q=ends)
        for a, b in itertools.pairwise(ends):
            weights = (q[0, :, a:b] @ k[0, :, a:b].transpose(1, 2) * 0.3).softmax(-1)
            assert torch.allclose(found[0, a:b].transpose(0, 1), weights @ v[0, :, a:b], atol=1e-6)


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_patches_are_embedded_as_the_convolution_does(family):
    embed = cases.policy(family).model.model.visual.patch_embed
    pixels = cases.policy(family).encode(cases.prompt(1)).media["pixel_values"]
    expected = type(embed).forward(embed, pixels)
    assert embed.forward.func is embed_patches and (embed(pixels) - expected).abs().max() < 1e-5 < expected.abs().max()


def test_the_same_seed_builds_the_same_tiny_model_and_tokenizer():
    (a, pa), (b, pb), (c, _) = (tiny.build("qwen2_5_vl", seed=s) for s in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(next(a.parameters()), next(c.parameters()))
    assert pa.tokenizer.get_vocab() == pb.tokenizer.get_vocab()
    text = "<think>é</think><answer>7</answer>"
    assert pa.tokenizer.decode(pa.tokenizer.encode(text), skip_special_tokens=True) == text


def test_a_saved_policy_loads_again_bit_for_bit(tmp_path):
    vlm = cases.policy("qwen2_5_vl")
    vlm.save(tmp_path / "p")
    again = VLM(PolicyConfig(model=str(tmp_path / "p")))
    assert all(torch.equal(p, q) for (_, p), (_, q) in zip(vlm.parameters(), again.parameters(), strict=True))
    one, two = vlm.encode(cases.prompt(2)), again.encode(cases.prompt(2))
    assert (
        torch.equal(one.ids, two.ids)
        and torch.equal(one.positions, two.positions)
        and again.eos == vlm.eos
        and again.banned == vlm.banned
    )


def test_a_given_completion_ends_as_answers_do_in_the_chat_template(tmp_path):
    """As Gemma's, whose tokenizer's end of a sequence, <eos>, is another token than its template's <end_of_turn>."""
    cases.policy("qwen2_5_vl").save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|endoftext|>"}))
    vlm = VLM(PolicyConfig(model=str(tmp_path)))
    end, other = vlm.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert (vlm.tokenizer.eos_token_id, vlm.eos) == (other, {end, other})
    ids = vlm.encode_completion("x")
    assert ids[-1] == end
    asked = {"role": "user", "content": [{"type": "text", "text": "?"}]}
    answered = [asked, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}]
    template = vlm.processor.apply_chat_template
    before, whole = template([asked], tokenize=False, add_generation_prompt=True), template(answered, tokenize=False)
    asked_ids, whole_ids = vlm.tokenizer.encode(before), vlm.tokenizer.encode(whole)
    assert whole_ids[: len(asked_ids) + len(ids)] == [*asked_ids, *ids]
    silent = PromptProcessor(vlm.family, {}, frozenset({other}))
    assert silent.encode_completion("x")[-1] == other, "sampling wouldn't end at the template's"


@pytest.mark.parametrize("name", ["tiny:qwen9", "tiny:qwen2_5_vl:hidden=7", "tiny:qwen2_5_vl:depth=3", "/no/such/folder"])
def test_a_model_that_cannot_be_had_is_one_line(name):
    with pytest.raises(UserError, match=r"policy\.model") as caught:
        VLM(PolicyConfig(model=name))
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return VLM(PolicyConfig(model=cases.llava(tmp_path_factory.mktemp("llava"))))


@pytest.mark.parametrize("shared", [True, False])
def test_any_other_family_shares_its_prompt_if_the_probe_says_so(llava, shared):
    """Without a verdict, one completion a row."""
    found = llava.family.capabilities
    assert type(llava.family) is Family and found.packs
    llava.family.use(found if shared else UNKNOWN)
    try:
        check_sampled_and_trained(llava, shared)
    finally:
        llava.family.use(found)


def check_sampled_and_trained(llava, shared):
    assert llava.model.config.image_token_id in llava.banned
    prompts = [cases.prompt(1), cases.prompt(2)]
    inputs = [llava.encode(p) for p in prompts]
    groups = LocalGenerator(llava).generate(inputs, 3, SamplingParams(max_tokens=6, temperature=0.7, seed=0))
    rollouts = cases.as_rollouts(prompts, inputs, groups)
    batch = pack(rollouts, cases.credit(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), llava, shared_prefix=shared, budget=10_000)
    assert sum(len(m.ids_BS) for m in batch.micro) == (2 if shared else 6)
    logprobs, _ = cases.logprobs_and_gradient(llava, batch, temperature=0.7)
    sampled = torch.tensor([x for r in rollouts for x in r.turns[0].logprobs])
    naive = torch.cat([cases.naive_logprobs(llava, r, 0.7) for r in rollouts])
    assert (logprobs - sampled).abs().max() < 1e-5 and (logprobs - naive).abs().max() < 1e-5


def test_a_vision_tower_that_converts_no_pixels_reads_them_in_bfloat16():
    """Kimi K2.5's. A picture counts."""
    vlm = VLM(PolicyConfig(model="tiny:kimi_k25:hidden=32", dtype="bfloat16"))
    (rollout,) = cases.rollouts(vlm, [cases.prompt(1)], group=1)
    blank = {name: value * 0 if value.is_floating_point() else value for name, value in rollout.inputs.media.items()}
    found = []
    for media in (rollout.inputs.media, blank):
        shown = replace(rollout, inputs=replace(rollout.inputs, media=media))
        (micro,) = pack([shown], cases.credit(1.0), vlm, shared_prefix=False, budget=999).micro
        found.append(vlm.logprobs(micro, 1.0)[0])
    assert found[0].isfinite().all() and (found[0] - found[1]).abs().max() > 1e-3
