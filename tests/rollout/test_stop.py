"""Stop texts: where a completion ends, and that the tokens before the end are those without stop texts."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vlm_cases as cases
from mmrl import UserError
from mmrl.rollout.endpoint import EndpointGenerator
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams, StopTexts

SAMPLING = SamplingParams(max_tokens=12, temperature=1.0, seed=5)


def spelled(ids):
    """Tokens of one, two and three characters."""
    return "".join(("a", "b", "bc", "abc")[i] for i in ids)


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), max_size=12),
)
def test_the_end_is_the_first_token_with_which_a_text_is_complete_however_often_it_is_looked_for(ids, texts, steps):
    slow = next((n for n in range(1, len(ids) + 1) if any(t in spelled(ids[:n]) for t in texts)), None)
    stop, seen, found = StopTexts(texts, spelled), 0, None
    for step in [*steps, len(ids)]:
        now = min(len(ids), seen + step)
        if found is None and now > seen:
            found = stop.end(ids[:now], seen)
            seen = now
    assert found == slow


@pytest.mark.parametrize("look_every", [1, 4, 5])
def test_sampling_ends_there_and_takes_the_same_tokens_up_to_there(look_every):
    vlm = cases.policy("qwen2_5_vl")
    inputs = [vlm.encode(cases.prompt(1)), vlm.encode(cases.prompt(3))]
    sampler = LocalGenerator(vlm)
    whole = sampler.generate(inputs, 8, SAMPLING)
    texts = [vlm.decode(sample.token_ids) for group in whole for sample in group]
    letter = next(c for c in "etaoinsrhld 0123456789" if 0 < sum(c in text for text in texts) < len(texts))
    sampler.look_every = look_every
    stopped = sampler.generate(inputs, 8, dataclasses.replace(SAMPLING, stop=(letter, "never said")))
    cut = 0
    for before, after in zip((s for g in whole for s in g), (s for g in stopped for s in g), strict=True):
        n = len(after.token_ids)
        assert after.token_ids == before.token_ids[:n]
        assert after.logprobs == pytest.approx(before.logprobs[:n], abs=1e-5)
        if letter in vlm.decode(before.token_ids):
            assert after.finished and letter in vlm.decode(after.token_ids) and letter not in vlm.decode(after.token_ids[:-1])
            cut += n < len(before.token_ids)
        else:
            assert after.finished == before.finished and n == len(before.token_ids)
    assert cut


def test_a_conversation_goes_on_after_a_stop_with_the_end_of_the_turn_observed():
    vlm = cases.policy("qwen2_5_vl")
    inputs = vlm.encode(cases.prompt(1))
    said = vlm.encode_completion("look")
    _, after_end = vlm.extend(inputs, said, [{"role": "user", "content": "seen"}])
    _, after_stop = vlm.extend(inputs, said[:-1], [{"role": "user", "content": "seen"}])
    assert after_stop == (said[-1], *after_end)


def test_an_endpoint_refuses_them():
    with pytest.raises(UserError, match="leave out top_k, stop"):
        EndpointGenerator.generate(None, [], 1, dataclasses.replace(SAMPLING, stop=("x",)))  # type: ignore[arg-type]
