"""The game of 24: exact arithmetic, all hands, verdicts, rewards of ours and of GeneralPoints."""

import ast
import itertools
import json
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_vqa import generalpoints, points24
from mmrl_vqa.arithmetic import Illegal, evaluate
from mmrl_vqa.points24 import RANKS, points, solutions, verdict

from mmrl import Case, UserError

HAND = ("A", "3", "K", "6")


def by_syntax_tree(text):
    """The value of a formula by Python's own grammar, exactly; None where it is none of numbers, + - * / and brackets."""

    def walk(node):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in (ast.Add, ast.Sub, ast.Mult, ast.Div):
            a, b = walk(node.left), walk(node.right)
            return {ast.Add: a.__add__, ast.Sub: a.__sub__, ast.Mult: a.__mul__, ast.Div: a.__truediv__}[type(node.op)](b)
        raise SyntaxError

    try:
        return walk(ast.parse(text, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, ValueError):
        return None


def ours(text):
    try:
        return evaluate(text)[0]
    except Illegal:
        return None


def test_formulas_are_read_as_python_reads_them_on_all_short_texts():
    for n in range(1, 7):
        for parts in itertools.product(
            ["1", "2", "+", "-", "*", "/", "(", ")"] if n < 6 else ["3", "-", "/", "(", ")"], repeat=n
        ):
            text = "".join(parts)
            if "//" in text or "**" in text:  # operators of Python that are none here
                assert ours(text) is None
            else:
                assert ours(text) == by_syntax_tree(text), text


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.integers(1, 13).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
        max_leaves=8,
    )
)
def test_formulas_have_their_exact_value(text):
    if len(text) <= 120:
        assert ours(text) == by_syntax_tree(text)
        assert ours(
            f" {' '.join(text.replace('*', '×'))} ".replace("1 0", "10")
            .replace("1 1", "11")
            .replace("1 2", "12")
            .replace("1 3", "13")
        ) == ours(text)


def test_the_known_numbers_of_hands_can_be_solved_and_every_solution_is_one():
    solved = 0
    for hand in itertools.combinations_with_replacement(range(1, 11), 4):
        found = solutions(hand)
        solved += bool(found)
        assert len(set(found)) == len(found)
        for formula in found:
            total, used = evaluate(formula)
            assert total == 24 and sorted(used) == list(hand), (hand, formula)
    assert solved == 566  # of 715
    assert solutions((3, 3, 8, 8)) == ("8/(3-8/3)",) and solutions((1, 1, 1, 1)) == ()
    assert solutions((8, 3, 8, 3)) == solutions((3, 3, 8, 8))
    assert set(solutions((6, 6, 6, 6))) == {"6+6+6+6", "6*6-6-6"}


def test_cards_count_by_the_rule_for_faces():
    assert [points(rank, "10") for rank in RANKS] == [*range(1, 11), 10, 10, 10]
    assert [points(rank, "11-13") for rank in RANKS] == [*range(1, 14)]
    for rank, faces in (("1", "10"), ("T", "10"), ("A", "12"), ("", "10")):
        with pytest.raises(UserError, match=r"is unknown: ranks are A, 2, .*faces 10 or 11-13"):
            points(rank, faces)


VERDICTS = [
    ("1*10*3-6", "right", "Correct."),
    (" 1 * 10 * 3 - 6 = 24. ", "right", "Correct."),
    ("10×3−6÷1", "right", "Correct."),
    ("[1*10*3]-6", "right", "Correct."),
    ('{"cards": ["A", "3", "K", "6"], "formula": "1*10*3-6=24"}', "right", "Correct."),
    ("1+3+10+6", "wrong-total", "Your formula makes 20, not 24."),
    ("1/3+10+6", "wrong-total", "Your formula makes 49/3, not 24."),
    ("10*3-6", "not-the-cards", "Use each card exactly once: 1 is not used."),
    ("1*13*3-6", "not-the-cards", "Use each card exactly once: 13 is not on the cards, or used too often and 10 is not used."),
    ("6*3+6*1", "not-the-cards", "Use each card exactly once: 6 is not on the cards, or used too often and 10 is not used."),
    ("24", "not-the-cards", "Use each card exactly once: 24 is not on the cards, or used too often and 1, 3, 6, 10 is not used."),
    ("1*10*3-6=25", "illegal", "Your formula is illegal: behind the equals sign must stand 24."),
    ("1*10*3-6=24=24", "illegal", "Your formula is illegal: behind the equals sign must stand 24."),
    ("6/(10-10)", "illegal", "Your formula is illegal: it divides by zero."),
    ("", "illegal", "Your formula is illegal: it is empty."),
    ("(1*10*3-6", "illegal", "Your formula is illegal: an opening bracket is not closed."),
    ("1*10*3)-6", "illegal", "Your formula is illegal: a closing bracket has no opening one."),
    ("1*10*3-", "illegal", "Your formula is illegal: it ends with an operator or an open bracket."),
    ("-6+1*10*3", "illegal", "Your formula is illegal: '-' stands where a number or an opening bracket should."),
    ("3(1+6)10", "illegal", "Your formula is illegal: '(' stands where an operator should."),
    ("1 0*3-6", "illegal", "Your formula is illegal: two numbers stand next to each other."),
    ("A*10*3-6", "illegal", "Your formula is illegal: 'A' is no number, operator or bracket."),
    ("__import__('os')", "illegal", "Your formula is illegal: '_' is no number, operator or bracket."),
    ("\u0663*1*10-6", "illegal", "Your formula is illegal: '\u0663' is no number, operator or bracket."),
    ('{"formula": 24}', "illegal", "Your formula is illegal: it is empty."),
    ("9" * 13, "illegal", "Your formula is illegal: a number is too long."),
    ("(" * 121, "illegal", "Your formula is illegal: it is longer than 120 characters."),
]


