"""People's data: every format gives the same boxes, and a broken row is named by its file and line or its annotation."""

import collections
import json
import re
from pathlib import Path

import pytest
from mmrl_grounding import sources, verifiers, vision_reasoner
from mmrl_grounding.data_task import CountData, DetectData, PointData, ReferData
from mmrl_grounding.geometry import middle
from mmrl_grounding.reason_task import ReasonData
from PIL import Image

from broken_rows import faults_of
from mmrl import Case, UserError
from mmrl.api.tasks.tables import DataTable
from mmrl.registry import plugins
from mmrl.testing import check_plugin

SAMPLES = Path(__file__).parents[3] / "assets" / "samples"


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


SWIFT = [  # turns, names, boxes -> (what is asked for, labels of the boxes)
    (["Find <ref-object>", "<bbox>"], ["the cat"], 1, ("the cat", ["the cat"])),
    (["Find the <ref-object>", "<bbox><bbox>"], ["cat"], 2, ("cat", ["cat", "cat"])),
    (["Describe it.", "<ref-object><bbox> and <ref-object><bbox>"], ["a dog", "a cat"], 2, (None, ["a dog", "a cat"])),
    (
        ["Locate <ref-object>", '[{"bbox_2d": <bbox>, "label": "<ref-object>"}, {"bbox_2d": <bbox>, "label": "<ref-object>"}]'],
        ["pets", "cat", "dog"],
        2,
        ("pets", ["cat", "dog"]),
    ),
]


@pytest.mark.parametrize(("turns", "names", "boxes", "found"), SWIFT)
def test_ms_swift_s_rows_have_their_names_and_boxes_in_objects(turns, names, boxes, found, pictures, tmp_path):
    chat = [{"role": role, "content": said} for role, said in zip(("user", "assistant"), turns, strict=True)]
    corners = [[1 + n, 2, 9 + n, 9] for n in range(boxes)]
    row = {"messages": chat, "images": [str(pictures / "0.png")], "objects": {"ref": names, "bbox": corners}}
    read = sources.swift(row)
    assert (read["expression"], [one["label"] for one in read["objects"]]) == found
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    prompts = every(DetectData(path=str(tmp_path / "rows.jsonl"), shares={"train": 1.0}))
    assert [one["bbox_2d"] for one in prompts[0].answer] == corners, "two corners, in pixels"
    for spoilt, message in (
        ({**row["objects"], "bbox": []}, "its messages contain <bbox> more often than its objects have such"),
        ({**row["objects"], "bbox_type": "norm1"}, "its bbox_type is 'norm1': give boxes in pixels"),
    ):
        with pytest.raises(ValueError, match=message):
            sources.swift({**row, "objects": spoilt})


def test_refcoco_s_rows_as_lmms_lab_publishes_them(pictures, tmp_path):
    """Each answer is an expression; the question asks for a caption. lmms-eval's `refcoco_bbox_rec` takes them so, and its
    ACC@0.5 counts an IoU of exactly 0.5 as right, as `grounding/iou50` does."""
    table = {
        "question_id": ["8", "9"],
        "image": [{"bytes": (pictures / f"{n}.png").read_bytes(), "path": None} for n in (1, 2)],
        "question": ["Please carefully observe the area circled in the image and come up with a caption for the area."] * 2,
        "answer": [["left cat", "the cat on the left"], ["a dog"]],
        "bbox": [[4.5, 5.0, 10.25, 20.0], [8.0, 6.0, 20.0, 10.0]],
        "iscrowd": [0, 0],
        "file_name": ["COCO_train2014_000000000001_0.jpg", "COCO_train2014_000000000002_0.jpg"],
    }
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(table), tmp_path / "testA.parquet")
    prompts = every(ReferData(path=str(tmp_path / "testA.parquet"), shares={"test": 1.0}, whole=False))
    found = {(p.text.split("Where is ")[1].split("?")[0], tuple(p.answer)) for p in prompts}
    first = (4.5, 5.0, 14.75, 25.0)
    assert found == {("left cat", first), ("the cat on the left", first), ("a dog", (8.0, 6.0, 28.0, 16.0))}
    (dog,) = (p for p in prompts if "a dog" in p.text)
    for answer, value in (("8 6 28 16", 1.0), ("8 6 18 16", 1.0), ("8 6 17 16", 0.0), ("", 0.0)):
        case = Case(completion=answer, answer=dog.answer, meta=dog.meta, image_sizes=((64, 48),))
        assert verifiers.iou(case, threshold=0.5, graded=False).value == value


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


