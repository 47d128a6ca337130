"""What a row is beside, and where in it a completion stands, changes nothing, also for models that transformers computes so."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

import row_length_cases as rows
import vlm_cases as cases
from changed_models import change
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.lora import add_adapters
from mmrl.policies.vlm import families, row_lengths
from mmrl.policies.vlm import vlm as vlm_module
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.engines import make_sampler
from mmrl.testing.policies import PolicySubject, samples_have_the_logprobs_of_an_update
from row_length_cases import FEW, MORE


@pytest.fixture
def policy(monkeypatch):
    def made(family, to=None, **config):
        change(monkeypatch, to or rows.CHANGES[family])
        return VLM(PolicyConfig(model=f"tiny:{family}:hidden=64", **config))

    return made


def logits(model, length):
    torch.manual_seed(0)
    ids = torch.randint(10, 200, (1, 2 * MORE))[:, :length]
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize(("family", "most"), [("internvl", FEW), ("phi4_multimodal", MORE)])
def test_frequencies_are_those_of_short_rows(policy, family, most, monkeypatch):
    own = policy(family).model
    short, long = logits(own, FEW), logits(own, 2 * most)
    assert torch.equal(logits(own, FEW), short), "a longer row was there meanwhile"
    assert (long[:, :FEW] - short).abs().max() < 1e-5, "in a longer row"
    with monkeypatch.context() as patch:
        patch.setattr(families, "ignore_row_lengths", lambda model: None)
        theirs = policy(family).model
    assert torch.equal(logits(theirs, FEW), short), "transformers computes short rows so"
    assert (logits(theirs, 2 * most)[:, :FEW] - short).abs().max() > 1e-4


def test_completions_share_a_prompt_where_positions_scale_queries(policy, monkeypatch):
    made = policy("llama4")
    assert made.family.capabilities.packs, made.family.capabilities.why_not
    samples_have_the_logprobs_of_an_update(PolicySubject("llama4", made, lambda _: made, 1e-5))
    monkeypatch.setattr(families, "ignore_row_lengths", lambda model: None)
    monkeypatch.setattr(vlm_module, "_PROBED", {})
    assert "of a packed row differ" in policy("llama4").family.capabilities.why_not


def test_queries_far_away_are_those_of_transformers(policy, monkeypatch):
    own = policy("llama4")
    with monkeypatch.context() as patch:
        patch.setattr(families, "ignore_row_lengths", lambda model: None)
        theirs = policy("llama4")
    near = policy("llama4", lambda config: setattr(config.text_config, "attn_temperature_tuning", False))
    found = logits(own.model, 60)
    assert torch.equal(logits(theirs.model, 60), found)
    assert (logits(near.model, 60) - found).abs().max() > 1e-4
    assert torch.equal(logits(own.clone().model, 60), found)
    assert torch.equal(logits(copy.deepcopy(own.model), 30), logits(theirs.model, 30)), "a copy has positions of its own"


def test_positions_scale_queries_with_merged_adapters_and_where_layers_are_computed_again(policy):
    own = policy("llama4", lora={"rank": 2, "alpha": 4.0, "target_modules": ["language"]})
    for name, weight in own.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(1))
    merged = cases.merged_copy(own.model)
    row_lengths.ignore_row_lengths(merged)
    assert (logits(merged, 60) - logits(own.model, 60)).abs().max() < 1e-4

    def gradient(again, meanwhile):
        ids = torch.arange(10, 70)[None]
        with gradient_checkpointing(own.model, again):
            loss = own.model(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum()
            if meanwhile:
                with torch.no_grad():
                    own.model(input_ids=ids, position_ids=torch.arange(60)[None] + 40, use_cache=False)
            found = torch.autograd.grad(loss, [weight for _, weight in own.parameters()], allow_unused=True)
        return torch.cat([g.flatten() for g in found if g is not None])

    whole, again = gradient(False, False), gradient(True, True)
    assert (again - whole).norm() < 1e-5 * whole.norm()


def test_positions_scale_queries_of_adapters_that_a_model_gets_later(policy):
    """What positions scale is a layer's output with its adapter, whichever was there first."""
    config = {"rank": 2, "alpha": 4.0, "target_modules": ["language"]}
    before, after = policy("llama4", lora=config).model, policy("llama4").model
    add_adapters(after, LoraConfig.model_validate(config), 0)
    for model in (before, after):
        for n, weight in enumerate(w for name, w in model.named_parameters() if "lora_" in name):
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(n))
    assert torch.equal(logits(after, 60), logits(before, 60))
    after(input_ids=torch.arange(10, 70)[None], use_cache=False).logits.logsumexp(-1).sum().backward()


def test_compiled_layers_are_compiled_once_for_all_lengths(policy):
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    layer = next(m for m in policy("llama4").model.modules() if getattr(getattr(m, "self_attn", 0), "scales_by_position", False))
    torch._dynamo.reset()
    run = torch.compile(layer.forward, backend=counting, dynamic=True)
    counts = []
    for length in (20, 23, 31, 37):
        row_lengths._note_positions(layer, (), {"position_ids": torch.arange(length)[None]})
        with torch.no_grad():
            run(torch.randn(1, length, 64), attention_mask=None, position_embeddings=torch.ones(1, length, 8, dtype=torch.cfloat))
        counts.append(len(graphs))
    assert counts[0] >= 1 and counts == [counts[0]] * 4


def test_a_model_without_rotary_embeddings_has_no_such_length():
    assert row_lengths.longest_row(transformers.Blip2Config()) is None
    assert row_lengths.longest_row(transformers.Qwen2AudioConfig()) is None


@pytest.mark.parametrize("name", ["index_topk", "index_topk_blocks"])
def test_a_model_that_selects_keys_gets_a_row_for_each_completion(policy, name):
    made = policy("llama4", lambda config: setattr(config.text_config, name, 2048))
    assert "attends to some keys" in made.family.capabilities.why_not


def test_a_prompt_beyond_the_length_is_refused_and_told(policy):
    made = policy("phi4_multimodal", lambda config: None)
    assert made.longest == 4096 and row_lengths.longest_row(made.model.config) is None
    rows.longrope(made.model.config, FEW)
    assert made.longest == FEW
    with pytest.raises(UserError, match=rf"\d+ tokens, and this model has other .* beyond {FEW}: show smaller"):
        made.encode(cases.prompt(1))
    made.model.config.rope_parameters["short_factor"] = made.model.config.rope_parameters["long_factor"]
    assert made.longest == 4096 and len(made.encode(cases.prompt(1)).ids) > FEW


def test_vllm_is_not_asked_for_longer_rows(policy):
    made = policy("phi4_multimodal", lambda config: None)
    rows.longrope(made.model.config, FEW)
    config = parse_config(
        {
            "name": "x",
            "policy": {"model": "tiny:phi4_multimodal"},
            "tasks": [{"id": "x/y"}],
            "stages": [{"kind": "rl", "steps": 1}],
            "compute": {"sampler": "vllm"},
            "generate": {"max_context": FEW + 1},
        }
    )
    with pytest.raises(UserError, match=rf"^generate.max_context = {FEW + 1}: vLLM would take .* lower it to {FEW}$"):
        make_sampler(config, made)
