"""People's screens and episodes: every format, bad rows named, metrics as the benchmarks define them, pictures for people."""

import json
import re
from pathlib import Path

import pytest
from mmrl_gui import trajectories
from mmrl_gui.action_task import Inverse, NextAction
from mmrl_gui.data_task import GroundingData
from mmrl_gui.drawing import SAID, draw_action
from PIL import Image

from broken_rows import faults_of
from mmrl import Case, CoordinateFormat, ImageProcessing, UserError
from mmrl.algorithms.signals import weight_of
from mmrl.api.media.images import load_image
from mmrl.api.simulators.gui import Action
from mmrl.registry import plugins
from mmrl.testing import check_task, check_verifier

SIZE = (120, 90)
HALF = {"train": 0.6, "test": 0.4}


def every(task):
    return [p for split in task.splits for p in task.prompts(split, 0)]


def number_of(prompt):
    """The number of a picture, by its name."""
    return int(re.search(r"(\d+)\.png", str(prompt.images[0]))[1])


# -- elements ---------------------------------------------------------------------------------------------------------------


def test_the_same_boxes_in_every_format(files, pictures, rectangle):
    for name, half in (("spot", 0), ("pro", 0), ("g1", 1)):
        prompts = every(GroundingData(path=files[name], images=str(pictures), shares=HALF, whole=False))
        assert len(prompts) == 24
        for prompt in prompts:
            x1, y1, x2, y2 = rectangle(number_of(prompt))
            assert prompt.answer == [x1 + 0.5 * half, y1, x2, y2]
            assert prompt.meta["instruction"] in prompt.text and prompt.meta["size"] == SIZE
    rates = {number_of(p): p.meta["rate"] for p in every(GroundingData(path=files["g1"], images=str(pictures)))}
    assert rates == {n: float(1 + n % 3) for n in range(24)}
    assert all(weight_of(p) == p.meta["rate"] for p in every(GroundingData(path=files["g1"], images=str(pictures))))
    assert all(weight_of(p) == 1.0 for p in every(GroundingData(path=files["spot"], images=str(pictures))))


def test_platform_and_type_are_those_of_the_benchmarks(files, pictures, change):
    prompts = every(GroundingData(path=files["spot"], images=str(pictures)))
    for p in prompts:
        n = number_of(p)
        assert (p.meta["platform"], p.meta["type"]) == (("mobile", "desktop", "web")[n % 3], ("text", "icon")[n % 2])
    change(files["spot"], 4, lambda r: {k: v for k, v in r.items() if k != "data_source"})
    assert {p.meta["platform"] for p in every(GroundingData(path=files["spot"], images=str(pictures))) if number_of(p) == 4} == {
        "desktop"
    }


def test_a_box_that_may_be_two_things_must_be_named(files, pictures, change):
    change(files["spot"], 5, lambda r: {k: v for k, v in r.items() if k != "data_type"})
    (fault,) = faults_of(GroundingData(path=files["spot"], images=str(pictures)))
    assert "spot.json item 5" in fault and 'two corners or a corner and the size: set boxes = "xyxy" or "xywh"' in fault
    assert faults_of(GroundingData(path=files["spot"], images=str(pictures), boxes="xywh")) == []


def test_boxes_in_parts_of_the_picture(tmp_path, pictures):
    path = tmp_path / "unit.jsonl"
    path.write_text(json.dumps({"image": "mobile_0.png", "instruction": "x", "bbox": [0.25, 0.5, 0.5, 1.0]}))
    task = GroundingData(path=str(path), images=str(pictures), boxes="unit", shares={"test": 1})
    assert [p.answer for p in every(task)] == [[30, 45, 60, 90]] and task.splits == ("test",)


def test_actions_as_lines_and_places_in_shares(tmp_path, pictures):
    """As AGUVIS has them, and OS-Atlas in thousandths."""
    rows = [{"image": f"mobile_{3 * n}.png", "goal": "x"} for n in range(4)]
    lines = ["pyautogui.click(x=0.25, y=0.5)", "pyautogui.write(message='hi')", "terminate(status='success')", "WAIT"]
    for name, places, scale in (("unit", "unit", 1), ("thousandths", "thousandths", 1000)):
        path = tmp_path / f"{name}.jsonl"
        said = [line.replace("0.25", str(0.25 * scale)).replace("0.5", str(0.5 * scale)) for line in lines]
        path.write_text("".join(json.dumps(row | {"action": line}) + "\n" for row, line in zip(rows, said, strict=True)))
        task = NextAction(path=str(path), images=str(pictures), shares={"test": 1}, places=places)
        found = {p.meta["kind"]: p.meta["true"]["action"] for p in every(task)}
        assert found["click"]["at"] == [30, 45] and found["type"]["text"] == "hi" and found["answer"]["text"] == "success"
        assert set(found) == {"click", "type", "answer", "wait"}