def test_rows_about_one_embedded_picture_are_in_one_split(pictures, monkeypatch):
    rows = [
        {"image": (pictures / f"{i // 4}.png").read_bytes(), "expression": f"thing {i}", "bbox": [1, 2, 9, 9]} for i in range(96)
    ]
    monkeypatch.setattr(sources, "_table", lambda path: DataTable(path, len(rows), rows.__getitem__))
    task = ReferData(path="refs.parquet", shares={"train": 0.5, "test": 0.5})
    seen = {split: {p.images[0] for p in task.prompts(split, 0)} for split in task.splits}
    assert len(seen["train"]) + len(seen["test"]) == 24 and not seen["train"] & seen["test"]


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


@pytest.mark.parametrize(
    "box, point", [((10.6, 20.2, 10.9, 20.8), (10.75, 20.5)), ((10, 20, 11, 24), (10, 22)), ((10.2, 20, 13, 24), (11, 22))]
)
def test_the_middle_is_a_whole_pixel_unless_that_is_outside(tmp_path, pictures, box, point):
    (tmp_path / "own.jsonl").write_text(json.dumps({"image": "0.png", "expression": "it", "bbox_2d": box}) + "\n")
    task = ReasonData(path=str(tmp_path / "own.jsonl"), images=str(pictures), whole=False, shares={"train": 1})
    ((item,),) = [p.answer for p in task.prompts("train", 0)]
    assert tuple(item["point_2d"]) == point == middle(*box)


def test_fractions_of_a_pixel_are_rounded_or_kept(files, pictures, change):
    change(files["rec"], 3, lambda r: r | {"conversations": [r["conversations"][0], {"value": [4.4, 5.6, 16.2, 48.7]}]})
    found = {number_of(p): p.answer for p in every(ReferData(path=files["rec"], images=str(pictures)))}
    assert found[3] == [4, 6, 16, 48]  # and what is over the edge by less than a pixel is cut
    found = {number_of(p): p.answer for p in every(ReferData(path=files["rec"], images=str(pictures), whole=False))}
    assert found[3] == [4.4, 5.6, 16.2, 48]
    change(files["rec"], 3, lambda r: r | {"conversations": [r["conversations"][0], {"value": [4.1, 5, 4.4, 20]}]})
    found = {number_of(p): p.answer for p in every(ReferData(path=files["rec"], images=str(pictures)))}
    assert found[3] == [4.1, 5, 4.4, 20]  # rounded it would have no area


# -- how many, and a point ------------------------------------------------------------------------------------------------


def test_every_format_is_counted(files, pictures, boxes_of, change):
    """The number is that of the objects of the label asked for; rows may also say the number themselves."""
    for name in ("od", "coco"):
        for labels in ("present", "all", ["cat", "cow"]):
            prompts = every(CountData(path=files[name], images=str(pictures), labels=labels))
            assert len(prompts) == 24
            for prompt in prompts:
                (label,) = prompt.meta["labels"]
                assert prompt.answer == sum(one["label"] == label for one in boxes_of(number_of(prompt)))
                assert len(prompt.meta["boxes"]) == prompt.answer
                assert prompt.text == f'How many objects of the kind "{label}" are there? Answer with the number.'
                assert prompt.answer > 0 or labels != "present"
            assert labels == "present" or {p.answer for p in prompts} == {0, 1}
    said = [
        {"image": "3.png", "conversations": [{"value": "<image>How many?"}, {"value": "<answer> 12 </answer>"}]},
        {"image": "4.png", "expression": "people with hats.", "count": 7},
    ]
    Path(files["rec"]).write_text("\n".join(map(json.dumps, said)))
    task = CountData(path=files["rec"], images=str(pictures), shares={"train": 1.0})
    found = {number_of(p): p for p in every(task)}
    assert [found[3].answer, found[4].answer] == [12, 7]
    assert found[3].text == "How many? Answer with the number."
    assert found[4].text == "How many people with hats are there? Answer with the number."


def test_numbers_that_are_rare_are_counted_as_often_as_they_can_be(tmp_path, pictures):
    """Twenty pictures with three cats and one of each of nine others: a label drawn at once would give 3 in a tenth."""
    objects = [{"bbox_2d": [1 + i, 1, 9 + i, 9], "label": label} for i, label in enumerate(["cat"] * 3 + list("abcdefghi"))]
    rows = [json.dumps({"image": f"{n}.png", "objects": objects}) for n in range(24)]
    (tmp_path / "many.jsonl").write_text("\n".join(rows))
    task = CountData(path=str(tmp_path / "many.jsonl"), images=str(pictures), labels=["cat", *"abcdefghi", "cow"])
    counts = collections.Counter(p.answer for p in every(task))
    assert set(counts) == {0, 1, 3} and max(counts.values()) <= 14, counts


