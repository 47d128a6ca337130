"""Our verifiers: what is right, what is part right, and that no trick pays."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_transit import verifiers
from mmrl_transit.network import Ride

from mmrl import Case, Score

LINES = {
    "Red": ["Oak", "Elm", "Bay", "Fir"],
    "Blue": ["Bay", "Hay", "Ivy"],
    "Green": ["Ivy", "Moor", "Elm", "Pier"],
    "Grey": ["Pier", "Dock"],
}
META = {"metro_data": LINES, "station1": "Oak", "station2": "Ivy", "type": "planning"}
BEST = "Red: Oak > Elm; Green: Elm > Ivy"
WRONG = "<answer>Blue: Oak > Fir; Grey: Hay > Elm</answer>"
"""An honest plan with nothing right in it."""
MARGIN = 0.0
"""What an attack may have above it."""


def worth(completion, verify=verifiers.route, answer=None, **meta):
    got = verify(Case(completion=completion, answer=answer, meta={**META, **meta}))
    return got.value if isinstance(got, Score) else got


def tagged(text):
    return f"<answer>{text}</answer>"


# -- plans ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        BEST,
        f" {BEST}. ",
        "red:oak>elm;green:elm>ivy",
        "Red: Oak -> Elm\nGreen: Elm \u2192 Ivy\n",
        "RED : OAK  > ELM ;; GREEN: Elm > Ivy;",
    ],
)
def test_the_best_route_is_worth_one(text):
    assert worth(tagged(text)) == 1 and worth(f"<think>Red, Green</think>\n{tagged(text)}") == 1
    assert worth(text, style="plain") == 1 and worth(text) == 0
    assert worth(tagged(text), verifiers.arrives) == 1


def test_routes_that_arrive_late_are_worth_less():
    stops = worth(tagged("Red: Oak > Bay; Blue: Bay > Ivy"))  # 4 stops, where 3 will do
    transfers = worth(tagged("Red: Oak > Elm; Green: Elm > Pier; Green: Pier > Ivy"))  # no change of line: no transfer
    assert stops == pytest.approx(0.8 + 0.1 + 0.1 * 3 / 4)
    assert transfers < 0.6
    assert worth(tagged("Red: Oak > Bay; Blue: Bay > Ivy"), verifiers.arrives) == 1
    assert worth(tagged("Red: Oak > Fir; Red: Fir > Elm; Green: Elm > Ivy")) < 0.6
    ring = "Red: Oak > Bay; Blue: Bay > Ivy; Green: Ivy > Elm; Red: Elm > Bay; Blue: Bay > Ivy"
    assert worth(tagged(ring)) == 0  # three rides more than will do


def test_the_parts_of_a_plan():
    def parts(text):
        return dict(verifiers.route(Case(completion=tagged(text), meta=META)).parts)

    assert parts(BEST) == {"start": 1, "end": 1, "rides": 1, "transfers": 1, "fewest": 1}
    assert parts("Red: Oak > Elm") == {"start": 1, "end": 0, "rides": 0.5, "transfers": 0}
    assert parts("Blue: Oak > Elm; Green: Elm > Ivy") == {"start": 0, "end": 1, "rides": 0.5, "transfers": 0}
    assert parts("Red: Oak > Bay; Green: Elm > Ivy") == {"start": 1, "end": 1, "rides": 1, "transfers": 0}
    assert parts("Red: Oak > Ivy") == {"start": 0, "end": 0, "rides": 0, "transfers": 0}
    assert parts("Red: Oak > Elm; Red: Oak > Elm; Green: Elm > Ivy")["rides"] == pytest.approx(2 / 3)


RIGHT = [Ride("Red", "Oak", "Elm"), Ride("Green", "Elm", "Pier"), Ride("Grey", "Pier", "Dock")]
FAULTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["line", "start", "end"])), max_size=4)


def broken(faults):
    plan = list(RIGHT)
    for at, what in faults:
        plan[at] = plan[at]._replace(**{what: {"line": "Yellow", "start": "Nowhere", "end": "Elsewhere"}[what]})
    return tagged("; ".join(map(str, plan)))


@settings(max_examples=300, deadline=None)
@given(FAULTS, FAULTS)
def test_more_faults_never_pay(some, more):
    assert worth(broken([])[:], station2="Dock") == 1
    assert worth(broken(some + more), station2="Dock") <= worth(broken(some), station2="Dock") + 1e-12
    assert (worth(broken(some), station2="Dock") == 1) == (not some)


names = st.sampled_from(["Oak", "Elm", "Bay", "Fir", "Hay", "Ivy", "Moor", "Pier", "Dock", "x", ""])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*LINES, "Yellow", ""]), names, names), max_size=5))
def test_only_routes_that_arrive_get_more_than_the_parts(plan):
    value = worth(tagged("; ".join(str(Ride(*r)) for r in plan)))
    arrives = (
        bool(plan)
        and plan[0][1] == "Oak"
        and plan[-1][2] == "Ivy"
        and all(a in LINES.get(line, ()) and b in LINES[line] and a != b for line, a, b in plan)
        and all(x[2] == y[1] and x[0] != y[0] for x, y in pairwise(plan))
        and len({"Oak", *(r[2] for r in plan)}) == len(plan) + 1
        and len(plan) <= 4
    )
    assert 0 <= value <= 1
    assert (value > 0.6 + 1e-9) == arrives


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="RedBlueOakElm:>; <answer>/\n\0-", max_size=200))
def test_any_text_is_scored(text):
    for verify in (verifiers.route, verifiers.answer, verifiers.arrives, verifiers.form, verifiers.score):
        for completion in (text, tagged(text)):
            assert 0 <= worth(completion, verify, answer="yes") <= 1


def test_the_best_route_is_found_where_the_prompt_does_not_say_it():
    assert worth(tagged(BEST), best=(1, 3)) == worth(tagged(BEST)) == 1
    with pytest.raises(ValueError, match="no route leads"):
        worth(tagged(BEST), station2="Nowhere")


ATTACKS = [
    "",
    " ",
    "\n\t",
    "\0",
    "\0" * 100,
    "\u8def\u7ebf \u2192 \u2192 \u2192",
    "\u202eyvI > kaO :deR",
    "<answer></answer>",
    "<answer> </answer>",
    "<answer>;</answer>",
    "<answer>></answer>",
    "<answer>: > </answer>",
    "<answer>Oak > Ivy</answer>",
    "<answer>Oak, Ivy</answer>",
    "<answer>Red: Oak > Ivy</answer>",
    "<answer>Red; Blue; Green; Grey</answer>",
    "<answer>: Oak > Ivy</answer>",
    "<answer>Line: from > to; Line: from > to</answer>",
    "<answer>Line: Oak > Ivy</answer>",
    "<answer>Red, Green: Oak > Ivy</answer>",
    "<answer>Red Green: Oak > Elm > Ivy</answer>",
    "<answer>Red: Oak > Elm > Ivy</answer>",
    "<answer>Red: Oak > Elm Green: Elm > Ivy</answer>",
    "<answer>" + "; ".join(f"{line}: Oak > Ivy" for line in LINES) + "</answer>",
    "<answer>" + "; ".join(f"{line}: {a} > {b}" for line, s in LINES.items() for a in s for b in s if a != b) + "</answer>",
    "<answer>" + "; ".join(f"{line}: {s[0]} > {s[-1]}" for line, s in LINES.items() for _ in range(3)) + "</answer>",
    "<answer>" + "; ".join([BEST] * 3) + "</answer>",
    "<answer>" + "; ".join([BEST] * 1000) + "</answer>",
    "<answer>Red: Oak > Elm; Green: Elm > Ivy",
    "Red: Oak > Elm; Green: Elm > Ivy</answer>",
    BEST,
    tagged(BEST) * 2,
    tagged(BEST) + tagged("Blue: Bay > Ivy"),
    f"<think>{tagged(BEST)}</think>",
    f"<think>{tagged(BEST)}",
    f"<think>{tagged(BEST)}</think>{tagged('Grey: Hay > Elm')}",
    "</answer>" + BEST + "<answer>",
    "<answer><answer>" + BEST + "</answer>",
    "<answer>NaN: Infinity > 1e999</answer>",
    "<answer>" + "[" * 10_000 + "]" * 10_000 + "</answer>",
    "<answer>" + '{"a":' * 10_000 + "</answer>",
    "<answer>" + ";" * 100_000 + "</answer>",
    "<answer>" + "Red: Oak > Elm;" * 100_000 + "</answer>",
    "a" * 1_000_000,
    "<answer>" * 100_000,
    "Travel from Oak to Ivy with the fewest transfers.\nAnswer as <answer>Line: from > to; Line: from > to</answer>.",
    "<answer>{answer}</answer>",
    "<answer>None</answer>",
    "system: reward = 1",
]


@pytest.mark.parametrize("completion", ATTACKS, ids=lambda c: repr(c)[:40])
@pytest.mark.parametrize("verify", [verifiers.route, verifiers.arrives, verifiers.score])
def test_attacks_on_plans_score_no_more_than_an_honest_wrong_plan(completion, verify):
    start = time.process_time()
    assert worth(completion, verify) <= worth(WRONG, verify) + MARGIN
    assert time.process_time() - start < 1


def test_the_table_is_long_enough():
    assert len(set(ATTACKS)) == len(ATTACKS) >= 40 and worth(WRONG) == 0


# -- questions --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, answer, right",
    [
        ("yes", "yes", 1),
        (" Yes. ", "yes", 1),
        ("**yes**", "yes", 1),
        ("no", "yes", 0),
        ("yes no", "yes", 0),
        ("yes or no", "yes", 0),
        ("(B)", "B", 1),
        ("b", "B", 1),
        ("A B C D", "B", 0),
        ("3", "3", 1),
        ("3.0", "3", 1),
        ("03", "3", 1),
        ("3%", "3", 0),
        ("-3", "3", 0),
        ("13", "3", 0),
        ("3 4", "3", 0),
        ("three", "3", 0),
        ("nan", "3", 0),
        ("1e999", "3", 0),
        ("\u0663", "3", 0),
        ("\uff13", "3", 0),
        ("2 lines", "2", 0),
        ("the Red line", "Red", 0),
        ("red", "Red", 1),
        ("Red, Blue", "Red", 0),
        ("", "yes", 0),
        ("()", "yes", 0),
    ],
)
def test_short_answers(text, answer, right):
    assert worth(tagged(text), verifiers.answer, answer, type="TorF1") == right
    assert worth(text, verifiers.answer, answer, type="TorF1", style="plain") == right
    assert worth(text, verifiers.answer, answer, type="TorF1") == 0


@pytest.mark.parametrize(
    "kind, number, text",
    [("TorF1", 1, "yes"), ("TorF2", 0, "no"), ("Counting1", 2, "C"), ("Counting2", 2, "2"), ("Counting3", 0, "0")],
)
def test_numbers_of_reasonmap_are_read(kind, number, text):
    assert worth(tagged(text), verifiers.score, number, type=kind) == 1
    assert worth(tagged(text), verifiers.score, number + 1, type=kind) == (kind == "TorF1")


@pytest.mark.parametrize("answer", [None, "", " "])
def test_an_empty_answer_is_never_right(answer):
    for text in ("", " ", "None", "()"):
        assert worth(tagged(text), verifiers.answer, answer, type="TorF1") == 0


@pytest.mark.parametrize("completion", [a for a in ATTACKS if "Red" not in a], ids=lambda c: repr(c)[:40])
@pytest.mark.parametrize("answer", ["yes", "3", "B", "Red"])
def test_attacks_on_questions_score_no_more_than_a_wrong_answer(completion, answer):
    assert (
        worth(completion, verifiers.answer, answer, type="TorF1")
        <= worth(tagged("9"), verifiers.answer, answer, type="TorF1") + MARGIN
    )


@pytest.mark.parametrize(
    "text, value",
    [
        ("<answer>x</answer>", 1),
        (" <think>a</think>\n<answer>x</answer>\n", 1),
        ("<answer></answer>", 0),
        ("<think></think><answer>x</answer>", 0),
        ("hm <answer>x</answer>", 0),
        ("<answer>x</answer>.", 0),
        ("<think>a</think>b<answer>x</answer>", 0),
        ("<think>a</think><think>b</think><answer>x</answer>", 0),
        ("<answer>x</answer><answer>x</answer>", 0),
        ("<think>a<answer>x</answer>", 0),
        ("<answer>x<b></answer>", 0),
    ],
)
def test_forms(text, value):
    assert worth(text, verifiers.form) == value
    assert worth("yes", verifiers.form, style="plain") == 1 and worth(text, verifiers.form, style="plain") == 0


def test_what_meta_lacks_is_named():
    for verify in (verifiers.route, verifiers.arrives):
        with pytest.raises(ValueError, match="meta has no metro_data, station1, station2: a plan is judged by"):
            verify(Case(completion=tagged("Red: Oak > Elm"), answer="Red: Oak > Elm"))
        with pytest.raises(ValueError, match="meta has no station2"):
            verify(Case(completion=tagged("Red: Oak > Elm"), meta={"metro_data": {}, "station1": "Oak"}))
