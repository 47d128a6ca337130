"""The published rewards: equal to the published patterns and formulas, beyond the rows of the golden table."""

import ast
import itertools
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_gui import gui_g1, gui_r1, infigui_g1, ui_r1, uishift

from mmrl import Case, CoordinateFormat

BOX = [100, 100, 300, 300]


def g1(completion, answer=BOX, wh=(1000, 1000)):
    case = Case(completion=completion, answer=answer, meta={"image_wh": list(wh)})
    return gui_g1.hit(case), gui_g1.iou(case), gui_g1.size(case)


# -- GUI-G1 -----------------------------------------------------------------------------------------------------------------


def test_gui_g1_reads_what_python_reads_behind_the_first_line_that_is_a_fence():
    right = (1, 0.25, 0.125)
    listed = '[{"bbox_2d": [100, 100, 300, 300]}]'
    for text in (
        listed,
        f"```json\n{listed}\n```",
        f"so:\n```json\n{listed}",
        f"  {listed}",
        "[{'bbox_2d': (100, 100, 300, 300)},]",
    ):
        assert g1(text) == right
    for text in (
        *(f"```json {listed}```", f" ```json\n{listed}\n```", f"```\n{listed}\n```", '{"bbox_2d": [100, 100, 300, 300]}', "[]"),
        *('[{"bbox_2d": [100, 100, 300, 300], "seen": true}]', '[{"bbox": [100, 100, 300, 300]}]', "[{'bbox_2d': '1234'}]", ""),
        *("[{'bbox_2d': [100, 100, 300]}]", "[{'bbox_2d': [100, None, 300, 300]}]", f"{listed} {listed}", "[" * 5000, "9" * 5000),
    ):
        assert g1(text) == (0, 0, 0), text


def slow_iou(a, b):
    """By counting pixels of whole-numbered boxes; an overlap of one row or column counts as none."""
    xs, ys = range(max(a[0], b[0]), min(a[2], b[2])), range(max(a[1], b[1]), min(a[3], b[3]))
    common = len(xs) * len(ys) if len(xs) > 1 and len(ys) > 1 else 0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common / union if union else 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=4, max_size=4), st.lists(st.integers(0, 40), min_size=4, max_size=4))
def test_gui_g1_is_its_formulas(found, true):
    x1, y1, x2, y2 = true
    true = [min(x1, x2), min(y1, y2), max(x1, x2) + 1, max(y1, y2) + 1]
    hit, iou, size = g1(f"[{{'bbox_2d': {found}}}]", true, (50, 40))
    middle = (found[0] + found[2]) / 2, (found[1] + found[3]) / 2
    assert hit == (true[0] <= middle[0] <= true[2] and true[1] <= middle[1] <= true[3])
    assert iou == pytest.approx(0.25 * slow_iou(found, true))
    edges = [1 - abs(true[i] - found[i]) / (50, 40)[i % 2] for i in range(4)]
    mean = 4 / sum(1 / e for e in edges) if all(edges) else 0
    assert size == pytest.approx(max(-1000, min(1000, 0.125 * mean)))


BEYOND = [  # a box and what the released code gives for it, where an edge is further off than the picture is large
    ([100, 100, 300, 1700], 1.0),  # more than the right box
    ([100, 100, 300, 1633], -166.49999999998528),
    ([900, 1300, 950, 1350], -0.0291666666666667),
    ([1500, 100, 1600, 300], -0.13043478260869562),
]


@pytest.mark.parametrize("box, wanted", BEYOND)
def test_gui_g1_pays_what_it_pays_beyond_the_picture(box, wanted):
    assert g1(f"[{{'bbox_2d': {box}}}]")[2] == pytest.approx(wanted, rel=1e-9)


def test_gui_g1_keeps_within_its_range_at_its_poles():
    for x in range(-5000, 5000, 37):
        value = g1(f"[{{'bbox_2d': [{x}, 100, 300, {-x}]}}]")[2]
        assert -1000 <= value <= 1000 and math.isfinite(value)
    assert g1("[{'bbox_2d': [100, 100, 300, 1633.33333333]}]")[2] == -1000
    assert g1("[{'bbox_2d': [1e999, -1e999, 1e999, 5]}]")[2] == pytest.approx(0.5 * (1 - 0.295))  # infinite edges are left out


