"""The sampler: its logprobs are the learner's, its tokens are those of the model, it never samples a vision id."""

import pytest
import torch

import vlm_cases as cases
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.pack_conversations import pack


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_sampled_logprobs_are_those_of_a_plain_forward_for_prompts_of_any_length(family, temperature):
    vlm = cases.policy(family)
    prompts = [cases.prompt(1), cases.prompt(4, 2), cases.prompt(2, 0)]
    inputs = [vlm.encode(p) for p in prompts]
    assert len({len(i.ids) for i in inputs}) == 3
    groups = LocalGenerator(vlm).generate(inputs, 4, SamplingParams(max_tokens=7, temperature=temperature, seed=3))
    for rollout in cases.as_rollouts(prompts, inputs, groups):
        plain = cases.naive_logprobs(vlm, rollout, temperature)
        assert (plain - torch.tensor(rollout.turns[0].logprobs)).abs().max() < 1e-5


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_greedy_tokens_are_those_of_transformers_generate(family):
    vlm = cases.policy(family)
    prompts = [cases.prompt(1), cases.prompt(2, 2)]
    found = LocalGenerator(vlm).generate([vlm.encode(p) for p in prompts], 1, SamplingParams(max_tokens=6, temperature=0.0))
    for p, (sample,) in zip(prompts, found, strict=True):
        encoded = vlm.processor.apply_chat_template(
            [{"role": "user", "content": list(p.messages[0]["content"])}],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=True,
        )
        ids = vlm.model.generate(**encoded, do_sample=False, max_new_tokens=6, suppress_tokens=sorted(vlm.banned))[
            0, encoded["input_ids"].shape[1] :
        ]
        assert list(sample.token_ids) == ids.tolist()[: len(sample.token_ids)] and len(sample.token_ids) == (
            6 if not sample.finished else len(sample.token_ids)
        )


def test_vision_ids_are_never_sampled_even_when_the_model_wants_nothing_else(monkeypatch):
    vlm = cases.policy("qwen2_5_vl")
    config = vlm.model.config
    vision = {config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id}
    assert vision < vlm.banned and vlm.eos.isdisjoint(vlm.banned)
    step = vlm.family.step

    def eager_for_images(*args):
        logits = step(*args)
        logits[:, sorted(vision)] = 1e4
        return logits

    monkeypatch.setattr(vlm.family, "step", eager_for_images)
    groups = LocalGenerator(vlm).generate([vlm.encode(cases.prompt(1))], 16, SamplingParams(max_tokens=8, temperature=1.0))
    sampled = {t for s in groups[0] for t in s.token_ids}
    assert sampled and sampled.isdisjoint(vlm.banned)


def test_any_end_token_ends_a_completion_and_a_cut_one_says_so(monkeypatch):
    vlm = cases.policy("qwen2_5_vl")
    assert len(vlm.eos) == 2
    ends = sorted(vlm.eos)
    calls = []
    step = vlm.family.step

    def scripted(*args):
        logits = step(*args)
        calls.append(len(logits))
        logits[:] = -1e4
        wanted = {1: 20, 2: ends[0], 3: ends[1]}.get(len(calls), 6)
        logits[:, 20] = 0.0
        if len(calls) > 1:  # rows 0 and 1 end with different tokens at the second token, the others go on
            logits[:2, 20], logits[:2, wanted] = -1e4, 0.0
        return logits

    monkeypatch.setattr(vlm.family, "step", scripted)
    group = LocalGenerator(vlm).generate([vlm.encode(cases.prompt(1))], 4, SamplingParams(max_tokens=3, temperature=1.0))[0]
    assert [s.token_ids for s in group] == [(20, ends[0]), (20, ends[0]), (20, 20, ends[1]), (20, 20, ends[1])]
    assert calls == [1, 4, 2], "finished rows leave the batch"
    assert all(s.finished for s in group) and [len(s.logprobs) for s in group] == [2, 2, 3, 3]
    calls.clear()
    cut = LocalGenerator(vlm).generate([vlm.encode(cases.prompt(1))], 4, SamplingParams(max_tokens=1, temperature=1.0))[0]
    assert [(s.token_ids, s.finished) for s in cut] == [((20,), False)] * 4


