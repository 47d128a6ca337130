"""Answers that go on from a begun one: against transformers' own forward, and against what is sampled without an interruption."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import other_families
import vlm_cases as cases
from mmrl import UserError
from mmrl.api.episodes import Conversation
from mmrl.api.types import Status, Turn
from mmrl.config.sections import ComputeConfig
from mmrl.policies.endpoint import EndpointPolicy
from mmrl.policies.vlm.routes import Routes
from mmrl.rollout.begun import go_on, num_kept
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import Completion, SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.update.pack_conversations import pack

SAMPLING = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
WAIT = "\n\nWait, "


def answers(vlm, sampling=SAMPLING, size=2, generator=None):
    """Sampled answers to two prompts of different lengths."""
    prompts = [cases.prompt(1), cases.prompt(3)]
    collector = ConversationCollector(vlm, generator or LocalGenerator(vlm))
    return collector, collector.collect(prompts, collector.encode(prompts), size, sampling)


EACH_DAY = ("qwen2_5_vl", "gemma3", "qwen3_5")
"""With positions of several axes, with types of tokens, and with a recurrent state."""
REST = [pytest.param(family, marks=pytest.mark.slow) for family in other_families.BUILDERS if family not in EACH_DAY]


@pytest.mark.parametrize("family", [*EACH_DAY, *REST])
def test_what_is_cut_off_and_goes_on_greedily_is_the_whole_answer(family):
    vlm = cases.policy(family) if family in cases.FAMILIES else other_families.policy(family)
    greedy = replace(SAMPLING, temperature=0.0)
    collector, whole = answers(vlm, greedy, size=1)
    begun = [vlm.decode(r.turns[0].token_ids[:5]) for r in whole]
    for one, before, text in zip(collector.go_on(whole, begun, greedy), whole, begun, strict=True):
        (turn,), (other,) = one.rollout.turns, before.turns
        kept = len(turn.token_ids) - one.tokens
        assert kept == num_kept(vlm.decode, other.token_ids, text) and turn.token_ids == other.token_ids
        assert turn.logprobs[:kept] == other.logprobs[:kept] and one.rollout.status == before.status
        assert turn.logprobs == pytest.approx(other.logprobs, abs=3e-5) and turn.text == other.text


def test_a_begun_answer_that_fills_the_context_is_told_before_the_sampler_is_asked():
    """The sampler would say that a prompt is too long."""
    vlm = cases.policy("qwen2_5_vl")
    collector, whole = answers(vlm, size=1)
    begun = [r.turns[0].text for r in whole]
    lengths = [len(r.turns[0].observed_ids) + len(r.turns[0].token_ids) for r in whole]
    collector.max_context = max(lengths) + 2
    found = collector.go_on(whole, begun, SAMPLING, most=6)
    assert [one.tokens <= collector.max_context - n for one, n in zip(found, lengths, strict=True)] == [True, True]
    assert min(one.tokens for one in found) == 2 and max(one.tokens for one in found) > 2
    collector.max_context = max(lengths)
    collector.generator = None
    said = len(whole[1].turns[0].token_ids)
    why = rf"of {said} tokens behind a prompt of \d+ fills the context of {max(lengths)}, so that it can't go on"
    with pytest.raises(UserError, match=why):
        collector.go_on(whole, begun, SAMPLING, most=6)


def test_given_words_stand_between_what_was_sampled_before_and_after_them():
    """The log-probabilities of what is sampled are those of transformers' own forward of the whole answer, at the temperature
    that is asked for; those of the words are nobody's."""
    vlm = cases.policy("qwen2_5_vl")
    collector, whole = answers(vlm)
    words = vlm.encode_completion(WAIT)[:-1]
    begun = [vlm.decode(r.turns[0].token_ids[:4]) + WAIT for r in whole]
    found = collector.go_on(whole, begun, replace(SAMPLING, temperature=0.7, seed=8), most=6, version=5)
    assert len({one.text for one in found}) == len(whole), "each has random draws of its own"
    for one, before, text in zip(found, whole, begun, strict=True):
        (turn,), (other,) = one.rollout.turns, before.turns
        kept = len(turn.token_ids) - len(words) - one.tokens
        assert 1 <= kept <= 4 and 1 <= one.tokens <= 6
        assert turn.token_ids[: kept + len(words)] == (*other.token_ids[:kept], *words)
        assert turn.text == vlm.decode(turn.token_ids) and turn.text.startswith(text) and turn.text.endswith(one.text)
        assert turn.logprobs[:kept] == other.logprobs[:kept]
        assert all(math.isnan(p) for p in turn.logprobs[kept : -one.tokens])
        own = cases.naive_logprobs(vlm, one.rollout, 0.7)[-one.tokens :].tolist()
        assert turn.logprobs[-one.tokens :] == pytest.approx(own, abs=1e-4)
        assert turn.token_versions == ((0, kept), (5, len(words) + one.tokens)) and turn.policy_version == 0
        assert one.rollout.inputs is before.inputs and one.rollout.group == before.group
        assert not one.rollout.is_demonstration and not one.rollout.to_stub().is_demonstration


