"""Composed scenes: what is asked is true of the picture, the same everywhere, and a tiny model can be trained on it."""

import json

import numpy as np
import pytest
from mmrl_grounding import scenes, verifiers
from mmrl_grounding.task import Count, Detect, Point, Refer

from mmrl import Case, ImageProcessing, UserError
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.tasks.image_sources import chance
from mmrl.config.load import parse_config
from mmrl.registry import plugins
from mmrl.testing.other_process import rows_in_subprocess
from mmrl.testing.sample import fingerprint, sample_rows
from mmrl.train.start import train

ALL = (Refer, Detect, Count, Point)


def some(task, n=40):
    return [task.prompts("train", 0)[i] for i in range(n)]


# -- scenes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", scenes.KINDS, ids=" ".join)
@pytest.mark.parametrize("size", [(16, 16), (24, 8), (7, 30)])
def test_a_thing_touches_all_sides_of_its_box_and_nothing_outside(kind, size):
    box = (20, 24, 20 + size[0], 24 + size[1])
    painted = [np.asarray(scenes.paint(chance(0, "x"), "train", things, 64)) for things in ([scenes.Thing(kind, box)], [])]
    rows, columns = np.nonzero((painted[0] != painted[1]).any(-1))
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == box


@pytest.mark.parametrize("number, size, grid", [(1, 112, 8), (5, 112, 8), (12, 112, 4), (20, 112, 1), (20, 448, 8), (3, 32, 4)])
def test_things_are_apart_on_the_grid_and_in_the_picture(number, size, grid):
    for seed in range(20):
        things = scenes.arrange(chance(seed, "scene"), [scenes.KINDS[0]] * number, size, grid)
        assert len(things) == number
        for i, one in enumerate(things):
            x1, y1, x2, y2 = one.box
            assert 0 <= x1 < x2 <= size and 0 <= y1 < y2 <= size and all(v % grid == 0 for v in one.box)
            for other in things[:i]:
                a, b = one.box, other.box
                assert max(a[0] - b[2], b[0] - a[2], a[1] - b[3], b[1] - a[3]) >= scenes.GAP


def test_an_expression_fits_one_thing_alone():
    red, blue = ("red", "oval"), ("blue", "oval")
    left, right = scenes.Thing(red, (0, 40, 16, 56)), scenes.Thing(red, (80, 40, 96, 56))
    other = scenes.Thing(blue, (40, 0, 56, 16))
    draw = chance(0, "words")
    assert scenes.expression(draw, other, [left, right, other], 112) == "the blue oval"
    assert scenes.expression(draw, left, [left, right, other], 112) == "the leftmost red oval"
    assert scenes.expression(draw, right, [left, right, other], 112) == "the rightmost red oval"
    middle = scenes.Thing(red, (40, 40, 56, 56))
    assert scenes.expression(draw, middle, [left, right, middle], 112) is None
    large = scenes.Thing(red, (30, 30, 70, 70))
    assert scenes.expression(draw, large, [left, right, large], 112) == "the largest red oval"


# -- what is asked ----------------------------------------------------------------------------------------------------------


def test_prompts_word_for_word():
    words = some(Refer(), 1)[0].meta["expression"]
    texts = {style: some(Refer(style=style), 1)[0].text for style in ("short", "json", "tags")}
    where = "in pixels of the 112 x 112 picture"
    assert texts["short"] == f"Where is {words}? Answer with its box: x1 y1 x2 y2, {where}."
    assert (
        texts["json"]
        == f'Where is {words}? Answer with its box as JSON, {{"bbox_2d": [x1, y1, x2, y2]}}, {where}, and nothing else.'
    )
    assert texts["tags"] == (
        f'Where is {words}? Think in <think> </think> tags, then give its box as JSON, {{"bbox_2d": [x1, y1, x2, y2]}}, {where}, '
        "in <answer> </answer> tags."
    )
    assert "in thousandths of its width and height" in some(Refer(frame="thousandths"), 1)[0].text