@pytest.mark.parametrize("text, kind, message", VERDICTS, ids=lambda v: repr(v)[:30])
def test_verdicts(text, kind, message):
    judged = verdict(HAND, text, "10")
    assert judged == (kind, message, points24.REWARDS[kind])
    case = Case(completion=f"<answer>{text}</answer>", meta={"cards": HAND, "faces": "10"})
    assert points24.points24(case).value == judged.reward and points24.points24(case).detail


def test_the_rule_for_faces_decides():
    assert verdict(HAND, "(1+6)*3+13", "11-13").kind == "wrong-total"
    assert verdict(("2", "J", "Q", "A"), "2*12*(11-10)", "11-13").kind == "not-the-cards"
    assert verdict(("2", "J", "A", "A"), "2*(11+1*1)", "11-13").kind == "right"
    assert verdict(("2", "J", "A", "A"), "2*(11+1*1)", "10").kind == "not-the-cards"


def scored(completion, recognition=0.0, style="short"):
    return points24.points24(Case(completion=completion, meta={"cards": HAND, "faces": "10", "style": style}), recognition).value


def test_cards_that_were_read_earn_their_share_only_with_a_formula():
    right, wrong = '["A", "3", "K", "6"]', '["A", "3", "Q", "6"]'
    for cards, formula, value in (
        (right, "1*10*3-6", 1.0),
        (wrong, "1*10*3-6", 0.7),
        (right, "1+3+10+6", 0.7 * 0.1 + 0.3),
        (right, "10*3-6", 0.3),
        (right, "", 0.0),
        (wrong, "10*3-6", 0.0),
        ("[" + '"A",' * 100_000 + '"A"]', "1*10*3-6", 0.0),
    ):
        assert scored(f'<answer>{{"cards": {cards}, "formula": "{formula}"}}</answer>', 0.3) == pytest.approx(value)
    assert scored("<answer>1+3+10+6</answer>", 0.3) == pytest.approx(0.37)
    assert scored("1*10*3-6", style="plain") == 1 and scored("1*10*3-6") == 0


ATTACKS = [
    *(
        "",
        " ",
        "\0",
        "24",
        "<answer>24</answer>",
        "<answer>24=24</answer>",
        "<answer></answer>",
        "<answer>1*10*3-6",
        "1*10*3-6</answer>",
    ),
    *(
        "</answer>1*10*3-6<answer>",
        "<answer>1*10*3-6</answer><answer>1*10*3-6</answer>",
        "<think><answer>1*10*3-6</answer></think>",
    ),
    *(
        "<answer>1*10*3-6, 1+10*3-6</answer>",
        "<answer>1*10*3-6\n1*10*3-6</answer>",
        "<answer>1*10*3-6;</answer>",
        "<answer>inf</answer>",
    ),
    *(
        "<answer>1e999</answer>",
        "<answer>2**4+8</answer>",
        "<answer>10**1*3-6</answer>",
        "<answer>4!</answer>",
        "<answer>10//1*3-6</answer>",
    ),
    *("<answer>nan</answer>", "<answer>1*10*3-6 or 24</answer>", "<answer>lambda: 24</answer>", "<answer>True*24</answer>"),
    *(
        "<answer>{}</answer>",
        '<answer>{"formula": "1*10*3-6", "formula": ["1*10*3-6"]}</answer>',
        '<answer>["1*10*3-6"]</answer>',
    ),
    *("<answer>" + "(" * 10_000 + "24" + ")" * 10_000 + "</answer>", "<answer>" + "1+" * 500_000 + "1</answer>", "9" * 1_000_000),
    *("<answer>" + '{"a":' * 10_000 + "1" + "}" * 10_000 + "</answer>", "<answer>" + "1*10*3-6 " * 100_000 + "</answer>"),
    *(
        "<answer>0x18</answer>",
        "<answer>२४</answer>",
        "<answer>²⁴</answer>",
        "<answer>1*10*3-6</Answer>",
        "<answer>6*(10-3*1-3)</answer>",
    ),
    *("<answer>10+10+3+1</answer>", "<answer>6*6-6-6</answer>", "<answer>1/0</answer>", "<answer>A*K*3-6</answer>"),
]