def test_a_folder_of_tables_and_several_tables_are_one(files, pictures, tmp_path):
    folder = tmp_path / "annotations"
    folder.mkdir()
    rows = json.loads(Path(files["pro"]).read_text())
    (folder / "a.json").write_text(json.dumps(rows[:10]))
    (folder / "b.json").write_text(json.dumps(rows[10:]))
    whole = every(GroundingData(path=str(folder), images=str(pictures)))
    assert sorted(map(number_of, whole)) == list(range(24)) and len({p.id for p in whole}) == 24
    both = every(GroundingData(path=f"{folder}:{files['spot']}", images=str(pictures)))
    assert len(both) == 48


def test_no_picture_is_in_two_splits(files, pictures, tmp_path):
    twice = tmp_path / "twice.json"
    rows = json.loads(Path(files["spot"]).read_text())
    twice.write_text(json.dumps([*rows, *({**r, "instruction": "another thing"} for r in rows)]))
    task = GroundingData(path=str(twice), images=str(pictures), shares=HALF)
    seen = {split: {number_of(p) for p in task.prompts(split, 0)} for split in task.splits}
    assert seen["train"] | seen["test"] == set(range(24)) and not seen["train"] & seen["test"]
    apart = GroundingData(path=files["spot"], test_path=files["pro"], images=str(pictures))
    assert {s: len(apart.prompts(s, 0)) for s in apart.splits} == {"train": 24, "test": 24}


BAD = [
    (lambda r: r | {"bbox": [30, 5, -3, 20]}, r"the box, .* is reversed"),
    (lambda r: r | {"bbox": [30, 5, 0, 20]}, r"the box, .* is empty"),
    (lambda r: r | {"bbox": [100, 5, 30, 20]}, r"outside its picture of 120 x 90"),
    (lambda r: r | {"bbox": [1, 5, "3", 20]}, r"not four"),
    (lambda r: r | {"bbox": [1, 5, float("nan"), 20]}, r"not four finite numbers"),
    (lambda r: r | {"bbox": [1, 5, 3]}, r"not four numbers"),
    (lambda r: r | {"bbox": "here"}, r"not four numbers"),
    (lambda r: {k: v for k, v in r.items() if k != "bbox"}, r"no box under any of bbox_2d, bbox"),
    (lambda r: r | {"instruction": " "}, r"no instruction under any of"),
    (lambda r: r | {"instruction": 5}, r"is 5 and not a text"),
    (lambda r: {k: v for k, v in r.items() if k != "img_filename"}, r"no picture under any of img_filename"),
    (lambda r: r | {"img_filename": "gone.png"}, r"image .*gone.png does not exist"),
    (lambda r: r | {"img_filename": "../" * 2000}, r"no file has such a name"),
    (lambda r: r | {"rate": "much"}, r"its rate is 'much' and not a number"),
    (lambda r: [1], r"holds a list, not an object"),
]


@pytest.mark.parametrize("how, message", BAD, ids=[m for _, m in BAD])
def test_a_bad_row_is_named_by_file_and_row(files, pictures, change, how, message):
    change(files["spot"], 7, how)
    (fault,) = faults_of(GroundingData(path=files["spot"], images=str(pictures)))
    assert re.search(message, fault) and "spot.json item 7" in fault and "\n" not in fault, fault


def test_a_broken_picture_is_named(files, pictures):
    (pictures / "pc_7.png").write_bytes(b"no picture")
    (fault,) = faults_of(GroundingData(path=files["spot"], images=str(pictures)))
    assert "spot.json item 7" in fault and "pc_7.png is broken" in fault


