"""Our verifiers: right and wrong answers in every form and coordinate format, what can be won by cheating, episodes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_gui import verifiers

from mmrl import Case, CoordinateFormat
from mmrl.api.simulators.gui import Action

BOX = [40, 30, 80, 50]
SIZE = ((400, 300),)


def case(completion, answer=BOX, **more):
    return Case(completion=completion, answer=answer, **{"image_sizes": SIZE, **more})


HITS = [
    "60 40",
    "(60, 40)",
    "x: 60, y: 40",
    "[60, 40]",
    '{"point_2d": [60, 40]}',
    '[{"point_2d": [60, 40], "label": "button"}]',
    '{"x": 60, "y": 40}',
    '{"action": "click", "coordinate": [60, 40]}',
    '```json\n{"bbox_2d": [50, 35, 70, 45]}\n```',
    "40 30 80 50",
    "click 60 40",
    "<think>Here: [1, 2]</think><answer>60 40</answer>",
    "<think>t</think> <answer>[{'action': 'click', 'coordinate': [60, 40]}]</answer>",
    "It is here: [60, 40].",
    "Thought: It is at 3, 4.\nAction: click(start_box='<|box_start|>(60,40)<|box_end|>')",
    "Action: click(point='<point>60 40</point>')",
    "pyautogui.click(x=60, y=40)",
    "40 30",
    "80 50",
]


@pytest.mark.parametrize("text", HITS)
def test_a_hit_in_every_form(text):
    assert verifiers.hit(case(text)).value == 1
    assert verifiers.hit(case(text, {"box": BOX})).value == verifiers.hit(case(text, {"bbox": BOX})).value == 1
    assert verifiers.hit(case(text, [[300, 200, 310, 210], BOX])).value == 1


MISSES = [
    "",
    "39 40",
    "81 40",
    "60 29",
    "60 51",
    "here",
    "60",
    "60 40 1",
    "60 40 60 40",
    "60 40\n100 100",
    "[60, 40], [1, 2]",
    "60 nan",
]
MISSES += [
    '[{"point_2d": [60, 40]}, {"point_2d": [61, 40]}]',
    "<answer>60 40</answer><answer>60 40</answer>",
    "At 3 and 4: [60, 40]",
    "Action: click(start_box='(60,40)')\nAction: click(start_box='(60,40)')",
    "Action: type(content='60 40')",
]


@pytest.mark.parametrize("text", MISSES)
def test_a_miss_in_every_form(text):
    assert verifiers.hit(case(text)).value == 0


@settings(max_examples=300, deadline=None)
@given(st.floats(-50, 450), st.floats(-50, 350))
def test_a_hit_is_what_screenspot_calls_one(x, y):
    x, y = round(x, 3), round(y, 3)
    inside = BOX[0] <= x <= BOX[2] and BOX[1] <= y <= BOX[3]
    assert verifiers.hit(case(f"{x} {y}")).value == inside
    thousandths = case(
        f'{{"point_2d": [{x / 400 * 1000!r}, {y / 300 * 1000!r}]}}', coordinate_format=CoordinateFormat.THOUSANDTHS
    )
    if abs(x - 40) > 1e-6 and abs(x - 80) > 1e-6 and abs(y - 30) > 1e-6 and abs(y - 50) > 1e-6:
        assert verifiers.hit(thousandths).value == inside


def test_the_numbers_are_those_of_the_frame():
    seen = {"model_sizes": ((200, 100),)}
    for text, frame in (
        ("30 13", CoordinateFormat.MODEL_PIXELS),
        ("150 133", CoordinateFormat.THOUSANDTHS),
        ("0.15 0.133", CoordinateFormat.UNIT),
        ("60 40", CoordinateFormat.PIXELS),
    ):
        assert verifiers.hit(case(text, coordinate_format=frame, **seen)).value == 1
        assert verifiers.hit(case(text, meta={"answer_frame": frame.value}, **seen)).value == 1
    grid = {"meta": {"grid": [10, 10]}}
    assert [verifiers.hit(case(text, **grid)).value for text in ("1 1", "0 1", "1 0", "60 40")] == [1, 0, 0, 0]
    small = [205, 155, 208, 158]  # the middle of no cell is in it
    assert [verifiers.hit(case(text, small, **grid)).value for text in ("5 5", "4 5", "6 5")] == [1, 0, 0]


def test_a_second_picture_can_be_meant():
    two = Case(completion="150 150", answer=[100, 100, 200, 200], image_sizes=((10, 10), (1000, 1000)), meta={"picture": 1})
    assert verifiers.hit(two).value == 1


def test_of_several_points_the_first_may_count():
    text = '<think>[9, 9]</think>\n[{"point_2d": [60, 40]}, {"point_2d": [1, 1]}]'
    assert verifiers.hit(case(text), first=True).value == 1 and verifiers.hit(case(text)).value == 0
    other = '<think>t</think>\n[{"point_2d": [1, 1]}, {"point_2d": [60, 40]}]'
    assert verifiers.hit(case(other), first=True).value == 0
    assert verifiers.hit(case("\n".join([text] * 2)), first=True).value == 0


def test_iou_and_size():
    assert verifiers.iou(case("40 30 80 50")).value == 1 == verifiers.size_aware(case("40 30 80 50")).value
    assert verifiers.iou(case("40 30 60 50")).value == pytest.approx(0.5)
    assert verifiers.iou(case("40 30 60 50"), threshold=0.6).value == 0
    for text in (
        "60 40",
        "80 50 40 30",
        "40 30 40 50",
        "40 30 80 900",
        "nothing",
        '[{"bbox_2d": [40, 30, 80, 50]}] [1, 2, 3, 4]',
    ):
        assert verifiers.iou(case(text)).value == verifiers.size_aware(case(text)).value == 0
    half = verifiers.size_aware(case("50 35 70 45"))
    assert half.parts == {"hit": 1, "iou": pytest.approx(0.25), "size": pytest.approx(0.5)}
    assert half.value == pytest.approx((1 + 0.25 * 0.25 + 0.125 * 0.5) / 1.375)
    assert verifiers.size_aware(case("200 200 240 220")).value == 0  # GUI-G1 pays for the size of a box that is elsewhere


@settings(max_examples=200, deadline=None)
@given(st.tuples(*[st.integers(0, 400), st.integers(0, 300)] * 2))
def test_no_box_earns_more_than_the_true_one(four):
    x1, y1, x2, y2 = four
    value = verifiers.size_aware(case(f"{x1} {y1} {x2} {y2}")).value
    assert 0 <= value <= 1 and (value < 1 or [x1, y1, x2, y2] == BOX)


# -- actions ----------------------------------------------------------------------------------------------------------------


def step(completion, true, box=None, **more):
    return Case(completion=completion, answer={"action": true, "box": box}, image_sizes=SIZE, **more)


CLICK = {"kind": "click", "at": [60, 40]}
STEPS = [
    ("click 41 31", CLICK, BOX, 1),
    ("click 39 31", CLICK, BOX, 0),
    ("long-press 60 40", CLICK, BOX, 0),
    ("click 115 40", CLICK, None, 1),  # 0.1375 of the width
    ("click 117 40", CLICK, None, 0),
    ("click 60 81", CLICK, None, 1),
    ("click 100 75", CLICK, None, 0),  # hypot(0.1, 0.117)
    ("type Hello  World", {"kind": "type", "text": "hello world"}, None, 1),
    ("type hello", {"kind": "type", "text": "hello world"}, None, 0),
    ("scroll down", {"kind": "scroll", "direction": "down"}, None, 1),
    ("scroll up", {"kind": "scroll", "direction": "down"}, None, 0),
    ("scroll 3 3 down", {"kind": "scroll", "direction": "down", "at": [200, 200]}, None, 1),
    ("wait", {"kind": "wait"}, None, 1),
    ("back", {"kind": "wait"}, None, 0),
    ("open clock", {"kind": "open", "text": "Clock"}, None, 1),
    ("key enter", {"kind": "key", "text": "Enter"}, None, 1),
    ("drag 60 40 200 200", {"kind": "drag", "at": [50, 40], "to": [210, 200]}, BOX, 1),
    ("drag 60 40 300 200", {"kind": "drag", "at": [50, 40], "to": [210, 200]}, BOX, 0),
    ("drag 10 10 210 200", {"kind": "drag", "at": [50, 40], "to": [210, 200]}, BOX, 0),
    ("drag 210 200", {"kind": "drag", "at": [50, 40], "to": [210, 200]}, BOX, 0),
    ("drag 200 200", {"kind": "drag", "to": [210, 200]}, None, 1),
    ("drag 300 200", {"kind": "drag", "to": [210, 200]}, None, 0),
    ("drag 50 40 210 200", {"kind": "drag", "to": [210, 200]}, None, 0),
    ("nothing", CLICK, BOX, 0),
    ("", {"kind": "wait"}, None, 0),
    # a swipe scrolls the other way, along its longer side
    ("drag 200 250 210 50", {"kind": "scroll", "direction": "down"}, None, 1),
    ("drag 200 50 210 250", {"kind": "scroll", "direction": "down"}, None, 0),
    ("drag 50 50 350 40", {"kind": "scroll", "direction": "left"}, None, 1),
    ("drag 210 200", {"kind": "scroll", "direction": "down"}, None, 0),
    # the end of an episode, in the words of each system
    ('{"action": "terminate", "status": "success"}', {"kind": "answer", "text": "complete"}, None, 1),
    ("Action: finished()", {"kind": "answer", "text": "complete"}, None, 1),
    ("Action: call_user()", {"kind": "answer", "text": "infeasible"}, None, 1),
    ('{"action": "terminate", "status": "failure"}', {"kind": "answer", "text": "complete"}, None, 0),
    ("Action: finished()", {"kind": "answer", "text": "7 days"}, None, 0),
]


@pytest.mark.parametrize("text, true, box, right", STEPS, ids=[s[0] for s in STEPS])
def test_a_step_is_right_or_wrong(text, true, box, right):
    found = verifiers.action(step(text, true, box))
    assert found.value == right
    assert (
        verifiers.action(Case(completion=text, answer="x", meta={"true": {"action": true, "box": box}}, image_sizes=SIZE)).value
        == right
    )
    graded = verifiers.action(step(text, true, box), graded=True).value
    assert (graded == 1) == bool(right) and graded in (0, 0.5, 1)
    assert graded >= 0.5 * verifiers.action_type(step(text, true, box)).value


def test_the_parts_are_those_that_the_true_action_has():
    assert verifiers.action(step("click 1 1", CLICK, BOX)).parts == {"type": 1, "grounding": 0}
    assert verifiers.action(step("wait", CLICK, BOX)).parts == {"type": 0, "grounding": 0}
    assert verifiers.action(step("no", {"kind": "type", "text": "a"})).parts == {"type": 0, "text": 0}
    assert verifiers.action(step("scroll up", {"kind": "scroll", "direction": "down"})).parts == {"type": 1, "direction": 0}
    assert verifiers.action(step("wait", {"kind": "wait"})).parts == {"type": 1}


def test_words_may_be_near_enough():
    true = {"kind": "type", "text": "new york city"}
    assert verifiers.action(step("type new york", true)).value == 0
    assert verifiers.action(step("type new york", true), text="f1").value == 1
    assert verifiers.action(step("type york", true), text="f1").value == 1  # F1 of just 0.5
    assert verifiers.action(step("type boston", true), text="f1").value == 0
    assert verifiers.action(step("open new york", {"kind": "open", "text": "new york city"}), text="f1").value == 0
    assert verifiers.f1("a a b", "b a") == 1 and verifiers.f1("", "") == 1 and verifiers.f1("a", "") == 0


def test_the_cell_nearest_to_a_small_element_is_right():
    small, true = [205, 155, 208, 158], {"kind": "click", "at": [206, 156]}
    meta = {"grid": [10, 10]}
    assert [verifiers.action(step(f"click {c}", true, small, meta=meta)).value for c in ("5 5", "4 5", "5 6")] == [1, 0, 0]


# -- the form ---------------------------------------------------------------------------------------------------------------

TAGGED = "<think>t</think>\n<answer>{}</answer>"
FORMS = [
    ("short", "point", "1 2", 1),
    ("short", "point", "1 2 3 4", 0),
    ("short", "point", "[1, 2]", 0),
    ("short", "box", "1 2 3 4", 1),
    ("json", "point", '{"point_2d": [1, 2]}', 1),
    ("json", "point", '```json\n{"point_2d": [1, 2]}\n```', 1),
    ("json", "point", 'Here: {"point_2d": [1, 2]}', 0),
    ("json", "point", "1 2", 0),
    ("json", "box", '{"bbox_2d": [1, 2, 3, 4]}', 1),
    ("json", "box", '{"bbox_2d": [3, 4, 1, 2]}', 0),
    ("json", "action", '{"action": "wait"}', 1),
    ("json", "action", "wait", 0),
    ("json", "action", '{"action": "fly"}', 0),
    ("brief", "action", "wait", 1),
    ("brief", "action", '{"action": "wait"}', 0),
    ("brief", "point", "click 1 2", 1),
    ("tags", "action", TAGGED.format('{"action": "wait"}'), 1),
    ("tags", "action", '{"action": "wait"}', 0),
    ("tags", "action", '<answer>{"action": "wait"}</answer>', 0),
    ("tags", "action", TAGGED.format('{"action": "wait"}') + " ok", 0),
    ("tags", "action", TAGGED.format("wait"), 0),
    ("tags", "action", '<think></think><answer>{"action": "wait"}</answer>', 0),
    ("json", "action", "", 0),
    ("ui-tars", "action", "Thought: t\nAction: wait()", 1),
    ("ui-tars", "action", "Thought: t\nmore\n\nAction: click(start_box='(1,2)')", 1),
    ("ui-tars", "point", "Thought: t\nAction: click(start_box='(1,2)')", 1),
    ("ui-tars", "action", "Action: wait()", 0),
    ("brief", "action", "Thought: t\nAction: wait()", 0),
    ("brief", "action", "pyautogui.click(1, 2)", 0),
    ("brief", "action", "type a=b(c)", 1),
    ("short", "point", "click(start_box='(1,2)')", 0),
    ("ui-tars", "action", "Thought: \nAction: wait()", 0),
    ("ui-tars", "action", "Thought: t\nAction: wait", 0),
    ("ui-tars", "action", "Thought: t\nAction: wait()\nAction: wait()", 0),
    ("ui-tars", "action", '{"action": "wait"}', 0),
]


@pytest.mark.parametrize("style, asks, text, right", FORMS, ids=[f"{s}-{a}-{t[:20]}" for s, a, t, _ in FORMS])
def test_the_form_is_the_one_that_was_asked_for(style, asks, text, right):
    assert verifiers.form(case(text, meta={"style": style, "asks": asks})).value == right


# -- episodes ---------------------------------------------------------------------------------------------------------------


def test_an_episode_is_worth_what_came_of_it():
    won = Case(completion="wait", outcome={"success": 1.0, "raw_reward": 1.0, "reward": 0.7, "steps": 2.0})
    assert (verifiers.success(won).value, verifiers.raw_reward(won), verifiers.decayed_reward(won)) == (1, 1, 0.7)
    lost = Case(completion="wait", outcome={"success": 0.0, "raw_reward": -3.0, "reward": -1.0})
    assert (verifiers.success(lost).value, verifiers.raw_reward(lost), verifiers.decayed_reward(lost)) == (0, -1, -1)
    nothing = Case(completion="")
    assert (verifiers.success(nothing).value, verifiers.raw_reward(nothing), verifiers.decayed_reward(nothing)) == (0, -1, -1)


def test_actions_are_plain_data_in_answers():
    assert verifiers.of_data({"kind": "click", "at": [1, 2]}) == Action(kind="click", at=(1, 2))
    assert verifiers.of_data("pyautogui.click(x=1, y=2)") == Action(kind="click", at=(1, 2))
    with pytest.raises(ValueError, match="not an object"):
        verifiers.of_data(["click"])
