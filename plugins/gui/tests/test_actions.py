"""What completions say, as actions: every form, places in every coordinate format, and hostile text."""

import contextlib
import json
import random
import string
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_gui.actions import FILLS, POINTED, STYLES, as_data, listed, of_data, read, write
from mmrl_gui.asking import _BRIEF, _JSON, language
from mmrl_gui.coordinates import Numbers, numbers_for
from mmrl_gui.names import KINDS, SAME, SELECT, WITH_SELECT, NoAction, key_of

from mmrl import CoordinateFormat, ImageProcessing
from mmrl.api.simulators.gui import ACTION_KINDS, DIRECTIONS, Action, Element
from mmrl.api.verifiers import parse

ELEMENTS = [Element(box=(0, 0, 10, 10), role="button", text="Save"), Element(box=(10, 20, 30, 40), role="link", icon=True)]
CLICK = Action(kind="click", at=(12, 40))

FORMS = [
    ('{"action": "click", "x": 12, "y": 40}', CLICK),
    ("click 12 40", CLICK),
    ("click (12, 40)", CLICK),
    ("click(12,40)", CLICK),
    ("Action: tap 12 40", CLICK),
    ('<answer>{"action_type": "click", "x": 12, "y": 40}</answer>', CLICK),
    ('<think>[1, 2] it is there</think>\n<answer>```json\n{"action": "tap", "coordinate": [12, 40]}\n```</answer>', CLICK),
    ("<think>t</think><answer>[{'action': 'click', 'point': [12, 40], 'input_text': 'no input text'}]</answer>", CLICK),
    ('<tool_call>{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [12, 40]}}</tool_call>', CLICK),
    ('{"name": "computer_use", "arguments": "{\\"action\\": \\"left_click\\", \\"coordinate\\": [12, 40]}"}', CLICK),
    ('{"thought": "there", "action": {"action_type": "click", "x": 12, "y": 40}}', CLICK),
    ('I click on it. {"action": "click", "point_2d": [12, 40]}', CLICK),
    ('{"action": "click", "bbox_2d": [2, 30, 22, 50]}', CLICK),
    ('{"action": "click", "point": "<point>12 40</point>"}', CLICK),
    ('{"type": "click", "x": 12.0, "y": 40.0}', CLICK),
    ("double-click 12 40", Action(kind="double-click", at=(12, 40))),
    ('{"action_type": "double_tap", "x": 12, "y": 40}', Action(kind="double-click", at=(12, 40))),
    ('{"action_type": "long_press", "x": 12, "y": 40}', Action(kind="long-press", at=(12, 40))),
    ("drag 1 2 3 4", Action(kind="drag", at=(1, 2), to=(3, 4))),
    ('{"action": "drag", "x": 1, "y": 2, "to_x": 3, "to_y": 4}', Action(kind="drag", at=(1, 2), to=(3, 4))),
    ('{"action": "swipe", "coordinate": [1, 2], "coordinate2": [3, 4]}', Action(kind="drag", at=(1, 2), to=(3, 4))),
    ('{"action": "drag", "x1": 1, "y1": 2, "x2": 3, "y2": 4}', Action(kind="drag", at=(1, 2), to=(3, 4))),
    ("drag 3 4", Action(kind="drag", to=(3, 4))),
    ('{"action": "left_click_drag", "coordinate": [3, 4]}', Action(kind="drag", to=(3, 4))),
    (
        '{"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]}',
        Action(kind="drag", at=(1, 2), to=(3, 4)),
    ),
    ('{"action": "drag", "from": [1, 2], "to": [3, 4]}', Action(kind="drag", at=(1, 2), to=(3, 4))),
    ('{"action": "drag", "start_box": "(1,2)", "end_box": "(3,4)"}', Action(kind="drag", at=(1, 2), to=(3, 4))),
    ('{"action": "drag", "start_x": 1, "start_y": 2, "end_x": 3, "end_y": 4}', Action(kind="drag", at=(1, 2), to=(3, 4))),
    ('{"action": "left_click_drag", "start_coordinate": null, "coordinate": [3, 4]}', Action(kind="drag", to=(3, 4))),
    ('{"action_type": "DRAG_TO", "parameters": {"x": 3, "y": 4}}', Action(kind="drag", to=(3, 4))),
    ("right-click 12 40", Action(kind="right-click", at=(12, 40))),
    ('{"action": "right_click", "coordinate": [12, 40]}', Action(kind="right-click", at=(12, 40))),
    ('{"action": "right_single", "point": "<point>12 40</point>"}', Action(kind="right-click", at=(12, 40))),
    ('{"action_type": "CLICK", "parameters": {"x": 12, "y": 40, "button": "right"}}', Action(kind="right-click", at=(12, 40))),
    ('{"action": "mouse_move", "coordinate": [12, 40]}', Action(kind="hover", at=(12, 40))),
    (
        '{"action": "scroll", "coordinate": [5, 6], "scroll_direction": "up", "scroll_amount": 3}',
        Action(kind="scroll", at=(5, 6), direction="up"),
    ),
    ("scroll down", Action(kind="scroll", direction="down")),
    ("scroll 5 6 UP", Action(kind="scroll", at=(5, 6), direction="up")),
    ("swipe up", Action(kind="scroll", direction="down")),
    ('{"action_type": "scroll", "direction": "Left "}', Action(kind="scroll", direction="left")),
    ('{"action": "scroll", "coordinate": [5, 6], "pixels": -120}', Action(kind="scroll", at=(5, 6), direction="down")),
    ("[{'action': 'scroll', 'point': [-100, -100], 'input_text': 'up'}]", Action(kind="scroll", direction="up")),
    ("type hello, {you}", Action(kind="type", text="hello, {you}")),
    ('type " two\\nlines "', Action(kind="type", text=" two\nlines ")),
    ('{"action_type": "input_text", "text": "hello"}', Action(kind="type", text="hello")),
    ("[{'action': 'type', 'point': [-100, -100], 'input_text': 'hello'}]", Action(kind="type", text="hello")),
    ('{"action": "type", "text": 42}', Action(kind="type", text="42")),
    ("key ctrl+a", Action(kind="key", text="Control+a")),
    ('{"action": "key", "keys": ["ctrl", "shift", "Return"]}', Action(kind="key", text="Control+Shift+Enter")),
    ('{"action_type": "keyboard_enter"}', Action(kind="key", text="Enter")),
    ('{"action": "system_button", "button": "Back"}', Action(kind="back")),
    ('{"action": "system_button", "button": "Enter"}', Action(kind="key", text="Enter")),
    ("wait", Action(kind="wait")),
    ('{"action": "wait", "time": 2}', Action(kind="wait")),
    ("back", Action(kind="back")),
    ('{"action_type": "navigate_back"}', Action(kind="back")),
    ('{"action_type": "navigate_home"}', Action(kind="home")),
    ('{"action_type": "open_app", "app_name": "Clock"}', Action(kind="open", text="Clock")),
    ("open Clock", Action(kind="open", text="Clock")),
    ('{"action": "terminate", "status": "success"}', Action(kind="answer", text="success")),
    ("answer 7 days", Action(kind="answer", text="7 days")),
    ('{"action": "complete", "point": [-100, -100], "input_text": "no input text"}', Action(kind="answer", text="done")),
]


