"""Episodes with tools: what ends them, what is told, budgets, and every kind of bad call."""

import time

import pytest
from mmrl_tools.environment import Budget, ToolUse, places
from mmrl_tools.other_tools import compute, text_tools
from mmrl_tools.pictures import LONG, SHORT, original, picture_tools
from mmrl_tools.tool import Refused, Result, Tool, Workspace
from PIL import Image

from mmrl import CoordinateFormat, ImageProcessing, Prompt, user_message
from mmrl.api.verifiers.tool_calls import CLOSE, OPEN, Call, write
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing.cases import mostly_slow

THOUSANDTHS = ImageProcessing(CoordinateFormat.THOUSANDTHS)
PIXELS = ImageProcessing(CoordinateFormat.PIXELS)
REPEAT = Tool(
    name="repeat",
    description="Say it again.",
    properties={"text": {"type": "string"}},
    run=lambda arguments, workspace: Result(arguments["text"]),
)


def picture(wide=400, high=200):
    """Red on the left, blue on the right."""
    image = Image.new("RGB", (wide, high), "red")
    image.paste("blue", (wide // 2, 0, wide, high))
    return image


def work(processing=PIXELS, **more):
    return Workspace(pictures=[original(picture(), 0)], processing=processing, **more)


def kit(processing=PIXELS):
    drawn = picture_tools(processing)
    return {tool.name: tool for tool in [*drawn, *text_tools(drawn[0].properties["box"]), REPEAT]}


def environment(*names, budget=Budget(), processing=PIXELS, turns=(), **more):
    tools = kit(processing)
    return ToolUse([tools[name] for name in names or ("zoom",)], work(processing, **more), "hermes", budget, turns)


def call(name, **arguments):
    return write(Call(name, arguments), "hermes")


def told(reply):
    """The text of a reply."""
    return "".join(part["text"] for part in reply.messages[0]["content"] if part["type"] == "text")


def images(reply):
    return [part["image"] for part in reply.messages[0]["content"] if part["type"] == "image"]


def test_a_zoom_shows_the_part_at_full_resolution():
    reply = environment().step(call("zoom", box=[250, 20, 350, 120]))
    (image,) = images(reply)
    assert not reply.terminated and told(reply) == "<tool_response>\nPicture 2.\n</tool_response>"
    assert image.size == (100, 100) and image.getcolors() == [(10_000, (0, 0, 255))]
    assert reply.outcome == {"calls": 1, "failed": 0, "pictures": 1, "last_failed": 0, "zoom_calls": 1}


@pytest.mark.parametrize(
    ("processing", "box"),
    [
        (THOUSANDTHS, [625, 100, 875, 600]),
        (ImageProcessing(CoordinateFormat.UNIT), [0.625, 0.1, 0.875, 0.6]),
        (ImageProcessing(CoordinateFormat.THOUSANDTHS_YX), [100, 625, 600, 875]),
        (ImageProcessing(CoordinateFormat.MODEL_PIXELS, lambda size: (size[0] // 2, size[1] // 2)), [125, 10, 175, 60]),
    ],
)
def test_a_box_is_read_in_the_models_own_coordinates(processing, box):
    one = environment(processing=processing)
    one.step(call("zoom", box=box))
    assert one.looked[0].box == pytest.approx((0.625, 0.1, 0.875, 0.6)) and one.workspace.pictures[1].image.size == (100, 100)


def test_a_box_on_a_shrunk_picture_shows_the_full_one():
    tools = picture_tools(PIXELS)
    workspace = Workspace(pictures=[original(picture(), 0, (100, 50))], processing=PIXELS)
    one = ToolUse([tools[0]], workspace, "hermes", Budget())
    one.step(call("zoom", box=[0, 0, 50, 50]))
    assert one.workspace.pictures[1].image.size == (200, 200)


def test_a_zoom_into_a_zoom_is_marked_on_the_first_picture():
    one = environment(budget=Budget(episode=4))
    one.step(call("zoom", box=[200, 0, 400, 200]))
    one.step(call("zoom", box=[0, 100, 100, 200], picture=2))
    assert [place.box for place in one.looked] == [pytest.approx((0.5, 0, 1, 1)), pytest.approx((0.5, 0.5, 0.75, 1))]


def test_marks_come_from_playing_the_turns_again():
    turns = [
        call("zoom", box=[0, 0, 100, 100]),
        "nonsense </tool_call>",
        call("zoom", box=[200, 0, 400, 200]),
        "<answer>x</answer>",
    ]
    assert [(n, place.picture) for n, place in places(environment(), turns)] == [(1, 0), (3, 0)]
    assert places(environment(), ["<answer>x</answer>", turns[0]]) == []


def test_what_a_turn_thinks_is_neither_an_answer_nor_a_call():
    """A thought that named an answer ended the episode before its call, and one with a call was carried out."""
    zoom, read = call("zoom", box=[250, 20, 350, 120]), call("zoom", box=[0, 0, 10, 10])
    reply = environment().step(f"<think>\nIs it <answer>red</answer>? {read}\n</think>\n\n{zoom}")
    assert not reply.terminated and [image.size for image in images(reply)] == [(100, 100)]
    long = "x" * 60_000
    assert not environment().step(f"<think>\n{long}</think>{zoom}").terminated
    reply = environment().step(f"<think>\n{zoom}\n</think>\n\n<answer>red</answer>")
    assert reply.terminated and not reply.outcome["calls"]


def test_an_answer_or_a_turn_without_a_call_ends_the_episode():
    for text in ("<answer>red</answer>", "red", "", call("zoom", box=[0, 0, 50, 50]) + "<answer>red</answer>"):
        reply = environment().step(text)
        assert reply.terminated and reply.outcome["calls"] == 0
    assert not environment().step("<answer></answer>" + call("zoom", box=[0, 0, 50, 50])).terminated, "an empty answer is none"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{OPEN}{{", "is not closed"),
        (f"{OPEN}{{{CLOSE}", "must be one JSON object"),
        (f"{OPEN}{OPEN}{{}}{CLOSE}{CLOSE}", "is not closed"),
        (call("fly"), "no tool 'fly'; the tools are zoom"),
        (call("zoom"), "needs box"),
        (call("zoom", box=[1, 2, 3]), "must have 4 items"),
        (call("zoom", box="all"), "must be an array"),
        (call("zoom", box=[0, 0, "9", 9]), "must be a number"),
        (call("zoom", box=[0, 0, 10**30, 9]), "no number that can be used"),
        (call("zoom", box=[True, 0, 9, 9]), "must be a number"),
        (call("zoom", box=[500, 0, 600, 100]), "outside of the picture"),
        (call("zoom", box=[100, 100, 100, 200]), "no area"),
        (call("zoom", box=[200, 100, 100, 200]), "no area"),
        (call("zoom", box=[100, 100, 100.0002, 100.0002]), "too small"),
        (call("zoom", box=[0, 0, 400, 3.6]), "more than 30 times"),
        (call("zoom", box=[0, 0, 90, 90], picture=2), "no picture 2"),
        (call("zoom", box=[0, 0, 90, 90], scale=10**6), "no argument 'scale'"),
        ("x" * 60_000 + call("zoom", box=[0, 0, 9, 9]), "at most 50,000"),
    ],
)
def test_a_bad_call_is_told_and_counted_and_the_episode_goes_on(text, reason):
    one = environment()
    reply = one.step(text)
    assert not reply.terminated and reason in told(reply) and told(reply).startswith("<tool_response>\nError: ")
    assert (
        reply.outcome["failed"] == reply.outcome["calls"] == reply.outcome["last_failed"] == 1 and reply.outcome["pictures"] == 0
    )
    assert one.step(call("zoom", box=[0, 0, 90, 90])).outcome["last_failed"] == 0


@pytest.mark.parametrize("family", mostly_slow(["qwen2_5_vl", "mistral3", "smolvlm", "aya_vision", "internvl"], everyday=1))
def test_signs_that_a_tool_repeats_are_text_for_a_real_policy(family):
    """A placeholder of a picture would end the run, a printed end of a turn would be one."""
    policy = VLM(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=1"))
    signs = [*policy.reader.reserved, *policy.reader.tokenizer.all_special_tokens]
    inputs, said = policy.encode(Prompt(messages=[user_message("?")])), policy.encode_completion("x")
    special = set(policy.reader.tokenizer.all_special_ids)

    def controls(value):
        """The special ids of the reply to a turn that repeats this."""
        reply = environment("zoom", "repeat", budget=Budget(turn=2)).step(
            call("zoom", box=value[:20]) + call("repeat", text=value)
        )
        return [i for i in policy.extend(inputs, said, reply.messages)[1] if i in special]

    frame = controls("red")
    assert signs and [sign for sign in signs if controls(sign) != frame] == []


def test_what_is_no_sign_comes_back_as_it_is():
    text = "1 < 2 <= 3 > 2, x<y, a[1], [A], [1, 2] << 3 </"
    assert told(environment("repeat").step(call("repeat", text=text))) == f"<tool_response>\n{text}\n</tool_response>"
    assert "<tool_call> is not closed by </tool_call>" in told(environment().step(OPEN)), "what our messages name is kept"


def test_budgets_of_turns_episodes_and_tools():
    look = call("zoom", box=[0, 0, 90, 90])
    reply = environment(budget=Budget(turn=2)).step(look * 3)
    assert len(images(reply)) == 2 and "only 2 calls of a turn" in told(reply)
    one = environment("zoom", "rotate", budget=Budget(episode=3, tools={"zoom": 1}))
    assert len(images(one.step(look))) == 1
    assert "no calls of zoom are left" in told(one.step(look))
    assert len(images(one.step(call("rotate", angle=90)))) == 1
    assert "no calls are left: give the answer" in told(one.step(call("rotate", angle=90)))


def test_results_are_bounded_whatever_is_asked_for():
    one = environment("zoom", "rotate", "draw_box", "draw_line", budget=Budget(episode=50))
    for text in (
        call("zoom", box=[0, 0, 8, 200]),
        call("zoom", box=[-1e9, -1e9, 1e9, 1e9]),
        call("rotate", angle=45),
        call("draw_box", box=[-1e9, -1e9, 1e9, 1e9]),
        call("draw_line", line=[-1e9, 1e9, 1e9, -1e9], colour="green"),
    ):
        (image,) = images(one.step(text))
        assert min(image.size) >= SHORT and max(image.size) <= LONG


def test_what_the_other_picture_tools_draw():
    one = environment("rotate", "draw_box", "draw_line", budget=Budget(episode=9))
    (turned,) = images(one.step(call("rotate", angle=90)))
    assert turned.size == (200, 400) and turned.getpixel((100, 20)) == (255, 0, 0), (
        "the left side is above after a turn clockwise"
    )
    (boxed,) = images(one.step(call("draw_box", box=[50, 50, 150, 150], colour="green")))
    assert boxed.getpixel((50, 100)) == boxed.getpixel((100, 50)) == (0, 128, 0) and boxed.getpixel((100, 100)) == (255, 0, 0)
    (lined,) = images(one.step(call("draw_line", line=[0, 100, 399, 100], colour="white")))
    assert lined.getpixel((300, 100)) == (255, 255, 255) and lined.getpixel((300, 50)) == (0, 0, 255)
    assert picture().tobytes() == one.workspace.pictures[0].image.tobytes(), "the prompt's picture stays as it is"


def test_grey_pictures_as_a_probe():
    (image,) = images(environment(blank=True).step(call("zoom", box=[0, 0, 90, 90])))
    assert image.getcolors() == [(8100, (128, 128, 128))]


def test_text_is_read_where_the_data_have_it():
    words = (("EXIT", (10, 10, 60, 30)), ("ROOM", (300, 10, 350, 30)), ("12", (360, 10, 390, 30)))
    one = environment("read_text", words=words, budget=Budget(episode=9))
    assert "EXIT ROOM 12" in told(one.step(call("read_text")))
    assert "\nROOM 12\n" in told(one.step(call("read_text", box=[200, 0, 400, 100]))) and len(one.looked) == 2
    assert "no text in the box" in told(one.step(call("read_text", box=[0, 100, 400, 200])))
    assert "no text to read" in told(environment("read_text").step(call("read_text")))


def test_formulas_by_hand():
    found = {"(3 + 4) * 2": "14", "2 ** 10": "1024", "7 / 2": "3.5", "sqrt(16) + max(1, 2)": "6", "2^3": "8", "-3 // 2": "-2"}
    found |= {"round(2.5)": "2", "round(2 / 3, 2)": "0.67", "round(1234, -2)": "1200"}
    assert {formula: compute(formula) for formula in found} == found


@pytest.mark.parametrize(
    "formula",
    [
        *(
            "",
            "1 +",
            "1 / 0",
            "9 ** 9 ** 9 ** 9",
            "10 ** 400",
            "1e999",
            "(-8) ** 0.5",
            "abs",
            "x",
            "'a' * 9",
            "[1]",
            "1 if 1 else 2",
        ),
        *(
            "__import__('os')",
            "().__class__",
            "sqrt(-1)",
            "max()",
            "round(1, 2, 3)",
            "(" * 150,
            "lambda: 1",
            "min(1, key=2)",
            "True",
            "round(1, 21)",
            "round(1, 0.5)",
            "round()",
        ),
    ],
)
def test_what_is_no_formula_is_refused(formula):
    with pytest.raises(Refused):
        compute(formula)


def test_a_formula_cannot_take_forever():
    started = time.process_time()
    with pytest.raises(Refused, match="from -20 to 20"):
        compute("round(1, -1000000000)")
    assert time.process_time() - started < 1


def test_gold_turns_come_in_order():
    one = environment(turns=["a", "b"])
    assert [one.gold_turn(), one.gold_turn(), one.gold_turn()] == ["a", "b", None]


def test_a_schema_is_what_a_chat_template_takes():
    tool = Tool(name="f", description="d", properties={"x": {"type": "number"}}, required=("x",), run=lambda *_: None)
    parameters = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    assert tool.schema == {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
