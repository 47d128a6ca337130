"""vLLM's CPU build beside the learner: the same ids, the same distribution, the same weights after each update.

vLLM has an environment of its own (`make engines`); `tests/integration/test_vllm.py` runs this folder there, a process for each
family, so that they go side by side.
"""

import time
from dataclasses import replace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.types import Prompt
from mmrl.config.sections import ComputeConfig
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import Completion, SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.rollout.turns import ConversationCollector
from mmrl.testing.vllm_parity import differences
from vllm_cases import FAMILY, GAP, picture, sampled, varied

WAIT = "\n\nWait, "


@pytest.fixture(scope="module")
def policy():
    return cases.policy(FAMILY, hidden=128)  # vLLM's attention on a CPU wants heads of 32 numbers


@pytest.fixture(scope="module")
def generator(policy):
    made = VllmGenerator(policy, ComputeConfig(sampler="vllm"), batch_size=64, max_context=1024)
    made.ready()
    yield made
    made.close()


def test_prompt_ids_are_those_that_vllm_would_make_itself(policy, generator, clip):
    """Of text and pictures; the frames of clips are chosen here, so vLLM is not asked for them."""
    renderer = generator.engine.renderer
    for prompt in varied(clip, 200):
        parts = prompt.messages[0]["content"]
        if any(p["type"] == "video" for p in parts):
            continue
        pictures = [p["image"] for p in parts if p["type"] == "image"]
        text = policy.processor.apply_chat_template(
            [{"role": "user", "content": list(parts)}], tokenize=False, add_generation_prompt=True
        )
        given = {"prompt": text} | ({"multi_modal_data": {"image": pictures}} if pictures else {})
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        (theirs,) = renderer.render_cmpl(
            [parse_model_prompt(generator.engine.model_config, given)], renderer.default_cmpl_tok_params
        )
        ours = generator.prompt(policy.encode(prompt))
        assert ours["prompt_token_ids"] == theirs["prompt_token_ids"]
        if pictures:
            spans = [[(p.offset, p.length) for p in one["mm_placeholders"]["image"]] for one in (ours, theirs)]
            assert spans[0] == spans[1]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 0.0])
def test_log_probabilities_are_the_learners(policy, generator, clip, temperature):
    prompts = varied(clip, 40)
    inputs, groups, gap = sampled(policy, generator, prompts, temperature, seed=3)
    assert len(gap) > 300 and gap.mean() < GAP and gap.max() < 10 * GAP
    assert not policy.banned & {t for g in groups for s in g for t in s.token_ids}
    if temperature == 0:
        local = LocalGenerator(policy).generate(inputs, 1, SamplingParams(max_tokens=6, temperature=0.0))
        same = [a[0].token_ids == b[0].token_ids for a, b in zip(groups, local, strict=True)]
        assert sum(same) >= 0.9 * len(same), "ties apart, the likeliest token is the likeliest"


def test_a_begun_answer_goes_on_with_the_log_probabilities_of_the_learner(policy, generator, clip):
    """Those of its first tokens stay as they were sampled, and the given words between have none."""
    prompts, words = varied(clip, 24), len(policy.encode_completion(WAIT)) - 1
    collector = ConversationCollector(policy, generator, max_context=1024)
    inputs, sampling = collector.encode(prompts), SamplingParams(max_tokens=8, temperature=0.7, seed=3)
    whole = collector.collect(prompts, inputs, 1, sampling)
    begun = [policy.decode(one.turns[0].token_ids[:4]) + WAIT for one in whole]
    found = collector.go_on(whole, begun, sampling, most=6)
    turns = [one.rollout.turns[0] for one in found]
    answers = [[Completion(token_ids=turn.token_ids, logprobs=turn.logprobs, finished=True)] for turn in turns]
    gap = differences(policy, inputs, answers, 0.7).abs()
    tails = [own[-one.tokens :] for own, one in zip(gap.split([len(turn.token_ids) for turn in turns]), found, strict=True)]
    later = torch.cat(tails)
    assert len(later) > 100 and later.mean() < GAP and later.max() < 10 * GAP
    sampled_gap = gap[~gap.isnan()]
    assert len(gap) - len(sampled_gap) == words * len(found) and len(sampled_gap) > len(later)
    assert sampled_gap.mean() < GAP and sampled_gap.max() < 10 * GAP
    with pytest.raises(UserError, match=r"a begun answer of \d+ tokens behind a prompt of \d+ fills the context of 1024"):
        collector.go_on(whole[:1], ["no " * 1024], sampling, most=6)


def test_a_gpu_would_take_the_runner_that_knows_our_processor_of_logits(generator, monkeypatch):
    """Without being told it takes another, which a CPU doesn't have, as that needs Triton."""
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)
    assert not generator.engine.vllm_config.use_v2_model_runner