def test_accuracy_by_platform_and_type_is_that_of_the_tables(files, pictures):
    """As in SeeClick's table of ScreenSpot: six cells and their mean; and ScreenSpot-Pro's groups."""
    task = GroundingData(path=files["spot"], images=str(pictures), shares={"test": 1})
    results = [(p, float(number_of(p) % 3 == 0 or number_of(p) % 4 == 0)) for p in every(task)]
    found = task.summarise(results)
    assert set(found) == {"mobile", "desktop", "web", "text", "icon", "macro"} | {
        f"{place}/{kind}" for place in ("mobile", "desktop", "web") for kind in ("text", "icon")
    }
    assert found["mobile"] == 1 and found["desktop/icon"] == 0 and found["desktop/text"] == 0.5
    cells = [found[f"{place}/{kind}"] for place in ("mobile", "desktop", "web") for kind in ("text", "icon")]
    assert found["macro"] == pytest.approx(sum(cells) / 6)
    pro = GroundingData(path=files["pro"], images=str(pictures), shares={"test": 1})
    assert {"Dev", "CAD", "Dev/text", "CAD/icon"} <= set(pro.summarise([(p, 1.0) for p in every(pro)]))
    assert GroundingData(path=files["g1"], images=str(pictures)).summarise([]) == {}


# -- steps ------------------------------------------------------------------------------------------------------------------


def test_a_table_of_steps_in_both_formats(files, pictures, rectangle):
    for name in ("steps", "csv"):
        task = NextAction(path=files[name], images=str(pictures), shares={"test": 1}, level="low")
        prompts = sorted(every(task), key=lambda p: int(p.id.split("-")[2]))
        assert len(prompts) == 24
        kinds = ["click", "type", "scroll", "open", "click", "back"]
        for n, p in enumerate(prompts):
            assert p.meta["kind"] == kinds[n % 6] and f"To do: step {n}\n" in p.text
            assert p.meta["boxes"] == ([tuple(rectangle(n))] if n % 6 in (0, 4) else [])
    high = {p.id: p for p in every(NextAction(path=files["steps"], images=str(pictures), shares={"test": 1}, history=2))}
    assert "To do: goal 2\nDone so far:\n2. type Hello 13\n3. scroll left\nWhat is the next" in high["test-0-15-0"].text
    assert "Done so far" not in high["test-0-12-0"].text


def test_a_row_may_be_a_whole_episode(tmp_path, pictures):
    """As AndroidControl is unpacked by UIShift's scripts: the pictures are named by the episode's number."""
    row = {
        **{"episode_id": 1, "goal": "mail it", "step_instructions": ["first", "second"]},
        "actions": [{"action_type": "click", "x": 50, "y": 40}, {"action_type": "navigate_back"}],
    }
    path = tmp_path / "metadata_epi_1.json"
    path.write_text(json.dumps(row))
    task = NextAction(path=str(path), images=str(pictures), shares={"test": 1}, level="low")
    first, second = sorted(every(task), key=lambda p: p.id)
    assert first.images == (str(pictures / "epi_1_ss_0.jpg"),) and second.images == (str(pictures / "epi_1_ss_1.jpg"),)
    assert "To do: second\nDone so far:\n1. click 50 40\n" in second.text
    nested = tmp_path / "nested"
    (nested / "episode_1").mkdir(parents=True)
    for n in range(2):
        (pictures / f"epi_1_ss_{n}.jpg").rename(nested / "episode_1" / f"epi_1_ss_{n}.jpg")
    assert len(every(NextAction(path=str(path), images=str(nested), shares={"test": 1}))) == 2


def test_the_smallest_box_around_a_click_is_what_it_is_about(tmp_path, pictures):
    nodes = [
        {"boundsInScreen": {"right": 120, "bottom": 90}},
        {"boundsInScreen": {"left": 5, "top": 6, "right": 40, "bottom": 40}},
    ]
    nodes += [[7, 8, 20, 20], {"box": [60, 60, 61, 61]}, {"bbox": [9, 9, 3, 3]}, "odd"]
    row = {"screenshot": "mobile_0.png", "goal": "x", "action": {"action_type": "click", "x": 10, "y": 10}, "a11y": nodes}
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(row), json.dumps(row | {"action": {"action_type": "click", "x": 30, "y": 30}})]))
    task = NextAction(path=str(path), images=str(pictures), shares={"test": 1})
    assert sorted(p.meta["boxes"] for p in every(task)) == [[(5, 6, 40, 40)], [(7, 8, 20, 20)]]
    assert trajectories.smallest(None, (1, 1)) is None