def test_gui_g1_converts_what_is_written_in_another_coordinate_format():
    text = '[{"bbox_2d": [50, 50, 150, 150]}]'
    seen = {"image_sizes": ((1000, 1000),), "model_sizes": ((500, 500),), "coordinate_format": CoordinateFormat.MODEL_PIXELS}
    assert gui_g1.iou(Case(completion=text, answer=BOX, **seen)) == 0.25


# -- UIShift ----------------------------------------------------------------------------------------------------------------

FENCES = ["```json", "```", "\n", " ", '{"a": 1}', "x", "json", "`", "\\n"]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(FENCES), max_size=10).map("".join))
def test_uishift_reads_the_fence_that_the_published_pattern_finds(text):
    match = re.search(r"```(?:json)?\s*(.*?)\s*```", text, re.DOTALL)
    assert uishift._unfenced(text).strip() == (match.group(1) if match else text).strip()


CLICK = {"action_type": "click", "x": 200, "y": 200, "bbox": BOX}
SHIFTS = [
    ({"action_type": "click", "x": 100, "y": 300}, CLICK, 1),
    ({"action_type": "click", "x": 99, "y": 300}, CLICK, 0),
    ({"action_type": "Click", "x": 200, "y": 200}, CLICK, 0),
    ({"action_type": "click", "x": "200", "y": 2e2}, CLICK, 1),
    ({"action_type": "click", "x": "here", "y": 200}, CLICK, 0),
    ({"action_type": "click", "x": 200}, CLICK, 0),
    ({"action_type": "click", "x": 200, "y": 200}, {"action_type": "click", "x": 200, "y": 200}, 1),
    ({"action_type": "click", "x": 201, "y": 200}, {"action_type": "click", "x": 200, "y": 200}, 0),
    ({"action_type": "scroll", "direction": " UP"}, {"action_type": "scroll", "direction": "up"}, 1),
    ({"action_type": "scroll", "direction": 1}, {"action_type": "scroll", "direction": "up"}, 0),
    ({"action_type": "wait"}, {"action_type": "wait"}, 0),
    ({"action_type": 5}, CLICK, 0),
    ({"action": "click", "x": 200, "y": 200}, CLICK, 0),
    ([CLICK], CLICK, 0),
]


@pytest.mark.parametrize("said, true, right", SHIFTS, ids=[str(s[0])[:60] for s in SHIFTS])
def test_uishift_by_hand(said, true, right):
    text = json.dumps(said)
    for completion in (
        text,
        f"<answer>{text}</answer>",
        f"<answer>```json\n{text}\n```</answer> x",
        f"<answer>{text}\\n</answer><answer>",
    ):
        assert uishift.action(Case(completion=completion, answer=true)) == right


# -- UI-R1 and GUI-R1 -------------------------------------------------------------------------------------------------------

PIECES = [
    "'action': ",
    "'click'",
    "click",
    "'coordinate': ",
    "[1, 2]",
    "[1,2,3,4]",
    "[100, 200]",
    "{",
    "}",
    "\n",
    " ",
    "[",
    "]",
    ",",
]
PIECES += ["'input_text': ", "'a b'", "'", "<answer>", "</answer>", "<think>", "</think>", "[\u0663, 4]", "(1, 2)", "[-1, 2]"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=16).map("".join)


@settings(max_examples=600, deadline=None)
@given(TEXTS)
def test_ui_r1_is_the_published_patterns(text):
    match = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    inside = match.group(1).strip() if match else ""
    kind = re.search(r"'action':\s*'(\w+)'", inside) or re.search(r"'action':\s*(\w+)", inside)
    case = Case(completion=text, answer={"action": "click", "bbox": [90, 190, 110, 210]}, meta={"scale": [1.0, 1.0]})
    right = bool(kind) and kind.group(1) == "click"
    assert ui_r1.action_type(case) == right
    point = re.search(r"\[(\d+),\s*(\d+)]", inside)
    x, y = (int(point.group(1)), int(point.group(2))) if point else (0, 0)
    assert ui_r1.coordinate(case) == (right and 90 <= x <= 110 and 190 <= y <= 210)
    fullmatch = re.fullmatch(r"<think>.*?</think>\s*<answer>.*?</answer>", text, re.DOTALL)
    assert ui_r1.form(case) == (fullmatch is not None)