def of(kind, *at, **more):
    return Action(kind=kind, at=at or None, **more)


PUBLISHED = [  # UI-TARS 1, 1.5 and 2: codes/ui_tars/action_parser.py
    ("Thought: There, at 3, 4.\nAction: click(start_box='(12,40)')", CLICK),
    ("Thought: t\nAction: click(start_box='<|box_start|>(12,40)<|box_end|>')", CLICK),
    ("Action: click(point='<point>12 40</point>')", CLICK),
    ("click(start_box='[2, 30, 22, 50]')", CLICK),
    ("Action: left_double(start_box='(12,40)')", of("double-click", 12, 40)),
    ("Action: right_single(start_box='(12,40)')", of("right-click", 12, 40)),
    ("Action: drag(start_box='(1,2)', end_box='(3,4)')", of("drag", 1, 2, to=(3, 4))),
    ("Action: drag(start_point='<point>1 2</point>', end_point='<point>3 4</point>')", of("drag", 1, 2, to=(3, 4))),
    ("Action: hotkey(key='ctrl c')", of("key", text="Control+c")),
    ("Action: type(content='hello\\n')", of("type", text="hello\n")),
    ("Action: type(content='it's')", of("type", text="it's")),
    ("Action: type(content='it\\'s (a) \\\\ = \"1\"')", of("type", text='it\'s (a) \\ = "1"')),
    ("Action: scroll(start_box='(1,2)', direction='down')", of("scroll", 1, 2, direction="down")),
    ("Action: wait()", of("wait")),
    ("Action: finished()", of("answer", text="done")),
    ("Action: finished(content='7 days')", of("answer", text="7 days")),
    ("Action: call_user()", of("answer", text="infeasible")),
    # OSWorld's pyautogui and computer_13, AGUVIS
    ("pyautogui.click(12, 40)", CLICK),
    ("```python\nimport pyautogui\nimport time\npyautogui.click(x=12, y=40)\ntime.sleep(1)\n```", CLICK),
    ("pyautogui.click(x=12, y=40, clicks=2)", of("double-click", 12, 40)),
    ("pyautogui.tripleClick(12, 40)", of("triple-click", 12, 40)),
    ("pyautogui.click(12, 40, button='middle')", of("middle-click", 12, 40)),
    ("pyautogui.moveTo(12, 40)", of("hover", 12, 40)),
    ("pyautogui.moveTo(1, 2)\npyautogui.dragTo(3, 4, duration=1.0, button='left')", of("drag", 1, 2, to=(3, 4))),
    ("pyautogui.dragTo(3, 4)", of("drag", to=(3, 4))),
    ("pyautogui.scroll(-5, x=1, y=2)", of("scroll", 1, 2, direction="down")),
    ("pyautogui.hscroll(5)", of("scroll", direction="right")),
    ("Action: Scroll.\npyautogui.scroll(page=0.5)", of("scroll", direction="up")),
    ("pyautogui.typewrite('hi', interval=0.1)", of("type", text="hi")),
    ("pyautogui.hotkey('ctrl', 'shift', 'c')", of("key", text="Control+Shift+c")),
    ("pyautogui.press(keys=['enter'])", of("key", text="Enter")),
    ("pyautogui.press(keys='enter')", of("key", text="Enter")),
    ("mobile.swipe(from_coord=[0.5, 0.8], to_coord=[0.5, 0.2])", of("drag", 0.5, 0.8, to=(0.5, 0.2))),
    ("mobile.open_app(app_name='Clock')", of("open", text="Clock")),
    ("answer('7')", of("answer", text="7")),
    ("DONE", of("answer", text="done")),
    ('{"action_type": "FAIL"}', of("answer", text="infeasible")),
    ('{"action_type": "CLICK", "parameters": {"x": 12, "y": 40, "num_clicks": 3}}', of("triple-click", 12, 40)),
    ('{"action_type": "SCROLL", "parameters": {"dx": 3, "dy": 0}}', of("scroll", direction="right")),
    ('{"action_type": "TYPING", "parameters": {"text": "hi"}}', of("type", text="hi")),
    # the computer-use tools of Qwen, Anthropic and OpenAI
    ('{"name": "computer_use", "arguments": {"action": "triple_click", "coordinate": [12, 40]}}', of("triple-click", 12, 40)),
    ('{"name": "computer_use", "arguments": {"action": "hscroll", "pixels": -90}}', of("scroll", direction="left")),
    ('{"action": "middle_click", "coordinate": [12, 40]}', of("middle-click", 12, 40)),
    ('{"type": "click", "button": "wheel", "x": 12, "y": 40}', of("middle-click", 12, 40)),
    ('{"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 300}', of("scroll", 1, 2, direction="down")),
    ('{"type": "scroll", "x": 1, "y": 2, "scroll_x": 300, "scroll_y": 0}', of("scroll", 1, 2, direction="right")),
    ('{"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}', of("drag", 1, 2, to=(3, 4))),
    ('{"type": "keypress", "keys": ["CTRL", "a"]}', of("key", text="Control+a")),
    ('{"type": "move", "x": 12, "y": 40}', of("hover", 12, 40)),
    # GUI-Odyssey and OS-Atlas
    ("CLICK: (12, 40)", CLICK),
    ("SCROLL: UP", of("scroll", direction="down")),  # the way of the finger, as in its data/format_converter.py
    ("PRESS_RECENT", of("key", text="Recent")),
    ("IMPOSSIBLE", of("answer", text="infeasible")),
    ("thoughts:\nthere\nactions:\nCLICK <point>[[12, 40]]</point>", CLICK),
    ("TYPE [hello]", of("type", text="hello")),
    ("SCROLL [UP]", of("scroll", direction="up")),
    ("OPEN_APP [Clock]", of("open", text="Clock")),
    ("type [hello]", of("type", text="[hello]")),
]
FORMS += PUBLISHED


