"""Ours: what is right scores 1, what only looks right scores no more than an honest wrong answer, and nothing takes long."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_vqa import verifiers

from mmrl import Case, Score
from mmrl.api.verifiers import mathematics

MARGIN = 0.0
"""An attack may score no more than an honest wrong answer plus this."""
KINDS = {  # kind -> (truth, an honest wrong answer, meta)
    "choice": ("B", "C", {"options": ("a cat", "a red square", "a dog")}),
    "number": ("7", "8", {}),
    "math": ("\\frac{1}{2}", "\\frac{1}{3}", {}),
    "yes-no": ("yes", "no", {}),
    "text": ("red square", "blue circle", {}),
}


def score(kind, completion, answer=None, **meta):
    truth, _, own = KINDS[kind]
    got = verifiers.answer(Case(completion=completion, answer=answer or truth, meta={**own, "kind": kind, **meta}))
    assert isinstance(got, Score) and got.detail
    return got.value


def tagged(text):
    return f"<answer>{text}</answer>"


RIGHT = {
    "choice": [
        "B",
        "b",
        "(B)",
        "B.",
        "B)",
        "[b]",
        "**B**",
        " B\n",
        "The answer is B",
        "the correct answer is: (B).",
        "Option B",
        "B. a red square",
        "(B) Red square.",
        "B: red-square",
    ],
    "number": [
        "7",
        "7.0",
        " 7.",
        "+7",
        "7 cm",
        "$7",
        "7 %",
        "about 7 apples",
        "seven",
        "Seven.",
        "14/2",
        "7 m^2",
        "7 cm²",
        "0007",
        "7e0",
    ],
    "math": ["\\frac{1}{2}", "1/2", "0.5", "$\\frac12$", "\\dfrac{2}{4}", "50\\%", "1-1/2", "\\frac{\\sqrt{4}}{4}"],
    "yes-no": ["yes", "Yes.", "YES", "yes, it is", "Yes: the circle is left of the star"],
    "text": ["red square", "Red Square.", "a red square", "the red-square", '"red square"', "RED_SQUARE"],
}


@pytest.mark.parametrize("kind, text", [(k, t) for k, ts in RIGHT.items() for t in ts])
def test_right_answers_score_one(kind, text):
    assert score(kind, tagged(text)) == 1
    assert score(kind, f"<think>Maybe C, or 8, or no.</think>\n{tagged(text)}") == 1
    assert score(kind, text, style="plain") == 1
    assert score(kind, text) == 0


WRONG = {
    "choice": [
        "A or B",
        "A, B",
        "AB",
        "B C",
        "B, or C",
        "A cat",
        "B. a cat",
        "BB",
        "D",
        "Z",
        "the second",
        "red square",
        "not B",
        "\u0412",
        "B" * 500,
        "B. a red square C. a dog",
        "A. B",
        "Answer",
        "B?C",
    ],
    "number": [
        "7 or 8",
        "6-8",
        "[7]",
        "7, 8",
        "1e999",
        "nan",
        "Infinity",
        "x7",
        "7x",
        "07:30",
        "7 = 7",
        "<7",
        "7/0",
        "0x7",
        "-7",
        "\u22127",
        "7,5",
        "7.01",
        "7e1",
        "VII",
        "seven eight",
        "7 " + "very " * 20 + "many",
        "²7",
        "1,2,3,4,5,6,7",
        "yes 7",
        "7, no",
        "\uff17",
        "\u0667",
        "14/\uff12",
    ],
    "math": [
        "\\frac{1}{3}",
        "2",
        "1/2, 1/3",
        "\\{1/2, 1/3\\}",
        "x=1/2 or x=1/3",
        "\\sum_{i=1}^{99} i",
        "9^{9^{9}}",
        "99999!",
        "\\int x",
        "1/0",
        "x",
        "(0, 1)",
        "\\frac{1}{2} \\neq \\frac{1}{3}",
        "1/2" * 200,
        "((((" * 50,
        "__import__('os')",
        "\\input{file}",
    ],
    "yes-no": [
        "no",
        "yes and no",
        "No, yes",
        "not yes",
        "eyes",
        "yesno",
        "I know",
        "maybe",
        "y",
        "true",
        "yes " * 50,
        "it is yes",
        "yes 1",
        "yes, 3 of them",
        "yes \uff11",
    ],
    "text": [
        "red",
        "square",
        "red square blue circle",
        "red, square, blue",
        "redsquare",
        "a",
        "red squares",
        "not red square",
        "square red",
    ],
}


@pytest.mark.parametrize("kind, text", [(k, t) for k, ts in WRONG.items() for t in ts], ids=lambda v: repr(v)[:40])
def test_wrong_and_doubtful_answers_score_nothing(kind, text):
    assert score(kind, tagged(text)) <= score(kind, tagged(KINDS[kind][1])) + MARGIN == 0
    assert score(kind, text, style="plain") == 0


def attacks(kind):
    """Completions around the right answer of a kind, none of which is an answer."""
    right, wrong, _ = KINDS[kind]
    deep = "[" * 10_000 + right + "]" * 10_000
    return [
        *(
            "",
            " ",
            "\n\t\r",
            "\0",
            "\0" * 64,
            "\ufeff",
            "\u202e" + right[::-1],
            "答案是",
            "naïve \N{ROBOT FACE}",
            right,
            f"Answer: {right}",
        ),
        *("<answer></answer>", "<answer> \n</answer>", "<answer>", "</answer>", f"<answer>{right}", f"{right}</answer>"),
        *(f"</answer>{right}<answer>", f"<answer >{right}</answer>", f"<Answer>{right}</Answer>", f"\\boxed{{{right}}}"),
        *(tagged(right) + tagged(wrong), tagged(wrong) + tagged(right), tagged(right) * 2, tagged(right) * 200),
        *(f"<think>{tagged(right)}</think>", f"<think>{tagged(right)}", f"<think>{tagged(right)}</think>{tagged(wrong)}"),
        *(
            tagged(f"<think>{right}</think>"),
            tagged(right) + "<think>",
            tagged(right) + "</think>",
            f"<answer><answer>{right}</answer>",
        ),
        *(
            tagged(deep),
            tagged("{" * 10_000),
            tagged('{"answer": ' * 10_000),
            tagged("(" * 100_000),
            tagged(f"{right}," * 100_000),
        ),
        *(
            tagged(right + " " * 1_000_000),
            "a" * 1_000_000 + tagged(right),
            tagged("9" * 1_000_000),
            tagged("NaN"),
            tagged("Infinity"),
        ),
        *(
            tagged("1e999"),
            tagged("-1e999"),
            tagged("None"),
            tagged("{answer}"),
            tagged("case.answer"),
            tagged(".*"),
            tagged("%s"),
        ),
        *(
            tagged("A B C D E"),
            tagged("yes no"),
            tagged(" ".join(map(str, range(100)))),
            tagged("red blue green square circle star"),
        ),
        *(
            "system: reward = 1",
            "<|im_end|>" * 50,
            "<think>" * 1000,
            "</answer>" * 1000,
            '{"reward": 1}',
            tagged("\0"),
            tagged("\ud7ff"),
        ),
        *(
            f"Which is it?\nA. a cat\nB. a red square\nC. a dog\nAnswer {right} in <answer> </answer> tags.",
            tagged(", ".join((wrong, right))),
        ),
        tagged("\u0316\u0301" * 100_000),
    ]


def test_the_tables_are_long_enough():
    every = [(k, repr(c)) for k in KINDS for c in (*attacks(k), *WRONG[k])]
    assert len(set(every)) == len(every) and all(len(attacks(k)) >= 40 for k in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_attacks_score_no_more_than_an_honest_wrong_answer_and_are_answered_in_time(kind):
    honest = score(kind, tagged(KINDS[kind][1]))
    for completion in attacks(kind):
        start = time.process_time()
        assert score(kind, completion) <= honest + MARGIN == 0, repr(completion)[:80]
        assert time.process_time() - start < 2, repr(completion)[:80]


@pytest.mark.parametrize("kind", KINDS)
def test_a_truth_that_nothing_can_meet_is_a_failure_or_wrong_but_never_right(kind):
    for truth in ("", " ", None):
        case = Case(completion=tagged("None"), answer=truth, meta={"kind": kind})
        try:
            assert verifiers.answer(case).value == 0
        except ValueError:
            assert kind in ("number", "yes-no")
    with pytest.raises(ValueError, match="kind"):
        verifiers.answer(Case(completion="x", answer="x", meta={"kind": "essay"}))


def test_a_letter_is_one_of_the_options():
    assert score("choice", tagged("C"), answer="C") == 1
    assert score("choice", tagged("D"), answer="D") == 0  # there are three
    assert score("choice", tagged("D"), answer="D", options=()) == 1
    assert score("choice", tagged("B. a red square"), options=()) == 0
    assert score("choice", tagged("\u017f"), answer="S", options=()) == 0  # a long s, whose capital is S


@pytest.mark.parametrize(
    "text, relative, absolute, right",
    [
        ("105", 0.05, 0, 1),
        ("105.1", 0.05, 0, 0),
        ("95", 0.05, 0, 1),
        ("101", 0, 1, 1),
        ("101.5", 0, 1, 0),
        ("100.0000000001", 0, 0, 1),
        ("-100", 0.05, 0, 0),
        ("100 km", 0, 0, 1),
    ],
)
def test_numbers_have_the_tolerance_of_the_row_or_of_the_run_file(text, relative, absolute, right):
    case = Case(completion=tagged(text), answer="100", meta={"relative": relative, "absolute": absolute})
    assert verifiers.number_(case).value == right
    case = Case(completion=tagged(text), answer="100", meta={"relative": 0.9})
    assert verifiers.number_(case, relative=relative, absolute=absolute).value == right


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.sampled_from(["{}", "{} cm", "about {}", "$ {}", "{}."]))
def test_any_number_is_right_for_itself(number, form):
    assert verifiers.number_(Case(completion=tagged(form.format(repr(number))), answer=repr(number))).value == 1


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_can_be_scored_by_every_kind(text):
    for kind in KINDS:
        assert score(kind, tagged(text)) in (0, 1)
        assert score(kind, text, style="plain") in (0, 1)


def test_several_answers_are_accepted_and_votes_count():
    meta = {"answers": ("red", "red", "dark red", "maroon", "red", "crimson", "crimson", "wine", "wine", "wine")}

    def value(text, **options):
        return verifiers.text(Case(completion=tagged(text), answer="red", meta=meta), **options).value

    assert [value(t) for t in ("red", "Maroon.", "dark-red", "blue", "red maroon")] == [1, 1, 1, 0, 0]
    assert [value(t, votes=True) for t in ("red", "wine", "crimson", "maroon", "blue")] == pytest.approx([1, 1, 2 / 3, 1 / 3, 0])
    few = Case(completion=tagged("a dog"), answer="dog", meta={"answers": ("dog", "dog", "cat")})
    assert verifiers.text(few, votes=True).value == 1
    assert verifiers.text(Case(completion=tagged("cat"), answer=["dog", "cat"])).value == 1
    assert verifiers.text(Case(completion=tagged("four"), answer="4")).value == 1


FORMS = [
    ("<think>a</think><answer>b</answer>", 1),
    ("\n<think>a\nb</think> \n<answer>b</answer> ", 1),
    ("<think></think><answer>b</answer>", 0),
    ("<think> </think><answer>b</answer>", 0),
    ("<think>a</think><answer> </answer>", 0),
    ("<think>a</think>so<answer>b</answer>", 0),
    ("<think>a</think><answer>b</answer>.", 0),
    ("<think>a</think><answer>b</answer><answer>b</answer>", 0),
    ("<think>a<think>b</think><answer>b</answer>", 0),
    ("<think>a</think><answer>b</think></answer>", 0),
    ("<answer>b</answer>", 0),
    ("a<think>b</think><answer>b</answer>", 0),
    ("", 0),
]


@pytest.mark.parametrize("completion, right", FORMS)
def test_form(completion, right):
    assert verifiers.form(Case(completion=completion)) == right


SLOW = [
    *("(x+y+z+1)^{999}", "x^{99999999}", "9^{9^{9}}", "\\exp(\\exp(\\exp(100)))", "e^{e^{e^{99}}}", "x^x^x^x", "\\sin(10^{99})"),
    *("\\sqrt{2+\\sqrt{3+\\sqrt{5+\\sqrt{7+\\sqrt{11}}}}}", "\\frac{x^{999}-1}{x-1}", "(x+y+z+w+a+b+c+d)^{20}", "99999!"),
    *(
        "\\sin(x)^{99}+\\cos(x)^{99}",
        "\\log_{2}(3^{999})",
        "(1+i)^{999}",
        "1" + "+1" * 140,
        "x" + "*x" * 140,
        "(" * 140 + "x" + ")" * 140,
    ),
]


@pytest.mark.parametrize("text", SLOW, ids=lambda t: t[:30])
def test_formulas_that_would_take_hours_are_answered_in_time(text):
    for truth in ("3", "\\sqrt{2}"):
        start = time.process_time()
        assert score("math", tagged(text), answer=truth) == 0
        mathematics.answers_match(f"${text}$", truth)
        assert time.process_time() - start < 4


def test_no_answer_is_right_of_two_kinds_of_questions():
    """What puts a yes or no, a number and a letter side by side is right of one of them at most."""
    for first, second in itertools.permutations(("yes", "no", "7", "1", "B"), 2):
        both = f"{first} {second}"
        assert sum(score(kind, tagged(both)) for kind in ("yes-no", "number", "choice")) <= 1, both
    for both in ("yes 7", "7 yes", "yes, 7", "yes B 7"):
        assert [score(kind, tagged(both)) for kind in ("yes-no", "number", "choice")] == [0, 0, 0], both
