"""The angle concentration of prompts, against loops over pairs and against transformers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl.api.errors import UserError
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.angles import concentration, last_feed_forward, prompt_angles, question_angles, question_concentration
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing.cases import mostly_slow


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def by_loops(states, start, stop):
    """(question, everything) from the cosine of each pair."""
    asked, n = range(start, stop), len(states)
    within = [cosine(states[i], states[j]) for i in asked for j in asked if j < i]
    across = [cosine(states[i], states[j]) for i in asked for j in range(start)]
    every = [cosine(states[i], states[j]) for i in range(n) for j in range(i)]
    return tuple(map(float, (sum(map(_mean, (within, across))), _mean(every))))


def _mean(values):
    return sum(values) / len(values) if values else 0.0


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 99))
def test_it_is_what_loops_over_pairs_give(count, start, stop, seed):
    start, stop = sorted((min(start, count), min(stop, count)))
    states = np.random.default_rng(seed).normal(size=(count, 5))
    found = question_concentration(torch.tensor(states), slice(start, stop)), concentration(torch.tensor(states))
    assert found == pytest.approx(by_loops(states, start, stop), abs=1e-5)


def policy_of(family):
    return VLM(PolicyConfig(model=f"tiny:{family}:hidden=64,layers=2"))


def prompts():
    picture = Image.new("RGB", (56, 56), (200, 30, 40))
    return {
        "text": Prompt(id="a", messages=[user_message("How many legs have two spiders?")]),
        "picture": Prompt(id="b", messages=[user_message("Which colour is this?", picture)]),
        "system": Prompt(
            id="c", messages=[{"role": "system", "content": "Answer briefly."}, user_message("Which colour is this?", picture)]
        ),
    }


@pytest.mark.parametrize("family", mostly_slow(["qwen2_5_vl", "internvl", "qwen3_vl", "smolvlm", "gemma3"], everyday=2))
def test_it_is_of_the_questions_tokens_in_what_the_last_feed_forward_network_reads(family):
    """The hidden states are those of transformers' own forward, and the question's tokens are found by decoding them."""
    policy = policy_of(family)
    for name, prompt in prompts().items():
        inputs = policy.encode(prompt)
        seen = []
        with (
            torch.no_grad(),
            last_feed_forward(policy).register_forward_pre_hook(lambda m, args, seen=seen: seen.append(args[0])),
        ):
            media = {**inputs.media, **{k: v[None] for k, v in inputs.token_types.items()}}
            several = inputs.positions is not None and len(inputs.positions) > 1
            positions = {"position_ids": inputs.positions[:, None]} if several else {}
            policy.model(input_ids=inputs.ids[None], **positions, **media)
        text = prompt.messages[-1]["content"]
        text = text if isinstance(text, str) else next(p["text"] for p in text if p["type"] == "text")
        ids = inputs.ids.tolist()
        spans = [(i, j) for i in range(len(ids)) for j in range(i + 1, len(ids) + 1) if policy.decode(ids[i:j]).strip() == text]
        start, stop = min(spans, key=lambda span: span[1] - span[0])
        expected = by_loops(seen[-1][0].double().numpy(), start, stop)
        assert prompt_angles(policy, prompt) == pytest.approx(expected[1], abs=1e-4), name
        assert question_angles(policy, prompt) == pytest.approx(expected[0], abs=1e-4), name


def test_a_model_without_such_a_layer_is_refused():
    policy = policy_of("qwen2_5_vl")
    policy.model.get_decoder = lambda: torch.nn.Linear(1, 1)
    with pytest.raises(UserError, match=r"stages\.curriculum: a .* has no last layer .*: use another model, or drop curriculum"):
        prompt_angles(policy, prompts()["text"])