def test_all_tokens_are_trained_on_and_given_ones_have_no_log_probability_of_the_sampler():
    vlm = cases.policy("qwen2_5_vl")
    collector, whole = answers(vlm, size=1)
    found = [one.rollout for one in collector.go_on(whole, [r.completion[:3] + WAIT for r in whole], SAMPLING, most=3)]
    (micro,) = pack(found, cases.credit(1.0, -1.0), vlm, shared_prefix=True, budget=4096).micro
    for n, rollout in enumerate(found):
        own_L = micro.rollout_L == n
        assert tuple(micro.target_L[own_L].tolist()) == rollout.turns[0].token_ids
        assert set(micro.advantages_L[own_L].tolist()) == {1.0 - 2 * n} and not micro.off_policy_L[own_L].any()
        assert micro.sampler_logprobs_L[own_L].tolist() == pytest.approx(rollout.turns[0].logprobs, nan_ok=True)


def test_what_an_answer_goes_on_with_does_not_depend_on_the_others():
    vlm = cases.policy("qwen2_5_vl")
    collector, whole = answers(vlm)
    begun = [r.completion[: 2 * n] + WAIT[n:] for n, r in enumerate(whole)]
    together = collector.go_on(whole, begun, SAMPLING, numbers=[4, 9, 2, 7])
    for n, number in enumerate([4, 9, 2, 7]):
        (alone,) = collector.go_on(whole[n : n + 1], begun[n : n + 1], SAMPLING, numbers=[number])
        assert alone.rollout.turns[0].token_ids == together[n].rollout.turns[0].token_ids


def test_by_default_the_whole_answer_has_the_limit():
    vlm = cases.policy("qwen2_5_vl")
    collector, whole = answers(vlm)
    limit = replace(SAMPLING, max_tokens=14)
    texts = ["", WAIT, "x" * 12, "x" * 40]
    short, long, *none = collector.go_on(whole, texts, limit)
    assert [len(one.rollout.turns[0].token_ids) for one in (short, long)] == [14, 14], "none of these ends by itself"
    assert short.tokens == 14 and long.tokens == 14 - len(vlm.encode_completion(WAIT)[:-1])
    for one, text in zip(none, texts[2:], strict=True):
        size = len(vlm.encode_completion(text)) - 1
        assert one.tokens == max(14 - size, 0) and one.rollout.length == max(size, 14)
    assert none[1].text == "" and none[1].rollout.completion == texts[3]
    assert all(one.rollout.status is Status.TRUNCATED_LENGTH and one.rollout.turns[0].truncated for one in (long, *none))
    assert [one.tokens for one in collector.go_on(whole, texts, limit, most=2)] == [2, 2, 2, 2]


def ended(vlm, text, **more):
    """An answer that ends by itself."""
    inputs, ids = vlm.encode(cases.prompt(1)), tuple(vlm.encode_completion(text))
    turn = Turn(observed_ids=tuple(inputs.ids.tolist()), token_ids=ids, logprobs=(-1.0,) * len(ids), text=text, **more)
    return Conversation(prompt=cases.prompt(1), group=0, turns=(turn,), status=Status.FINISHED, inputs=inputs)


