"""The tasks: drawn cards that only a zoom can read, questions of a table, options that can't work."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from mmrl_tools.fine_print import COLOURS, SIDES, Card, FinePrint, shrink
from mmrl_tools.table import Answer
from mmrl_tools.verifiers import answer, matches
from PIL import Image

import mmrl
from mmrl import Case, Conversation, CoordinateFormat, ImageProcessing, Status, Turn, UserError
from mmrl.api.tasks.overlays import overlay_error
from mmrl.api.verifiers.tool_calls import Call, write
from mmrl.testing import check_plugin

SAMPLES = Path(__file__).parents[3] / "assets" / "samples"
TABLE = {"path": str(SAMPLES / "tools.jsonl")}


@pytest.mark.slow
def test_conformance():
    check_plugin("tools", options={f"tools/answer{of}": TABLE for of in ("", "@deepeyes", "@pixel-reasoner")})


# -- fine print ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "factor", "cells"), [(96, 8, 3), (12, 24, 3), (64, 5, 2), (40, 7, 4)])
def test_the_shown_pictures_of_all_answers_are_equal_and_the_full_ones_are_not(size, factor, cells):
    task = FinePrint(size=size, factor=factor, cells=cells, cards=1)
    for place in (0, cells**2 - 1):
        full = [task.picture([Card("red", place % cells, place // cells, side)], (220, 220, 220)) for side in SIDES]
        assert len({image.tobytes() for image in full}) == len(SIDES)
        assert len({shrink(image, factor).tobytes() for image in full}) == 1 and full[0].size == (size * factor,) * 2


def test_the_ring_by_hand():
    """Five units wide in the middle of its cell, with a gap in the middle of one side."""
    full = FinePrint(size=16, factor=10, cells=1, cards=1).picture([Card("blue", 0, 0, "right")], (220, 220, 220))
    units = [[full.getpixel((80 + 2 * x, 80 + 2 * y)) == (20, 20, 20) for x in range(5)] for y in range(5)]
    drawn = ["".join(".#"[unit] for unit in row) for row in units]
    assert drawn == ["#####", "#...#", "#....", "#...#", "#####"]


def test_the_question_names_one_card_and_its_zoom_shows_the_ring():
    task = FinePrint(cards=4)
    task.image_processing = ImageProcessing(CoordinateFormat.THOUSANDTHS)
    for prompt in itertools.islice(task.prompts("test", 3), 12):
        cards, _ = task.draw(*prompt.meta["place"])
        named = [colour for colour in COLOURS if f"the {colour} card" in prompt.text]
        assert named == [cards[0].colour] and prompt.answer == cards[0].side
        environment = task.environment(prompt)
        (image,) = [p["image"] for p in environment.step(task.gold(prompt)).messages[0]["content"] if p["type"] == "image"]
        assert image.size == (256, 256), "a ninth at full resolution"
        inks = {pixel for _, pixel in image.getcolors(10**6)}
        assert (20, 20, 20) in inks and COLOURS[cards[0].colour] in inks
        assert environment.gold_turn() == f"<answer>{prompt.answer}</answer>" and environment.gold_turn() is None


def test_gold_episodes_score_and_grey_pictures_change_nothing_but_what_is_seen():
    with mmrl.open_task("tools/fine-print", {"blank": True}) as task:
        prompt = task.prompts("test")[0]
        with task.episode(prompt, max_turns=4) as episode:
            while not episode.done and (turn := episode.gold_turn()) is not None:
                episode.step(turn)
            case = episode.case()
        assert task.score([case])[0].value == 1.0 and case.outcome["zoom_calls"] == 1


def test_marks_show_where_each_turn_looked():
    task = FinePrint()
    prompt = task.prompts("test", 0)[0]
    texts = [task.gold(prompt), "<answer>up</answer>"]
    turns = [
        Turn(observed_ids=(), token_ids=(1,), logprobs=(0.0,), text=text, terminated=True, truncated=False, policy_version=0)
        for text in texts
    ]
    rollout = Conversation(prompt=prompt, group=0, turns=tuple(turns), status=Status.FINISHED)
    true, said = task.episode_overlays(rollout)
    assert (true.source, said.source, said.label) == ("true", "said", "turn 1") and not overlay_error(said)
    assert said.coordinates == pytest.approx(true.coordinates, abs=0.02)
    assert len(task.overlays(prompt, texts[1])) == 1, "an answer looks nowhere"


@pytest.mark.parametrize("schemas", ["text", "template", "none"])
def test_schemas_stand_where_they_are_wanted(schemas):
    prompt = FinePrint(schemas=schemas, tools=["zoom", "compute"]).prompts("train", 0)[0]
    assert ('"name": "compute"' in prompt.text) == (schemas == "text")
    assert [tool["function"]["name"] for tool in prompt.tools] == (["zoom", "compute"] if schemas == "template" else [])


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"tools": []},
            {"tools": "zoom"},
            {"tools": ["fly"]},
            {"tools": ["zoom", "zoom"]},
            {"form": "xml"},
            {"schemas": "json"},
        ),
        *({"schemas": "json"}, {"style": "long"}, {"budgets": {"rotate": 1}}, {"budgets": {"zoom": -1}}, {"budgets": 3}),
        *({"calls_per_turn": 0}, {"max_calls": 1.5}, {"blank": 1}, {"system": "deepeyes"}, {"size": 10, "cells": 3}),
        *({"factor": 4}, {"cards": 9}, {"size": 1024, "factor": 40}, {"system": "gpt"}, {"items": 0}),
    ],
)
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(UserError) as caught:
        FinePrint(**options)
    assert "\n" not in str(caught.value)


# -- your own tables ----------------------------------------------------------------------------------------------------------


def table(folder, *rows, **options):
    Image.new("RGB", (400, 200), "red").save(folder / "a.png")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Answer(path=str(folder / "rows.jsonl"), test_share=0, **options)


ROW = {"question": "<image>Which colour?", "answer": "red", "image": "a.png", "boxes": [[200, 100, 300, 200]]}


def test_a_row_becomes_a_question_whose_gold_episode_zooms(tmp_path):
    task = table(tmp_path, ROW, schemas="none")
    (prompt,) = task.prompts("train", 0)
    assert prompt.text == "Which colour? Give the final answer in <answer> </answer>." and prompt.answer == "red"
    assert task.gold(prompt) == '<tool_call>\n{"name": "zoom", "arguments": {"box": [200, 100, 300, 200]}}\n</tool_call>'
    assert task.workspace(prompt).pictures[0].image.size == (400, 200)


def test_pictures_can_be_shown_smaller_than_tools_see_them(tmp_path):
    task = table(tmp_path, ROW, largest=100)
    (prompt,) = task.prompts("train", 0)
    assert prompt.images[0].size == (100, 50) and prompt.meta["boxes"] == [(50, 25, 75, 50)]
    environment = task.environment(prompt)
    environment.step(task.gold(prompt))
    assert environment.workspace.pictures[1].image.size == (100, 100)


def looked(task, prompt):
    """(outcome of the first gold turn, the size of what it showed)"""
    environment = task.environment(prompt)
    outcome = environment.step(task.gold(prompt)).outcome
    return outcome, environment.workspace.pictures[-1].image.size


def test_published_tools_read_pixels_of_the_picture_that_is_shown(tmp_path):
    deepeyes = table(tmp_path, ROW, system="deepeyes", tools=["image_zoom_in_tool"], largest=100)
    (prompt,) = deepeyes.prompts("train", 0)
    assert '{"bbox_2d": [50, 25, 75, 50]}' in deepeyes.gold(prompt) and looked(deepeyes, prompt)[1] == (100, 100)
    pixel = table(tmp_path, ROW, system="pixel-reasoner", tools=["crop_image_normalized"], largest=100)
    environment = pixel.environment(pixel.prompts("train", 0)[0])
    environment.step(write(Call("crop_image_normalized", {"bbox_2d": [50, 25, 75, 50], "target_image": 1}), "hermes"))
    assert environment.workspace.pictures[1].image.size == (180, 120), "a margin of a tenth: 160 to 340, and 80 to 200"
    cards = FinePrint(system="deepeyes", tools=["image_zoom_in_tool"])
    outcome, size = looked(cards, cards.prompts("train", 0)[0])
    assert outcome["failed"] == 0 and size == (256, 256)


@pytest.mark.parametrize(
    ("box", "options"),
    [
        ([10, 10, 12, 12], {}),
        ([10, 10, 390, 15], {}),
        ([10, 10, 40, 40], {"system": "deepeyes", "tools": ["image_zoom_in_tool"]}),
        ([0, 0, 99, 99], {"budgets": {"zoom": 0}}),
        ([0, 0, 99, 99], {"max_calls": 0}),
        ([0, 0, 99, 99], {"system": "deepeyes", "tools": ["image_zoom_in_tool"], "budgets": {"image_zoom_in_tool": 0}}),
    ],
)
def test_a_gold_episode_makes_no_call_that_would_be_refused(tmp_path, box, options):
    task = table(tmp_path, {**ROW, "boxes": [box]}, **options)
    (prompt,) = task.prompts("train", 0)
    assert task.gold(prompt) == "<answer>red</answer>" and task.environment(prompt).gold_turn() is None


def test_true_boxes_stay_in_a_shrunk_picture(tmp_path):
    Image.new("RGB", (1000, 26), "red").save(tmp_path / "strip.png")
    task = table(tmp_path, {**ROW, "image": "strip.png", "boxes": [[500, 0, 1000, 26]]}, largest=90)
    (prompt,) = task.prompts("train", 0)
    assert prompt.images[0].size == (90, 2) and prompt.meta["boxes"] == [pytest.approx((45, 0, 90, 2))]


def test_published_tools_in_their_own_coordinates(tmp_path):
    deepeyes = table(tmp_path, ROW, system="deepeyes", tools=["image_zoom_in_tool"])
    assert '{"bbox_2d": [200, 100, 300, 200]}' in deepeyes.gold(deepeyes.prompts("train", 0)[0])
    pixel = table(tmp_path, ROW, system="pixel-reasoner", tools=["crop_image_normalized"])
    prompt = pixel.prompts("train", 0)[0]
    assert '{"bbox_2d": [0.5, 0.5, 0.75, 0.999], "target_image": 1}' in pixel.gold(prompt)
    environment = pixel.environment(prompt)
    assert environment.step(pixel.gold(prompt)).outcome["pictures"] == 1


def test_words_options_and_lists_of_answers(tmp_path):
    words = [{"text": "STOP", "box": [0, 0, 90, 90]}]
    rows = [{**ROW, "words": words}, {**ROW, "options": ["a dog", "red"]}, {**ROW, "answer": ["red", "crimson"]}]
    task = table(tmp_path, *rows, tools=["read_text"])
    read, chosen, several = task.prompts("train", 0)
    environment = task.environment(read)
    assert "STOP" in str(environment.step('<tool_call>{"name": "read_text"}</tool_call>').messages)
    assert chosen.answer == "B" and "A. a dog\nB. red" in chosen.text
    letters = table(tmp_path, {**ROW, "options": ["B", "C", "A"], "answer": "A"}).prompts("train", 0)[0]
    assert letters.answer == "C" and matches("C", letters.answer, letters.meta["options"])
    assert several.answer == ["red", "crimson"] and task.gold(several) == "<answer>red</answer>"


def test_frames_of_a_clip(tmp_path):
    clip = next((SAMPLES / "video" / "videos").glob("*.mp4"), None) or next((SAMPLES / "video").rglob("*.mp4"))
    task = table(tmp_path, {"question": "What?", "answer": "x", "video": str(clip)}, tools=["select_frames"], frames=4)
    (prompt,) = task.prompts("train", 0)
    environment = task.environment(prompt)
    reply = environment.step('<tool_call>{"name": "select_frames", "arguments": {"frames": [1, 4]}}</tool_call>')
    assert len(prompt.videos) == 1 and reply.outcome["pictures"] == 2
    wrong = environment.step('<tool_call>{"name": "select_frames", "arguments": {"frames": [5]}}</tool_call>')
    assert "numbered 1 to 4" in str(wrong.messages)
    assert len(environment.workspace.frames) == 4 and len(environment.workspace.frames[1:3]) == 2


@pytest.mark.parametrize(
    ("options", "name", "arguments"),
    [
        ({"tools": ["read_text"]}, "read_text", {}),
        ({"tools": ["zoom"]}, "zoom", {"box": [0, 0, 99, 99]}),
        ({"system": "deepeyes", "tools": ["image_zoom_in_tool"]}, "image_zoom_in_tool", {"bbox_2d": [0, 0, 99, 99]}),
        ({"system": "deepeyes", "tools": ["image_rotate_tool"]}, "image_rotate_tool", {"angle": 90}),
    ],
)
def test_tools_for_pictures_are_refused_where_there_is_a_clip(tmp_path, options, name, arguments):
    clip = next((SAMPLES / "video").rglob("*.mp4"))
    task = table(tmp_path, {"question": "What?", "answer": "x", "video": str(clip)}, **options)
    environment = task.environment(task.prompts("train", 0)[0])
    environment.workspace.words = (("EXIT", (0, 0, 9, 9)),)
    assert "Error: there is no picture." in str(environment.step(write(Call(name, arguments), "hermes")).messages)


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"question": ""},
            {"question": 3},
            {"answer": ""},
            {"answer": None},
            {"answer": []},
            {"image": None},
            {"image": "b.png"},
        ),
        *(
            {"boxes": [[0, 0, 9]]},
            {"boxes": [[9, 9, 0, 0]]},
            {"boxes": [[0, 0, 401, 9]]},
            {"boxes": "all"},
            {"boxes": [[0, 0, "a", 9]]},
        ),
        *(
            {"boxes": "all"},
            {"boxes": [[0, 0, "a", 9]]},
            {"options": ["a"]},
            {"options": ["a", "b"]},
            {"options": ["red", "Red"]},
            {"options": ["red", "!"]},
            {"words": [3]},
            {"words": [{"text": "x", "box": None}]},
            {"video": 3},
        ),
        *({"video": "missing.mp4"}, {"image": ["a.png"] * 17}),
    ],
)
def test_a_broken_row_is_named(tmp_path, change):
    task = table(tmp_path, ROW, {**ROW, **change})
    assert task.prompts("train", 0)[0].answer == "red"
    with pytest.raises(UserError, match=r"rows\.jsonl line 2|missing\.mp4") as caught:
        prompt = task.prompts("train", 0)[1]
        task.environment(prompt)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"path": "none.jsonl"}, {"path": 3}, {**TABLE, "test_share": 1.5}, {**TABLE, "frames": 0}])
def test_table_options_that_cannot_work_are_refused(options):
    with pytest.raises(UserError):
        Answer(**options)


# -- the verifier ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "truth", "options", "right"),
    [
        *(("red", "Red", (), True), (" Red. ", "red", (), True), ("reds", "red", (), False), ("", "red", (), False)),
        *(("12", 12, (), True), ("12.0", "12", (), True), ("1,200", "1200", (), True), ("13", "12", (), False)),
        *(("crimson", ["red", "crimson"], (), True), ("blue", ["red", "crimson"], (), False)),
        *(("B", "B", ("dog", "cat"), True), ("(b)", "B", ("dog", "cat"), True), ("B. cat", "B", ("dog", "cat"), True)),
        *(("B. dog", "B", ("dog", "cat"), False), ("cat", "B", ("dog", "cat"), True), ("A", "B", ("dog", "cat"), False)),
        *(("C", "C", ("B", "C", "A"), True), ("B", "C", ("B", "C", "A"), False), ("C. A", "C", ("B", "C", "A"), True)),
        *(("a red cat", "B", ("dog", "a red cat"), True), ("C", "B", ("dog", "cat"), False), ("A B", "B", ("dog", "cat"), False)),
    ],
)
def test_an_answer_is_compared_by_hand(said, truth, options, right):
    assert matches(said, truth, options) == right
    case = Case(completion=f"<think>x</think><answer>{said}</answer>", answer=truth, meta={"options": options})
    assert answer(case).value == float(right)


def test_an_answer_outside_of_its_tag_is_none_but_in_the_plain_style():
    case = Case(completion="red", answer="red")
    assert answer(case).value == 0.0 and answer(replace(case, meta={"style": "plain"})).value == 1.0
    assert answer(replace(case, completion="<answer>red</answer><answer>blue</answer>")).value == 0.0