def test_the_other_runner_is_refused_without_triton(policy, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")  # which asking for it changes
    settings = ComputeConfig(sampler="vllm", model_runner="v2")
    with pytest.raises(
        UserError, match=r'^model_runner = "v2" needs vLLM.* and that needs a Triton for this device, which is missing'
    ):
        VllmGenerator(policy, settings, batch_size=4, max_context=64).ready()


def test_the_same_seed_gives_the_same_samples_and_another_others(policy, generator, clip):
    prompts = varied(clip, 8)
    draw = lambda seed: sampled(policy, generator, prompts, 1.0, seed=seed)[1]  # noqa: E731
    tokens = [[s.token_ids for g in draw(seed) for s in g] for seed in (5, 5, 6)]
    assert tokens[0] == tokens[1] != tokens[2] and len(set(tokens[0])) > 8


def test_a_completion_ends_with_any_end_token_or_is_cut_off(policy, generator, clip):
    _, groups, gap = sampled(policy, generator, varied(clip, 32), 2.0, max_tokens=100, seed=1)
    found = [s for g in groups for s in g]
    for sample in found:
        assert sample.finished == (sample.token_ids[-1] in policy.eos) and len(sample.token_ids) == len(sample.logprobs)
        assert sample.finished or len(sample.token_ids) == 100
        assert not set(sample.token_ids[:-1]) & policy.eos
    assert {s.token_ids[-1] for s in found if s.finished} == policy.eos and not all(s.finished for s in found)
    assert gap.mean() < GAP


def test_a_completion_ends_with_the_token_that_completes_a_stop_text(policy, generator, clip):
    inputs = [policy.encode(prompt) for prompt in varied(clip, 8)]
    plain = SamplingParams(max_tokens=20, temperature=1.0, seed=2)
    whole = [s for group in generator.generate(inputs, 4, plain) for s in group]
    letter = next(c for c in "etaoinsrhld 0123456789" if 0 < sum(c in policy.decode(s.token_ids) for s in whole) < len(whole))
    stopped = [s for g in generator.generate(inputs, 4, replace(plain, stop=(letter,))) for s in g]
    for before, after in zip(whole, stopped, strict=True):
        assert after.token_ids == before.token_ids[: len(after.token_ids)] and len(after.token_ids) == len(after.logprobs)
        if letter in policy.decode(before.token_ids):
            assert after.finished and letter in policy.decode(after.token_ids)
            assert letter not in policy.decode(after.token_ids[:-1])
        else:
            assert (after.token_ids, after.finished) == (before.token_ids, before.finished)


def test_more_pictures_than_it_made_room_for_are_no_matter(policy, generator):
    parts = [picture(n, 28, 28) for n in range(70)]
    assert (
        sampled(policy, generator, [Prompt(id="many", messages=[{"role": "user", "content": parts}], answer="")])[2].mean() < GAP
    )


def test_a_failure_in_the_middle_leaves_nothing_behind(policy, generator, clip, monkeypatch):
    prompts, setter = varied(clip, 4), torch.set_num_threads
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="in the middle"):
        patched.setattr(generator.engine, "step", lambda: (_ for _ in ()).throw(RuntimeError("in the middle")))
        sampled(policy, generator, prompts)
    assert torch.set_num_threads is setter and not generator.engine.has_unfinished_requests()
    assert sampled(policy, generator, prompts)[2].mean() < GAP


def test_weights_follow_the_learner_and_nothing_old_is_remembered(policy, generator, clip):
    prompts = varied(clip, 24)
    sampled(policy, generator, prompts)
    before = generator.syncs
    _, _, gap = sampled(policy, generator, prompts)
    assert generator.syncs == before and gap.mean() < GAP, "nothing changed, nothing is sent"
    kept = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    try:
        for part in ("visual", "language_model"):
            with torch.no_grad():
                for name, p in policy.model.named_parameters():
                    if part in name:
                        p.add_(0.3 * p.std() * torch.randn_like(p))
            started = time.perf_counter()
            generator.sync()
            assert time.perf_counter() - started < 10, "the engine isn't made anew"
            _, _, gap = sampled(policy, generator, prompts)
            assert gap.mean() < GAP, f"old values of {part} are used"
    finally:
        with torch.no_grad():
            for name, p in policy.model.named_parameters():
                p.copy_(kept[name])
    assert sampled(policy, generator, prompts)[2].mean() < GAP


@pytest.mark.parametrize("part", ["language_model.layers.1.self_attn.q_proj", "language_model.layers.0.mlp.up_proj", "visual."])
def test_what_was_not_written_to_is_not_sent_and_stays(policy, generator, clip, part):
    """Of layers that vLLM fuses, one alone is written to."""
    prompts = varied(clip, 12)
    sampled(policy, generator, prompts)
    kept = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    chosen = next(name for name in kept if part in name and name.endswith(("_proj.weight", "qkv.weight", "q.weight")))
    whole = sum(4 * p.numel() for p in policy.model.parameters())
    for change in (lambda p: p.mul_(1.5), lambda p: p.copy_(kept[chosen])):
        with torch.no_grad():
            change(policy.model.get_parameter(chosen))
        assert sampled(policy, generator, prompts)[2].mean() < GAP
        assert 4 * kept[chosen].numel() < generator.sent < whole / 6


@pytest.mark.parametrize("fault", ["reset_prefix_cache", "sync"])
def test_these_checks_see_what_is_not_brought_over(policy, generator, clip, monkeypatch, fault):
    text = {"type": "text", "text": "What is shown? " * 110}  # what is remembered of prompts are blocks of 128 tokens
    prompts = [Prompt(id=f"{n}", messages=[{"role": "user", "content": [picture(n, 84, 84), text]}], answer="") for n in range(8)]
    assert len(policy.encode(prompts[0]).ids) > 400
    sampled(policy, generator, prompts)
    monkeypatch.setattr(generator if fault == "sync" else generator.engine, fault, lambda *a, **k: None)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.3 * p.std() * torch.randn_like(p))
    assert sampled(policy, generator, prompts)[2].mean() > GAP
    monkeypatch.undo()
    generator.forget()
    assert sampled(policy, generator, prompts)[2].mean() < GAP