@pytest.mark.parametrize("task", ALL, ids=lambda t: t.__name__)
@pytest.mark.parametrize("style", ["short", "json", "tags"])
@pytest.mark.parametrize("frame", [None, *CoordinateFormat])
def test_gold_earns_the_most_in_every_style_and_frame(task, style, frame):
    made = task(style=style, frame=frame, objects=4)
    made.image_processing = ImageProcessing(CoordinateFormat.MODEL_PIXELS, lambda size: (size[0] * 3 // 4, size[1] * 2))
    verify = {"Refer": verifiers.iou, "Detect": verifiers.hungarian, "Count": verifiers.count, "Point": verifiers.point}[
        task.__name__
    ]
    for prompt in some(made, 4):
        gold = made.gold(prompt)
        sizes = {"image_sizes": ((112, 112),), "model_sizes": ((84, 224),)}
        case = Case(
            completion=gold, answer=prompt.answer, meta=prompt.meta, coordinate_format=CoordinateFormat.MODEL_PIXELS, **sizes
        )
        assert verify(case).value == pytest.approx(1) and verifiers.form(case).value == 1, gold


def test_answers_are_true_of_the_scene():
    for prompt in some(Detect(objects=6), 60):
        assert len(prompt.meta["boxes"]) == len(prompt.answer)
        assert {one["label"] for one in prompt.answer} <= set(prompt.meta["labels"])
    answers = [p.answer for p in some(Detect(), 200)]
    assert 5 < sum(not a for a in answers) < 60 and max(map(len, answers)) >= 2
    counts = [p.answer for p in some(Count(), 200)]
    assert set(counts) == set(range(6)) or set(counts) >= set(range(5))
    for prompt in some(Count(), 60):
        assert prompt.answer == len(prompt.meta["boxes"])


@pytest.mark.slow
def test_no_number_is_right_more_often_than_another():
    """Whoever always answers the same is right in a sixth; scenes where the number was counted afterwards gave 57% to 1."""
    for options in ({}, {"similar": 0.0}, {"similar": 1.0}, {"objects": 2}):
        task = Count(**options)
        answers = [p.answer for p in some(task, 300)]
        fair = 300 / (task.objects + 1)
        assert all(abs(answers.count(n) - fair) < 4 * fair**0.5 for n in range(task.objects + 1)), options
    found = some(Count(), 300)
    assert len({p.text.split()[-7] for p in found}) > 3 and any("things" in p.text for p in found)


def test_difficulty_is_the_number_of_objects_and_of_those_alike():
    easy, hard = Refer(objects=1), Refer(objects=8, similar=1.0)
    assert {p.meta["difficulty"] for p in some(easy)} == {1}
    found = {p.meta["difficulty"] for p in some(hard)}
    assert max(found) > 10 and min(found) == 1
    assert any("most " in p.text or "lowest" in p.text or "est " in p.text for p in some(hard))


def test_splits_and_seeds_share_nothing_and_the_runs_seed_draws_nothing():
    task = Refer(train=60, test=60, warm=60)
    shown = {split: {(p.text, p.images[0].tobytes()) for p in task.prompts(split, 0)} for split in task.splits}
    assert all(len(s) == 60 for s in shown.values()) and not set.intersection(*shown.values())
    assert not shown["train"] & shown["test"] and not shown["warm"] & shown["test"]
    assert task.prompts("test", 0)[3].text == task.prompts("test", 9)[3].text
    other = Refer(seed=1)
    assert [p.answer for p in some(other)] != [p.answer for p in some(Refer())]
    assert [p.id for p in task.prompts("test", 0)[2:4]] == ["test-2", "test-3"]
    with pytest.raises(UserError, match="there is no split 'dev': choose one of warm, train, test"):
        task.prompts("dev", 0)


def test_another_process_draws_the_same_scenes():
    task = Detect(objects=6)
    here = {split: [fingerprint(p) for p in sample_rows(task, split, 2)] for split in task.splits}
    assert rows_in_subprocess("grounding/detect", {"objects": 6}, list(task.splits), 2) == here and here["train"]


def test_the_first_scenes_stay_what_they_are():
    """A test score is comparable only while the scenes are."""
    prompts = Refer().prompts("test", 0)
    assert [(p.meta["expression"], p.answer) for p in (prompts[0], prompts[1])] == FIRST


FIRST = [("the white rectangle", [64, 40, 88, 64]), ("the yellow diamond", [0, 72, 24, 96])]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"style": "tag"}, "style = 'tag' is unknown: choose one of short, json, tags. Did you mean 'tags'"),
        ({"frame": "pixel"}, "frame = 'pixel' is unknown: .*Did you mean 'pixels'"),
        ({"size": 8}, "size = 8 must be a whole number from 32 to 2048"),
        ({"objects": 0}, "objects = 0 must be a whole number from 1 to 20"),
        ({"objects": "3"}, "objects = '3' must be a whole number"),
        ({"objects": True}, "objects = True must be a whole number"),
        ({"similar": True}, "similar = True must be a number from 0 to 1"),
        ({"similar": 2}, "similar = 2 must be a number from 0 to 1"),
        ({"grid": 0}, "grid = 0 must be a whole number from 1"),
        ({"train": 0}, "train = 0 must be a whole number from 1"),
        (
            {"objects": 20, "grid": 14},
            "20 objects do not fit into 112 pixels on a grid of 14: lower objects or grid, or raise size",
        ),
    ],
)
def test_bad_options_are_refused_in_one_line(options, message):
    with pytest.raises(UserError, match=message):
        Refer(**options)


# -- training ---------------------------------------------------------------------------------------------------------------