@pytest.mark.parametrize("text, wanted", FORMS, ids=[text[:50] for text, _ in FORMS])
def test_a_form_is_read(text, wanted):
    assert read(text) == wanted


@pytest.mark.parametrize(
    "text, at",
    [
        ("select Two", None),
        ('select "Two"', None),
        ("SELECT [Two]", None),
        ("select('Two')", None),
        ('{"action": "choose", "text": "Two"}', None),
        ('{"action": "select", "x": 12, "y": 40, "text": "Two"}', (12, 40)),
        ('{"action": "select_option", "coordinate": [12, 40], "value": "Two"}', (12, 40)),
        ("Thought: t\nAction: select(start_box='(12,40)', content='Two')", (12, 40)),
        ('select {"action": "wait"}', None),
    ],
)
def test_an_option_is_selected_only_where_that_is_offered(text, at):
    found = read(text, names=WITH_SELECT)
    assert found == Action(kind="select", at=at, text="Two" if "Two" in text else '{"action": "wait"}')
    if "wait" in text:
        assert read(text) == Action(kind="wait"), "as if the word before it had no meaning"
        return
    with pytest.raises(NoAction):
        read(text)


@pytest.mark.parametrize("text, why", [("choose one of them", "no action in"), ("select", "no text"), ("select(x=1)", "no text")])
def test_an_option_is_named(text, why):
    with pytest.raises(NoAction, match=why):
        read(text, names=WITH_SELECT)