def test_rows_that_end_early_leave_the_others_exact():
    """Compaction of the cache: with a strong pull to the end token, rows finish at different times."""
    vlm = cases.policy("qwen2_vl")
    vlm.bias_V[vlm.end_id] += 4.0
    try:
        prompts = [cases.prompt(1), cases.prompt(3)]
        inputs = [vlm.encode(p) for p in prompts]
        groups = LocalGenerator(vlm).generate(inputs, 8, SamplingParams(max_tokens=20, temperature=1.0, seed=1))
        lengths = {len(s.token_ids) for g in groups for s in g}
        assert len(lengths) > 3
        for rollout in cases.as_rollouts(prompts, inputs, groups):
            batch = pack([rollout], cases.credit(1.0), vlm, shared_prefix=False, budget=1)
            logprobs, _ = vlm.logprobs(batch.micro[0], 1.0)
            assert (logprobs - torch.tensor(rollout.turns[0].logprobs)).abs().max() < 1e-5
    finally:
        vlm.bias_V[vlm.end_id] -= 4.0


def test_the_same_seed_gives_the_same_samples_and_another_others():
    vlm = cases.policy("qwen2_5_vl")
    inputs = [vlm.encode(cases.prompt(i)) for i in (1, 2)]
    draw = lambda seed: LocalGenerator(vlm).generate(inputs, 4, SamplingParams(max_tokens=6, temperature=1.0, seed=seed))  # noqa: E731
    state = torch.random.get_rng_state()
    assert draw(5) == draw(5) != draw(6)
    assert torch.equal(state, torch.random.get_rng_state()), "the global generator is not touched"
    samples, others = ([s.token_ids for s in group] for group in draw(5))
    assert len(set(samples)) == 4
    (alone,) = LocalGenerator(vlm).generate(inputs[1:], 4, SamplingParams(max_tokens=6, temperature=1.0, seed=5), numbers=[1])
    assert [s.token_ids for s in alone] == others, "a prompt's number decides, not its place among others"


def test_the_checkpoints_own_sampling_settings_are_ignored():
    vlm = cases.policy("qwen2_5_vl")
    inputs = [vlm.encode(cases.prompt(1))]
    plain = LocalGenerator(vlm).generate(inputs, 4, SamplingParams(max_tokens=6, temperature=1.0, seed=5))
    vlm.model.generation_config.top_k, vlm.model.generation_config.repetition_penalty = 1, 2.0
    try:
        assert LocalGenerator(vlm).generate(inputs, 4, SamplingParams(max_tokens=6, temperature=1.0, seed=5)) == plain
    finally:
        vlm.model.generation_config.top_k, vlm.model.generation_config.repetition_penalty = 50, 1.0


def test_the_vision_tower_runs_once_per_prompt(monkeypatch):
    vlm = cases.policy("qwen2_5_vl")
    rows = []
    tower = vlm.model.model.visual.forward
    monkeypatch.setattr(vlm.model.model.visual, "forward", lambda *a, **k: rows.append(k["grid_thw"].shape[0]) or tower(*a, **k))
    LocalGenerator(vlm).generate(
        [vlm.encode(cases.prompt(1, 2)), vlm.encode(cases.prompt(2))], 8, SamplingParams(max_tokens=5, temperature=1.0)
    )
    assert rows == [3]


@pytest.mark.parametrize("look_every", [1, 3, 50])
def test_a_completion_stops_at_its_first_end_however_seldom_ends_are_looked_for(look_every):
    """Rows that ended are decoded on until half of the batch has; what they say then, a second end included, is nothing."""
    vlm = cases.policy("qwen2_5_vl")
    inputs = [vlm.encode(cases.prompt(1))]
    sampling = SamplingParams(max_tokens=40, temperature=3.0, seed=5)
    every, seldom = LocalGenerator(vlm), LocalGenerator(vlm)
    seldom.look_every = look_every
    (expected,), (found,) = every.generate(inputs, 96, sampling), seldom.generate(inputs, 96, sampling)
    assert 4 < sum(s.finished for s in expected) < 90
    for one, other in zip(expected, found, strict=True):
        assert vlm.eos.isdisjoint(one.token_ids[:-1]) and (one.token_ids[-1] in vlm.eos) == one.finished
        assert one.token_ids == other.token_ids and one.finished == other.finished
        assert torch.tensor(one.logprobs).allclose(torch.tensor(other.logprobs), atol=1e-5)
