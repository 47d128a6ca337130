"""What is read out of completions: as the plain regular expressions find it, strict about JSON and numbers, linear."""

import itertools
import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.api.verifiers import parse
from mmrl.api.verifiers.parse import (
    fenced_blocks,
    find_json,
    first_tag,
    first_tag_on_line,
    has_think_answer_format,
    last_tag,
    nfc,
    only_answer,
    parse_number,
    parse_numbers,
    short_answer,
    thought,
    without_thinking,
)

TOKENS = ("<think>", "</think>", "<answer>", "</answer>", " ", "\n", "a")
PUBLISHED = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)


def test_tags_and_the_format_are_those_of_the_published_patterns_on_every_short_text():
    for size in range(6):
        for pieces in itertools.product(TOKENS, repeat=size):
            text = "".join(pieces)
            found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
            one_line = re.search(r"<answer>(.*?)</answer>", text)
            assert has_think_answer_format(text) == bool(PUBLISHED.fullmatch(text)), text
            assert (first_tag(text), last_tag(text)) == ((found[0], found[-1]) if found else (None, None)), text
            assert first_tag_on_line(text) == (one_line[1] if one_line else None), text


@pytest.mark.parametrize(
    ("text", "inside", "why"),
    [
        ("<think>a</think><answer> 5 </answer>", " 5 ", ""),
        ("<answer></answer>", "", ""),
        ("5", None, "0 opening and 0 closing"),
        ("<answer>1</answer><answer>2</answer>", None, "2 opening"),
        ("</answer>5<answer>", None, "closes before it opens"),
        ("<think><answer>5</answer></think>", None, "inside the thinking"),
        ("<answer>5</answer><think>", None, "inside the thinking"),
        ("<think>a<answer>5</answer>", None, "inside the thinking"),
        ("<answer>" + "x" * 300_000 + "</answer>", None, "longer than"),
        ("<think>I write <answer> and </answer>.</think>\n<answer>5</answer>", "5", ""),
        ("<think>It is <answer>4</answer>? No.</think><answer>5</answer>", "5", ""),
        ("<think>a</think><answer>4</answer><think>b</think><answer>5</answer>", None, "2 opening"),
        ("<think>a</think><answer>4</answer></think><answer>5</answer>", None, "2 opening"),
        ("<answer>4</answer></think><answer>5</answer>", None, "2 opening"),
        ("\n<think>It is <answer>4</answer>, or", None, "inside the thinking"),
    ],
)
def test_the_only_answer(text, inside, why):
    found, told = only_answer(text)
    assert found == inside and why in told


@pytest.mark.parametrize(
    ("completion", "apart"),
    [
        ("7", ("", "7")),
        ("<think>a</think>7", ("a", "7")),
        ("a</think> 7", ("a", " 7")),
        ("<think></think>7", ("", "7")),
        ("<think>a</think>b<think>c</think>7", ("a", "b<think>c</think>7")),
        ("<think>a</think>7, behind </think>", ("a", "7, behind </think>")),
        ("[THINK]a[/THINK]b[/THINK]", ("a", "b[/THINK]")),
        ("7<think>a", ("a", "7")),
        ("<|channel>thought\na<channel|>7", ("\na", "7")),
        ("[THINK]a", ("a", "")),
        ("", ("", "")),
    ],
)
def test_thinking_is_told_from_what_is_said(completion, apart):
    assert thought(completion) == apart