def test_every_format_is_pointed_at(files, pictures, boxes_of):
    """The middle of a true box is right, that of the picture's corner is not; of several objects of a label any will do."""
    for name in ("rec", "refcoco", "od", "coco"):
        task = PointData(path=files[name], images=str(pictures))
        prompts = every(task)
        assert len(prompts) == (48 if name == "refcoco" else 24)
        for prompt in prompts:
            case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta, image_sizes=((64, 48),))
            assert verifiers.point(case).value == verifiers.form(case).value == 1
            assert "box" not in prompt.text and prompt.text.endswith(
                "Answer with a point on it: x y, in pixels of the 64 x 48 picture."
            )
            assert {tuple(box) for box in prompt.meta["boxes"]} <= {tuple(o["bbox_2d"]) for o in boxes_of(number_of(prompt))}
        if name != "od":
            start = "Point at any " if name == "coco" else "Point at "
            assert all(p.text.startswith(start) for p in prompts)


def test_any_of_several_objects_may_be_pointed_at():
    several = [{"bbox_2d": [0, 0, 10, 10], "label": "cat"}, {"bbox_2d": [40, 40, 60, 60], "label": "cat"}]
    for text, strict, near in (
        ("5 5", 1, 1),
        ("50 50", 1, 1),
        ("30 50", 0, 1 - 10 / 800**0.5),
        ("25 25", 0, 1 - 450**0.5 / 800**0.5),
    ):
        case = Case(completion=text, answer=several, image_sizes=((64, 64),))
        assert verifiers.point(case).value == strict
        assert verifiers.point(case, graded=True).value == pytest.approx(near)


def test_a_row_that_cannot_be_counted_or_pointed_at_is_named(files, pictures, change):
    change(files["refcoco"], 6, lambda r: {"image": "6.png", "count": 3})
    assert [
        re.search("line 7: it has a number and no expression", fault) is not None
        for fault in faults_of(CountData(path=files["refcoco"], images=str(pictures), labels=["cat"]))
        if "line 7" in fault
    ] == [True]
    change(files["refcoco"], 6, lambda r: {"image": "6.png", "sentences": ["x"], "objects": [{"bbox": [1, 2, 3, 4]}] * 2})
    (fault,) = faults_of(PointData(path=files["refcoco"], images=str(pictures)))
    assert "line 7: it has 2 boxes, and an expression describes one" in fault
    change(files["refcoco"], 6, lambda r: {"image": "6.png", "objects": [{"bbox": [1, 2, 3, 4]}] * 2})
    (fault,) = faults_of(PointData(path=files["refcoco"], images=str(pictures)))
    assert "line 7: an object has no label, and there is no expression" in fault


def test_a_question_without_an_end_gets_one(files, pictures, change):
    """VLM-R1's own rows end without a full stop; its own prompt keeps them as they are."""
    ask = "<image>Please provide the bounding box coordinate of the region this sentence describes: the yellow box"
    change(files["rec"], 3, lambda r: r | {"conversations": [{"value": ask}, {"value": [4, 5, 16, 30]}]})

    def text(task):
        return next(p.text for p in every(task) if number_of(p) == 3)

    assert "describes: the yellow box. Answer with its box" in text(ReferData(path=files["rec"], images=str(pictures)))
    assert "describes: the yellow box First output" in text(ReferData(path=files["rec"], images=str(pictures), style="vlm-r1"))


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
    ([10, 5, 10**400, 20], "not four finite numbers"),
    ([10, 5, "30", 20], "not four finite numbers"),
    ([True, False, True, True], "not four finite numbers"),
    ([10, 5, 30], "not four numbers"),
    ([], "not four numbers|0 boxes"),
    ("here", "not four numbers"),
    (None, "not four numbers"),
    (7, "not four numbers"),
    ({"x": 1}, "no box under any"),
]


@pytest.mark.parametrize("box, message", BAD_BOXES, ids=lambda v: repr(v)[:30])
def test_a_bad_box_is_named_by_file_and_line(files, pictures, change, box, message):
    change(files["rec"], 6, lambda r: r | {"conversations": [r["conversations"][0], {"value": box}]})
    (fault,) = faults_of(ReferData(path=files["rec"], images=str(pictures)))
    assert f"{files['rec']} line 7" in fault
    assert any(part in fault for part in message.split("|")), fault


