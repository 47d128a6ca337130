"""The verifiers: golden rows, right answers, wrong ones, and what a model might try instead of an answer."""

import itertools
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmrl_ssl import ssl4rl
from mmrl_ssl.verifiers import angle, exact

from mmrl import Case
from mmrl.registry import plugins

TABLE = Path(__file__).parents[3] / "tests" / "golden" / "rewards.jsonl"
ROWS = {"ssl/rotation@ssl4rl": 18, "ssl/contrastive@ssl4rl": 17, "ssl/position@ssl4rl": 18}


def value(verify, completion, answer="90", tags=False):
    got = verify(Case(completion=completion, answer=answer, meta={"tags": tags}))
    return getattr(got, "value", got)


# -- as published -----------------------------------------------------------------------------------------------------------


def test_every_golden_row_is_reproduced():
    if not TABLE.exists():
        pytest.skip("the golden table is not part of this package")
    rows = [row for row in map(json.loads, TABLE.read_text("utf-8").splitlines()) if row["verifier"].startswith("ssl/")]
    assert {id: sum(r["verifier"] == id for r in rows) for id in ROWS} == ROWS and len(rows) == sum(ROWS.values())
    for row in rows:
        got = plugins.registry().make_verifier(row["verifier"])(
            Case(completion=row["completion"], answer=row["answer"], meta=row["meta"])
        )
        assert got == row["reward"], row


def published(text: str, answer: str) -> float:
    at = text.rfind("assistant\n")
    match = re.search(r"<answer>(.*?)</answer>", text[at + 10 :] if at >= 0 else text, re.DOTALL)
    return float(match is not None and match.group(1).strip() in [a.strip() for a in answer.split(",")])


def test_answers_are_read_as_published_on_all_short_token_strings():
    tokens = ("<answer>", "</answer>", "90", "90, 0", " ", "\n", "assistant\n", "<think>", "</think>")
    right = 0
    for text in map("".join, (t for length in range(6) for t in itertools.product(tokens, repeat=length))):
        for answer in ("90", "0,90", ""):
            assert ssl4rl.answer(Case(completion=text, answer=answer)) == published(text, answer), text
            right += published(text, answer)
    assert right > 100


