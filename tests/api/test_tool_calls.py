"""Calls as families write them: read, written, and refused where they are malformed, endless, nested or too many."""

import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.api.verifiers.tool_calls import CLOSE, FORMS, LONGEST, MOST, OPEN, Call, CallError, read, reply_parts, write

FEW = settings(max_examples=40, deadline=None)
SCALARS = st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9, allow_nan=False)
SIGNS = st.sampled_from([OPEN, CLOSE, "```", "a\n", "\\", "<function=x>"])
WORDS = SIGNS | st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
NAMES = st.text("abcxyz_", min_size=1, max_size=12)
ARGUMENTS = st.dictionaries(NAMES, SCALARS | WORDS | st.lists(SCALARS, max_size=4), max_size=4)


@pytest.mark.parametrize("form", FORMS)
@FEW
@given(name=NAMES, arguments=ARGUMENTS)
def test_what_is_written_is_read(form, name, arguments):
    call = Call(name, arguments)
    try:
        text = write(call, form)
    except ValueError:
        assert form == "qwen-xml", "only this form has texts that it can't hold"
        return
    assert read(f"Let me look. {text}", form) == [call]


def test_the_published_forms_by_hand():
    hermes = '<think>Closer.</think><tool_call>\n{"name": "zoom", "arguments": {"box": [1, 2, 3, 4]}}\n</tool_call>'
    assert read(hermes, "hermes") == [Call("zoom", {"box": [1, 2, 3, 4]})]
    as_text = '<tool_call>{"name": "zoom", "arguments": "{\\"box\\": [1, 2, 3, 4]}"}</tool_call>'
    assert read(as_text, "hermes") == [Call("zoom", {"box": [1, 2, 3, 4]})]
    xml = "<tool_call>\n<function=python>\n<parameter=code>\nx = 1\nprint(x)\n</parameter>\n</function>\n</tool_call>"
    assert read(xml, "qwen-xml") == [Call("python", {"code": "x = 1\nprint(x)"})]
    both = (
        "<tool_call><function=zoom><parameter=box>[1, 2, 3, 4]</parameter><parameter=picture>2</parameter></function></tool_call>"
    )
    assert read(both, "qwen-xml") == [Call("zoom", {"box": [1, 2, 3, 4], "picture": 2})]
    assert read('```json\n{"function": "zoom", "box": [1, 2, 3, 4]}\n```', "json") == [Call("zoom", {"box": [1, 2, 3, 4]})]
    assert read('I zoom: {"name": "zoom", "arguments": {}}', "json") == [Call("zoom", {})]
    assert read('I look at [the sign]. {"name": "zoom", "arguments": {}}', "json") == [Call("zoom", {})]
    two = hermes + '<tool_call>{"name": "rotate"}</tool_call>'
    assert [call.name for call in read(two, "hermes")] == ["zoom", "rotate"]


@pytest.mark.parametrize("form", FORMS)
def test_a_turn_without_a_call_has_none(form):
    for text in ("", "red", "<answer>red</answer>", "{}", "[1, 2]", '{"colour": "red"}', "the name and the function"):
        assert read(text, form) == []


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", OPEN),
        ("hermes", CLOSE),
        ("hermes", f"{OPEN}{CLOSE}"),
        ("hermes", f"{OPEN}{{{CLOSE}"),
        ("hermes", f"{OPEN}[1]{CLOSE}"),
        ("hermes", f"{OPEN}null{CLOSE}"),
        ("hermes", f'{OPEN}{{"name": 3}}{CLOSE}'),
        ("hermes", f'{OPEN}{{"name": ""}}{CLOSE}'),
        ("hermes", f'{OPEN}{{"name": "zoom", "arguments": [1]}}{CLOSE}'),
        ("hermes", f'{OPEN}{{"name": "zoom", "arguments": {{"x": NaN}}}}{CLOSE}'),
        ("hermes", f'{OPEN}{{"name": "zoom", "arguments": {{"x": 1e999}}}}{CLOSE}'),
        ("hermes", f'{OPEN}{OPEN}{{"name": "zoom"}}{CLOSE}{CLOSE}'),
        ("hermes", f'{OPEN}{{"name": "zoom"}} {{"name": "zoom"}}{CLOSE}'),
        ("hermes", f'{OPEN}{{"name": "zoom", "arguments": {"[" * 500}{"]" * 500}}}{CLOSE}'),
        ("hermes", f'{OPEN}{{"name": "zoom"'),
        ("qwen-xml", f"{OPEN}zoom{CLOSE}"),
        ("qwen-xml", f"{OPEN}<function=zoom>{CLOSE}"),
        ("qwen-xml", f"{OPEN}<function=zoom><function=zoom></function></function>{CLOSE}"),
        ("qwen-xml", f"{OPEN}<function=zoom><parameter=a>1</function>{CLOSE}"),
        ("qwen-xml", f"{OPEN}<function=zoom><parameter=a>1</parameter><parameter=a>2</parameter></function>{CLOSE}"),
        ("qwen-xml", f"{OPEN}<function=zoom>a</parameter></function>{CLOSE}"),
        ("json", '{"name": "zoom"} {"name": "zoom"}'),
        ("json", 'I look at {the sign}. {"name": "zoom"}'),
        ("json", '[{"name": "zoom"}] {"name": "zoom"}'),
        ("json", '{"name": "zoom"'),
        ("json", '{"name": "zoom", "arguments": 3}'),
    ],
)
def test_a_malformed_call_is_refused_with_a_reason(form, text):
    with pytest.raises(CallError, match=r"\w{3}"):
        read(text, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "piece",
    [OPEN, CLOSE, f"{OPEN}{CLOSE}", '{"name": ', "[", '{"name":{', "<function=", "<parameter=a>", "```json\n", "\\", "\x00"],
)
def test_endless_turns_take_linear_time(form, piece):
    text = f'{OPEN}{{"name": "zoom"' + piece * (2_000_000 // len(piece))
    started = time.process_time()
    with pytest.raises(CallError):
        read(text, form)
    assert time.process_time() - started < 1
    with contextlib.suppress(CallError):
        read(text[: LONGEST - 1], form)
    assert time.process_time() - started < 2


def test_too_many_calls_are_refused():
    one = write(Call("zoom", {}), "hermes")
    assert len(read(one * MOST, "hermes")) == MOST
    with pytest.raises(CallError, match=f"at most {MOST} calls, not {MOST + 1}"):
        read(one * (MOST + 1), "hermes")


def test_results_stand_within_the_tags_of_the_form():
    assert [part["type"] for part in reply_parts("Picture 2.", ["an image"], "hermes")] == ["text", "image", "text"]
    assert [part["type"] for part in reply_parts("Picture 2.", ["an image"], "json")] == ["image", "text"]
    assert json.dumps(reply_parts("3", [], "qwen-xml")).count("tool_response") == 2
