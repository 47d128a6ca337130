"""People's data: every format gives the same boxes, and a broken row is named by its file and line or its annotation."""

import re

import pytest
from mmrl_grounding.data_task import DetectData, ReferData

from mmrl import UserError
from mmrl.testing import check_plugin


def every(task):
    return [p for split in task.splits for p in task.prompts(split, 0)]


def number_of(prompt):
    return int(str(prompt.images[0]).rsplit("/", 1)[1].removesuffix(".png"))


def test_all_formats_give_the_same_boxes(files, pictures, boxes_of):
    for name in ("rec", "refcoco"):
        prompts = every(ReferData(path=files[name], images=str(pictures)))
        assert len(prompts) == (24 if name == "rec" else 48)
        for prompt in prompts:
            assert prompt.answer == boxes_of(number_of(prompt))[0]["bbox_2d"] and prompt.meta["boxes"] == [tuple(prompt.answer)]
    for name in ("od", "coco"):
        prompts = every(DetectData(path=files[name], images=str(pictures)))
        assert len(prompts) == 24
        assert all(prompt.answer == boxes_of(number_of(prompt)) for prompt in prompts)
        assert {p.meta["difficulty"] for p in prompts} == {1, 2, 3}


def test_several_files_and_folders_are_one(files, pictures, tmp_path):
    task = ReferData(path=f"{files['rec']}:{files['refcoco']}", images=f"{pictures}:{pictures}")
    ids = [p.id for p in every(task)]
    assert len(ids) == len(set(ids)) == 72
    assert len(every(ReferData(path=f"{files['rec']}:{files['refcoco']}", images=str(pictures)))) == 72
    with pytest.raises(UserError, match="path names 1 files and images 2 folders: give one folder for each file, or one"):
        ReferData(path=files["rec"], images=f"{pictures}:{pictures}")
    for file in pictures.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert len(every(ReferData(path=files["rec"]))) == 24  # beside the file


def test_no_picture_is_in_two_splits_and_shares_are_kept(files, pictures):
    task = ReferData(path=files["refcoco"], images=str(pictures), shares={"warm": 0.2, "train": 0.5, "test": 0.3})
    assert task.splits == ("warm", "train", "test")
    seen = {split: {number_of(p) for p in task.prompts(split, 0)} for split in task.splits}
    assert sum(map(len, seen.values())) == 24 and set.union(*seen.values()) == set(range(24))
    assert [p.id for p in task.prompts("train", 0)] == [p.id for p in task.prompts("train", 5)]
    other = ReferData(path=files["refcoco"], images=str(pictures), shares={"train": 0.5, "test": 0.5}, seed=1)
    assert {number_of(p) for p in other.prompts("test", 0)} != seen["test"]
    own = ReferData(path=files["rec"], images=str(pictures), test_path=files["refcoco"])
    assert len(own.prompts("train", 0)) == 24 and len(own.prompts("test", 0)) == 48
    with pytest.raises(UserError, match="there is no split 'dev': choose one of train, test"):
        own.prompts("dev", 0)


def test_prompts_word_for_word(files, pictures):
    where = "Answer with its box: x1 y1 x2 y2, in pixels of the 64 x 48 picture."
    plain = next(p for p in every(ReferData(path=files["refcoco"], images=str(pictures))) if "left" in p.text)
    assert plain.text == f"Where is the left one? {where}"
    question = "Please provide the bounding box coordinate of the region this sentence describes: the left one."
    published = (
        f"{question} First output the thinking process in <think> </think> tags and then output the final answer in "
        "<answer> </answer> tags. Output the final answer in JSON format."
    )
    for name in ("rec", "refcoco"):
        task = ReferData(path=files[name], images=str(pictures), style="vlm-r1")
        assert published in {p.text for p in every(task)}
    detect = DetectData(path=files["coco"], images=str(pictures), style="vision-r1", labels="all")
    assert {p.text for p in every(detect)} == {
        "Locate every item from the category list in the image and output the coordinates in JSON format. "
        "The category set includes bird, cat, dog."
    }
    assert every(DetectData(path=files["od"], images=str(pictures), style="vlm-r1"))[0].text == (
        "First thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning process "
        "and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
        "<think> reasoning process here </think><answer> answer here </answer>\nFind cat, dog and bird."
    )


def test_labels_that_are_asked_for(files, pictures):
    some = every(DetectData(path=files["coco"], images=str(pictures), labels=["cat", "cow"]))
    assert all({o["label"] for o in p.answer} <= {"cat"} for p in some) and any(not p.answer for p in some)
    assert all("cat, cow" in p.text for p in some)
    task = DetectData(path=files["coco"], images=str(pictures), labels="all", most=2)
    assert {p.meta["difficulty"] for p in every(task)} == {1, 2} and len(every(task)) == 16
    for refinement in ("none", "first", "second"):
        refined = DetectData(path=files["coco"], images=str(pictures), style="vision-r1", refinement=refinement)
        assert refined.prompts("train", 0)[0].meta["stage"] == refinement
    empty = next(p for p in some if not p.answer)
    assert DetectData(path=files["coco"], images=str(pictures), style="vlm-r1").gold(empty).endswith("<answer>None</answer>")


