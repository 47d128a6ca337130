"""Points in the regions that masks say."""

import itertools
import json

import numpy as np
import pytest
from mmrl_grounding import masks
from mmrl_grounding.region_task import RegionData
from PIL import Image

from mmrl import Case, CoordinateFormat, NoGold, UserError
from mmrl.api.coordinates import ImageProcessing

# (width, height) of a picture with the ellipse of `ellipse`, points in thousandths, and those of them that are in it, by
# `_text2pts` and `_where2place_acc` of lmms-eval 0.8's tasks/where2place/utils.py
PUBLISHED = [
    (
        (64, 48),
        [(805, 672), (625, 1000), (829, 424), (376, 673), (433, 861), (575, 621), (502, 660), (472, 446), (0, 717), (410, 566)],
        [3, 5, 6, 9],
    ),
    (
        (30, 30),
        [(28, 561), (194, 669), (282, 387), (393, 677), (415, 654), (254, 534), (245, 535), (212, 289), (440, 527), (492, 476)],
        [3, 4, 5, 6, 8, 9],
    ),
    ((48, 64), [(402, 921), (429, 672), (304, 465), (338, 744), (617, 572), (541, 765), (240, 573), (244, 605)], [1, 3, 6, 7]),
]


def ellipse(width, height):
    y, x = np.mgrid[:height, :width]
    return (x - width * 0.4) ** 2 / (width * 0.2) ** 2 + (y - height * 0.6) ** 2 / (height * 0.15) ** 2 < 1


@pytest.fixture
def rows(tmp_path):
    """Writes a table of rows with pictures and masks of these names, and makes its task."""

    def make(*rows, size=(64, 48), mask=None, **options):
        Image.new("RGB", size, "olive").save(tmp_path / "a.png")
        Image.fromarray(ellipse(*size) if mask is None else mask).save(tmp_path / "m.png")
        given = [{"image": "a.png", "mask": "m.png", "question": "Where may the cup stand?", **row} for row in rows or [{}]]
        (tmp_path / "rows.json").write_text(json.dumps(given))
        return RegionData(path=str(tmp_path / "rows.json"), shares={"test": 1}, **options)

    return make


def said(prompt, text, **more):
    case = {"answer": prompt.answer, "meta": prompt.meta, "image_sizes": (prompt.meta["size"],), **more}
    return masks.region(Case(completion=text, **case))


@pytest.mark.parametrize(("size", "points", "inside"), PUBLISHED)
def test_points_are_right_as_published(rows, size, points, inside):
    (prompt,) = rows(size=size, frame="thousandths").prompts("test", 0)
    assert (masks.read(prompt.answer["mask"]) == ellipse(*size)).all()
    assert [n for n, point in enumerate(points) if said(prompt, str(point)).value] == inside


def test_a_mask_of_another_size_is_of_the_whole_picture(rows):
    (prompt,) = rows(size=(128, 96), mask=ellipse(64, 48), frame="pixels").prompts("test", 0)
    assert prompt.meta["boxes"] == [(26.0, 44.0, 78.0, 72.0)]
    for x, y in itertools.product(range(0, 128, 3), range(0, 96, 3)):
        assert said(prompt, f"({x}, {y})").value == ellipse(64, 48)[y // 2, x // 2]
    for text, why in (("(128, 50)", "beyond"), ("(-1, 50)", "beyond"), ("there", "no point"), ("(50, 58), (51, 58)", "no point")):
        assert said(prompt, text).value == 0 and why in said(prompt, text).detail


@pytest.mark.parametrize("frame", CoordinateFormat)
@pytest.mark.parametrize("style", ["short", "json", "tags"])
def test_gold_answers_are_inside_in_every_format(rows, frame, style):
    mask = np.zeros((48, 64), bool)
    mask[40, 3:5] = mask[5:7, 60] = True  # narrow, and not in the middle of its box
    task = rows(mask=mask, style=style)
    task.image_processing = ImageProcessing(coordinate_format=frame)
    (prompt,) = task.prompts("test", 0)
    assert said(prompt, task.gold(prompt), coordinate_format=frame).value == 1
    assert "Where may the cup stand?" in prompt.text and prompt.meta["asks"] == "point"
    true, pointed = task.overlays(prompt, task.gold(prompt))
    assert (true.source, pointed.source, pointed.label) == ("true", "said", "inside")


def test_a_region_that_no_answer_can_hit_has_no_gold(rows):
    mask = np.zeros((20, 3000), bool)
    mask[7, 7] = True  # thousandths are three pixels here
    task = rows(size=(3000, 20), mask=mask, frame="thousandths")
    with pytest.raises(NoGold, match="no point of the mask"):
        task.gold(task.prompts("test", 0)[0])


def test_columns_and_questions_are_named(rows):
    row = {"img": "a.png", "where": "m.png", "prompt": "Point at the left cup.", "suffix": "One point."}
    task = rows(row, image_column="img", mask_column="where", question="{prompt} {suffix}")
    (prompt,) = task.prompts("test", 0)
    assert prompt.text.startswith("Point at the left cup. One point.")


def test_a_picture_is_in_one_split(rows, tmp_path):
    for number in range(12):
        Image.new("RGB", (64, 48)).save(tmp_path / f"{number}.png")
    whole = rows(*({"image": f"{n % 12}.png", "question": f"Where, {n}?"} for n in range(36)))
    task = RegionData(path=whole.path, shares={"train": 0.6, "test": 0.4})
    seen = {split: {prompt.images[0] for prompt in task.prompts(split, 0)} for split in task.splits}
    assert all(seen.values()) and not seen["train"] & seen["test"]


@pytest.mark.parametrize(
    ("row", "mask", "message"),
    [
        ({"mask": None}, None, "it has no mask"),
        ({}, np.zeros((48, 64), bool), "its mask is black: nowhere would be right"),
        ({}, ellipse(48, 64), "its mask has 48 x 64 pixels, and the picture 64 x 48"),
        ({"question": " "}, None, "its question is empty"),
        ({"mask": "b.png"}, None, "b.png"),
        ({"image": "b.png"}, None, "b.png"),
    ],
)
def test_rows_that_can_not_be_used(rows, row, mask, message):
    with pytest.raises(UserError, match=message) as error:
        rows(row, mask=mask).prompts("test", 0)[0]
    assert "item 0" in str(error.value) and "\n" not in str(error.value)


def test_a_table_without_the_columns_is_refused(rows):
    with pytest.raises(UserError, match=r"mask_column = 'masks'.*no such column, but image, mask, question"):
        rows(mask_column="masks")
    with pytest.raises(UserError, match=r"'prompt' of question: .*no such column"):
        rows(question="{prompt}")