@pytest.mark.parametrize(
    "text, at", [("click [2]", (20, 30)), ("click 1", (5, 5)), ('{"action": "click", "element": 2}', (20, 30))]
)
def test_an_element_is_named_by_its_number(text, at):
    assert read(text, elements=ELEMENTS) == Action(kind="click", at=at)
    with pytest.raises(NoAction):
        read(text)
    with pytest.raises(NoAction, match="where drag starts is no place"):
        read('{"action": "drag", "element": 2, "to": [3, 4]}')


NONE = [
    ("", "nothing was said"),
    (" \n\t", "nothing was said"),
    ("Write a letter to the bank", "no action in 'Write a letter"),
    ("Click on the big red button", "more than an action"),
    ("click 1 2 click 3 4", "more than an action"),
    ("click 1 2\nclick 3 4", "no one action"),
    ("click 1 2 3", "3 numbers"),
    ("click", "no place"),
    ("swipe 1 2", "no place where it ends"),
    ('{"action": "drag", "x": 1e9, "y": 2, "to": [3, 4]}', "where drag starts is no place"),
    ('{"action": "drag", "at": [null, 2], "to": [3, 4]}', "where drag starts is no place"),
    ('{"action": "left_click_drag", "start_coordinate": [1], "coordinate": [3, 4]}', "where left_click_drag starts is no place"),
    ('{"action": "drag", "x": 1, "y": 2, "to": [3]}', "no place where it ends"),
    ('{"action": "drag", "x": 1, "y": 2, "to_x": null, "to_y": 3}', "no place where it ends"),
    ("scroll", "no direction"),
    ("scroll up down", "more than one direction"),
    ("type", "no text"),
    ("key", "no key"),
    ('{"action": "fly"}', "no action called 'fly'"),
    ('{"x": 1, "y": 2}', "there is no action in"),
    ('{"action": "click", "x": "here", "y": 2}', "no place"),
    ('{"action": "click", "x": NaN, "y": 2}', "no one action"),
    ('{"action": "click", "x": 1e30, "y": 2}', "no place"),
    ('{"action": "click", "x1": 1e30, "y1": 2}', "is no place"),
    ('{"action": "click", "x": true, "y": 2}', "no place"),
    ('[{"action": "wait"}, {"action": "back"}]', "2 actions in a list"),
    ('{"action": "wait"} {"action": "back"}', "no one action"),
    ("[]", "0 actions"),
    ("[1]", "is no action"),
    ("<answer>wait</answer><answer>back</answer>", "2 opening"),
    ("<answer>wait", "0 closing"),
    ("<think><answer>wait</answer></think>", "inside the thinking"),
    ("__import__('os').system('x')", "no one action"),
    ("Action: click(start_box='(1,2)')\nAction: wait()", "2 actions"),
    ("pyautogui.click(1, 2)\npyautogui.write('x')", "2 actions"),
    ("pyautogui.keyDown('ctrl')\npyautogui.click(1, 2)", "2 actions"),
    ("type(content='hello", "this call can't be read"),
    ("pyautogui.move(10, 0)", "says how far"),
    ("pyautogui.press(keys=5)", "says no key"),
    ("pyautogui.press('tab', presses=3)", "press presses several times"),
    ("pyautogui.press(['down', 'enter'])", "press presses several times"),
    ("pyautogui.click(1 + 1, 2)", "arguments of click can't be read"),
    ("pyautogui.click(1, 2, 1, 0, 'left', 7)", "6 arguments without a name"),
    ("click(start_box='(1,2)', end)", "arguments of click can't be read"),
    ('{"type": "click", "button": "back", "x": 1, "y": 2}', "the button back"),
    ('{"action": "left_click", "coordinate": [1, 2], "text": "ctrl"}', "with 'ctrl' held down"),
    ('{"action_type": "CLICK", "parameters": {"x": 1, "y": 2, "num_clicks": 9}}', "9 clicks"),
    ('{"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 0}', "no direction"),
    ("[__import__('os')]", "no one action"),
    ('{"action": "click", "element": 9}', "there is no element 9: there are 2"),
    ("click [0]", "there is no element 0"),
]