def test_the_end_token_goes_and_an_ending_may_be_given():
    vlm = cases.policy("qwen2_5_vl")
    collector = ConversationCollector(vlm, LocalGenerator(vlm))
    begun = ended(vlm, "It is 4.")
    sampled, told = collector.go_on([begun] * 2, ["It is 4." + WAIT] * 2, SAMPLING, most=4, endings=[None, "It is 5."])
    words, last = vlm.encode_completion(WAIT)[:-1], vlm.encode_completion("It is 5.")
    start = (*begun.turns[0].token_ids[:-1], *words)
    assert sampled.rollout.turns[0].token_ids[: len(start)] == start and sampled.tokens == 4
    assert told.rollout.turns[0].token_ids == (*start, *last) and told.rollout.status is Status.FINISHED
    assert told.rollout.completion == "It is 4." + WAIT + "It is 5." and told.tokens == len(last) and told.text == "It is 5."
    assert not told.rollout.is_demonstration, "its first part was sampled"


class Scripted:
    """Gives completions that know their versions and routes; keeps what it was asked."""

    batch_size = 4

    def __init__(self, samples):
        self.samples, self.asked = samples, []

    def generate(self, inputs, group_size, sampling, numbers=()):
        self.asked.append((inputs, group_size, sampling, numbers))
        return [[sample] for sample in self.samples]


def routes(prompt, after, first=0):
    """Of a layer and an expert a token: each token has a number of its own, from `first` on."""
    numbers = torch.arange(first, first + prompt + after, dtype=torch.int16).view(-1, 1, 1)
    return Routes(numbers[:prompt], numbers[prompt:])


def test_versions_and_routes_are_those_of_the_tokens_that_are_kept_and_of_what_follows():
    vlm = cases.policy("qwen2_5_vl")
    before = ended(vlm, "It is 4.", policy_version=2, token_versions=((2, 2), (3, 4)))
    length, words = len(before.turns[0].token_ids), len(vlm.encode_completion(WAIT)) - 1
    assert length == 6, "its versions count them"
    start = len(before.inputs.ids)
    before = replace(before, routes=routes(start, length - 1))
    begun = start + length - 1 + words
    sample = Completion(
        token_ids=(9, 8, 7), logprobs=(-2.0,) * 3, finished=True, versions=((3, 2), (4, 1)), routes=routes(begun, 2, first=1000)
    )
    (whole,) = go_on(vlm, Scripted([sample]), [before], ["It is 4." + WAIT], SAMPLING, most=5)
    turn = whole.rollout.turns[0]
    assert turn.token_versions == ((2, 2), (3, length - 3 + words + 2), (4, 1)) and turn.policy_version == 2
    kept, later = start + length - 1, [1000 + n for n in range(start + length - 1, begun + 2)]
    found = whole.rollout.routes
    assert found.prompt_PMK is before.routes.prompt_PMK
    assert torch.cat([found.prompt_PMK, found.after_AMK]).flatten().tolist() == [*range(kept), *later]
    (cut,) = go_on(vlm, Scripted([sample]), [before], ["It is 4." + WAIT], SAMPLING, most=2)
    turn = cut.rollout.turns[0]
    assert turn.token_versions == ((2, 2), (3, length - 3 + words + 2)) and turn.truncated
    assert len(cut.rollout.routes.after_AMK) == len(turn.token_ids) - 1