@given(st.lists(st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", " ", "a"]), max_size=8).map("".join))
def test_what_is_shown_as_the_answer_is_what_verifiers_read(text):
    """Both split at the first sign; verifiers read a text that doesn't begin with one whole."""
    for start, end in (("<think>", "</think>"), ("[THINK]", "[/THINK]")):
        if text.lstrip().startswith(start):
            behind = re.split(re.escape(end), text, maxsplit=1)[1:]
            assert thought(text)[1].strip() == "".join(behind).strip() == without_thinking(text).strip()
            return
    assert without_thinking(text) == text


@pytest.mark.parametrize(
    ("completion", "tags", "found"),
    [
        ("<think>\nIt is 7, or <answer>8</answer>.\n</think>\n\n7", False, "7"),
        ("<think>x</think><answer>7</answer>", False, "7"),
        ("<think>" + "long " * 500 + "</think><answer>7</answer>", False, "7"),
        ("<think>x</think>7", True, None),
        ("<think>It is 7", False, None),
        ("<|channel>thought\nIs it <answer>8</answer>?<channel|>7", False, "7"),
        ("<|channel>thought\nIs it <answer>8</answer>?<channel|><answer>7</answer>", True, "7"),
        ("<|channel>thought\nIt is <answer>7</answer>", True, None),
        ("[THINK]Is it 8?[/THINK]7", False, "7"),
        ("[THINK]It is 7", False, None),
        ("It is 7, </think> or so", False, "It is 7, </think> or so"),
    ],
)
def test_a_short_answer_stands_behind_the_thinking(completion, tags, found):
    """Without tags the answer was the whole text, so that a model whose template opens the thinking was never right."""
    assert short_answer(completion, tags, 100, 200)[0] == found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2]", [1, 2]),
        ("so it is [1, 2] I think", [1, 2]),
        ('```json\n[{"a": 1}]\n```', [{"a": 1}]),
        ('```\n{"a": [1.5, -2e3]}\n```', {"a": [1.5, -2000.0]}),
        ("first {1} then [3]", [3]),
        ("[[1], [2]]", [[1], [2]]),
        ("5", None),
        ("[1, 2", None),
        ("[NaN]", None),
        ("[Infinity, 1]", None),
        ("[1e999]", None),
        ("[" + "9" * 5000 + "]", None),
        ("[" * 33 + "]" * 33, None),
        ("[" * 10_000 + "]" * 10_000, None),
        ('{"a":' * 10_000, None),
        ("", None),
    ],
)
def test_json_in_a_text(text, value):
    assert find_json(text) == value


def test_json_of_one_kind_alone():
    assert find_json('{"a": 1}', list) is None and find_json("[1]", dict) is None
    assert find_json('{"a": [1]}', dict) == {"a": [1]}


def test_depth_counts_what_is_nested():
    assert [parse.depth(v) for v in (1, [], [1], [[1]], {"a": [{}]})] == [0, 1, 1, 2, 3]


def test_what_stands_in_fences():
    assert list(fenced_blocks("a ```json\n1\n``` b ```\n2``` c")) == ["1\n", "2"]
    assert list(fenced_blocks("no fence")) == [] and list(fenced_blocks("```x = 1```")) == ["x = 1"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((" 12 ", 12), ("-3.5", -3.5), ("+.5", 0.5), ("1,234", 1234), ("1e3", 1000), ("\u22122", -2), ("50%", 50), ("$7.", 7)),
        *((t, None) for t in ("", "a", "1 2", "1/2", "12,34", "1.2.3", "nan", "inf", "0x10", "x1", "1" * 41, "1e400", "--1")),
    ],
)
def test_a_number_alone(text, value):
    assert parse_number(text) == value


def test_numbers_in_a_text():
    text = "a1 5, -3.5 .5 x2 1,234 1e3 3.4.5 50% \u22122 bbox_2d [12,13,14,15]"
    assert parse_numbers(text) == [5, -3.5, 0.5, 1234, 1000, 50, -2, 12, 13, 14, 15]
    assert parse_numbers("7 " * 50, most=3) == [7, 7, 7]


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 3)), max_size=8))
def test_numbers_that_were_written_are_read(values):
    assert parse_numbers(" and ".join(f"{v:.3f}" for v in values)) == pytest.approx(values)


@given(st.text(st.characters(codec="utf-8"), max_size=24))
def test_nfc_is_that_of_unicode(text):
    assert nfc(text) == unicodedata.normalize("NFC", text)


def test_many_marks_on_one_letter_are_left_as_they_are():
    natural, heap = "e\u0301" * 1000 + "\u0345" * 31, "e" + "\u0345" * 20 + "\u0334" * 13
    assert nfc(natural) == unicodedata.normalize("NFC", natural) != natural
    assert nfc(heap) == heap != unicodedata.normalize("NFC", heap)


@pytest.mark.parametrize(
    "text",
    [
        *("e" + "\u0345" * 100_000 + "\u0334" * 99_999, "\u0f73" * 200_000, "\u0344" * 200_000),
        *("[" * 200_000, '{"a":' * 40_000, "<answer>" * 25_000, "</think><answer>" * 12_000, "```" * 60_000, "[1," * 60_000),
        *("1," * 100_000, "1" * 200_000, ("[ " * 63 + "1 ") * 1500, "9,999" * 40_000, "<think>" * 28_000, "\0" * 200_000),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_hostile_texts_take_no_time(text):
    started = time.process_time()
    for read in (
        find_json,
        nfc,
        parse_numbers,
        parse_number,
        only_answer,
        first_tag,
        last_tag,
        first_tag_on_line,
        has_think_answer_format,
    ):
        read(text)
    assert time.process_time() - started < 2.0