@pytest.mark.parametrize("text, why", NONE, ids=[text[:40] for text, _ in NONE])
def test_what_is_no_action_is_told_in_one_line(text, why):
    with pytest.raises(NoAction, match=why.replace("(", r"\(").replace("[", r"\[")) as told:
        read(text, elements=ELEMENTS)
    assert "\n" not in str(told.value) and len(str(told.value)) < 200


def test_where_tags_are_asked_for_there_must_be_some():
    with pytest.raises(NoAction, match="0 opening"):
        read("wait", tags=True)


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(str.strip)
PLACES = st.tuples(st.integers(0, 639), st.integers(0, 479)).map(lambda p: (float(p[0]), float(p[1])))
ACTIONS = st.one_of(
    st.builds(lambda kind, at: Action(kind=kind, at=at), st.sampled_from(POINTED), PLACES),
    st.builds(lambda at, to: Action(kind="drag", at=at, to=to), PLACES, PLACES),
    st.builds(lambda at, d: Action(kind="scroll", at=at, direction=d), st.none() | PLACES, st.sampled_from(DIRECTIONS)),
    st.builds(lambda kind, text: Action(kind=kind, text=text), st.sampled_from([*FILLS, "open", "answer"]), TEXTS),
    st.builds(lambda kind, at, text: Action(kind=kind, at=at, text=text), st.sampled_from(FILLS), PLACES, TEXTS),
    st.sampled_from([Action(kind="key", text=key) for key in ("Enter", "Control+a", "ArrowUp", "+", "F5")]),
    st.sampled_from([Action(kind=kind) for kind in ("wait", "back", "home")]),
)


@settings(max_examples=400, deadline=None)
@given(ACTIONS, st.sampled_from(["json", "brief", "ui-tars"]))
def test_what_is_written_is_read_back(action, style):
    # brief has no place for what fills a field
    written = replace(action, at=None) if style == "brief" and action.kind in FILLS else action
    assert read(write(action, style), names=WITH_SELECT) == written
    assert of_data(json.loads(json.dumps(as_data(action)))) == action