def test_vllm_is_given_the_begun_answer_behind_the_prompt(monkeypatch):
    """An engine that only takes notes; see test_vllm_engine.py."""
    vlm = cases.policy("qwen2_5_vl")
    asked = []

    class Engine:
        def __init__(self):
            self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend="uni"))
            self.model_executor, self.engine_core = SimpleNamespace(is_failed=False), SimpleNamespace(shutdown=lambda: None)

        def add_request(self, name, inputs, parameters):
            asked.append((name, inputs, parameters))

        def step(self):
            name, inputs, _ = asked[-1]
            told = [{token: SimpleNamespace(logprob=-0.5)} for token in (11, 12)]
            one = SimpleNamespace(index=0, token_ids=[11, 12], logprobs=told, finish_reason="stop")
            found = {"request_id": name, "prompt_token_ids": inputs.ids.tolist(), "outputs": [one], "finished": True}
            return [SimpleNamespace(**found)]

        def abort_request(self, ids):
            assert ids == []

    monkeypatch.setattr("mmrl.rollout.generate.vllm.start_engine", lambda *a: (Engine(), lambda inputs: inputs))
    monkeypatch.setattr(VllmGenerator, "_parameters", lambda self, *given: given)
    monkeypatch.setattr(VllmGenerator, "sync", lambda self: setattr(self, "resting", False))
    generator = VllmGenerator(vlm, ComputeConfig(sampler="vllm"), batch_size=4, max_context=256)
    before = ended(vlm, "It is 4.")
    (found,) = ConversationCollector(vlm, generator).go_on([before], ["It is 4." + WAIT], SAMPLING, most=7, numbers=[3])
    generator.close()
    ((_, inputs, (sampling, size, number)),) = asked
    begun = (*before.turns[0].token_ids[:-1], *vlm.encode_completion(WAIT)[:-1])
    assert inputs.ids.tolist() == [*before.inputs.ids.tolist(), *begun] and (size, number, sampling.max_tokens) == (1, 3, 7)
    assert all(inputs.media[name] is pixels for name, pixels in before.inputs.media.items())
    assert found.rollout.turns[0].token_ids == (*begun, 11, 12) and found.rollout.turns[0].logprobs[-2:] == (-0.5, -0.5)
    assert found.rollout.status is Status.FINISHED and found.tokens == 2


class Blanks:
    """Begins every text that it encodes with a blank, which it leaves out of the beginning of what it decodes, as Llama's."""

    opening = ""

    @staticmethod
    def encode_completion(text):
        return [ord(sign) for sign in f" {text}"] + [0]

    @staticmethod
    def decode(ids):
        return "".join(chr(i) for i in ids if i).removeprefix(" ")

    @staticmethod
    def begun(inputs, ids):
        return inputs


def test_no_blank_stands_before_given_words():
    ids = tuple(Blanks.encode_completion("ab"))
    turn = Turn(observed_ids=(), token_ids=ids, logprobs=(-1.0,) * len(ids), text="ab")
    before = Conversation(prompt=cases.prompt(1), group=0, turns=(turn,), status=Status.FINISHED)
    sample = Completion(token_ids=(ord("!"), 0), logprobs=(-1.0, -1.0), finished=True)
    for begun in ("ab\nc", "a c", "c", "ab"):
        (found,) = go_on(Blanks, Scripted([sample]), [before], [begun], SAMPLING)
        assert found.rollout.completion == f"{begun}!"


def test_what_can_not_go_on_is_told(monkeypatch):
    with pytest.raises(
        UserError, match=r"^a model behind an endpoint can't go on with a begun answer: choose one that runs here$"
    ):
        EndpointPolicy.begun(None, None, [])  # type: ignore[arg-type]
    vlm = cases.policy("qwen2_5_vl")
    monkeypatch.setattr(type(vlm.family), "has_turns", False)  # as PaliGemma, which reads prompts in both directions
    why = r"^a qwen2_5_vl model can't go on with a begun answer, as it reads prompts otherwise: choose another model$"
    with pytest.raises(UserError, match=why):
        vlm.begun(vlm.encode(cases.prompt(1)), [9])


def spelled(ids):
    """The text of tokens: some have none, some end in the middle of a character, which shows as a sign of its own until the rest
    of it comes."""
    return b"".join((b"a", b"bc", b"", b"\xc3", b"\xa9", b"a")[i] for i in ids).decode(errors="replace")


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 12), st.text("abc\u00e9", max_size=3))
def test_the_tokens_that_are_kept_are_those_with_whose_text_the_given_one_begins(ids, size, more):
    text = spelled(ids)[:size] + more
    slow = max(n for n in range(len(ids) + 1) if text.startswith(spelled(ids[:n])))
    while slow and spelled(ids[:slow]) == spelled(ids[: slow - 1]):
        slow -= 1
    assert num_kept(spelled, ids, text) == slow