def test_ui_r1_scales_and_cuts_and_reads_a_box_of_whole_numbers_alone():
    text = "<answer>[{'action': 'click', 'coordinate': [33, 33]}]</answer>"
    case = Case(completion=text, answer={"action": "click", "bbox": [98, 98, 98, 98]}, meta={"scale": [2.99, 2.99]})
    assert ui_r1.coordinate(case) == 1  # 98.67 is cut to 98
    assert ui_r1.coordinate(Case(completion=text, answer={"action": "click", "bbox": [30.0, 30, 40, 40]}, meta={})) == 0
    seen = {"image_sizes": ((100, 100),), "model_sizes": ((50, 50),), "coordinate_format": CoordinateFormat.MODEL_PIXELS}
    assert ui_r1.coordinate(Case(completion=text, answer={"action": "click", "bbox": [66, 66, 66, 66]}, **seen)) == 1


POINT = re.compile(r"\{.*\[(\d+),\s*(\d+)]\s*.*\}")


@settings(max_examples=800, deadline=None)
@given(
    st.lists(st.sampled_from(["{", "}", "[1, 2]", "[3,\n4]", "[5,6", "7]", "\n", " ", "a", "[8, 9] \n", "]"]), max_size=14).map(
        "".join
    )
)
def test_gui_r1_finds_the_point_that_the_published_pattern_finds(text):
    match = POINT.search(text)
    assert gui_r1._point(text) == ((int(match.group(1)), int(match.group(2))) if match else (0, 0))


def test_gui_r1_finds_it_in_every_short_text():
    hits = 0
    for length in range(7):
        for tokens in itertools.product(("{", "}", "[1, 2]", "[3,4]", "\n", " "), repeat=length):
            text = "".join(tokens)
            match = POINT.search(text)
            hits += match is not None
            assert gui_r1._point(text) == ((int(match.group(1)), int(match.group(2))) if match else (0, 0)), text
    assert hits > 1000


def published_form(text):
    """With Python's own reader of literals in the place of eval."""
    if not re.fullmatch(r"<think>.*?</think>\s*<answer>.*?</answer>", text, re.DOTALL):
        return 0.0
    try:
        for one in ast.literal_eval(re.search(r"<answer>(.*?)</answer>", text, re.DOTALL).group(1).strip()):
            if not ("action" in one and "point" in one and "input_text" in one and isinstance(one["action"], str)):
                return 0.0
            if not (isinstance(one["point"][0], int) and isinstance(one["point"][1], int) and isinstance(one["input_text"], str)):
                return 0.0
            if one["action"] in ["type", "select", "open_app"] and one["input_text"] == "no input text":
                return 0.0
            if one["action"] == "scroll" and one["input_text"] not in ["left", "right", "up", "down"]:
                return 0.0
    except Exception:
        return 0.0
    return 1.0


ONES = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["click", "type", "scroll", "open_app", 5]),
        "point": st.sampled_from([[1, 2], (1, 2), [1], "[1, 2]", [1.0, 2], [True, 2, 3], None]),
        "input_text": st.sampled_from(["no input text", "up", "x", None]),
    },
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(ONES, max_size=2),
    st.sampled_from(["<think>t</think><answer>{}</answer>", "<answer>{}</answer>", "<think></think>\n<answer> {} </answer>"]),
)
def test_gui_r1_takes_the_forms_that_were_taken(ones, frame):
    text = frame.replace("{}", repr(ones))
    assert gui_r1.form(Case(completion=text)) == published_form(text)


R1 = [
    ("click", [140, 0], "", "[{'action': 'click', 'point': [1, 0]}]", 1),
    ("click", [140, 0], "", "[{'action': 'click', 'point': [0, 0]}]", 0),
    ("click", [100, 0], "", "[{'action': 'click'}]", 1),  # no point counts as 0, 0
    ("click", [0, 0, 9, 9], "", "[{'action': 'click', 'point': [9, 5]}]", 0),
    ("click", [0, 0, 9, 9], "", "[{'action': 'Click', 'point': [8, 5]}]", 1),
    ("click", [0, 0, 9], "", "[{'action': 'click', 'point': [8, 5]}]", 0),
    ("type", [], "a b c", "[{'action': 'type', 'input_text': 'a b'}]", 1),
    ("type", [], "a b c d", "[{'action': 'type', 'input_text': 'a x'}]", 0),
    ("select", [], "ab", "[{'action': 'select', 'input_text': 'abc'}]", 1),
    ("open_app", [], "Mail", "[{'action': 'open_app', 'input_text': 'Clock'}]", 1),
    ("complete", [], "", '[{"action": "complete"}]', 0),
    ("type", [], None, "[{'action': 'type', 'input_text': 'a'}]", 0),
]