@settings(max_examples=200, deadline=None)
@given(
    PLACES,
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from([*CoordinateFormat, "grid"]),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from(["json", "brief", "ui-tars"]),
)
def test_a_place_in_a_box_stays_in_it_whatever_the_numbers(corner, width, height, frame, shrunk, style):
    size = (720, 560)
    box = (corner[0], corner[1], corner[0] + width, corner[1] + height)
    processing = ImageProcessing(
        frame if frame != "grid" else CoordinateFormat.PIXELS, lambda s: (s[0] // shrunk, s[1] // shrunk)
    )
    numbers = numbers_for(processing, size, grid=(36, 28) if frame == "grid" else None)
    at = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    said = write(Action(kind="click", at=at), style, numbers, within=box)
    found = read(said, numbers).at
    if frame == "grid":  # the middle of the cell that holds the place
        assert abs(found[0] - at[0]) <= 10 and abs(found[1] - at[1]) <= 10
        assert numbers.hits(numbers.written(at), box)
    else:
        assert box[0] <= found[0] <= box[2] and box[1] <= found[1] <= box[3]


@settings(max_examples=200, deadline=None)
@given(st.tuples(st.integers(0, 19), st.integers(0, 14)), st.tuples(st.integers(1, 20), st.integers(1, 15)))
def test_a_box_of_cells_is_the_cells_that_it_touches(corner, extent):
    numbers = Numbers(image=(200, 150), grid=(20, 15))
    x1, y1 = corner
    x2, y2 = min(20, x1 + extent[0]), min(15, y1 + extent[1])
    box = (x1 * 10, y1 * 10, x2 * 10, y2 * 10)
    assert numbers.written_box(box) == (x1, y1, x2 - 1, y2 - 1)
    assert numbers.pixels_of_box(numbers.written_box(box)) == box
    assert numbers.written_box((box[0] + 3, box[1] + 3, box[2] - 3, box[3] - 3)) == (x1, y1, x2 - 1, y2 - 1)


def test_what_a_prompt_lists_can_be_read():
    """Each form that a prompt shows, with numbers and words in the place of its letters."""
    for kind in (*ACTION_KINDS, SELECT):
        said = _BRIEF[kind].replace("up, down, left or right", "up").format(at="1 2", to="3 4")
        assert read(said, names=WITH_SELECT).kind == kind
        shown = _JSON[kind].replace("up, down, left or right", '"up"')
        for word in ("text", "key", "app", "option"):
            shown = shown.replace(f": {word}}}", f': "{word}"}}')
        assert read(shown.replace(": x", ": 1").replace(": y", ": 2"), names=WITH_SELECT).kind == kind
        call = language("ui-tars", [kind]).split("\n")[1].replace("up, down, left or right", "up")
        call = call.replace("x,y", "1,2").replace("to_1", "3").replace("to_x,to_y", "3,4")
        assert read(call, names=WITH_SELECT).kind == kind
    assert "click [n]" in language("brief", ["click"], elements=True) and '"element": n' in language(
        "json", ["click"], elements=True
    )
    assert "cells of a grid of 4 x 3" in language("brief", ["click"], Numbers(image=(8, 6), grid=(4, 3)))
    tokens = Numbers(image=(8, 6), coordinate_format=CoordinateFormat.LOCATION_TOKENS)
    listed = language("brief", ["drag"], tokens)
    assert "drag <y><x> <to_y><to_x>" in listed and "in location tokens, <loc0000> to <loc1023>" in listed


def test_a_question_with_all_forms_in_it_is_no_action():
    for style in STYLES:
        with pytest.raises(NoAction):
            read(f"What next? {language(style)}")
        assert "select" not in language(style), "it is offered by name alone"


def test_elements_are_listed_as_they_are_counted():
    assert listed(ELEMENTS) == '[1] button "Save"\n[2] link'


def test_names_of_keys():
    known = {
        "ctrl+a": "Control+a",
        "RETURN": "Enter",
        "page down": "PageDown",
        "pgdn": "PageDown",
        "ctrl shift c": "Control+Shift+c",
        "super": "Meta",
        "arrow_up": "ArrowUp",
        "left": "ArrowLeft",
        "+": "+",
    }
    assert {text: key_of(text) for text in known} == known
    assert key_of("") == key_of("a++b") == key_of("ctrl+") == ""


def test_no_name_means_two_things():
    names = [name for own in SAME.values() for name in own]
    assert len(names) == len(set(names)) == len(KINDS) and set(SAME) == set(ACTION_KINDS)
    assert {name for name in WITH_SELECT if name not in KINDS} == {"select", "select_option", "choose"}


# -- hostile text -----------------------------------------------------------------------------------------------------------

HOSTILE = {
    "long": "type " + "a" * 10_000_000,
    "nul": "\0" * 1000,
    "braces": "{" * 150_000,
    "brackets": "[" * 150_000,
    "objects": '{"a":' * 30_000,
    "closed": "[" * 9_000 + "]" * 9_000,
    "minus": "-" * 19_000 + "1",
    "plus": "1+" * 9_000 + "1",
    "parentheses": "(" * 19_000,
    "quotes": "'" * 19_000,
    "spaces": "click" + " " * 150_000 + "1",
    "digits": "click " + "9" * 150_000 + " 1",
    "fences": "```" * 50_000,
    "tags": "<answer>" * 20_000,
    "points": '{"action": "click", "point": "' + "<point>" * 10 + '"}',
    "number": '{"action": "click", "x": ' + "9" * 5000 + ', "y": 1}',
    "exponent": '{"action": "click", "x": 1e999, "y": 1}',
    "power": "[9**9**9]",
    "marks": "click 1 2" + "\u0301" * 100_000,
    "names": "e" + "\u0345\u0334" * 9_000,
    "arguments": "click(" + "a=1," * 40_000 + ")",
    "escapes": "type(content='" + "\\" * 150_001 + ")",
    "lines": "pyautogui.click(1, 2)\n" * 8_000,
    "steps": "Action:\n" * 20_000,
    "closing": "pyautogui.click(" + ")" * 150_000 + "x",
    "surrogate": "type \ud800",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_in_time_and_breaks_nothing(name):
    start = time.process_time()
    try:
        found = read(HOSTILE[name])
    except NoAction as told:
        assert "\n" not in str(told) and len(str(told)) < 300
    else:
        assert name == "surrogate" and found.kind == "type"
    assert time.process_time() - start < 2


def test_nothing_is_evaluated(tmp_path):
    """Expressions that would leave a trace if anything ran them, in a process of its own."""
    mark = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    script = f"""
from mmrl import Case
from mmrl_gui import gui_g1, gui_r1, infigui_g1, ui_r1, uishift, verifiers
from mmrl_gui.actions import read
from mmrl_gui.names import NoAction
code = {code!r}
tagged, fenced = f"<think>t</think><answer>[{{code}}]</answer>", f"```json\\n[{{code}}]\\n```"
for text in (code, f"[{{code}}]", f"{{{{'action': {{code}}}}}}", tagged, fenced):
    try:
        read(text)
    except NoAction:
        pass
    box = Case(completion=text, answer=[0, 0, 10, 10], meta={{"image_wh": [100, 100]}})
    for verify in (gui_g1.hit, gui_g1.iou, gui_g1.size, infigui_g1.aer, verifiers.hit, verifiers.iou, gui_r1.form, uishift.form):
        verify(box)
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "done\n", done.stderr
    assert not mark.exists()


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from([*string.printable, "click ", '"action"', ": ", "{", "}", "[", "]", "'", "12", "<answer>", "</answer>"])
    )
)
def test_any_text_is_an_action_or_none(parts):
    try:
        found = read("".join(parts), elements=ELEMENTS)
    except NoAction:
        return
    assert found.kind in ACTION_KINDS


@pytest.mark.parametrize("how", ["error", "always"])
def test_nobody_is_warned_of_what_a_model_writes(how):
    """Python's parser warns of odd escapes and numbers: that is no error, and nothing is said of it, or changed for others."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter(how)
        before = list(warnings.filters)
        assert parse.literal(r'"\d"') == r"\d" and parse.literal("[5]") == [5]
        assert read(r"[{'action': 'type', 'text': '\w'}]").text == r"\w"
        draw = random.Random(0)
        words = ["and", "else", "for", "if", "in", "is", "not", "or", "a", "1", "0x1f", "1.", "2e5", "3j", "1_0", "[", "]"]
        pieces = [*words, " ", '"\\d"']
        for _ in range(4000):
            with contextlib.suppress(ValueError):
                parse.literal("".join(draw.choice(pieces) for _ in range(draw.randrange(1, 7))))
        assert not [str(one.message) for one in told] and warnings.filters == before
        with pytest.raises(UserWarning) if how == "error" else contextlib.nullcontext():
            warnings.warn("another's", UserWarning, stacklevel=1)
    assert len(told) == (how == "always")