ROWS = [
    (lambda r: "{broken", "line 7 is no JSON"),
    (lambda r: "[1, 2]", "line 7 holds a list, not an object"),
    (lambda r: {k: v for k, v in r.items() if k != "image"}, "line 7.*: it has no picture under any of image"),
    (lambda r: r | {"image": "gone.png"}, r"line 7: image .*gone.png does not exist"),
    (lambda r: r | {"image": ["1.png", "2.png"]}, "line 7.*: it has 2 pictures, and boxes need exactly one"),
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
    faults = faults_of(ReferData(path=files["refcoco"], images=str(pictures)))
    assert 1 <= len(faults) <= 2
    for fault in faults:
        assert re.search(message, fault) and files["refcoco"] in fault, fault


@pytest.mark.parametrize(
    "key, boxes, how_read",
    [
        ("box", None, '; box was read as a corner and the size, and boxes = "xyxy" reads two corners: correct or remove it'),
        ("bbox", "xywh", ": correct or remove it"),
        ("bbox_2d", None, None),
    ],
)
def test_a_box_that_does_not_fit_says_how_its_numbers_were_read(pictures, tmp_path, key, boxes, how_read):
    (tmp_path / "own.jsonl").write_text(json.dumps({"image": "1.png", "expression": "a cat", key: [40, 20, 60, 40]}) + "\n")
    options = {} if boxes is None else {"boxes": boxes}
    task = ReferData(path=str(tmp_path / "own.jsonl"), images=str(pictures), shares={"train": 1}, **options)
    faults = faults_of(task)
    assert not faults if how_read is None else "[40, 20, 100, 60], is outside its picture of 64 x 48" + how_read in faults[0]


@pytest.mark.parametrize("kind", [DetectData, CountData])
def test_labels_of_a_row_are_a_list(pictures, tmp_path, kind):
    rows = [{"image": "1.png", "objects": [{"bbox_2d": [1, 2, 9, 9], "label": "cat"}], "labels": own} for own in (["dog"], "dog")]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (fault,) = faults_of(kind(path=str(tmp_path / "own.jsonl"), images=str(pictures), shares={"train": 1}))
    assert "own.jsonl line 2: its labels are 'dog' and not a list of names" in fault


def test_a_broken_picture_is_named(files, pictures):
    (pictures / "6.png").write_bytes(b"no picture")
    (fault,) = faults_of(ReferData(path=files["rec"], images=str(pictures)))
    assert "rec.jsonl line 7" in fault and "6.png is broken" in fault


COCO = [
    (lambda a: a | {"bbox": [1, 2, -3, 4]}, "the box of 'dog' in annotation 1, .*reversed"),
    (lambda a: a | {"bbox": [1, 2, 3000, 4]}, "annotation 1, .*outside its picture"),
    (lambda a: a | {"bbox": [1, 2, float("nan"), 4]}, "annotation 1 .*not four finite numbers"),
    (lambda a: a | {"bbox": [1, 2]}, "annotation 1 .*not four numbers"),
    (lambda a: {k: v for k, v in a.items() if k != "bbox"}, "annotation 1 has no bbox"),
    (lambda a: a | {"category_id": 99}, "annotation 1 has the category 99, which the file doesn't define"),
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
    faults = faults_of(DetectData(path=files["coco"], images=str(pictures)))
    assert len(faults) == 1 and re.search(message, faults[0]) and files["coco"] in faults[0], faults


def test_crowds_are_left_out_and_a_picture_without_a_name_is_told(files, pictures, change):
    def spoil(data):
        data["annotations"][1]["iscrowd"] = 1
        del data["images"][5]["file_name"]
        return data

    change(files["coco"], None, spoil)
    task = DetectData(path=files["coco"], images=str(pictures))
    (fault,) = faults_of(task)
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
        (lambda: ReferData(path=files["rec"], shares={"train": 0}), "must give each split a number above 0"),
        (lambda: ReferData(path=files["rec"], shares=0.5), "shares = 0.5 must be a table"),
        (lambda: ReferData(path=files["rec"], boxes="yxyx"), "boxes = 'yxyx' is unknown: choose one of xyxy, xywh"),
        (lambda: ReferData(path=files["rec"], style="vision-r1"), "style = 'vision-r1' is unknown"),
        (lambda: ReferData(path=files["rec"], frame="percent"), "frame = 'percent' is unknown: choose one of pixels"),
        (lambda: ReferData(path=files["rec"], shares={"train": "x"}), "shares = .* must give each split a number above 0"),
        (
            lambda: ReferData(path=files["rec"], shares={"train": float("nan")}),
            "shares = .* must give each split a number above 0",
        ),
        (lambda: ReferData(path=files["rec"], whole=float("nan")), "whole = nan must be true or false"),
        (lambda: ReferData(path=files["rec"], whole={}), "whole = {} must be true or false"),
        (lambda: ReferData(path=5), "path = 5 must be a text"),
        (lambda: ReferData(path=files["rec"], images=5), "images = 5 must be a text"),
        (lambda: ReferData(path="x" * 3000), r"path 'x+\.?.{0,9} can't be looked up: .*: check the path"),
        (lambda: DetectData(path=files["coco"], labels=5), 'labels = 5 must be "present", "all" or a list of names'),
        (lambda: DetectData(path=files["coco"], labels={}), "labels = {} must be"),
        (lambda: CountData(path=files["coco"], labels=[]), "labels = .. must be"),
        (lambda: DetectData(path=files["coco"], labels="some"), "labels = 'some' is unknown: choose one of present, all"),
        (lambda: DetectData(path=files["coco"], most=0), "most = 0 must be a whole number from 1"),
        (lambda: DetectData(path=files["coco"], refinement="third"), "refinement = 'third' is unknown"),
    ):
        with pytest.raises(UserError, match=message):
            make()


@pytest.mark.slow
def test_the_data_tasks_pass_the_conformance_kit(files, pictures):
    where = {"images": str(pictures), "shares": {"train": 0.6, "test": 0.4}}
    options = {
        "grounding/refer-data": {"path": files["refcoco"], **where},
        "grounding/refer@vlm-r1": {"path": files["rec"], **where},
        "grounding/refer@vision-reasoner": {"path": files["rec"], **where},
        "grounding/detect-data": {"path": files["coco"], **where},
        "grounding/count-data": {"path": files["coco"], "labels": "all", **where},
        "grounding/point-data": {"path": _apart(pictures), **where},
        "grounding/region-data": {"path": str(SAMPLES / "regions.jsonl"), "shares": where["shares"]},
        "grounding/detect@vlm-r1": {"path": files["od"], **where},
        "grounding/detect@vision-r1": {"path": files["coco"], "labels": "all", **where},
        "grounding/detect@visual-rft": {"path": files["od"], **where},
    }
    few = {"warm": 12, "train": 12, "test": 12}
    options |= {f"grounding/{name}": few for name in ("refer", "detect", "count", "point")}
    check_plugin("grounding", n=6, options=options)


def _apart(pictures):
    """Rows whose boxes don't overlap, so that a point in one is in no other."""
    path = pictures.parent / "apart.jsonl"
    rows = [{"image": f"{n}.png", "sent": f"number {n}", "bbox": [n % 6 * 10, n // 6 * 11, 8, 9]} for n in range(24)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_vision_reasoners_task_asks_for_boxes_with_a_point_in_each_and_its_gold_earns_all(tmp_path):
    Image.new("RGB", (80, 60), "white").save(tmp_path / "a.png")
    row = {"image": "a.png", "expression": "The left cup.", "bbox_2d": [10, 10, 30, 41]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    options = {"path": str(tmp_path / "rows.jsonl"), "shares": {"train": 1.0}}
    prompts = plugins.registry().make_task("grounding/refer@vision-reasoner", options)
    prompt = prompts.prompts("train", 0)[0]
    assert prompt.text.startswith('Please find "the left cup" with bboxs and points.Compare')
    assert prompt.answer == [{"bbox_2d": [10, 10, 30, 41], "label": "", "point_2d": [20, 25]}]
    gold = prompts.gold(prompt)
    assert gold.endswith('<answer>[{"bbox_2d": [10, 10, 30, 41], "point_2d": [20, 25]}]</answer>')
    verifiers = {"accuracy": 3, "format": 3, "thought": 1, "entries": 2, "non-repeat": 1}
    case = Case(completion=gold, answer=prompt.answer, meta=prompt.meta, image_sizes=((80, 60),))
    for name, most in verifiers.items():
        assert plugins.registry().make_verifier(f"grounding/{name}@vision-reasoner")(case) == most, name
    untagged = Case(completion=gold.replace("<think>", ""), answer=prompt.answer, meta=prompt.meta, image_sizes=((80, 60),))
    assert vision_reasoner.form(untagged) == 2 == vision_reasoner.form(untagged, thought=False)
    assert vision_reasoner.form(untagged, entries=False) == 0
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "expression": ""}))
    with pytest.raises(UserError, match=r"rows\.jsonl line 1: it has no expression under any of expression"):
        plugins.registry().make_task("grounding/refer@vision-reasoner", options).prompts("train", 0)[0]
