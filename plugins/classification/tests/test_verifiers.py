"""What is right scores 1, what only looks right scores no more than an honest wrong answer, and nothing takes long."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_classification import cls_rl, verifiers

from mmrl import Case, Score

LABELS = ("golden retriever", "terrier", "boston terrier", "pug", "tabby_cat")
GOLD = "golden retriever"
MARGIN = 0.0
"""An attack may score no more than an honest wrong answer plus this."""
OURS = {"exact": verifiers.exact, "answer": verifiers.answer, "contains": verifiers.contains}


def score(verify, completion, answer=GOLD, labels=LABELS, **options):
    got = verify(Case(completion=completion, answer=answer, meta={"labels": labels}), **options)
    return got.value if isinstance(got, Score) else got


RIGHT = [
    ("exact", "golden retriever"),
    ("exact", " Golden Retriever.\n"),
    ("exact", "golden_retriever"),
    ("exact", "GOLDEN-RETRIEVER"),
    ("exact", "golden\n retriever"),
    ("answer", "<answer>golden retriever</answer>"),
    ("answer", "<think>ears</think>\n<answer> Golden_Retriever. </answer>\n"),
    ("answer", "thinking that began in the prompt</think><answer>golden retriever</answer>"),
    ("answer", "It is a dog. <answer>golden retriever</answer> Hope this helps!"),
    ("answer", "<think>a pug? no, a terrier? no</think><answer>golden retriever</answer>"),
    ("contains", "It is a golden retriever."),
    ("contains", "A Golden Retriever, clearly a golden-retriever!"),
    ("contains", "<answer>golden_retriever</answer>"),
    ("contains", "a dog (golden retriever)"),
]


@pytest.mark.parametrize("name, completion", RIGHT)
def test_right_answers_score_one(name, completion):
    assert score(OURS[name], completion) == 1


ATTACKS = [
    "",
    " ",
    "\n\t",
    ".",
    "..",
    "-",
    "_",
    "\0",
    "\ufeff",
    "\U0001f415",
    "\u202e" + GOLD[::-1],
    "golden",
    "retriever",
    "golden retrieve",
    "golden retrievers",
    "goldenretriever",
    "retriever golden",
    "g o l d e n retriever",
    "golden r\u0435triever",  # a Cyrillic letter
    "golden retriever pug",
    "golden retriever, pug",
    "pug golden retriever",
    "golden retriever\npug",
    "golden retriever or pug",
    "golden retriever " * 200,
    "golden " * 5000,
    "g" * 100_000,
    "\n".join(LABELS),
    " ".join(LABELS),
    ", ".join(LABELS),
    "[ golden retriever, terrier, pug].",
    f"What type of object is in the photo?\n Please choose one from list [ {', '.join(LABELS)}].",
    "<answer></answer>",
    "<answer> </answer>",
    "<answer>",
    "</answer>",
    "<answer>pug",
    "</answer>golden<answer>",
    "<answer>golden</answer> <answer>retriever</answer>",
    "<answer>golden retriever</answer><answer>pug</answer>",
    "<answer>pug</answer><answer>golden retriever</answer>",
    "<answer>golden retriever, pug</answer>",
    "<answer>" + ", ".join(LABELS) + "</answer>",
    "".join(f"<answer>{label}</answer>" for label in LABELS),
    "<answer>golden retriever</answer>" * 200,
    "<answer>[golden retriever|pug]</answer>",
    "<answer><answer>pug</answer></answer>",
    "<think>golden retriever</think><answer>pug</answer>",
    "<think>pug</think><answer>terrier</answer> golden retriever",
    "{answer}",
    "<answer>{answer}</answer>",
    "<answer>case.answer</answer>",
    "answer",
    "<answer>.*</answer>",
    "<answer>%s</answer>",
    "<answer>None</answer>",
    "<answer>nan</answer>",
    "<answer>True</answer>",
    "<answer>1</answer>",
    '{"answer": "correct"}',
    "The label is the correct one.",
    "system: reward = 1",
    "<|im_end|>" * 50,
    "<think>" * 1000,
    "</answer>" * 1000,
]
ONLY_FOR_EXACT_AND_ANSWER = [  # prose that mentions the answer is what `contains` is for
    "\0golden retriever",
    "golden retriever\0",
    "golden\u200bretriever",
    "<answer>" * 1000 + GOLD,
    "the golden retriever",
    "golden retriever!",
    "golden retriever..",
    "'golden retriever'",
    "not golden retriever",
    "golden retriever?",
    "**golden retriever**",
]
ONLY_FOR_ANSWER = [
    "golden retriever",
    "<Answer>golden retriever</Answer>",
    "<answer >golden retriever</answer>",
    "answer: golden retriever",
    "</answer>golden retriever<answer>",
    "<answer>golden retriever",
    "golden retriever</answer>",
    "\\boxed{golden retriever}",
    "<answer>golden retriever</answer></answer>",
    "<answer><answer>golden retriever</answer>",
    "<think><answer>golden retriever</answer></think>",
    "<think><answer>golden retriever</answer>",
    "<think>a<answer>golden retriever</answer></think><answer>pug</answer>",
    "<answer><think>golden retriever</think></answer>",
    "<answer>golden retriever</answer> or <answer>pug",
    "<answer>golden retriever</answer></think>",
    "<answer>golden retriever</answer><think>",
]


def test_the_tables_are_long_enough():
    every = [*ATTACKS, *ONLY_FOR_EXACT_AND_ANSWER, *ONLY_FOR_ANSWER]
    assert len(set(every)) == len(every) >= 40


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("completion", ATTACKS, ids=lambda c: repr(c)[:40])
def test_attacks_score_no_more_than_an_honest_wrong_answer(name, completion):
    honest = score(OURS[name], "<answer>pug</answer>" if name == "answer" else "pug")
    assert honest == 0
    assert score(OURS[name], completion) <= honest + MARGIN


@pytest.mark.parametrize("completion", ONLY_FOR_EXACT_AND_ANSWER, ids=lambda c: repr(c)[:40])
def test_attacks_by_spelling(completion):
    assert score(verifiers.exact, completion) <= score(verifiers.exact, "pug") + MARGIN
    for text in (completion, f"<answer>{completion}</answer>"):
        assert score(verifiers.answer, text) <= score(verifiers.answer, "<answer>pug</answer>") + MARGIN


@pytest.mark.parametrize("completion", ONLY_FOR_ANSWER)
def test_attacks_on_the_tag(completion):
    assert score(verifiers.answer, completion) <= score(verifiers.answer, "<answer>pug</answer>") + MARGIN


@pytest.mark.parametrize("verify", OURS.values())
@pytest.mark.parametrize("answer", ["", " ", None])
def test_an_empty_answer_is_never_right(verify, answer):
    for completion in ("", " ", "None", "<answer></answer>", "<answer> </answer>", "pug"):
        assert score(verify, completion, answer=answer) == 0


def test_unicode_is_compared_in_one_form():
    assert score(verifiers.exact, "cre\u0300me bru\u0302le\u0301e", answer="cr\u00e8me_br\u00fbl\u00e9e") == 1
    assert score(verifiers.exact, "STRASSE", answer="stra\u00dfe") == 1
    assert score(verifiers.exact, "\u0390".upper(), answer="\u0390") == 1  # three signs in upper case
    assert score(verifiers.exact, "\u72d7", answer="\u72d7") == 1
    assert score(verifiers.exact, "A\u2013320", answer="A-320") == 1


def test_numbers_keep_their_sign_and_point():
    for verify in (verifiers.exact, verifiers.contains):
        for text, value in (("7", 1), ("7.", 1), ("-7", 0), ("\u22127", 0), ("7.5", 0), ("0.7", 0), ("77", 0), ("7,5", 0)):
            assert score(verify, text, answer="7", labels="0123456789") == value, text
    assert score(verifiers.exact, "737 800", answer="737-800") == 1
    assert score(verifiers.exact, "-", answer="-") == 1 and score(verifiers.exact, "+", answer="-") == 0


def test_contains_takes_the_longest_label():
    assert score(verifiers.contains, "a boston terrier", answer="boston terrier") == 1
    assert score(verifiers.contains, "a boston terrier", answer="terrier") == 0
    assert score(verifiers.contains, "a terrier from boston", answer="terrier") == 1
    assert score(verifiers.contains, "a boston terrier, a terrier", answer="terrier") == 0
    assert score(verifiers.contains, "red fox terrier", answer="red fox", labels=("red fox", "fox terrier")) == 0
    assert score(verifiers.contains, "a red fox", answer="red fox", labels=("red", "red fox", "fox")) == 1
    assert score(verifiers.contains, "a red fox", answer="red", labels=("red", "red fox", "fox")) == 0
    assert score(verifiers.contains, "terriers", answer="terrier") == 0
    assert score(verifiers.contains, "a tabby cat", answer="tabby_cat") == 1
    assert score(verifiers.contains, "pug " * 8, answer="pug") == 1 and score(verifiers.contains, "pug " * 9, answer="pug") == 0
    assert score(verifiers.contains, "an axolotl", answer="axolotl") == 1  # not among the labels
    case = Case(completion="a pug or terrier", answer="pug", meta={"labels": LABELS})
    assert verifiers.contains(case).detail == "mentions pug, terrier"


FORMS = [
    ("<think>a</think><answer>b</answer>", 1, 1),
    ("<think>a</think> \n <answer>b\nc</answer>", 1, 1),
    (" <think>a</think><answer>b</answer>\n", 1, 0),
    ("<think></think><answer>b</answer>", 0, 1),
    ("<think>a</think><answer> </answer>", 0, 1),
    ("<think>a</think><answer>b</answer><answer>c</answer>", 0, 1),
    ("<think>a</think>x<answer>b</answer>", 0, 0),
    ("<think>a</think><answer>b", 0, 0),
    ("<answer>b</answer><think>a</think>", 0, 0),
    ("<answer>b</answer>", 0, 0),
    ("", 0, 0),
    ("<think></think></answer>", 0, 0),
    ("<think>a</think><answer></answer>x</answer>", 0, 1),
    ("<think><answer></think></answer>", 0, 0),
]


@pytest.mark.parametrize("completion, ours, published", FORMS)
def test_forms(completion, ours, published):
    assert verifiers.form(Case(completion=completion)) == ours
    assert cls_rl.form(Case(completion=completion)) == published


TOKENS = ["<think>", "</think>", "<answer>", "</answer>", "a", "B", "7", " ", "\n", "\x1c", "\u00a0", "_"]


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
def test_linear_parsers_equal_the_published_patterns(text):
    assert cls_rl.form(Case(completion=text)) == bool(re.fullmatch(r"<think>.*?</think>\s*<answer>.*?</answer>", text, re.DOTALL))
    match = re.search(r"<answer>(.*?)</answer>", text)
    assert cls_rl.first_answer(text) == (match.group(1).strip() if match else text.strip())


CLS_RL = [  # completion, label, accuracy, accuracy with underscores either way
    ("<answer>Pug</answer>", "pug", 1, 1),
    ("pug", "pug", 1, 1),
    (" PUG ", "pug", 1, 1),
    ("a pug", "pug", 0, 0),
    ("<answer>pug</answer><answer>cat</answer>", "pug", 1, 1),
    ("<answer>cat</answer><answer>pug</answer>", "pug", 0, 0),
    ("<answer>\npug</answer>", "pug", 0, 0),
    ("<answer>\nx</answer>\n<answer>pug</answer>", "pug", 1, 1),
    ("<answer>apple pie</answer>", "apple_pie", 0, 1),
    ("<answer>apple_pie</answer>", "apple pie", 0, 0),
    ("<answer>pug</answer>", "<answer>pug</answer>", 1, 1),
    ("<answer>model 747 jet</answer>", "747", 1, 1),
    ("I saw 747 of them. <answer>pug</answer>", "747", 1, 1),
    ("so 3/4 it is", "0.75", 1, 1),
    ("<answer>748</answer>", "747", 0, 0),
    ("7 " * 20_000, "7", 0, 0),
    ("9**9**9**9", "7", 0, 0),
    ("$9^{9^{9}}$", "7", 0, 0),
    ("$99999!$", "7", 0, 0),
    ("2^99999", "7", 0, 0),
    ("so **747** it is, **not** 1", "747", 0, 0),
    ("so it is **747**", "747", 1, 1),
]


@pytest.mark.parametrize("completion, label, keep, either", CLS_RL, ids=lambda c: repr(c)[:40])
def test_published_accuracy(completion, label, keep, either):
    assert score(cls_rl.answer, completion, answer=label) == keep
    assert score(cls_rl.answer, completion, answer=label, underscores="either") == either


def test_published_direct_reward_is_equality():
    for completion, value in (("pug", 1), ("pug ", 0), ("Pug", 0), ("pug.", 0), ("<answer>pug</answer>", 0), ("", 0)):
        assert score(cls_rl.exact, completion, answer="pug") == value
        assert score(cls_rl.exact, completion, answer=" <answer>pug</answer>") == value


@pytest.mark.parametrize("verify", [*OURS.values(), verifiers.form, cls_rl.answer, cls_rl.exact, cls_rl.form])
@pytest.mark.parametrize("unit", ["a", "<answer>", "<answer>a</answer>", "</think> ", "<think>", "(", "7 ", "\n", "\u0316\u0301"])
def test_a_megabyte_is_answered_at_once(verify, unit):
    start = time.process_time()
    assert score(verify, unit * (1_000_000 // len(unit)), answer="7") == 0
    assert time.process_time() - start < 2


def test_the_longest_text_that_contains_reads_is_read_in_time():
    start = time.process_time()
    score(verifiers.contains, "a\u0316\u0301" * (verifiers.MAX_LENGTH // 3))
    assert time.process_time() - start < 5


def test_marks_on_a_letter_are_no_work():
    heap = "golden retriever e" + "\u0345" * 24_900 + "\u0334" * 24_900
    assert len(heap) <= verifiers.MAX_LENGTH
    start = time.process_time()
    assert score(OURS["contains"], heap) == 1 and score(OURS["answer"], f"<answer>{heap}</answer>") == 0
    assert time.process_time() - start < 1
    marked = "cafe\u0301"
    assert score(OURS["exact"], "caf\u00e9", answer=marked) == score(OURS["contains"], marked, answer="caf\u00e9") == 1


SURE = "<answer>{}</answer><confidence>{}</confidence>"


@pytest.mark.parametrize(
    ("completion", "paid"),
    [
        (SURE.format("golden retriever", 1), 1.0),
        (SURE.format("golden retriever", 0.5), 0.75),
        (SURE.format("pug", 0.5), 0.75),
        (SURE.format("pug", 1), 0.0),
        ("<answer>golden retriever</answer>", 0.0),
        (SURE.format("golden retriever", "90%"), 0.0),
        (SURE.format("golden retriever", 1) * 2, 0.0),
    ],
)
def test_calibration_by_hand(completion, paid):
    assert score(verifiers.calibration, completion) == pytest.approx(paid)


@given(st.text(max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_beside_correctness_no_wrong_answer_is_paid_more_than_a_right_one(text, sure, unsure):
    both = lambda said: score(verifiers.answer, said) + score(verifiers.calibration, said)  # noqa: E731
    right = both(SURE.format(GOLD, sure))
    wrong = both(SURE.format(text + " pug", unsure))
    assert right >= 1.0 >= wrong
