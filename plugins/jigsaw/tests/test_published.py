"""The published rewards: the golden rows, the published patterns token by token, and quirks that the rows don't reach."""

import itertools
import json
import math
import random
import re
import time
from pathlib import Path

import pytest
from mmrl_jigsaw import jigsaw_r1, ssl4rl

from mmrl import Case
from mmrl.registry import plugins
from mmrl.testing.cases import mostly_slow

TABLE = Path(__file__).parents[3] / "tests" / "golden" / "rewards.jsonl"
ROWS = {"grid": 27, "grid-format": 27, "pair": 23, "letter-format": 23, "digit": 17, "digit-format": 17}


def score(verify, completion, answer=None, **meta):
    return verify(Case(completion=completion, answer=answer, meta=meta))


def test_every_golden_row_is_reproduced():
    if not TABLE.exists():
        pytest.skip("the golden table is not part of this package")
    rows = [row for row in map(json.loads, TABLE.read_text("utf-8").splitlines()) if row["verifier"].startswith("jigsaw/")]
    counts = {name: sum(r["verifier"] == f"jigsaw/{name}@jigsaw-r1" for r in rows) for name in ROWS}
    assert counts == ROWS and sum(r["verifier"] == "jigsaw/inverse@ssl4rl" for r in rows) == 21 == len(rows) - sum(ROWS.values())
    for row in rows:
        value = plugins.registry().make_verifier(row["verifier"])(
            Case(completion=row["completion"], answer=row["answer"], meta=row["meta"])
        )
        assert abs(value - row["reward"]) < 2e-6, row


# -- the published patterns -------------------------------------------------------------------------------------------------


def published_format(text: str) -> bool:
    match = re.search(r"<think>.*?</think>\s*<answer>.*?</answer>", text, re.DOTALL)
    return bool(match) and match.group(0) == text


def published_grid(m: int, n: int, text: str) -> list[int] | None:
    for sign in "`,;\n":
        text = text.replace(sign, " ")
    found = []
    for piece in re.sub(r"\s{2,}", " ", text).strip().split(" "):
        if not re.fullmatch(r"[0-9]+", piece) or not 1 <= int(piece) <= m * n:
            return None
        found.append(int(piece))
    return found


def test_the_format_pattern_is_the_published_one_on_all_short_token_strings():
    tokens = ("<think>", "</think>", "<answer>", "</answer>", " ", "\n", "3")
    seen = set()
    for length in range(8):
        for text in map("".join, itertools.product(tokens, repeat=length) if length < 6 else drawn(tokens, length)):
            case = Case(completion=text, meta={"think": True})
            assert jigsaw_r1._in_form(case) == published_format(text), text
            seen.add(jigsaw_r1._in_form(case))
    assert seen == {True, False}


def drawn(tokens, length):
    draw = random.Random(length)
    head, tail = ("<think>", "</think>", "<answer>"), ("</answer>",)
    return [(*head, *draw.choices(tokens, k=length - 4), *tail) for _ in range(3000)]


@pytest.mark.slow
def test_grids_are_read_as_published_on_all_short_token_strings():
    tokens = ("1", "2", "04", "5", " ", "\n", "\t", ",", ";", "`", "x", "\u00a0", "\u0664")
    found = 0
    for length in range(6):
        for text in map("".join, itertools.product(tokens, repeat=length)):
            wanted = published_grid(2, 2, text.strip())
            assert jigsaw_r1.grid_of(Case(completion=text, meta={"think": False}), 4) == wanted, text
            found += wanted is not None
    assert found > 1000


def test_boxes_are_found_as_published_on_all_short_token_strings():
    pattern = re.compile(r"(\d+),\s*(\d+),\s*(\d+),\s*(\d+)")
    tokens = ("1", "23", ",", ", ", " ", ".", "\u0663", "7,8,")
    found = 0
    for length in range(8):
        products = itertools.product(tokens, repeat=length)
        for text in map("".join, products if length < 6 else itertools.islice(products, length, None, 97)):
            wanted, got = pattern.search(text), jigsaw_r1._BOX.search(text)
            assert (got and got.groups()) == (wanted and wanted.groups()), text
            found += wanted is not None
    assert found > 500


