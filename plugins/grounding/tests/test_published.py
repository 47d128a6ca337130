"""The published rewards: equal to the published patterns and formulas, beyond the rows of the golden table."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_grounding import vision_r1, vision_reasoner, visual_rft, vlm_r1
from mmrl_grounding.coco import RECALLS, THRESHOLDS, average_precision

from mmrl import Case
from mmrl.api.coordinates import CoordinateFormat


def tagged(answer, thought="t"):
    return f"<think>{thought}</think><answer>{answer}</answer>"


def block(items):
    return f"```json\n{json.dumps(items)}\n```"


def obj(*box, label="cat"):
    return {"bbox_2d": list(box), "label": label}


# -- COCO -----------------------------------------------------------------------------------------------------------------

REFERENCE = json.loads((Path(__file__).parent / "coco_reference.json").read_text())
"""Scenes and what pycocotools 2.0.11 gives them, boxes without an area, with NaN and infinity among them."""


@pytest.mark.parametrize("number", range(len(REFERENCE)))
def test_average_precision_is_that_of_pycocotools(number):
    case = REFERENCE[number]
    truth, found = ([(tuple(box), label) for box, label in case[side]] for side in ("truth", "found"))
    assert average_precision(truth, found) == pytest.approx(case["ap"], abs=1e-12)
    assert average_precision(truth, found, THRESHOLDS[:1]) == pytest.approx(case["ap50"], abs=1e-12)


def test_the_reference_is_there():
    assert len(REFERENCE) == 90 and sum(0 < case["ap"] < 1 for case in REFERENCE) > 60


def test_thresholds_and_recalls_are_numpys():
    assert list(np.linspace(0.5, 0.95, 10)) == list(THRESHOLDS) and list(np.linspace(0, 1, 101)) == list(RECALLS)


def test_average_precision_by_hand():
    box, half, far = (0, 0, 100, 100), (0, 0, 100, 50), (500, 500, 600, 600)
    assert average_precision([(box, "a")], [(box, "a")]) == pytest.approx(1)
    assert average_precision([(box, "a")], [(half, "a")]) == pytest.approx(0.1)  # found at 0.5, and at no more
    assert average_precision([(box, "a")], [(far, "a"), (box, "a")]) == pytest.approx(0.5)  # the surer one is wrong
    assert average_precision([(box, "a"), (far, "a")], [(box, "a")]) == pytest.approx(51 / 101)  # recalls 0 to 0.5
    assert average_precision([(box, "a"), (far, "b")], [(box, "a")]) == pytest.approx(0.5)  # mean of the labels
    assert average_precision([(box, "a")], []) == 0
    assert average_precision([((10, 0, 0, 10), "a")], [(box, "a")]) == -1
    hundred = [(far, "a")] * 100
    assert average_precision([(box, "a")], [*hundred[:99], (box, "a")]) == pytest.approx(0.01)
    assert average_precision([(box, "a")], [*hundred, (box, "a")]) == 0  # the 101st is not read


# -- VLM-R1: the forms ----------------------------------------------------------------------------------------------------

FORMS = {
    "object": r"<think>.*?</think>\s*<answer>.*?\{.*\[\d+,\s*\d+,\s*\d+,\s*\d+\].*\}.*?</answer>",
    "list": r"<think>.*?</think>\s*<answer>.*?\[\d+,\s*\d+,\s*\d+,\s*\d+\].*?</answer>",
    "none": r"<think>(.*?)<answer>(.*?)</answer>",
}
TOKENS = ("<think>", "</think>", " ", "<answer>", "{", "[1, 2,3, 4]", "}", "</answer>", "x")


@pytest.mark.parametrize("box", FORMS)
def test_linear_forms_equal_the_published_patterns_on_every_short_text(box):
    pattern, hits = re.compile(FORMS[box], re.DOTALL), 0
    head = ["", "<think>", "<think></think><answer>", "</think><answer><think>", "<think></think> <answer>{[1,2,3,4]"]
    for start, length in itertools.product(head, range(6 if box == "object" else 5)):
        for tokens in itertools.product(TOKENS, repeat=length):
            text = start + "".join(tokens)
            hit = pattern.search(text) is not None
            hits += hit
            assert vlm_r1.form(Case(completion=text), box) == hit, text
    assert hits > 5


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from([*TOKENS, "\n", "[1, 2, 3]", "[1,2,3,4", "[-1, 2, 3, 4]", "\u00a0"]), max_size=14).map("".join))
def test_linear_parsers_equal_the_published_patterns(text):
    for box, pattern in FORMS.items():
        assert vlm_r1.form(Case(completion=text), box) == (re.search(pattern, text, re.DOTALL) is not None)
    match = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    found = match and re.search(r"\[(\d+),\s*(\d+),\s*(\d+),\s*(\d+)]", match.group(1).strip())
    right = found is not None and [int(d) for d in found.groups()] == [1, 2, 3, 4]
    truth = Case(completion=text, answer=[1, 2, 3, 4])
    assert (vlm_r1.iou(truth, rescale=False, convention="continuous") == 1) == right


FENCES = ["```json", "```", "\n", " ", "\r", "a", "B.", ".", "<answer>", "</answer>"]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(FENCES), max_size=12).map("".join))
def test_blocks_and_clean_text_equal_the_published_patterns(text):
    published = re.findall(r"```json(.*?)```", text, re.DOTALL)
    assert list(vlm_r1.between(text, "```json", "```")) == published
    assert vlm_r1.last_between(text, "```json", "```") == (published[-1] if published else None)
    tags = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    one = tags[-1] if tags else text
    for sign in "\n\r":
        one = re.sub(r"(?<!\s)" + sign, " ", re.sub(r"(?<=\s)" + sign, "", one))
    assert vlm_r1.clean(text) == one.strip().rstrip(".").lower()


# -- VLM-R1: boxes --------------------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=8, max_size=8))
def test_pixel_iou_is_the_published_formula(numbers):
    a, b = numbers[:4], numbers[4:]
    x1, y1 = max(a[0], b[0]), max(a[1], b[1])
    x2, y2 = min(a[2] - 1, b[2] - 1), min(a[3] - 1, b[3] - 1)
    common = (x2 - x1 + 1) * (y2 - y1 + 1) if x1 < x2 and y1 < y2 else 0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    value = common / union if union else 0.0
    assert vlm_r1.iou(Case(completion=f"<answer>{a}</answer>", answer=b)) == pytest.approx(value)


def test_boxes_are_scaled_from_the_picture_that_the_model_saw():
    text = tagged('{"bbox_2d": [50, 50, 150, 150]}')
    seen = {"image_sizes": ((1288, 952),), "model_sizes": ((644, 476),)}
    truth = [100, 100, 300, 300]
    assert vlm_r1.iou(Case(completion=text, answer=truth, coordinate_format=CoordinateFormat.MODEL_PIXELS, **seen)) == 1
    assert vlm_r1.iou(Case(completion=text, answer=truth, meta={"image_wh": [1288, 952], "input_wh": [644, 476]})) == 1
    assert vlm_r1.iou(Case(completion=text, answer=truth, coordinate_format=CoordinateFormat.PIXELS, **seen)) < 0.1
    thousandths = Case(
        completion=tagged("[100, 200, 300, 400]"), answer=[50, 200, 150, 400], coordinate_format=CoordinateFormat.THOUSANDTHS
    )
    sized = {"image_sizes": ((500, 1000),), "model_sizes": ((504, 1008),)}
    assert (
        vlm_r1.iou(
            Case(
                completion=thousandths.completion,
                answer=thousandths.answer,
                coordinate_format=thousandths.coordinate_format,
                **sized,
            )
        )
        == 1
    )
    raw = Case(
        completion=thousandths.completion, answer=thousandths.answer, coordinate_format=CoordinateFormat.THOUSANDTHS, **sized
    )
    assert vlm_r1.iou(raw, rescale=False) == 1  # the truth in the numbers of the answer


@pytest.mark.parametrize(
    "answer, value",
    [
        ("[10, 10, 20, 20]", 1),
        ("[[10, 10, 20, 20]]", 1),
        ("x [10,10,\n20,20] [0, 0, 1, 1]", 1),
        ("[0, 0, 1, 1] [10, 10, 20, 20]", 0),
        ("[ 10, 10, 20, 20]", 0),
        ("[10, 10, 20, 20 ]", 0),
        ("[10 , 10, 20, 20]", 0),
        ("[10.0, 10.0, 20.0, 20.0]", 0),
        ("[-10, 10, 20, 20]", 0),
        ("10, 10, 20, 20", 0),
        ("[" + "9" * 5000 + ", 1, 2, 3]", 0),
        ("[10, 10, 10, 10]", 0),
    ],
)
def test_which_boxes_are_read(answer, value):
    assert vlm_r1.iou(Case(completion=tagged(answer), answer=[10, 10, 20, 20])) == value


def test_the_first_tag_counts_for_one_box_and_the_last_for_detection():
    right, wrong = "[10, 10, 20, 20]", "[50, 50, 60, 60]"
    assert vlm_r1.iou(Case(completion=tagged(right) + tagged(wrong), answer=[10, 10, 20, 20])) == 1
    assert vlm_r1.iou(Case(completion=tagged(wrong) + tagged(right), answer=[10, 10, 20, 20])) == 0
    good, bad = block([obj(10, 10, 20, 20)]), block([obj(50, 50, 60, 60)])
    truth = [obj(10, 10, 20, 20)]
    assert vlm_r1.ap(Case(completion=tagged(good) + tagged(bad), answer=truth)) == 0
    assert vlm_r1.ap(Case(completion=tagged(bad) + tagged(good), answer=truth)) == pytest.approx(1)
    assert vlm_r1.ap(Case(completion=tagged(bad + good), answer=truth)) == pytest.approx(1)
    assert vlm_r1.weighted_sum(Case(completion=tagged(bad + good), answer=truth)) == 0  # and the first block for this one


TRUTH = [obj(0, 0, 100, 100)]
DETECTION = [  # completion, truth, ap, od-length, weighted sum
    (tagged("None"), [], 1, 1, 1),
    (tagged("none."), [], 1, 1, 1),
    (tagged("no idea"), [], 1, 1, 0),
    ("None", [], 0, 0, 1),
    (tagged(block([])), [], 1, 1, 0),
    (tagged(block(TRUTH)), [], 0, 0, 0),
    (tagged("None"), TRUTH, 0, 0, 0),
    (tagged(block(TRUTH)), TRUTH, 1, 1, 1),
    (tagged(json.dumps(TRUTH)), TRUTH, 0, 0, 0),
    (tagged(block(TRUTH).replace("json", "JSON")), TRUTH, 0, 0, 1),
    (tagged(block([*TRUTH, obj(500, 500, 600, 600)])), TRUTH, 1, 0.5, 0.7 + 0.3 * 0.75),
    (tagged(block([*TRUTH, *TRUTH])), TRUTH, 1, 0.5, 0.7 + 0.3 * 0.75),
    (tagged(block([obj(0, 0, 100, 100, label="Cat")])), TRUTH, 0, 0, 1),
    (tagged(block([obj(0, 0, 100, 100, label="dog")])), TRUTH, 0, 0, 0.3),
    (tagged(block([obj(0, 0, 100, 50)])), TRUTH, 0.1, 0.1, 0.65),
    (tagged(block([obj(0, 0, 100, 49)])), TRUTH, 0, 0, 0),
    (tagged(block([obj(100, 0, 0, 100)])), TRUTH, 0, 0, 0),
    (tagged(block([{"bbox_2d": [0, 0, 100, 100]}])), TRUTH, 0, 0, 0),
    (tagged(block([{"label": "cat"}])), TRUTH, 0, 0, 0),
    (tagged(block([obj("0", 0, 100, 100), *TRUTH])), TRUTH, 1, 0.5, 0.7 + 0.3 * 0.75),
    (tagged(block([obj(0, 0, 100, 100, 7)])), TRUTH, 1, 1, 1),
    (tagged(block(["cat", None, 3])), TRUTH, 0, 0, 0),
    (tagged(block(TRUTH[0])), TRUTH, 0, 0, 0),
    (tagged(block({"objects": TRUTH})), TRUTH, 0, 0, 0),
    (tagged(block(7)), TRUTH, 0, 0, 0),
    (tagged("```json\n[{\n```"), TRUTH, 0, 0, 0),
    (tagged(block([obj(0, 0, 100, 100, label=["cat"])])), TRUTH, 0, 0, 0),
    (tagged('```json\n[{"bbox_2d": [NaN, 0, 100, 100], "label": "cat"}]\n```'), TRUTH, 1, 1, 0),
    (tagged('```json\n[{"bbox_2d": [0, 0, 1e999, 100], "label": "cat"}]\n```'), TRUTH, 0, 0, 0),
    (tagged(block([obj(0, 0, 10**400, 100)])), TRUTH, 0, 0, 0),
]


@pytest.mark.parametrize("completion, truth, ap, length, weighted", DETECTION, ids=lambda v: repr(v)[:50])
def test_detection_by_hand(completion, truth, ap, length, weighted):
    case = Case(completion=completion, answer=truth)
    assert vlm_r1.ap(case) == pytest.approx(ap)
    assert vlm_r1.ap(case, length=True) == pytest.approx(length)
    assert vlm_r1.weighted_sum(case) == pytest.approx(weighted)


def test_a_missing_label_is_that_of_the_match_before():
    truth = [obj(0, 0, 100, 100), obj(200, 200, 300, 300)]
    bare = {"bbox_2d": [200, 200, 300, 310]}
    assert vlm_r1.weighted_sum(Case(completion=tagged(block([truth[0], bare])), answer=truth)) == pytest.approx(
        0.7 * (1 + 100 / 110) / 2 + 0.3
    )


def test_weighted_sum_matches_greedily_from_the_highest_iou():
    truth = [obj(0, 0, 100, 100), obj(0, 0, 100, 120)]
    found = [obj(0, 0, 100, 118), obj(0, 0, 100, 125)]
    first = 118 / 120  # with the second true box; what is left is 100 / 125
    assert vlm_r1.weighted_sum(Case(completion=tagged(block(found)), answer=truth)) == pytest.approx(
        0.7 * (first + 0.8) / 2 + 0.3
    )


# -- Vision-R1 ------------------------------------------------------------------------------------------------------------


def shown(*items):
    return Case(completion=block(list(items)), answer=TRUTH)


@pytest.mark.parametrize(  # the height of a box of 100 x height on one of 100 x 100 is its GIoU
    "height, none, first, second",
    [
        *((100, 1, 1, 1), (91, 0.91, 1, 1), (85, 0.85, 1, 0.85), (76, 0.76, 1, 0.76), (75, 0.75, 0.75, 0.75)),
        *((60, 0.6, 0.6, 0), (50, 0.5, 0.5, 0), (49, 0.49, 0, 0)),
    ],
)
def test_the_stages_of_precision(height, none, first, second):
    case = shown(obj(0, 0, 100, height))
    for stage, value in (("none", none), ("first", first), ("second", second)):
        assert vision_r1.precision(case, stage) == pytest.approx(value)
        assert vision_r1.precision(Case(completion=case.completion, answer=TRUTH, meta={"stage": stage})) == pytest.approx(value)
    assert vision_r1.precision(case) == pytest.approx(none)
    for step, value in ((0, first), (1499, first), (1500, second)):
        assert vision_r1.precision(Case(completion=case.completion, answer=TRUTH, meta={"step": step})) == pytest.approx(value)


@pytest.mark.parametrize(
    "found, none, first, second", [(0, 0, 0, 0), (1, 0.25, 0, 0), (2, 0.5, 0.5, 0.5), (3, 0.75, 0.75, 0.75), (4, 1, 1, 1)]
)
def test_the_stages_of_recall(found, none, first, second):
    truth = [obj(200 * i, 0, 200 * i + 100, 100) for i in range(4)]
    far = obj(0, 900, 100, 990)
    case = Case(completion=block([*truth[:found], far]), answer=truth)
    assert [vision_r1.recall(case, stage) for stage in ("none", "first", "second")] == pytest.approx([none, first, second])
    close = Case(completion=block([obj(200 * i, 0, 200 * i + 100, 70) for i in range(4)]), answer=truth)  # GIoU 0.7
    assert [vision_r1.recall(close, stage) for stage in ("none", "first", "second")] == pytest.approx([1, 1, 0])


@pytest.mark.parametrize(
    "completion, precision, recall",
    [
        (block(TRUTH), 1, 1),
        (json.dumps(TRUTH), 1, 1),
        ("```json " + json.dumps(TRUTH) + "\n```", 1, 1),  # its first line is dropped, and the pattern finds it
        ("```json[]\n" + json.dumps(TRUTH), 1, 1),
        ("Here: " + json.dumps(TRUTH), 1, 1),
        ("Here: " + json.dumps(TRUTH).replace(", ", ","), 0, 0),
        (json.dumps([obj(0.9, 0.2, 100.7, 100)]), 1, 1),  # cut to whole numbers
        (json.dumps([obj("0", "0", "100", "100")]), 1, 1),
        (json.dumps([obj(100, 0, 0, 100)]), 0, 0),
        (json.dumps([{"bbox_2d": [0, 0, 100, 100]}]), 1, 1),
        (json.dumps([obj(0, 0, 100, 100, label=None)]), 1, 1),
        (json.dumps([obj(0, 0, 100, 100, label="dog"), obj(500, 500, 600, 600)]), 1, 1),
        (json.dumps([obj(500, 500, 600, 600)]), 0, 0),
        (json.dumps(TRUTH[0]), 1, 1),  # no list, and the pattern finds it
        ("[]", 0, 0),
        ("", 0, 0),
        ("[NaN]", 0, 0),
        (json.dumps([obj(0, 0, 10**30, 10)]), 0, 0),
    ],
)
def test_what_vision_r1_reads(completion, precision, recall):
    case = Case(completion=completion, answer=TRUTH)
    assert vision_r1.precision(case) == pytest.approx(precision)
    assert vision_r1.recall(case) == pytest.approx(recall)


def test_nothing_to_be_found_in_vision_r1():
    for text, found, form in (("[]", 1, 0), ("none", 1, 1), (block(TRUTH), 0, 0)):
        case = Case(completion=text, answer=[])
        assert (vision_r1.precision(case), vision_r1.recall(case), vision_r1.form(case)) == (found, found, form), text


def test_vision_r1_scales_boxes_in_float32():
    """What the released code gives; scaled in float64, the box is worth 0.704337."""
    meta = {"image_wh": [640, 480], "input_wh": [644, 476]}
    case = Case(completion=json.dumps([obj(689, 868, 692, 881)]), answer=[obj(684, 875, 688, 888)], meta=meta)
    assert vision_r1.precision(case) == pytest.approx(0.7043693661689758, abs=1e-7)


# -- VisionReasoner -------------------------------------------------------------------------------------------------------

THING = {"bbox_2d": [10, 10, 110, 110], "point_2d": [60, 60]}


@pytest.mark.parametrize(
    "items, value",
    [
        ([THING], 3),
        ([THING, THING], 1.5),
        ([{**THING, "point_2d": [60, 95]}], 2),  # too far off
        ([{**THING, "bbox_2d": [60, 60, 110, 110]}], 1),  # the point is on its own box's corner
        ([{**THING, "bbox_2d": [61, 61, 110, 110]}], 0),  # and now outside it
        ([{**THING, "bbox_2d": [10, 10, 110, 149]}], 3),  # 39 / 4 is less than 10
        ([{**THING, "bbox_2d": [10, 10, 110, 150]}], 2),
        ([{"bbox_2d": [10, 10, 110, 110]}], 0),
        ([THING, {"bbox_2d": [1, 1, 2, 2]}], 0),
        ([{**THING, "bbox_2d": [10, 10, 110]}], 0),
        ([{**THING, "bbox_2d": ["10", "10", "110", "110"]}], 0),
        ([{**THING, "bbox_2d": [True, True, True, False]}], 0),
        ([{**THING, "bbox_2d": [None, 1, 2, 3]}], 0),
        ([THING, {**THING, "bbox_2d": [None, 1, 2, 3]}], 0),
        ([THING, {**THING, "point_2d": [None, 1]}], 0),
        ([THING, {**THING, "point_2d": [10**30, 1]}], 0),
        ([], 0),
        (THING, 0),
        ("text", 0),
        (3, 0),
        ([THING] * 500, 3 / 120),
    ],
)
def test_vision_reasoners_accuracy_by_hand(items, value):
    assert vision_reasoner.accuracy(Case(completion=tagged(json.dumps(items)), answer=[THING])) == pytest.approx(value)


@pytest.mark.parametrize(
    "answer, value",
    [
        ([THING], 3),
        ([THING, {}], 2),
        ([{"bbox_2d": [1]}, THING], 2),
        ([THING, 5, THING], 1 + 2 / 3),  # the code breaks off at 5
        ({"bbox_2d": [1, 2, 3, 4]}, 1),
        ("bbox", 1),
        (None, 1),
        ([], 1),
    ],
)
def test_vision_reasoners_format_by_hand(answer, value):
    assert vision_reasoner.form(Case(completion=tagged(json.dumps(answer)))) == pytest.approx(value)
    assert vision_reasoner.form(Case(completion=tagged(json.dumps(answer)) + "\n")) == pytest.approx(value - 1)


@pytest.mark.parametrize(
    "text, value", [("", 1), ("a. b. a.", 1), ("a. a. a.", 0), ("a. b. a. b", 0), ("a! a! a!", 1), (". . . .", 1), ("a.a . a", 0)]
)
def test_saying_nothing_thrice(text, value):
    assert vision_reasoner.non_repeat(Case(completion=text)) == value


# -- Visual-RFT -----------------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["<answer>", "</answer>", "a", "\n", "[[1]]"]), max_size=9).map("".join))
def test_visual_rfts_answer_is_what_its_pattern_finds(text):
    """`re.search(r"<answer>(.*?)</answer>")`, which takes quadratic time, in a list of one box."""
    box = "{'Position': [0, 0, 9, 9], 'Confidence': 0.5}"
    text = text.replace("a", f"[{box}]")
    match = re.search(r"<answer>(.*?)</answer>", text)
    inside = match[1] if match else text
    whole = f"<answer>{inside.strip()}</answer>" if match else text
    assert visual_rft._listed(text) == visual_rft._listed(whole)


@pytest.mark.parametrize(
    "text", ["<answer>" * 25_000, "<answer>" + "[" * 200_000 + "]", "<answer>[{'Position': [NaN, 0, 1, 1], 'Confidence': NaN}]"]
)
def test_visual_rfts_rewards_end_at_once_whatever_is_said(text):
    case = Case(completion=text, answer=[obj(0, 0, 9, 9)])
    assert visual_rft.iou(case) == 0.0 and visual_rft.confidence(case) == 0.0


@pytest.mark.parametrize("numbers", [["0", "0", "9", "9"], [0, 0, 9, "9"], [0, 0, 9, None], [[0], [0], [9], [9]], "0099"])
def test_visual_rft_reads_no_numbers_in_quotes(numbers):
    """A text is compared with a number there, which raises."""
    case = Case(completion=tagged([{"Position": numbers, "Confidence": 0.5}]), answer=[obj(0, 0, 9, 9)])
    assert visual_rft.iou(case) == 0.0 == visual_rft.confidence(case)


RELEASED = [  # (boxes with confidences, objects, IoU, confidence) as the released code gives them
    ([([110, 110, 310, 310], 0.9), ([100, 100, "5", 300], 0.25)], [obj(100, 100, 300, 300)], 0.41116173120728927, 0.825),
    ([("1234", 0.25)], [], 0.0, 0.75),
    ([([110, 110, 310, 310], 1e999)], [obj(100, 100, 300, 300)], 0.8223234624145785, 1.0),
    ([([0, 0, 10**400, 9], 0), ([100, 100, 300, 300], 1)], [obj(100, 100, 300, 300), obj(500, 500, 700, 900)], 0.5, 1.0),
]


@pytest.mark.parametrize("said, truth, iou, confidence", RELEASED, ids=["after the last", "no objects", "infinite", "long"])
def test_visual_rft_reads_what_it_needs(said, truth, iou, confidence):
    items = [{"Position": box, "Confidence": sure} for box, sure in said]
    case = Case(completion=tagged(json.dumps(items)), answer=truth)
    assert (visual_rft.iou(case), visual_rft.confidence(case)) == pytest.approx((iou, confidence))


def test_visual_rft_sorts_a_confidence_that_is_no_number_as_python_does():
    """The first box is read before the last, whose order the NaN keeps: 0.9 of four boxes is what the released code gives."""
    said = [([100, 100, 300, 280], 0.1), ([0, 0, 9, 9], 0.5), ([100, 100, 300, 300], "NaN"), ([100, 100, 300, 220], 0.5)]
    items = ", ".join(f"{{'Position': {box}, 'Confidence': {sure}}}" for box, sure in said)
    case = Case(completion=f"<answer>[{items}]</answer>", answer=[obj(100, 100, 300, 300)])
    assert visual_rft.iou(case) == pytest.approx(0.9 / 4)