def test_fractions_of_a_pixel_are_rounded_or_kept(files, pictures, change):
    change(files["rec"], 3, lambda r: r | {"conversations": [r["conversations"][0], {"value": [4.4, 5.6, 16.2, 48.7]}]})
    found = {number_of(p): p.answer for p in every(ReferData(path=files["rec"], images=str(pictures)))}
    assert found[3] == [4, 6, 16, 48]  # and what is over the edge by less than a pixel is cut
    found = {number_of(p): p.answer for p in every(ReferData(path=files["rec"], images=str(pictures), whole=False))}
    assert found[3] == [4.4, 5.6, 16.2, 48]
    change(files["rec"], 3, lambda r: r | {"conversations": [r["conversations"][0], {"value": [4.1, 5, 4.4, 20]}]})
    found = {number_of(p): p.answer for p in every(ReferData(path=files["rec"], images=str(pictures)))}
    assert found[3] == [4.1, 5, 4.4, 20]  # rounded it would have no area


# -- broken rows ------------------------------------------------------------------------------------------------------------

BAD_BOXES = [
    ([30, 5, 10, 20], "reversed"),
    ([10, 20, 30, 5], "reversed"),
    ([10, 5, 10, 20], "empty"),
    ([10, 5, 90, 20], "outside its picture of 64 x 48"),
    ([-5, 5, 30, 20], "outside its picture of 64 x 48"),
    ([64.5, 5, 64.9, 20], "outside its picture"),
    ([10, 5, float("nan"), 20], "not four finite numbers"),
    ([10, 5, float("inf"), 20], "not four finite numbers"),
    ([10, 5, "30", 20], "not four finite numbers"),
    ([True, False, True, True], "not four finite numbers"),
    ([10, 5, 30], "not four numbers"),
    ([], "not four numbers|0 boxes"),
    ("here", "not four numbers"),
    (None, "not four numbers"),
    (7, "not four numbers"),
    ({"x": 1}, "no box under any"),
]


def told(task):
    """The faults of all rows."""
    faults = []
    for split in task.splits:
        prompts = task.prompts(split, 0)
        for i in range(len(prompts)):
            try:
                prompts[i]
            except UserError as error:
                faults.append(str(error))
    return faults


@pytest.mark.parametrize("box, message", BAD_BOXES, ids=lambda v: repr(v)[:30])
def test_a_bad_box_is_named_by_file_and_line(files, pictures, change, box, message):
    change(files["rec"], 6, lambda r: r | {"conversations": [r["conversations"][0], {"value": box}]})
    (fault,) = told(ReferData(path=files["rec"], images=str(pictures)))
    assert f"{files['rec']} line 7" in fault
    assert any(part in fault for part in message.split("|")), fault


ROWS = [
    (lambda r: "{broken", "line 7 is no JSON"),
    (lambda r: "[1, 2]", "line 7 holds a list, not an object"),
    (lambda r: {k: v for k, v in r.items() if k != "image"}, "line 7.*: it has no picture under any of image"),
    (lambda r: r | {"image": "gone.png"}, r"line 7: image .*gone.png does not exist"),
    (lambda r: r | {"image": ["1.png", "2.png"]}, "line 7.*: it has 2 pictures, and boxes are about one"),
    (lambda r: r | {"image": ""}, "line 7.*: the image has an empty path"),
    (lambda r: r | {"sentences": ""}, "line 7: it has no expression under any of expression"),
    (lambda r: {k: v for k, v in r.items() if k != "bbox"}, "line 7.*: there is no box under any of bbox_2d, bbox"),
    (lambda r: r | {"bbox": [1, 2, -3, 4]}, "line 7: the box, .* is reversed"),
    (lambda r: r | {"objects": [{"bbox": [1, 2, 3, 4]}] * 2}, "line 7: it has 2 boxes, and an expression describes one"),
    (lambda r: r | {"objects": "cat"}, "line 7.*: its objects are 'cat' and not a list"),
    (lambda r: r | {"conversations": [{"value": "where?"}]}, "line 7.*: conversations must hold a question and its answer"),
]