def test_letters_and_digits_are_found_as_published():
    tokens = ("A", "B", "b", "\u00c9", "3", "03", "\u0663", " ", ".", "\u00b2")
    for text in map("".join, (t for length in range(5) for t in itertools.product(tokens, repeat=length))):
        stripped = text.strip()
        capital = re.search(r"([A-Z])", stripped[::-1])
        letter = capital.group(1) if capital else stripped[::-1]
        number = re.search(r"(\d+)", stripped)
        digits = number.group(1) if number else stripped
        case = Case(completion=f"<think>t</think><answer>{text}</answer>", answer="B", meta={"think": True})
        assert jigsaw_r1.letter(case) == float(letter.lower() == "b"), text
        assert jigsaw_r1.letter_format(case) == float(len(letter) == 1 and letter[0].isupper()), text
        assert jigsaw_r1.digit_format(case) == float(digits.isdigit()), text
        plain = Case(completion=text, answer="3", meta={"think": False})
        assert jigsaw_r1.letter_format(plain) == float(len(text) == 1 and text[0].isupper()), text
        assert jigsaw_r1.digit_format(plain) == float(text.isdigit()), text
        assert jigsaw_r1.digit(plain) == float(digits in ("3", "03")), text


# -- connections, boxes, points ---------------------------------------------------------------------------------------------


def test_connections_count_neighbours_that_are_neighbours_in_the_answer():
    for answer in ([1, 2, 3, 4], [4, 2, 1, 3], [2, 1, 4, 3]):
        assert score(jigsaw_r1.connections, " ".join(map(str, answer)), answer, m=2, n=2, think=False) == 1
    asked = {"m": 2, "n": 2, "think": False}
    assert score(jigsaw_r1.connections, "1 2 4 3", [1, 2, 3, 4], **asked) == 1 / 4  # only the upper pair is left
    assert score(jigsaw_r1.connections, "3 4 1 2", [1, 2, 3, 4], **asked) == 2 / 4  # rows exchanged: both pairs in rows
    assert score(jigsaw_r1.connections, "1 1 1 1", [1, 2, 3, 4], **asked) == 0
    assert score(jigsaw_r1.connections, "1 2 3", [1, 2, 3, 4], **asked) == 0
    assert score(jigsaw_r1.connections, "3 1 2", [1, 2, 3], m=1, n=3, think=False) == 1 / 2
    assert score(jigsaw_r1.connections, "1", [1], m=1, n=1, think=False) == 0
    inverse = {"m": 2, "n": 2, "think": False, "forward": False}
    assert score(jigsaw_r1.connections, "1 2 3 4", [1, 2, 3, 4], **inverse) == 1
    assert score(jigsaw_r1.connections, "4 2 1 3", [4, 2, 1, 3], **inverse) == 0  # right, and worth nothing: a published fault


def seen(completion, answer=(20, 20, 60, 60), sizes=((100, 100),), model=(), verify=jigsaw_r1.box, think=False):
    return verify(Case(completion=completion, answer=answer, image_sizes=sizes, model_sizes=model, meta={"think": think}))


def test_boxes_overlap_by_the_rule_of_vlm_r1():
    assert seen("20, 20, 60, 60") == 1
    assert seen("[20,20,60,40]") == pytest.approx(0.5)
    assert seen("the box is 40, 20, 80, 60 or 20, 20, 60, 60") == pytest.approx(20 * 40 / (2 * 1600 - 800))
    assert seen("59, 20, 99, 60") == 0  # one pixel wide: counted as none
    assert seen("58, 20, 98, 60") == pytest.approx(80 / (3200 - 80))
    assert seen("60, 60, 20, 20") == 0 == seen("20, 20, 60") == seen("") == seen("1e400, 1, 2, 3")
    assert seen("9" * 400 + ", 1, 2, 3") == 0
    assert seen("0, 0, 0, 0", answer=(0, 0, 0, 0)) == 0  # the published division fails
    assert seen("10, 20, 30, 60", model=((50, 100),)) == 1  # in the pixels that the model saw
    assert seen("<think>1, 2, 3, 4</think><answer>20, 20, 60, 60</answer>", think=True) == 1


def published_overlap(found, true):
    left, top = max(found[0], true[0]), max(found[1], true[1])
    right, bottom = min(found[2] - 1, true[2] - 1), min(found[3] - 1, true[3] - 1)
    inside = (right - left + 1) * (bottom - top + 1) if left < right and top < bottom else 0
    return float(inside) / ((found[2] - found[0]) * (found[3] - found[1]) + (true[2] - true[0]) * (true[3] - true[1]) - inside)


def test_boxes_earn_what_is_published_and_nothing_where_that_is_no_number():
    """The published code divides by 0 for a box in reverse as large as the true one, and gives NaN for infinite ones."""
    true, raised, odd = (20.0, 20.0, 60.0, 60.0), 0, 0
    for said in itertools.product(("0", "020", "59", "60", "1" * 200, "9" * 400, "\u0666\u0660"), repeat=4):
        value = seen(", ".join(said))
        found = tuple(map(float, said))
        try:
            wanted = published_overlap(found, true)
        except ZeroDivisionError:
            raised, wanted = raised + 1, 0.0
        odd += math.isnan(wanted)
        assert value == pytest.approx(0.0 if math.isnan(wanted) else wanted), said
        x, y = (found[0] + found[2]) / 2, (found[1] + found[3]) / 2
        assert seen(", ".join(said), verify=jigsaw_r1.point) == (20 <= x <= 60 and 20 <= y <= 60), said
    assert raised and odd