class Silent:
    """A watcher that says nothing."""

    def __getattr__(self, name):
        return lambda *args: None


def test_a_tiny_model_is_trained_on_scenes(tmp_path):
    config = parse_config(
        {
            "name": "scenes",
            "runs_dir": str(tmp_path),
            "policy": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"},
            "tasks": [{"id": "grounding/refer", "options": {"size": 56, "objects": 1}, "verifiers": {"grounding/giou": 1.0}}],
            "stages": [
                {"kind": "sft", "split": "warm", "steps": 2, "batch_size": 4, "learning_rate": 1e-3},
                {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-3},
            ],
            "generate": {"max_tokens": 16},
            "evaluate": {"num_prompts": 4},
            "train": {"threads": 1},
        }
    )
    folder = train(config, Silent())
    rows = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    steps = [row["metrics"] for row in rows if "reward/mean" in row.get("metrics", {})]
    assert len(steps) == 2 and all(-1 <= m["reward/mean"] <= 1 and not m.get("judge/failed", 0) for m in steps)


def test_every_id_can_be_made():
    known = {id for id in plugins.registry().specs("verifiers") if id.startswith("grounding/")}
    assert len(known) == 33 and all(callable(plugins.registry().make_verifier(id)) for id in known)


# -- what people see --------------------------------------------------------------------------------------------------------


def seen(task, prompt, completion):
    """(kind, of, pixels of the picture, label) of each mark."""
    return [
        (m.kind, m.source, tuple(round(v * task.size, 6) for v in m.coordinates), m.label)
        for m in task.overlays(prompt, completion)
    ]


@pytest.mark.parametrize("frame", list(CoordinateFormat))
@pytest.mark.parametrize("style", ["short", "json", "tags"])
def test_gold_is_marked_where_the_truth_is(frame, style):
    for kind in ALL:
        task = kind(style=style, grid=1)
        task.image_processing = ImageProcessing(frame, lambda size: (size[0] * 2, size[1] * 3))
        for prompt in some(task, 8):
            marks = seen(task, prompt, task.gold(prompt))
            true, said = ([m for m in marks if m[1] == of] for of in ("true", "said"))
            assert [m[2] for m in true] == [pytest.approx(box) for box in prompt.meta["boxes"]]
            if kind is Count:
                assert not said
            elif kind is Point:
                ((_, _, at, label),) = said
                assert label == "inside" and np.hypot(*np.subtract(at, np.mean(np.reshape(true[0][2], (2, 2)), 0))) < 1
            else:
                assert np.abs(np.subtract([m[2] for m in said], [m[2] for m in true])).max(initial=0) <= 0.12
                assert [m[3] for m in said] == (["IoU 1.00"] if kind is Refer else [f"{m[3]} 1.00" for m in true])


def test_what_is_said_wrong_is_marked_too_and_what_says_nothing_is_not():
    task = Refer()
    prompt = next(p for p in some(task) if tuple(p.answer)[2:] != (112, 112))
    true = [("box", "true", tuple(map(float, prompt.answer)), "")]
    x1, y1, x2, y2 = prompt.answer
    assert seen(task, prompt, f"{x1} {y1} {x2 + x2 - x1} {y2}")[1:] == [("box", "said", (x1, y1, x2 + x2 - x1, y2), "IoU 0.50")]
    for nothing in ("", "no", "1 2 3", "5 5 4 4", "1 2 3 4; 5 6 7 8"):
        assert seen(task, prompt, nothing) == true
    task = Point()
    prompt = some(task)[0]
    assert seen(task, prompt, "-5 300")[1:] == [("point", "said", (-5.0, 300.0), "outside")]
    task = Detect()
    prompt = next(p for p in some(task) if p.answer)
    first = prompt.answer[0]
    written = " ".join(map(str, first["bbox_2d"]))
    said = seen(task, prompt, f"{first['label']} {written}\nsomething else {written}")[len(prompt.answer) :]
    assert [label for _, _, _, label in said] == [f"{first['label']} 1.00", "something else 0.00"]


@pytest.mark.parametrize("frame", CoordinateFormat)
def test_marks_of_gold_lie_on_those_of_the_truth_in_every_format(frame):
    """Whatever order and tokens an answer has: what the board draws is in x and y."""
    for task in (Refer, Detect):
        made = task(objects=3, size=100)
        made.image_processing = ImageProcessing(frame, lambda size: (size[0] * 3, size[1] * 2))
        for prompt in some(made, 6):
            marks = made.overlays(prompt, made.gold(prompt))
            true, said = ([m.coordinates for m in marks if m.source == source] for source in ("true", "said"))
            assert len(true) == len(said) and all(
                abs(a - b) <= 0.006 for one, other in zip(true, said, strict=True) for a, b in zip(one, other, strict=True)
            )
