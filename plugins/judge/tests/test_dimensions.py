"""DRM's three dimensions, against a count of tokens one by one and the models themselves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from mmrl_judge.dimensions import LOWEST, Coherence, Confidence, Relevance, parts_of

from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.services import pair_classifier
from mmrl.api.types import Case, Prompt, Status, Turn, user_message
from mmrl.policies.vlm import tiny

TEXTS = [
    "<think>Two cups, ééé, and 🍵🍵 one more</think><answer>3</answer>",
    "<think>\nI see it.</think>\n\nThe answer is 7.",
    "First a, then b. <answer>b</answer> as said",
    "no <think>x</think><answer>one</answer><answer>two</answer>",
]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.build("qwen2_5_vl")[1].tokenizer


def sampled(tokenizer, text: str, **meta) -> Case:
    ids = (*tokenizer.encode(text), tokenizer.eos_token_id)
    logprobs = tuple(-((7 * k) % 11) / 50 for k in range(len(ids)))
    turn = Turn(observed_ids=(), token_ids=ids, logprobs=logprobs, text=text)
    prompt = Prompt(messages=[user_message("Look. How many cups?")], meta=meta)
    rollout = Conversation(prompt=prompt, group=0, turns=(turn,), status=Status.FINISHED)
    return replace(rollout.as_case(), rollout=rollout)


@pytest.mark.parametrize(
    "text, reasoning, answer",
    [
        (TEXTS[0], "Two cups, ééé, and 🍵🍵 one more", "3"),
        (TEXTS[1], "\nI see it.", "\n\nThe answer is 7."),
        (TEXTS[2], "First a, then b. ", "b"),
        (TEXTS[3], "x", "two"),
        ("<think>a</think><answer>never closed", "a", "<answer>never closed"),
    ],
)
def test_where_a_completion_reasons_and_where_it_answers(text, reasoning, answer):
    parts = parts_of(text)
    assert parts is not None and [text[a:b] for a, b in parts] == [reasoning, answer]


@pytest.mark.parametrize("text", ["", "7", "<think></think>7", "<answer>7</answer>", "<think>a</think> ", "<think>a<answer>"])
def test_without_a_reasoning_or_an_answer_there_is_nothing_to_judge(tokenizer, text):
    assert parts_of(text) is None
    case = sampled(tokenizer, text)
    assert [score.value for score in Relevance("tiny", device="cpu")([case])] == [0.0]
    assert [score.value for score in Coherence("tiny", device="cpu")([case])] == [0.0]
    assert [score.value for score in Confidence("tiny")([case])] == [LOWEST]


@pytest.mark.parametrize("text", TEXTS)
def test_confidence_is_the_mean_of_the_reasoning_and_the_sum_of_the_answer(tokenizer, text):
    """Slowly: the bytes of each token, one after the other."""
    case = sampled(tokenizer, text)
    turn = case.rollout.turns[0]
    own: list[list[float]] = [[], []]
    last = 0
    for token, logprob in zip(tokenizer.convert_ids_to_tokens(turn.token_ids[:-1]), turn.logprobs, strict=False):
        first, last = last, last + len(token)  # a character of a byte-level token is a byte
        for part, (a, b) in zip(own, parts_of(text), strict=True):
            if first < len(text[:b].encode()) and last > len(text[:a].encode()):
                part.append(logprob)
    assert last == len(text.encode())
    (score,) = Confidence("tiny")([case])
    assert score.value == pytest.approx(sum(own[0]) / len(own[0]) + sum(own[1])) and LOWEST < score.value < 0


def test_confidence_by_hand(tokenizer):
    text = "<think>ab</think><answer>c</answer>"
    case = sampled(tokenizer, text)
    turn = case.rollout.turns[0]
    low = replace(turn, logprobs=tuple(-0.5 if tokenizer.decode([i]) == "c" else -0.25 for i in turn.token_ids))
    rollout = replace(case.rollout, turns=(low,))
    (score,) = Confidence("tiny")([replace(case, rollout=rollout)])
    assert score.value == pytest.approx(-0.75) and score.parts == pytest.approx({"reasoning": -0.25, "answer": -0.5})


def test_confidence_where_the_chat_template_opened_the_thinking(tokenizer):
    """The turn's text begins with what the template wrote, and its tokens behind it."""
    case = sampled(tokenizer, "ab</think><answer>c</answer>")
    turn = case.rollout.turns[0]
    low = replace(
        turn,
        text=f"<think>\n{turn.text}",
        logprobs=tuple(-0.5 if tokenizer.decode([i]) == "c" else -0.25 for i in turn.token_ids),
    )
    (score,) = Confidence("tiny")([replace(case, rollout=replace(case.rollout, turns=(low,)))])
    assert score.parts == pytest.approx({"reasoning": -0.25, "answer": -0.5})


def test_confidence_has_bounds_and_fails_without_what_it_needs(tokenizer):
    case = sampled(tokenizer, TEXTS[0])
    turn = case.rollout.turns[0]

    def scored(**changes):
        (score,) = Confidence("tiny")([replace(case, rollout=replace(case.rollout, turns=(replace(turn, **changes),)))])
        return score

    assert scored(logprobs=(-12.0,) * len(turn.token_ids)).value == LOWEST
    assert scored(logprobs=(math.nan,) * len(turn.token_ids)).value == 0.0, "a gold completion has the highest"
    assert scored(logprobs=()).value is None
    assert "another model's" in scored(text="else").detail
    assert Confidence("tiny")([replace(case, rollout=None)])[0].value is None


def test_relevance_is_the_mean_over_what_supports_and_is_supported(tokenizer):
    model = pair_classifier("tiny", device="cpu")
    documents = ["A table with cups.", "A chair."]
    plain = sampled(tokenizer, TEXTS[2], question="How many?")
    told = sampled(tokenizer, TEXTS[2], question="How many?", documents=documents)
    why = "First a, then b."
    asked, said = model.agreement([("How many?", why)])[0], model.agreement([(why, "b")])[0]
    read = model.agreement([(document, why) for document in documents])
    blank = sampled(tokenizer, "7")
    first, empty, second = Relevance("tiny", device="cpu")([plain, blank, told])
    assert first.value == pytest.approx((asked + said) / 2) and empty.value == 0.0
    assert second.value == pytest.approx((asked + sum(read) / 2 + said) / 3)
    assert second.parts == pytest.approx({"question": asked, "documents": sum(read) / 2, "answer": said})


def test_coherence_is_the_rating_of_the_reasoning(tokenizer):
    model = pair_classifier("tiny", device="cpu")
    case = sampled(tokenizer, TEXTS[2], documents=["A table."])
    (rating,) = model.ratings([("Look. How many cups?\n\nA table.", "First a, then b.")])
    blank = sampled(tokenizer, "7")
    empty, score = Coherence("tiny", device="cpu", center=0.5, scale=2.0)([blank, case])
    assert score.value == pytest.approx(1 / (1 + math.exp(-(rating - 0.5) / 2))) and empty.value == 0.0


@pytest.mark.parametrize(
    "kind, options, wanted",
    [
        (Confidence, {"model": "./nowhere"}, "nowhere"),
        (Relevance, {"model": "./nowhere"}, "is not a folder"),
        (Coherence, {"model": "./nowhere"}, "is not a folder"),
        (Coherence, {"model": "tiny", "scale": 0.0}, "one above 0"),
    ],
)
def test_what_can_t_work_is_refused_before_the_run(kind, options, wanted):
    with pytest.raises(UserError, match=wanted) as error:
        kind.check({}, **options)
    assert "\n" not in str(error.value)
