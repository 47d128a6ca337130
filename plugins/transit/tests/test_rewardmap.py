"""The published reward: the golden rows, and the linear parsers against the patterns that they stand for."""

import itertools
import json
import re
import time
from pathlib import Path

import pytest
from mmrl_transit.rewardmap import LOWEST, _field, _plain, _without_brackets, clean, score, sections, short_answer

from mmrl import Case

LINES = {"M1": ["Ann", "Bo-Bo", "Cy"], "M2": ["Cy", "Dee", "Eve"], "M3": ["Eve", "Fay"]}
GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "rewards.jsonl"


def plan(*rides):
    return "--\n".join(f"Route Name: {line}\nDeparture Stop: {a}\nArrival Stop: {b}\n" for line, a, b in rides)


def value(completion, start="Ann", end="Eve", transfers=1, city="easy", kind="planning", answer=None):
    meta = {"station1": start, "station2": end, "metro_data": LINES, "type": kind, "difficulty_city": city}
    return score(Case(completion=completion, answer=answer, meta={**meta, "question_transfer_count": transfers}))


@pytest.mark.skipif(not GOLDEN.is_file(), reason="the golden table lies in mmrl's repository")
def test_golden_rows():
    rows = [
        r for r in map(json.loads, GOLDEN.read_text(encoding="utf-8").splitlines()) if r["verifier"] == "transit/score@rewardmap"
    ]
    assert len(rows) == 28
    for row in rows:
        assert score(Case(completion=row["completion"], answer=row["answer"], meta=row["meta"])) == pytest.approx(
            row["reward"], abs=2e-6
        )


def test_the_last_section_of_a_right_plan_costs_five():
    direct, one = plan(("M1", "Ann", "Cy")), plan(("M1", "Ann", "Cy"), ("M2", "Cy", "Eve"))
    assert value(direct, end="Cy", transfers=0) == (10 + 0.5 * (2 + 4 - 5)) * 1.0
    assert value(one) == (10 + 0.5 * (2 + 3 + 1 + 3 - 5)) * 1.5
    assert value(one, city="hard") == 12 * 2.0 and value(one, city="middle") == pytest.approx(12 * 1.7)
    assert value(one, transfers=2) == (10 + 0.5 * 9) * 1.5  # the same plan is worth more where more transfers are asked for
    three = plan(("M1", "Ann", "Cy"), ("M2", "Cy", "Eve"), ("M3", "Eve", "Fay"))
    assert value(three, end="Fay", transfers=3, city="hard") == 30


def test_what_is_read_of_a_plan():
    right = plan(("M1", "Ann", "Cy"), ("M2", "Cy", "Eve"))
    for text, worth in (
        (right.replace("Ann", "**ann Station**"), 18.0),
        (right.replace("--", "---"), 18.0),
        (right.replace("M1\n", " M1 \n"), 18.0),
        (right.replace("Route Name: M1", "Route Name:M1"), 0.5 * (2 - 0 + 3 - 5) * 1.5),  # no blank: the line is Wrong
        (right.lower(), 0.0),  # no arrival stop is found
        (right.replace("Arrival Stop: Eve", "Arrival Stop: Dee"), 0.0),
        (plan(("M1", "Ann", "Eve")), 0.5 * (2 + 3) * 1.5),
        (plan(("M9", "Ann", "Eve")), 0.5 * 2 * 1.5),
        (plan(*[("M9", "Ann", "Eve")] * 4), 0.5 * (2 - 15) * 1.5),
        ("", 0.0),
        ("M1 from Ann to Cy, M2 to Eve", 0.0),
    ):
        assert value(text) == pytest.approx(worth), text
    assert sections("Route Name: 大兴 line\nDeparture Stop: A\nArrival Stop: B", False) == [("Line 4", "a", "b")]


def test_cleaning_a_name():
    for name, cleaned in (
        ("North Metro Station", "north"),
        ("Tech. Park", "technologynologypark"),
        ("Univ. Road", "universityersitylu"),
        ("King's Cross", "kingscross"),
        ("Zhichunlu (East)", "zhichunlu"),
        ("A（B）C(D E-F 站", "ac(def"),
        ("me-tro", "metro"),
    ):
        assert clean(name) == cleaned


@pytest.mark.parametrize(
    "kind, answer, completion, right",
    [
        ("TorF1", 1, "\\boxed{yes}", 1),
        ("TorF1", 1, "The answer is Yes.", 1),
        ("TorF1", 1, "the answer is yes. No doubt", 1),
        ("TorF1", 1, "the answer is yes, surely", 0),
        ("TorF1", 0, "\\boxed{yes} or \\boxed{no}", 1),
        ("TorF2", 0, "NO", 1),
        ("TorF2", 1, "", 0),
        ("Counting1", 1, "\\boxed{\\text{B}}", 0),
        ("Counting1", 1, "\\boxed{b.}", 1),
        ("Counting1", 1, "\\boxed{(B)}", 0),
        ("Counting2", 12, "x = 12", 1),
        ("Counting2", 12, "\\boxed{1 2}", 1),
        ("Counting3", 5, "\\boxed{5 units}", 1),
        ("Counting3", 5, "\\boxed{5.0}", 0),
        ("Counting3", 0, ".", 1),
        ("Counting3", 5, "9" * 10_000, 0),
    ],
)
def test_questions(kind, answer, completion, right):
    assert value(completion, kind=kind, answer=answer) == 10 * right
    assert value(completion, kind=kind, answer=answer, city="hard", transfers=3) == 15 * right


@pytest.mark.parametrize("change", [{"kind": "essay"}, {"kind": "Counting4"}, {"city": "huge"}, {"transfers": -1}])
def test_rows_that_are_none_of_its_raise(change):
    with pytest.raises(ValueError):
        value(plan(("M1", "Ann", "Cy")), **change)


def test_linear_parsers_equal_the_published_patterns():
    for n in range(6):
        for tokens in itertools.product(["Route Name: ", "Route Name:", "\n", "x"], repeat=n):
            text = "".join(tokens)
            match = re.search(r"Route Name: (.*?)\n", text)
            assert _field(text, "Route Name") == (match and match.group(1))
    for n in range(9):
        for tokens in itertools.product("(（)a", repeat=n):
            assert _without_brackets("".join(tokens)) == re.sub(r"[\(\（][^\)\）]*[\)\）]", "", "".join(tokens))
    for n in range(7):
        for tokens in itertools.product(["oxed{", "}", "{", "7"], repeat=n):
            text = "".join(tokens)
            found = re.findall("oxed{(.*)}", text, flags=re.DOTALL)
            expected = found[-1] if found else text
            if expected.find("}") != -1 and (expected.find("{") == -1 or expected.find("}") < expected.find("{")):
                expected = expected.split("}")[0]
            assert _plain(text) == expected, text


@pytest.mark.parametrize(
    "unit", ["oxed{", "OXED{", "}", "(", "（", "--", "Route Name: ", "Route Name:Departure Stop:Arrival Stop:--", "the answer is"]
)
@pytest.mark.parametrize("kind", ["planning", "TorF1", "Counting3"])
def test_a_quarter_of_a_megabyte_is_answered_in_time(unit, kind):
    start = time.process_time()
    assert LOWEST <= value(unit * (250_000 // len(unit)), kind=kind, answer=1) <= 0
    assert time.process_time() - start < 1
    assert short_answer("") == ""


def test_the_floor():
    worst = "--".join("Route Name: x\nDeparture Stop: Ann\nArrival Stop: Eve" for _ in range(1000))
    assert value(worst) == LOWEST