@pytest.mark.parametrize("kind, box, words, said, right", R1)
def test_gui_r1_by_hand(kind, box, words, said, right):
    answer = {"action": kind, "gt_bbox": box, "input_text": words}
    assert gui_r1.action(Case(completion=f"<answer>{said}</answer>", answer=answer)) == right
    found = gui_r1.overall(Case(completion=f"<think>t</think><answer>{said}</answer>", answer=answer))
    assert found.value == pytest.approx(0.8 * right + 0.2 * found.parts["format"])


# -- InfiGUI-G1 -------------------------------------------------------------------------------------------------------------


def aer(points, answer=BOX, frame="<think>t</think> {}"):
    listed = points if isinstance(points, str) else json.dumps([{"point_2d": list(p)} for p in points])
    return infigui_g1.aer(Case(completion=frame.replace("{}", listed), answer=answer)).value


def slow_aer(points):
    for a, b, c in itertools.combinations(points, 3):
        if (b[0] - a[0]) * (c[1] - a[1]) == (b[1] - a[1]) * (c[0] - a[0]):
            return -1
    ranks = [k for k, (x, y) in enumerate(points, 1) if 100 <= x <= 300 and 100 <= y <= 300]
    return 1 + (1 / math.sqrt(len(points) * ranks[0]) if ranks else -1 / len(points))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 600)), min_size=1, max_size=8))
def test_aer_is_its_formula(points):
    assert aer(points) == pytest.approx(slow_aer(points))


def test_aer_by_hand():
    assert aer([(200, 200)]) == 2 and aer([(1, 1)]) == 0 and aer([]) == 0
    assert aer([(0, 0), (1, 1), (200, 200)]) == -1 and aer([(200, 200)] * 3) == -1
    for frame in (
        "{}",
        "<think></think>{}",
        "<think> </think>{}",
        " <think>t</think>{}",
        "<think>t</think>{}</think>",
        "<think>t{}",
    ):
        assert aer([(200, 200)], frame=frame) == -1
    assert aer('[{"point_2d": [200, 200]}] or [1]') == 2 and aer('[{"point_2d": [200, 200]}, 1]') == -1
    assert aer('so] [{"point_2d": [200, 200]}]') == 2 and aer('[{"point_2d": [200, 200]}') == -1
    for bad in (
        "[1, 2]",
        '[{"point_2d": [1]}]',
        '[{"point_2d": ["a", 1]}]',
        '[{"point": [1, 2]}]',
        "none",
        "[" * 50_000,
        "[" * 900 + "]" * 900,
    ):
        assert aer(bad) == -1
    assert aer([(n, n * n) for n in range(200)]) < 2 and aer([(n, n * n) for n in range(201)]) == -1


RELEASED = [  # points and what the released code gives: what isn't needed isn't read
    ('[200, 200], ["a", "b"]', 1.7071067811865475),
    ('[0, "x"]', 0),
    ('["200", "200"], [200, 200]', -1),
    (f"[200, {'9' * 400}], [200, 200]", 1.5),
]


@pytest.mark.parametrize(
    "points, wanted", RELEASED, ids=["behind the right one", "beside a wrong number", "before it", "a long number"]
)
def test_aer_reads_no_more_than_it_needs(points, wanted):
    listed = points.replace("[", '{"point_2d": [').replace("]", "]}")
    assert aer(f"[{listed}]") == pytest.approx(wanted)


HUGE = [
    "a",
    "[",
    "{",
    "<answer>",
    "'action':",
    "```json\n",
    "[1, 2]",
    "<think>",
    "(",
    "\n",
    "{[1, 2]}",
    "'",
    "e" + "\u0345" * 24_000 + "\u0334" * 24_000,
]


@pytest.mark.parametrize("unit", HUGE)
def test_a_megabyte_of_anything_is_read_in_time(unit):
    import time

    for size in (150_000, 1_000_000):
        text = f"<think>t</think><answer>{unit * (size // len(unit))}</answer>"
        start = time.process_time()
        box = Case(completion=text, answer=BOX, meta={"image_wh": [1000, 1000]})
        for verify in (gui_g1.hit, gui_g1.size, infigui_g1.aer, uishift.form, ui_r1.form, gui_r1.form):
            verify(box)
        r1 = Case(
            completion=text, answer={"action": "click", "gt_bbox": BOX, "input_text": "", "bbox": BOX, "action_type": "click"}
        )
        for verify in (uishift.action, ui_r1.action_type, ui_r1.coordinate, gui_r1.action):
            assert verify(r1) == 0
        assert time.process_time() - start < 3