def test_points_are_the_centres_of_boxes():
    for completion, value in (("0, 0, 40, 40", 1), ("20,20,20,20", 1), ("0, 0, 38, 80", 0), ("100, 60, 20, 60", 1), ("none", 0)):
        assert seen(completion, verify=jigsaw_r1.point) == value, completion


def test_box_format_wants_four_numbers_and_the_tags_if_asked():
    assert score(jigsaw_r1.box_format, "a 1, 2,3,\n4", think=False) == 1
    assert score(jigsaw_r1.box_format, "1 2 3 4", think=False) == 0
    assert score(jigsaw_r1.box_format, "1, 2, 3, 4", think=True) == 0
    assert score(jigsaw_r1.box_format, "<think></think><answer>1, 2, 3, 4</answer>", think=True) == 1


# -- quirks -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verify, completion, answer, value",
    [
        (jigsaw_r1.grid, "<think><answer>2 1</answer></think><answer>1 2</answer>", [2, 1], 1),  # the first tag, wherever it is
        (jigsaw_r1.grid, "<answer>2 1 </answer", [2, 1], 0),
        (jigsaw_r1.grid, "<answer>1 1</answer>", [2, 1], 0.5),
        (jigsaw_r1.grid, "<answer></answer>", [2, 1], 0),
        (jigsaw_r1.grid, "<answer>2\t1</answer>", [2, 1], 0),  # one tab is no blank; two are
        (jigsaw_r1.grid, "<answer>2\t\t1</answer>", [2, 1], 1),
        (jigsaw_r1.grid, "<answer>2 " + "0" * 5000 + "1</answer>", [2, 1], 1),
        (jigsaw_r1.grid, "<answer>2 " + "1" * 5000 + "</answer>", [2, 1], 0),
        (jigsaw_r1.letter, "<answer>A or B</answer>", "B", 1),
        (jigsaw_r1.letter, "I think so. <answer>b", "B", 0),  # no tag closes: the last capital is I
        (jigsaw_r1.digit, "<answer>-3.7</answer>", "3", 1),
        (jigsaw_r1.digit, "<answer>three</answer>", "3", 0),
        (jigsaw_r1.digit, "<answer>30</answer>", "3", 0),
        (jigsaw_r1.digit, "<answer>0</answer>", "", 1),
        (ssl4rl.inverse, "<answer>2</answer>", "2,1", 0.5),
        (ssl4rl.inverse, "<answer>2,1,1,1</answer>", "2,1", 1),
        (ssl4rl.inverse, "<answer> +2,\n1_0</answer>", "2,10", 1),
        (ssl4rl.inverse, "<answer>2,1</answer>assistant\n<answer>1,2</answer>", "2,1", 0),
        (ssl4rl.inverse, "<answer>2,1</answer>assistant\n", "2,1", 0),
        (ssl4rl.inverse, "<answer>2,1</answer>", [2, 1], 1),
        (ssl4rl.inverse, "<answer>" + "2" * 5000 + ",1</answer>", "2,1", 0.5),
        (ssl4rl.inverse, "<answer>1,2,3,4,5,6,7,8,9</answer>", "1,2,3,4,5,6,7,8,9", 1),
    ],
)
def test_quirks(verify, completion, answer, value):
    assert score(verify, completion, answer) == pytest.approx(value, abs=1e-9)


UNITS = ("a", "<answer>", "<answer>1</answer>", "</think> ", "<think>", "1", "1, ", "1 ", "A", "\n", "\0", "\u0663", ",", "`" * 7)


PUBLISHED = (
    *(jigsaw_r1.grid, jigsaw_r1.connections, jigsaw_r1.letter, jigsaw_r1.digit, jigsaw_r1.box, jigsaw_r1.point),
    *(jigsaw_r1.grid_format, jigsaw_r1.letter_format, jigsaw_r1.digit_format, jigsaw_r1.box_format, ssl4rl.inverse),
)


@pytest.mark.parametrize("verify", mostly_slow(PUBLISHED, everyday=2), ids=lambda v: v.__name__)
def test_a_megabyte_is_answered_at_once(verify):
    answer = (1, 2, 3, 4) if verify.__name__ in ("box", "point") else "B" if "letter" in verify.__name__ else [2, 1, 4, 3]
    answer = "3" if verify.__name__ == "digit" else answer
    for unit in UNITS:
        for head in ("", "<think>t</think><answer>"):
            start = time.process_time()
            value = score(verify, head + unit * (1_000_000 // len(unit)) + ("</answer>" if head else ""), answer, m=2, n=2)
            assert 0 <= value <= 1 and time.process_time() - start < 2, unit