@pytest.mark.parametrize("unit", ["a", "<answer>", "<answer>90", "</answer>", "assistant\n", "90", "\n", "\0"])
def test_a_megabyte_is_answered_at_once(unit):
    for verify in (ssl4rl.answer, exact, angle):
        for tags in (True, False):
            start = time.process_time()
            assert value(verify, unit * (1_000_000 // len(unit)), tags=tags) == 0 and time.process_time() - start < 2


# -- ours -------------------------------------------------------------------------------------------------------------------

SAME = (
    *(("90", "90"), (" 90\n", "90"), ("90.", "90"), ("90°", "90"), ("90 degrees", "90"), ("90 degree.", "90"), ("0", "0")),
    *(
        ("Top-Left", "top-left"),
        ("top left", "top-left"),
        ("TOP  LEFT.", "top-left"),
        ("same", "same"),
        ("Different.", "different"),
    ),
    *(("3", ["1", "3"]), ("1", ("1", "3"))),
)
OTHER = (
    *(
        ("180", "90"),
        ("90.0", "90"),
        ("ninety", "90"),
        ("090", "90"),
        ("-270", "90"),
        ("90 or 0", "90"),
        ("90 90", "90"),
        ("9 0", "90"),
    ),
    *(
        ("top", "top-left"),
        ("left", "top-left"),
        ("topleft", "top-left"),
        ("left-top", "top-left"),
        ("top-left, top-right", "top-left"),
    ),
    *(
        ("same or different", "same"),
        ("not the same", "same"),
        ("13", ["1", "3"]),
        ("1 3", ["1", "3"]),
        ("degrees", "90"),
        ("°", "90"),
    ),
)


@pytest.mark.parametrize("text, answer", SAME)
def test_exact_takes_every_form_of_the_answer(text, answer):
    assert value(exact, text, answer) == value(exact, f"<think>Or not.</think>\n<answer>{text}</answer>", answer, tags=True) == 1


@pytest.mark.parametrize("text, answer", OTHER)
def test_exact_takes_nothing_else(text, answer):
    assert value(exact, text, answer) == value(exact, f"<think>It is.</think>\n<answer>{text}</answer>", answer, tags=True) == 0


@given(st.integers(0, 359), st.integers(-720, 720))
def test_an_angle_earns_by_how_near_it_is(right, given_):
    off = min((given_ - right) % 360, (right - given_) % 360)
    assert value(angle, str(given_), str(right)) == pytest.approx(max(0, 1 - off / 90))


def test_angles_in_figures():
    for text, reward in (("90", 1), ("60", 2 / 3), ("135", 0.5), ("180", 0), ("0", 0), ("270", 0), ("450", 1), ("90°.", 1)):
        assert value(angle, text) == pytest.approx(reward), text
    assert value(angle, "0", "359") == value(angle, "-2", "359") == pytest.approx(1 - 1 / 90)
    over = [sum(value(angle, str(fixed), str(right)) for right in range(0, 360, 30)) for fixed in range(0, 360, 30)]
    assert len({round(x, 9) for x in over}) == 1  # no fixed answer is better than another


THOUGHT = "<think>The roof is on the left.</think>"
PROMPT = "This picture was turned counter-clockwise by 0, 90, 180 or 270 degrees. By how many? Answer with the number alone."
ATTACKS = {
    "empty": "",
    "blanks": " \n\t \u00a0",
    "NUL": "\0" * 64,
    "gold and NUL": "\00090\0",
    "non-ASCII": "答案是 ²③ ①½ \N{ROBOT FACE} \N{RIGHT-TO-LEFT OVERRIDE}",
    "another script": "\u0669\u0660",
    "fullwidth": "９０",
    "superscript": "⁹⁰",
    "a megabyte of a": "a" * 10**6,
    "a megabyte of digits": "90" * 500_000,
    "a megabyte of gold": "90 " * 333_333,
    "a megabyte of blanks and gold": " " * 10**6 + "90",
    "a megabyte of open tags": "<answer>" * 125_000,
    "a megabyte of answers": "<answer>90</answer>" * 52_000,
    "deep JSON": "[" * 10_000 + "90" + "]" * 10_000,
    "deep objects": '{"a":' * 10_000 + "90" + "}" * 10_000,
    "NaN": "NaN",
    "Infinity": "Infinity",
    "overflow": "1e999",
    "list of 10^5": str(list(range(10**5))),
    "gold twice": "90 90",
    "gold twice, in lines": "90\n90",
    "gold 200 times": "\n".join(["90"] * 200),
    "every answer": "0, 90, 180, 270",
    "every answer in lines": "0\n90\n180\n270",
    "every answer, tagged": "".join(f"<answer>{a}</answer>" for a in (0, 90, 180, 270)),
    "two answers": "90 or 270",
    "a range": "0-360",
    "prompt echo": PROMPT,
    "prompt echo and gold": f"{PROMPT} 90",
    "answer in the thinking": "<think>90</think>",
    "tagged in the thinking": "<think><answer>90</answer></think>",
    "tagged in an open thought": "<think>so <answer>90</answer>",
    "two tags": f"{THOUGHT}<answer>90</answer><answer>180</answer>",
    "two tags, the second right": f"{THOUGHT}<answer>180</answer><answer>90</answer>",
    "one in the thought, another after": "<think><answer>90</answer></think><answer>180</answer>",
    "unclosed": f"{THOUGHT}<answer>90",
    "unopened": "90</answer>",
    "closed first": f"{THOUGHT}</answer>90<answer>",
    "nested": "<answer><answer>90</answer></answer>",
    "empty tag": f"{THOUGHT}<answer></answer>",
    "blank tag": f"{THOUGHT}<answer> \n </answer>",
    "upper-case tag": f"{THOUGHT}<ANSWER>90</ANSWER>",
    "prose": "The answer is 90",
    "prose after": "90, because the roof is on the left",
    "sum": "45+45",
    "fraction": "90.0",
    "hexadecimal": "0x5a",
    "underscore": "9_0",
    "huge": "9" * 5000,
    "radians": "pi/2",
    "eval": "__import__('os').getcwd()",
    "unit alone": "degrees",
    "question mark": "90?",
}


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_earns_anything(name, tags):
    """An honest wrong answer earns 0 as well; none of these earns more, so the margin is 0."""
    for verify in (exact, angle):
        start = time.process_time()
        assert value(verify, ATTACKS[name], tags=tags) == 0 and time.process_time() - start < 1


def test_there_are_enough_attacks():
    assert len(ATTACKS) >= 40 and value(exact, "180") == 0 and value(exact, "90") == 1


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "90", " ", "180", "\n", "°"]), max_size=10).map(
        "".join
    )
)
def test_any_tangle_of_tags_is_scored_and_explained(text):
    for verify, tags in itertools.product((exact, angle), (True, False)):
        got = verify(Case(completion=text, answer="90", meta={"tags": tags}))
        assert got.value in (0, 1) and "\n" not in got.detail
        assert not got.value or (text.count("<answer>") == text.count("</answer>") <= 1 and (not tags or "<answer>" in text))
