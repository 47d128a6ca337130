"""What the judge takes from a worker, and what it doesn't."""

import json

import pytest

from mmrl import Case, Score, VerifierSpec
from mmrl.compute.crossing import Fault
from mmrl.judge.messages import MAX_PARTS, BadReply, Ready, Scores, parse, scored, with_right_steps

ROW = [0.5, {"iou": 1}, "a detail", [0.25, 1]]
SPEC = VerifierSpec(id="a/b", target="a:b")


def reply(*message, loading=False, serial=3, missing=2):
    return parse(json.dumps(message).encode(), loading, serial, missing)


def test_what_is_owed_is_taken():
    assert reply("ready", loading=True) == Ready()
    assert reply("fault", ["PluginError", "why", "trace", {"key": "x"}], loading=True) == Fault(
        "PluginError", "why", "trace", {"key": "x"}
    )
    assert reply("scores", 3, [ROW]) == Scores([(0.5, {"iou": 1}, "a detail", [0.25, 1])])
    assert reply("done", 3, [ROW, [None, {}, "", []]], False) == Scores([tuple(ROW), (None, {}, "", [])], False)


@pytest.mark.parametrize(
    ("message", "owed"),
    [
        (["ready"], {}),
        (["ready", 1], {"loading": True}),
        (["scores", 3, [ROW]], {"serial": 4}),
        (["scores", 3, [ROW, ROW]], {}),  # the last row comes with `done`
        (["done", 3, [ROW], True], {}),
        (["done", 3, [ROW, ROW, ROW], True], {}),
        (["done", 2, [ROW, ROW], True], {}),
        (["done", 3, [ROW, ROW], 1], {}),
        (["done", 3, [], True], {"serial": -1, "missing": 0}),
        (["fault", ["UserError", "why", "", {}]], {}),
        (["fault", ["Exception", "why", "", {}]], {"loading": True}),
        (["fault", ["contextlib", "why", "", {}]], {"loading": True}),
        (["fault", ["UserError", 3, "", {}]], {"loading": True}),
        (["other"], {}),
        ([], {}),
        ({}, {}),
        (None, {}),
    ],
)
def test_what_is_not_owed_is_a_bad_reply(message, owed):
    with pytest.raises(BadReply):
        parse(json.dumps(message).encode(), **{"loading": False, "serial": 3, "missing": 2} | owed)


@pytest.mark.parametrize(
    "row",
    [
        *("abcd", None, [], [1.0, {}, ""], [1.0, {}, "", [], 1], ["1", {}, "", []], [True, {}, "", []], [1.0, [], "", []]),
        *([1.0, {}, None, []], [1.0, {}, "", {}], [1.0, {}, "", ["1"]], [1.0, {}, "", [True]], [1.0, {"a": None}, "", []]),
        *(
            [1.0, {"a": float("nan")}, "", []],
            [1.0, {}, "", [float("inf")]],
            [1.0, {"\ud800": 1.0}, "", []],
            [1.0, {"x" * 300: 1}, "", []],
        ),
        [1.0, {str(i): 1.0 for i in range(MAX_PARTS + 1)}, "", []],
    ],
    ids=lambda row: str(row)[:30].encode("ascii", "replace").decode(),
)
def test_odd_rows(row):
    with pytest.raises(BadReply):
        reply("done", 3, [row], True, missing=1)


def test_what_is_no_json():
    for line in (b"", b"[", b"[" * 100_000, b"\xff", b"9" * 10_000):
        with pytest.raises(BadReply):
            parse(line, False, 3, 1)


def test_details_can_be_written_to_a_file():
    [row] = reply("done", 3, [[1.0, {}, "a \ud800 b", []]], True, missing=1).rows
    assert row[2] == "a ? b"


def test_ranges_are_checked_here():
    assert scored((1 + 1e-9, {}, "", []), SPEC, b"") == Score(1 + 1e-9)
    for value in (-0.01, 1.01, 1e9, float("nan"), float("inf")):
        found = scored((value, {}, "", []), SPEC, b"")
        assert found == Score(None, {}, f"the value is {value:g}, outside its range [0, 1]")


def test_steps_of_a_case_without_an_episode():
    found = with_right_steps(Score(1.0, {}, "", (1.0,)), SPEC, Case(completion=""))
    assert (
        found.value is None and found.detail == "it gave 1 steps, and the verifier sees no episode: its spec needs rollout=True"
    )