def test_attacks_score_no_more_than_an_honest_wrong_answer():
    assert len(ATTACKS) >= 40
    honest = scored("<answer>1+3+10+6</answer>")
    assert honest == 0.1
    for completion in ATTACKS:
        start = time.process_time()
        assert scored(completion) == 0 < honest, completion[:60]
        assert scored(completion, recognition=0.5) == 0 or "</answer>" in completion[:40], completion[:60]
        assert time.process_time() - start < 1


def response(formula, cards="['A', '3', 'K', '6']"):
    return f'{{\n  "cards": {cards},\n  "number": [1, 3, 10, 6],\n  "formula": "{formula}",\n}}'


PUBLISHED = [  # completion, reward with and without the look at the cards
    (response("1*10*3-6=24"), 5, 5),
    (response("10*3-6/1=24"), 5, 5),
    (response("1+10+3+6=24"), -1, -1),
    (response("1*13*3-6=24"), -4, -4),  # 13 is not on the cards, and 10 is left out
    (response("10*3-6=24"), -2, -2),
    (response("1 * 10 * 3 - 6 = 24"), -3, -3),  # blanks are illegal
    (response("1*10*3-(6=24"), -1, -1),  # a missing bracket is no fault, but the formula begins no solution
    (response("1*10*3-)6=24"), -6, -6),  # a bracket behind an operator, a number behind the bracket
    (response(""), -2, -2),
    (response("1×10*3-6"), -3, -3),
    (response("1*10*3-6=24", "['A', '3', 'Q', '6']"), -1.5, 5),
    (response("1*10*3-6=24", "[A, 3, K, 6]"), 5, 5),
    (response("1*10*3-6=24", '["6", "A", "3", "K"]'), -1.5, 5),  # double quotes stay
    (response("1*10*3-6=24", "[1, 3, 10, 6]"), -1.5, 5),
    (response("1*10*3-6=24", "[]"), -1.5, 5),
    ('{"cards": ["A", "3", "K", "6"], "number": [1, 3, 10, 6], "formula": "1*10*3-6=24"}', -1.5, 5),  # valid JSON is misread
    ('{"cards": "A, 3, K, 6", "formula": "1*10*3-6=24"}', 5, 5),
    ('{"cards": "A, 3, K, 6", "formula": 24}', -3, -3),  # where the published code raises
    ("1*10*3-6=24", -1.5, -3),
    ("", -1.5, -3),
    ('"formula": "1*10*3-6"\n"formula": "24"', -1.5, 5),
    ('"formula": "\n"formula": "1*10*3-6"', -1.5, 5),
    ('"formula": "' * 80_000, -1.5, -3),
    ('"cards": [' * 80_000, -1.5, -3),
    ('"cards": []' * 10_000 + response("1*10*3-6=24"), 5, 5),
    ("[" * 100_000, -1.5, -3),
    ("9" * 1_000_000, -1.5, -3),
    (response("+" * 100_000), -100, -100),  # no lower than this
    (response("(" * 90_000 + "1*10*3-6" + ")" * 90_000), -1, -1),
    (response("1*10*3-" + "9" * 100_000), -4, -4),
]


@pytest.mark.parametrize("completion, seen, unseen", PUBLISHED, ids=lambda v: repr(v)[:30])
def test_generalpoints_rewards(completion, seen, unseen):
    start = time.process_time()
    case = Case(completion=completion, meta={"cards": HAND, "faces": "10"})
    assert generalpoints.reward(case).value == seen and generalpoints.reward(case, vision=False).value == unseen
    assert time.process_time() - start < 2


def test_generalpoints_takes_a_division_by_zero_for_a_legal_formula():
    case = Case(completion='"cards": [6, 6, A, 3], "formula": "1*3/(6-6)=24"', meta={"cards": ("6", "6", "A", "3")})
    assert generalpoints.reward(case).value == -1


def test_generalpoints_computes_in_floats_as_published():
    case = Case(completion='"cards": [\'3\', 3, 8, 8], "formula": "8/(3-8/3)=24"', meta={"cards": ("3", "3", "8", "8")})
    assert 8 / (3 - 8 / 3) != 24 and generalpoints.reward(case).value == 0


def test_generalpoints_pays_one_for_a_solution_that_lacks_its_last_bracket():
    hand = {"cards": ("4", "7", "8", "8")}
    whole, cut = '"cards": [\'4\', 7, 8, 8], "formula": "(7-8/8)*4"', '"cards": [\'4\', 7, 8, 8], "formula": "4*(7-8/8"'
    assert [generalpoints.reward(Case(completion=c, meta=hand)).value for c in (whole, cut)] == [5, 1]


def test_generalpoints_equals_the_released_code_in_reward_and_words():
    path = Path(__file__).parents[3] / "tests" / "golden" / "rewards-generalpoints.jsonl"
    if not path.exists():
        pytest.skip("the golden table is not part of this package")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 492 and len({row["reward"] for row in rows}) == 16
    for row in rows:
        score = generalpoints.reward(Case(completion=row["completion"], meta=row["meta"]))
        assert (score.value, score.detail) == (row["reward"], row["detail"]), row