@pytest.mark.parametrize("how, message", ROWS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_bad_row_is_named_by_file_and_line(files, pictures, change, how, message):
    change(files["refcoco"], 6, how)
    faults = told(ReferData(path=files["refcoco"], images=str(pictures)))
    assert 1 <= len(faults) <= 2
    for fault in faults:
        assert re.search(message, fault) and files["refcoco"] in fault, fault


def test_a_broken_picture_is_named(files, pictures):
    (pictures / "6.png").write_bytes(b"no picture")
    (fault,) = told(ReferData(path=files["rec"], images=str(pictures)))
    assert "rec.jsonl line 7" in fault and "6.png is broken" in fault


COCO = [
    (lambda a: a | {"bbox": [1, 2, -3, 4]}, "the box of 'dog' in annotation 1, .*reversed"),
    (lambda a: a | {"bbox": [1, 2, 3000, 4]}, "annotation 1, .*outside its picture"),
    (lambda a: a | {"bbox": [1, 2, float("nan"), 4]}, "annotation 1 .*not four finite numbers"),
    (lambda a: a | {"bbox": [1, 2]}, "annotation 1 .*not four numbers"),
    (lambda a: {k: v for k, v in a.items() if k != "bbox"}, "annotation 1 has no bbox"),
    (lambda a: a | {"category_id": 99}, "annotation 1 has the category 99, which the file doesn't name"),
    (lambda a: a | {"image_id": 999}, "annotation 1 belongs to no picture of the file"),
    (lambda a: a | {"image_id": [1]}, "annotation 1 belongs to no picture of the file"),
    (lambda a: "text", "annotation number 1 belongs to no picture"),
]


@pytest.mark.parametrize("how, message", COCO, ids=lambda v: v if isinstance(v, str) else "")
def test_a_bad_annotation_is_named_by_file_and_id(files, pictures, change, how, message):
    def spoil(data):
        data["annotations"][1] = how(data["annotations"][1])
        return data

    change(files["coco"], None, spoil)
    faults = told(DetectData(path=files["coco"], images=str(pictures)))
    assert len(faults) == 1 and re.search(message, faults[0]) and files["coco"] in faults[0], faults


def test_crowds_are_left_out_and_a_picture_without_a_name_is_told(files, pictures, change):
    def spoil(data):
        data["annotations"][1]["iscrowd"] = 1
        del data["images"][5]["file_name"]
        return data

    change(files["coco"], None, spoil)
    task = DetectData(path=files["coco"], images=str(pictures))
    (fault,) = told(task)
    assert "coco.json image 5 has no id or no file_name" in fault
    good = [p for split in task.splits for i in range(len(task.prompts(split, 0))) if (p := _try(task.prompts(split, 0), i))]
    assert [len(p.answer) for p in good if number_of(p) == 1] == [1]


def _try(prompts, i):
    try:
        return prompts[i]
    except UserError:
        return None


def test_bad_files_and_options_are_refused_in_one_line(files, pictures, tmp_path):
    (tmp_path / "odd.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "empty.jsonl").write_text("")
    for make, message in (
        (lambda: ReferData(path=str(tmp_path / "gone.jsonl")), "gone.jsonl does not exist: check the path"),
        (lambda: ReferData(path=str(tmp_path / "odd.json")), "odd.json is neither COCO's JSON, with images and annotations"),
        (lambda: ReferData(path=str(tmp_path / "broken.json")), "broken.json is no JSON"),
        (lambda: ReferData(path=str(tmp_path / "empty.jsonl")), "split 'train' of .*empty.jsonl is empty: add rows"),
        (lambda: ReferData(path=files["rec"], shares={"train": 0}), "must name splits with shares above 0"),
        (lambda: ReferData(path=files["rec"], shares=0.5), "shares = 0.5 must be a table"),
        (lambda: ReferData(path=files["rec"], boxes="yxyx"), "boxes = 'yxyx' is unknown: choose one of xyxy, xywh"),
        (lambda: ReferData(path=files["rec"], style="vision-r1"), "style = 'vision-r1' is unknown"),
        (lambda: ReferData(path=files["rec"], frame="percent"), "frame = 'percent' is unknown: choose one of pixels"),
        (lambda: DetectData(path=files["coco"], labels="some"), "labels = 'some' is unknown: choose one of present, all"),
        (lambda: DetectData(path=files["coco"], most=0), "most = 0 must be a whole number from 1"),
        (lambda: DetectData(path=files["coco"], refinement="third"), "refinement = 'third' is unknown"),
    ):
        with pytest.raises(UserError, match=message):
            make()


def test_the_data_tasks_pass_the_conformance_kit(files, pictures):
    where = {"images": str(pictures), "shares": {"train": 0.6, "test": 0.4}}
    options = {
        "grounding/refer-data": {"path": files["refcoco"], **where},
        "grounding/refer@vlm-r1": {"path": files["rec"], **where},
        "grounding/detect-data": {"path": files["coco"], **where},
        "grounding/detect@vlm-r1": {"path": files["od"], **where},
        "grounding/detect@vision-r1": {"path": files["coco"], "labels": "all", **where},
    }
    few = {"warm": 12, "train": 12, "test": 12}
    options |= {f"grounding/{name}": few for name in ("refer", "detect", "count", "point")}
    check_plugin("grounding", n=6, options=options)