@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.parametrize("kind", [GroundingData, NextAction])
def test_no_picture_is_in_two_splits_without_an_episode_too(tmp_path, kind, embedded):
    """ScreenSpot asks about several elements of a screen, and data sets come with their pictures in the table."""
    pa, rows = pytest.importorskip("pyarrow"), []
    for number in range(36):
        path = tmp_path / f"{number % 6}.png"
        Image.new("RGB", (120, 90), (40 * (number % 6), 0, 0)).save(path)
        image = {"bytes": path.read_bytes(), "path": None} if embedded else path.name
        rows.append(
            {"image": image, "instruction": f"do {number}", "action": '{"action": "click", "x": 5, "y": 5}', "box": [1, 1, 9, 9]}
        )
    pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    task = kind(path=str(tmp_path / "rows.parquet"), shares={"train": 0.5, "test": 0.5})
    seen = {split: {load_image(p.images[0]).getpixel((0, 0)) for p in task.prompts(split, 0)} for split in ("train", "test")}
    train, test = seen.values()
    assert len(train | test) == 6 and not train & test


def test_a_box_without_an_area_is_none_and_in_uishift_what_was_published(tmp_path, pictures):
    """As in 7 of the 3,870 rows of its test file, which were left out."""
    row = {
        "screenshot": "mobile_0.png",
        "goal": "x",
        "action": {"action_type": "click", "x": 50, "y": 40},
        "bbox": [50, 30, 50, 60],
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    found = {"path": str(tmp_path / "rows.jsonl"), "images": str(pictures), "shares": {"test": 1}}
    (ours,), (theirs,) = every(NextAction(**found)), every(NextAction(**found, style="uishift"))
    assert ours.meta["true"]["box"] is None and ours.meta["boxes"] == []
    assert theirs.answer == {"action_type": "click", "x": 50, "y": 40, "bbox": [50, 30, 50, 60]}


def test_the_test_file_of_ui_r1_has_its_actions_under_gt(tmp_path, pictures):
    rows = [
        {"image": "mobile_0.png", "gt": {"action_type": "click", "x": 10, "y": 12}, "task": "Click on the icon."},
        {"image": "mobile_0.png", "gt": {"action_type": "open_app", "app_name": "Etsy"}, "task": "Open Etsy app."},
    ]
    (tmp_path / "ac_test.json").write_text(json.dumps(rows))
    task = NextAction(path=str(tmp_path / "ac_test.json"), images=str(pictures), shares={"test": 1}, style="brief")
    assert sorted(task.gold(p) for p in every(task)) == ["click 10 12", "open Etsy"]


BAD_STEPS = [
    (lambda r: r | {"action": {"action_type": "fly"}}, "no action called 'fly'"),
    (lambda r: r | {"action": {"action_type": "click"}}, "click says no place"),
    (lambda r: r | {"action": "{broken"}, "is no JSON"),
    (lambda r: r | {"action": 7}, "its action is 7 and not an object"),
    (lambda r: {k: v for k, v in r.items() if k != "action"}, "no action under any of action"),
    (lambda r: r | {"action": {"action_type": "click", "x": 500, "y": 5}}, r"the place of its click, \[500.0, 5.0\], is outside"),
    (lambda r: r | {"bbox": [30, 30, 3, 3]}, "is reversed"),
    (lambda r: r | {"bbox": [100, 80, 110, 90]}, "does not hold the place of its click"),
    (lambda r: r | {"bbox": [1, 2, "x", 4]}, "not four finite numbers"),
    (lambda r: r | {"screenshot": ["a.png", "b.png", "c.png"]}, "it has 3 pictures"),
    (lambda r: r | {"screenshot": "gone.png"}, "gone.png does not exist"),
    (lambda r: r | {"goal": ""}, "no goal or instruction"),
    (lambda r: "{broken", "is no JSON"),
]


@pytest.mark.parametrize("how, message", BAD_STEPS, ids=[m for _, m in BAD_STEPS])
def test_a_bad_step_is_named_by_file_and_line(files, pictures, change, how, message):
    change(files["steps"], 6, how)
    (fault,) = faults_of(NextAction(path=files["steps"], images=str(pictures), shares=HALF))
    assert re.search(message, fault) and "steps.jsonl line 7" in fault and "\n" not in fault, fault


def test_no_episode_is_in_two_splits(files, pictures):
    task = NextAction(path=files["steps"], images=str(pictures), shares={"train": 0.5, "test": 0.5})
    seen = {split: {int(p.id.split("-")[2]) // 6 for p in task.prompts(split, 0)} for split in task.splits}
    assert seen["train"] | seen["test"] == set(range(4)) and not seen["train"] & seen["test"]


# -- pairs and recordings ---------------------------------------------------------------------------------------------------


def test_pairs_are_screens_k_steps_apart(recording, files, pictures):
    for k in (1, 2, 3):
        prompts = every(Inverse(path=recording, k=k, shares={"test": 1}))
        assert len(prompts) == 12 * (4 - k)  # three steps and the last screen
        for p in prompts:
            episode, step = (int(v) for v in p.id.split("-")[2:])
            assert [Path(i).name for i in p.images] == [f"page-{episode}-{step}.png", f"page-{episode}-{step + k}.png"]
            assert p.meta["kind"] == ("click", "type", "click")[step]
    assert len(every(Inverse(path=files["steps"], images=str(pictures), shares={"test": 1}))) == 20  # the last has no next
    assert len(every(Inverse(path=files["pairs"], images=str(pictures), shares={"test": 1}))) == 24


def test_pairs_go_by_the_numbers_of_steps_where_some_are_left_out(files, pictures):
    rows = [json.loads(line) for line in Path(files["steps"]).read_text().splitlines()]
    left = [row for row in rows if (row["episode_id"], row["index"]) != (rows[0]["episode_id"], 2)]
    Path(files["steps"]).write_text("".join(json.dumps(row) + "\n" for row in left))
    for k, count in ((1, 20 - 2), (2, 16 - 2)):
        assert len(every(Inverse(path=files["steps"], images=str(pictures), k=k, shares={"test": 1}))) == count


def test_equal_screens_say_nothing(recording):
    folder = Path(recording)
    (folder / "page-5-1.png").write_bytes((folder / "page-5-0.png").read_bytes())
    with pytest.warns(UserWarning) as warned:
        task = Inverse(path=recording, shares={"test": 1})
    assert [str(one.message) for one in warned] == [
        f"{recording}/episodes.jsonl: 1 of 36 pairs of screens are equal, and left out"
    ]
    assert faults_of(task) == [] and len(every(task)) == 35, "what nobody can tell anything by is no fault of a recording"
    assert len(every(Inverse(path=recording, shares={"test": 1}, changed=False))) == 36
    Image.open(folder / "page-7-0.png").save(folder / "page-7-1.png", compress_level=1)
    with pytest.warns(UserWarning, match="1 of 36 pairs"):
        (fault,) = faults_of(Inverse(path=recording, shares={"test": 1}))
    assert "episodes.jsonl line 8 step 0: the two screens are equal" in fault, "equal pictures in other bytes"


def test_only_what_succeeded_is_imitated(recording):
    task = plugins.registry().make_task("gui/recorded", {"path": recording, "shares": {"test": 1}})
    assert {int(p.id.split("-")[2]) % 3 for p in every(task)} == {1, 2} and len(every(task)) == 24
    assert len(every(NextAction(path=recording, shares={"test": 1}))) == 24, "what failed is nothing to be asked about"
    assert len(every(Inverse(path=recording, shares={"test": 1}))) == 36, "what an action does is seen in any"
    assert len(every(NextAction(path=recording, shares={"test": 1}, only="all"))) == 36
    clicks = NextAction(path=recording, shares={"test": 1}, kinds=["click"], only="all")
    assert {p.meta["kind"] for p in every(clicks)} == {"click"} and len(every(clicks)) == 24
    assert "scroll" not in every(clicks)[0].text


def test_a_bad_recording_is_named_by_line_and_step(recording, change):
    path = f"{recording}/episodes.jsonl"

    def spoil(row):
        row["steps"][2]["box"] = [50, 50, 10, 10]
        row["steps"][1]["picture"] = "gone.png"
        return row

    change(path, 3, spoil)
    faults = sorted(faults_of(NextAction(path=recording, shares={"test": 1}, only="all")))
    assert (
        len(faults) == 2
        and "line 4 step 1: image" in faults[0]
        and "line 4 step 2: the box, [50, 50, 10, 10], is reversed" in faults[1]
    )
    change(path, 3, lambda row: row | {"steps": [5]})
    faults = faults_of(NextAction(path=recording, shares={"test": 1}, only="all"))
    assert len(faults) == 1 and "step 0 is 5 and not an object" in faults[0]


@pytest.mark.parametrize("key", ["click_point", "spot"])  # spot: as mmrl 0.1 wrote it
def test_a_recorded_click_is_about_the_element_that_is_clicked(recording, change, key):
    """Of the elements around it, where no box is told: not the smallest, but the one whose place it is."""
    listed = [{"box": [0, 0, 100, 80], "role": "list", key: [20.0, 8.0]}, {"box": [18, 6, 22, 10], "role": "text", key: [19, 7]}]

    def spoil(row):
        row["steps"][0] = {**row["steps"][0], "action": {"kind": "click", "at": [20, 8]}, "box": None, "elements": listed}
        row["steps"][2] = {**row["steps"][2], "action": {"kind": "click", "at": [21, 9]}, "box": None, "elements": listed}
        return row

    change(f"{recording}/episodes.jsonl", 4, spoil)
    found = {p.id: p.meta["boxes"] for p in every(NextAction(path=recording, shares={"test": 1}))}
    assert found["test-0-4-0"] == [(0, 0, 100, 80)] and found["test-0-4-2"] == [(18, 6, 22, 10)]


@pytest.mark.parametrize(
    ("row", "options", "said"),
    [
        ({"bbox": [10, 10, 40, 40]}, {}, 'set boxes = "xyxy" or "xywh", or "unit" for shares of the picture'),
        ({"box": [0.1, 0.2, 0.4, 0.5]}, {}, 'its box is [0.1, 0.2, 0.4, 0.5], less than a pixel: set boxes = "unit"'),
        ({"box": [90, 60, 20, 20]}, {}, "is reversed; it was read as xyxy, boxes = xyxy, xywh, unit says otherwise"),
        ({"box": [90, 60, 20, 20]}, {"boxes": "xyxy"}, "the box, [90, 60, 20, 20], is reversed: correct"),
        (
            {"box": [9, 6, 20, 20], "image": "gone.png"},
            {},
            "gone.png does not exist: check the path, or images, the folder of the",
        ),
    ],
)
def test_a_row_that_cannot_be_used_names_the_option_that_mends_it(pictures, tmp_path, row, options, said):
    rows = [{"image": "web_2.png", "instruction": "Do it.", **row}]
    (tmp_path / "own.json").write_text(json.dumps(rows))
    (fault,) = faults_of(GroundingData(path=str(tmp_path / "own.json"), images=str(pictures), shares={"test": 1}, **options))
    assert said in fault and fault.count(" own.json") + fault.count("/own.json") == 1


def test_a_split_without_rows_names_shares(pictures, tmp_path, files):
    path = tmp_path / "own.json"
    path.write_text(json.dumps([{"image": "web_2.png", "instruction": f"{n}", "box": [1, 1, 9, 9]} for n in range(6)]))
    with pytest.raises(UserError) as error:
        GroundingData(path=str(path), images=str(pictures))
    empty, other = ("test", "train") if "split 'test'" in str(error.value) else ("train", "test")
    assert f"split '{empty}' of {path} is empty: all of the 6 rows are in {other}: add rows, or change shares, such as " in str(
        error.value
    )
    assert f"shares = {{{other} = 1}}" in str(error.value)
    assert len(every(GroundingData(path=str(path), images=str(pictures), shares={other: 1}))) == 6
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(UserError, match=r"none\.json is empty: add rows, or leave test_path out"):
        GroundingData(path=files["spot"], images=str(pictures), test_path=str(tmp_path / "none.json"))


# -- options, coordinate formats, the kit -------------------------------------------------------------------------------------


def test_bad_files_and_options_are_refused_in_one_line(files, tmp_path, recording):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "hollow").mkdir()
    spot = files["spot"]
    for make, message in (
        (lambda: GroundingData(path=str(tmp_path / "gone.jsonl")), "gone.jsonl does not exist"),
        (lambda: GroundingData(path=str(tmp_path / "broken.json")), "broken.json is no JSON"),
        (lambda: GroundingData(path=str(tmp_path / "empty.jsonl")), "split 'train' of .*empty.jsonl is empty"),
        (lambda: GroundingData(path=str(tmp_path / "hollow")), "has no episodes.jsonl and no other JSON file"),
        (lambda: GroundingData(path="x" * 3000), "can't be looked up"),
        (lambda: GroundingData(path=5), "path = 5 must be a text"),
        (lambda: GroundingData(path=spot, images="a:b:c"), "path names 1 tables and images 3 folders"),
        (lambda: GroundingData(path=spot, shares={"train": 0}), "shares = .* must give each split a number above 0"),
        (lambda: GroundingData(path=spot, shares=1), "shares = 1 must be a table"),
        (lambda: GroundingData(path=spot, boxes="yx"), "boxes = 'yx' is unknown: choose one of xyxy, xywh, unit"),
        (lambda: GroundingData(path=spot, style="long"), "style = 'long' is unknown"),
        (lambda: GroundingData(path=spot, style="brief", form="box"), "form = 'box' is unknown: choose one of point"),
        (lambda: GroundingData(path=spot, frame="percent"), "frame = 'percent' is unknown"),
        (lambda: GroundingData(path=spot, grid=[0, 5]), r"grid = \[0, 5\] must be \[columns, rows\]"),
        (lambda: GroundingData(path=spot, grid=7), "grid = 7 must be"),
        (lambda: GroundingData(path=spot, whole=1), "whole = 1 must be true or false"),
        (lambda: NextAction(path=recording, level="middle"), "level = 'middle' is unknown: choose one of high, low"),
        (lambda: NextAction(path=recording, history=-1), "history = -1 must be a whole number from 0 to 100"),
        (lambda: NextAction(path=recording, places="cells"), "places = 'cells' is unknown"),
        (lambda: NextAction(path=recording, kinds=["fly"]), "kinds = 'fly' is unknown"),
        (lambda: NextAction(path=recording, kinds=[]), r"kinds = \[\] must be a list of actions"),
        (lambda: NextAction(path=recording, only="best"), "only = 'best' is unknown"),
        (lambda: Inverse(path=recording, k=0), "k = 0 must be a whole number from 1"),
        (lambda: Inverse(path=recording, style="gui-r1"), "style = 'gui-r1' is unknown"),
        (lambda: Inverse(path=recording, k=20), "split 'train' of .* is empty"),
    ):
        with pytest.raises(UserError, match=message) as error:
            make()
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_the_data_tasks_pass_the_conformance_kit(files, pictures, recording):
    where = {"images": str(pictures), "shares": HALF}
    options = {f"gui/grounding@{name}": {"path": files["spot"], **where} for name in ("ui-r1", "infigui-g1")}
    options["gui/grounding@gui-g1"] = {"path": files["g1"], **where}
    options["gui/grounding-data"] = {"path": files["spot"], **where}
    for name in ("next-action", "next-action@uishift", "next-action@gui-r1", "next-action@ui-r1", "inverse"):
        options[f"gui/{name}"] = {"path": files["steps"], **where}
    options["gui/inverse@uishift"] = {"path": files["pairs"], **where}
    options["gui/recorded"] = {"path": recording, "shares": HALF}
    registry = plugins.registry()
    for id, given in options.items():
        task, spec = registry.make_task(id, given), registry.get("tasks", id)
        report = check_task(spec, n=8, options=given)
        assert report.ok, str(report)
        rows = [(task, p) for p in every(task)[:10]]
        for verifier in {*spec.verifiers, spec.metric}:
            report = check_verifier(registry.get("verifiers", verifier), rows, is_metric=verifier == spec.metric)
            assert report.ok, f"{id}: {report}"


@pytest.mark.parametrize("style", ["short", "json", "tags", "brief", "ui-tars"])
@pytest.mark.parametrize("form", ["point", "box"])
def test_gold_is_right_in_every_style_frame_and_grid(files, pictures, style, form):
    if form == "box" and style in ("brief", "ui-tars"):
        return
    registry = plugins.registry()
    verify = [
        registry.make_verifier(f"gui/{name}")
        for name in (("hit", "format") if form == "point" else ("hit", "iou", "size-aware", "format"))
    ]
    for grid in (None, [12, 9]):
        task = GroundingData(path=files["spot"], images=str(pictures), style=style, form=form, grid=grid)
        for frame in CoordinateFormat:
            task.image_processing = ImageProcessing(frame, lambda size: (size[0] * 3 // 4, size[1] // 2))
            for p in every(task)[:6]:
                case = Case(
                    completion=task.gold(p),
                    answer=p.answer,
                    meta=p.meta,
                    image_sizes=(SIZE,),
                    model_sizes=((90, 45),),
                    coordinate_format=frame,
                )
                assert [v(case).value for v in verify] == [1.0] * len(verify), (frame, case.completion)


# -- for people -------------------------------------------------------------------------------------------------------------


def seen(task, prompt, completion):
    """(kind, of, pixels of the screen, label) of each mark."""
    scale = (*SIZE, *SIZE)
    return [
        (m.kind, m.source, tuple(round(v * side, 6) for v, side in zip(m.coordinates, scale, strict=False)), m.label)
        for m in task.overlays(prompt, completion)
    ]


def test_a_place_that_is_said_is_marked_beside_the_true_box(files, pictures):
    task = GroundingData(path=files["spot"], images=str(pictures))
    prompt = every(task)[0]
    true = ("box", "true", tuple(float(v) for v in prompt.meta["boxes"][0]), "")
    assert seen(task, prompt, '{"point_2d": [100, 80]}') == [true, ("point", "said", (100.0, 80.0), "")]
    assert seen(task, prompt, "nothing") == seen(task, prompt, "") == [true]
    (_, box) = seen(task, prompt, "10 10 30 30")
    assert box[:3] == ("box", "said", (10.0, 10.0, 30.0, 30.0))
    gold = seen(task, prompt, " ".join(map(str, prompt.meta["boxes"][0])))
    assert gold[1] == ("box", "said", true[2], "IoU 1.00")
    task.image_processing = ImageProcessing(CoordinateFormat.THOUSANDTHS)
    assert seen(task, prompt, "500 500")[1] == ("point", "said", (60.0, 45.0), ""), "in the numbers that the policy writes"
    assert task.draw_completion(prompt, "10 10") is None, "and nothing else is drawn of it"


@pytest.mark.parametrize("style", ["json", "brief", "tags", "ui-tars"])
@pytest.mark.parametrize("frame", ["pixels", "thousandths-yx", "location-tokens"])
def test_the_gold_action_is_right_and_has_the_form_in_every_style(files, pictures, style, frame):
    registry = plugins.registry()
    verify = [registry.make_verifier(f"gui/{name}") for name in ("action", "format")]
    task = NextAction(path=files["steps"], images=str(pictures), style=style, frame=frame)
    for p in every(task)[:12]:
        case = Case(completion=task.gold(p), answer=p.answer, meta=p.meta, image_sizes=(SIZE,))
        assert [v(case).value for v in verify] == [1, 1], case.completion


@pytest.mark.parametrize("style", ["uishift", "gui-r1", "ui-r1", "json", "brief", "tags", "ui-tars"])
def test_an_action_is_marked_in_every_style(files, pictures, style):
    task = NextAction(path=files["steps"], images=str(pictures), style=style)
    for prompt in sorted(every(task), key=lambda p: p.id)[:12]:
        kind, true = prompt.meta["kind"], prompt.meta["true"]
        marks = seen(task, prompt, task.gold(prompt))
        expected = {"click": ("box", "point"), "scroll": ("path", "path")}.get(kind, (None, None))
        if style == "ui-r1" and kind == "scroll":  # UI-R1's answers say no direction
            expected = ("path", None)
        assert [of for _, of, _, _ in marks] == [of for of, shape in zip(("true", "said"), expected, strict=True) if shape]
        assert [shape for shape, *_ in marks] == [shape for shape in expected if shape]
        if kind == "click":
            x1, y1, x2, y2 = marks[0][2]
            x, y = marks[1][2]
            assert list(marks[0][2]) == pytest.approx(true["box"]) and x1 <= x <= x2 and y1 <= y <= y2
        if marks and kind == "scroll":
            assert {m[2:] for m in marks} == {marks[0][2:]} and marks[0][3] == f"scroll {true['action']['direction']}"


def test_what_has_no_place_has_no_mark_and_a_drag_is_a_path(files, pictures):
    task = NextAction(path=files["steps"], images=str(pictures), style="brief")
    prompt = next(p for p in every(task) if p.meta["kind"] == "click")
    assert seen(task, prompt, "drag 10 20 30 40")[1:] == [("path", "said", (10.0, 20.0, 30.0, 40.0), "drag")]
    assert seen(task, prompt, "scroll down")[1:] == [("path", "said", (60.0, 27.0, 60.0, 63.0), "scroll down")]
    assert seen(task, prompt, "long-press 10 20")[1:] == [("point", "said", (10.0, 20.0), "long-press")]
    assert seen(task, prompt, "type hello")[1:] == seen(task, prompt, "back")[1:] == []


def test_marks_are_on_the_screen_that_the_question_is_about(files, pictures):
    task = Inverse(path=files["steps"], images=str(pictures), changed=False)
    prompt = every(task)[0]
    assert len(prompt.images) == 2 and {m.image for m in task.overlays(prompt, task.gold(prompt))} <= {0}


def test_actions_of_every_kind_leave_the_screen_itself_alone():
    picture = Image.new("RGB", (300, 200), "black")
    for action in (
        Action(kind="drag", at=(10, 10), to=(200, 150)),
        Action(kind="scroll", direction="up"),
        Action(kind="type", text="hello\n\u4f60\u597d" * 50),
        Action(kind="click", at=(5000, -5000)),
        Action(kind="drag", at=(5, 5), to=(5, 5)),
    ):
        shown = draw_action(picture, action)
        assert shown.width == 600
        assert (SAID in {colour for _, colour in shown.getcolors(1 << 18)}) == (action.kind != "click")
    assert picture.getcolors() == [(60000, (0, 0, 0))]
