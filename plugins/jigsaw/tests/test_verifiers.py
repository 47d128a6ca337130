"""Our verifiers: right answers, wrong ones, and what a model might try instead of an answer."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_jigsaw import verifiers
from mmrl_jigsaw.verifiers import exact, form, pair, placement

from mmrl import Case, UserError

CHOICES = ["3 is directly above 1", "3 is directly below 1", "3 is directly to the left of 1", "3 is on the upper left of 1"]
FULL = {"m": 2, "n": 2, "question": "full"}


def value(verify, completion, answer=(2, 1, 4, 3), tags=False, **meta):
    options = {k: meta.pop(k) for k in ("chance",) if k in meta}
    return verify(Case(completion=completion, answer=answer, meta={**FULL, "tags": tags, **meta}), **options).value


# -- placement and exact ----------------------------------------------------------------------------------------------------


@given(st.permutations(range(1, 7)), st.permutations(range(1, 7)), st.sampled_from([" ", ", ", ",", "\n", " | ", ";"]))
def test_placement_is_the_share_of_equal_places(answer, given_, gap):
    text = gap.join(map(str, given_))
    share = sum(a == b for a, b in zip(answer, given_, strict=True)) / 6
    for completion, tags in ((text, False), (f"[{text}].", False), (f"<think>t</think><answer>{text}</answer>", True)):
        assert value(placement, completion, answer, tags, m=2, n=3) == pytest.approx(share)
        assert value(exact, completion, answer, tags, m=2, n=3) == float(share == 1)


@given(st.lists(st.integers(0, 7), max_size=8))
def test_only_permutations_earn_anything(numbers):
    text = " ".join(map(str, numbers))
    if sorted(numbers) != [1, 2, 3, 4]:
        assert value(placement, text) == value(form, text) == 0


def test_above_chance_gives_the_identity_nothing_and_the_right_answer_all():
    for answer in itertools.permutations(range(1, 5)):
        identity, right = "1 2 3 4", " ".join(map(str, answer))
        assert value(placement, right, answer, chance="subtract") == 1
        assert value(placement, identity, answer, chance="subtract") == float(answer == (1, 2, 3, 4))
    assert value(placement, "2 1 3 4", chance="subtract") == pytest.approx((2 / 4 - 1 / 4) / (3 / 4))
    assert value(placement, "2 3 1 4", chance="subtract") == 0  # one of four is luck
    with pytest.raises(UserError, match="chance = 'halve' is unknown"):
        value(placement, "2 1 3 4", chance="halve")


def test_answers_may_be_lists_or_text():
    assert value(placement, "2 1 4 3", "2,1,4,3") == value(exact, "3", "3", question="single") == 1
    assert value(exact, "3.", ["3"], question="single") == 1 and value(exact, "3 3", "3", question="single") == 0


# -- pair -------------------------------------------------------------------------------------------------------------------


RIGHT = (
    *("B", "b", "(B)", "B.", "(b).", " B\n", "**B**", "B) 3 is directly below 1", "3 is directly below 1."),
    *("(B) 3 is  directly below 1", "B: 3 is directly below 1"),
)
NONE_OR_SEVERAL = (
    *("A B", "AB", "A, B", "not B", "B C D", "A or B", "BB", "E", "Z", "B 3 is directly above 1", "3 is directly"),
    *("B or 3 is directly below 1", "\u0412", "answer: B", "B B B", "[B]"),
)


@pytest.mark.parametrize("text", RIGHT)
def test_the_right_relation_in_any_form(text):
    for completion, tags in ((text, False), (f"<think>A? C?</think>\n<answer>{text}</answer>", True)):
        assert value(pair, completion, "B", tags, choices=CHOICES, question="pair") == 1
        assert value(pair, completion, "A", tags, choices=CHOICES, question="pair") == 0


@pytest.mark.parametrize("text", NONE_OR_SEVERAL)
def test_no_relation_or_several(text):
    assert value(pair, text, "B", choices=CHOICES, question="pair") == 0


# -- form -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "completion, tags, right",
    [
        ("1 2 3 4", False, 1),
        ("4 3 2 1.", False, 1),
        ("1 2 3", False, 0),
        ("<answer>1 2 3 4</answer>", False, 0),
        ("<think>t</think><answer>1 2 3 4</answer>", True, 1),
        (" <think>t</think>\n\n<answer>1 2\n3 4</answer> ", True, 1),
        ("<think>a < b > c</think><answer>1 2 3 4</answer>", True, 1),
        ("<think> </think><answer>1 2 3 4</answer>", True, 0),
        ("<think>t</think><answer>1 2 3 4</answer>!", True, 0),
        ("so: <think>t</think><answer>1 2 3 4</answer>", True, 0),
        ("<think>t</think> so <answer>1 2 3 4</answer>", True, 0),
        ("<think>t</think><think>u</think><answer>1 2 3 4</answer>", True, 0),
        ("<think>t<think>u</think><answer>1 2 3 4</answer>", True, 0),
        ("<think>t</think><answer>1 2 3 4</answer><answer>1 2 3 4</answer>", True, 0),
        ("<answer>1 2 3 4</answer><think>t</think>", True, 0),
        ("<think>t</think><answer>the grid</answer>", True, 0),
        ("1 2 3 4", True, 0),
        ("", True, 0),
    ],
)
def test_form_of_a_grid(completion, tags, right):
    assert value(form, completion, tags=tags) == right


def test_form_of_a_number_and_of_a_letter():
    for text, right in (("4", 1), ("5", 0), ("0", 0), ("1 2", 0), ("four", 0)):
        assert value(form, text, "1", question="single") == right
    for text, right in (("D", 1), ("E", 0), ("AB", 0), ("3 is directly above 1", 1), ("1", 0)):
        assert value(form, text, "A", question="pair", choices=CHOICES) == right


# -- what a model might try -------------------------------------------------------------------------------------------------

THOUGHT = "<think>The edges fit.</think>"
WRONG = {"plain": "1 2 3 4", "tags": f"{THOUGHT}\n<answer>1 2 3 4</answer>"}
"""An honest wrong answer to [2, 1, 4, 3]; no place is right."""
PROMPT = "A picture was cut into 2 rows and 2 columns. Positions are counted from 1 to 4. Answer with the 4 numbers alone."
ATTACKS = {
    "empty": "",
    "blanks": " \n\t \u00a0",
    "NUL": "\0" * 64,
    "gold and NUL": "\0002 1 4 3\0",
    "non-ASCII": "答案是 ²③ ①½ \N{ROBOT FACE} \N{RIGHT-TO-LEFT OVERRIDE}",
    "digits of another script": "\u0662 \u0661 \u0664 \u0663",
    "fullwidth digits": "２ １ ４ ３",
    "superscripts": "² ¹ ⁴ ³",
    "a megabyte of a": "a" * 10**6,
    "a megabyte of 1": "1" * 10**6,
    "a megabyte of gold": "2 1 4 3 " * 125_000,
    "a megabyte of open tags": "<answer>" * 125_000,
    "a megabyte of answers": "<answer>2 1 4 3</answer>" * 41_000,
    "deep JSON": "[" * 10_000 + "2, 1, 4, 3" + "]" * 10_000,
    "deep objects": '{"a":' * 10_000 + "1" + "}" * 10_000,
    "NaN": "NaN NaN NaN NaN",
    "Infinity": "Infinity 1 4 3",
    "overflow": "1e999 1 4 3",
    "list of 10^5": str(list(range(10**5))),
    "gold repeated": "2 1 4 3\n2 1 4 3",
    "gold 200 times": "\n".join(["2 1 4 3"] * 200),
    "every permutation": "\n".join(" ".join(map(str, p)) for p in itertools.permutations((1, 2, 3, 4))),
    "every permutation, tagged": "\n".join(f"<answer>{p}</answer>" for p in itertools.permutations((1, 2, 3, 4))),
    "prompt echo": PROMPT,
    "prompt echo and gold": f"{PROMPT} 2 1 4 3",
    "answer in the thinking": "<think>2 1 4 3</think>",
    "tagged in the thinking": "<think><answer>2 1 4 3</answer></think>",
    "tagged in an open thought": "<think>so <answer>2 1 4 3</answer>",
    "two tags": f"{THOUGHT}<answer>2 1 4 3</answer><answer>1 2 3 4</answer>",
    "two tags, the second right": f"{THOUGHT}<answer>1 2 3 4</answer><answer>2 1 4 3</answer>",
    "one tag in the thought, another after": "<think><answer>2 1 4 3</answer></think><answer>no</answer>",
    "unclosed": f"{THOUGHT}<answer>2 1 4 3",
    "unopened": "2 1 4 3</answer>",
    "closed first": f"{THOUGHT}</answer>2 1 4 3<answer>",
    "nested": "<answer><answer>2 1 4 3</answer></answer>",
    "empty tag": f"{THOUGHT}<answer></answer>",
    "upper-case tag": f"{THOUGHT}<ANSWER>2 1 4 3</ANSWER>",
    "repeats": "2 2 2 2",
    "repeats of each": "1 1 1 1 2 2 2 2 3 3 3 3 4 4 4 4",
    "too short": "2 1 4",
    "too long": "2 1 4 3 1",
    "outside": "2 1 4 5",
    "zeros": "0 0 0 0",
    "negative": "-2 -1 -4 -3",
    "minus signs as gaps": "2-1-4-3",
    "glued": "2143",
    "fractions": "2.0 1.0 4.0 3.0",
    "prose around": "The order is 2 1 4 3",
    "prose after": "2 1 4 3 is the order",
    "words": "two one four three",
    "inverse written as a map": "1->2, 2->1, 3->4, 4->3",
    "underscores": "2_1_4_3",
    "hexadecimal": "0x2 0x1 0x4 0x3",
    "huge number": "9" * 5000 + " 1 4 3",
    "letters of a pair": "A B C D",
    "eval": "__import__('os').getcwd()",
    "code fence with a sentence": "```\nanswer\n2 1 4 3\n```",
}
MARGIN = 0.0
"""An honest wrong answer may earn nothing either: a puzzle has wrong answers with no place right. With the format reward of 0.1
that the page advises for tags, it earns 0.1 and none of these does."""


@pytest.mark.parametrize("style", ["plain", "tags"])
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_beats_an_honest_wrong_answer(name, style):
    tags, attack = style == "tags", ATTACKS[name]
    honest = value(placement, WRONG[style], tags=tags) + 0.1 * value(form, WRONG[style], tags=tags)
    assert honest == pytest.approx(0.1)
    for chance in ("keep", "subtract"):
        start = time.process_time()
        reward = value(placement, attack, tags=tags, chance=chance) + 0.1 * value(form, attack, tags=tags)
        assert reward <= honest - 0.1 + MARGIN and time.process_time() - start < 1
    assert value(exact, attack, tags=tags) == value(exact, attack, "2", tags=tags, question="single") == 0
    assert value(pair, attack, "B", tags=tags, choices=CHOICES, question="pair") == 0


def test_there_are_enough_attacks():
    assert len(ATTACKS) >= 40


TOKENS = ("<think>", "</think>", "<answer>", "</answer>", "2 1 4 3", "B", "1", " ", "[", "]", ",", "x", "\n")


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=14).map("".join), st.booleans())
def test_any_tangle_of_tags_is_scored_and_explained(text, tags):
    for verify in (placement, exact, pair, form):
        for question, answer in (("full", [2, 1, 4, 3]), ("pair", "B"), ("single", "1")):
            if verify is placement and question != "full":
                continue
            case = Case(completion=text, answer=answer, meta={**FULL, "tags": tags, "question": question, "choices": CHOICES})
            got = verify(case)
            assert 0 <= got.value <= 1 and isinstance(got.detail, str) and "\n" not in got.detail
    if tags and value(placement, text, tags=True) > 0:
        assert text.count("<answer>") == text.count("</answer>") == 1 and verifiers.truth(Case(completion="", answer="2 1")) == [
            2,
            1,
        ]
