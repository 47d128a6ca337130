"""The published files of benchmarks, each as it is: its keys, its boxes, its metric."""

import io
import json

import pytest
from mmrl_gui import mind2web as mind2web_step
from mmrl_gui import verifiers
from mmrl_gui.action_task import NextAction
from mmrl_gui.data_task import GroundingData
from mmrl_gui.replay import Recording
from PIL import Image

from broken_rows import faults_of
from mmrl import Case, CoordinateFormat, UserError
from mmrl.registry import plugins
from mmrl.testing import check_task, check_verifier

SIZE = (200, 100)


@pytest.fixture
def table(tmp_path):
    """Write a table, with a picture under each name that its rows give; its path."""

    def write(rows, name="rows.json", folder=""):
        for row in rows:
            image = row.get("image_path") or row["img_filename"]
            path = tmp_path / folder.format(**row) / image
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", SIZE, (sum(map(ord, image)) % 255, 90, 30)).save(path)
        (tmp_path / name).write_text(json.dumps(rows))
        return str(tmp_path / name)

    return write


def told(path, **options):
    """The task of a table that only tests, and its prompts by instruction."""
    task = GroundingData(path=path, shares={"test": 1}, **options)
    return task, {p.meta["instruction"]: p for p in task.prompts("test", 0)}


def hit(prompt, text, size=SIZE):
    return verifiers.hit(Case(completion=text, answer=prompt.answer, meta=prompt.meta, image_sizes=(size,))).value


def mmbench(number, bbox, platform="os_windows", level="basic", kind="icon"):
    return {
        **{"index": number, "image_path": f"{number}.png", "instruction": f"number {number}", "bbox": bbox, "app_name": "x"},
        **{"data_type": kind, "platform": platform, "grounding_type": level},
    }


def test_mmbench_gui_has_two_corners_in_pixels_or_in_shares_and_a_folder_for_each_platform(table):
    """Its benchmarks/l2_element_grounding.py: a box within 0 and 1 is one of shares, and -1 is the edge."""
    rows = [
        mmbench(0, [10, 10, 30, 30]),
        mmbench(1, [0.05, 0.1, 0.15, 0.3], "os_ios", "advanced", "text"),
        mmbench(2, [-1, 5, 30.5, 30], "os_ios"),
        mmbench(3, [0, 0, 1, 1], "os_web", "advanced"),
    ]
    path = table(rows, "L2_annotations.json", "offline_images/{platform}")
    task, prompts = told(path, images=path.rpartition("/")[0] + "/offline_images")
    assert [prompts[f"number {n}"].answer for n in range(4)] == [
        [10, 10, 30, 30],
        [10, 10, 30, 30],
        [0, 5, 30.5, 30],
        [0, 0, 200, 100],
    ]
    assert hit(prompts["number 0"], "31 20") == 0 and hit(prompts["number 0"], "30 20") == 1
    figures = task.summarise([(p, float(number in "012")) for (_, number), p in ((k.split(), v) for k, v in prompts.items())])
    assert figures["basic"] == 1 and figures["advanced"] == 0.5 and figures["macro"] == 0.75
    assert figures["os_ios"] == 1 and figures["os_web/advanced"] == 0 and figures["os_windows/icon"] == 1
    screenspot = {
        **dict.fromkeys(rows[0]),
        "img_filename": "s.png",
        "instruction": "s",
        "bbox": [10, 10, 30, 30],
        "data_type": "icon",
    }
    flat = told(table([*rows, screenspot]))[1]
    assert flat["number 0"].answer == [10, 10, 30, 30] and flat["s"].answer == [10, 10, 40, 40], "by the keys that have a value"


def test_ui_vision_has_its_own_key_for_the_instruction_and_corners_in_any_order(table):
    """Its eval/grounding/eval_uivision.py, and mapdict_cat2platform.json for the categories."""
    row = {"image_path": "VSCode/1.png", "platform": "VSCode", "image_size": list(SIZE), "element_type": "Button"}
    rows = [
        row | {"prompt_to_evaluate": "run", "bbox": [30.4, 30, 10.2, 10]},
        row | {"prompt_to_evaluate": "stop", "bbox": [0, 0, 9, 9]},
    ]
    spatial = [row | {"prompt_to_evaluate": "left of it", "bbox": [50, 50, 60, 60], "platform": "VLC Media Player"}]
    both = f"{table(rows, 'element_grounding_basic.json')}:{table(spatial, 'element_grounding_spatial.json')}"
    task, prompts = told(both)
    assert (
        prompts["run"].answer == [10.2, 10, 30.4, 30]
        and hit(prompts["run"], "10.2 10") == 1
        and hit(prompts["run"], "10 10") == 0
    )
    figures = task.summarise([(p, float(name != "stop")) for name, p in prompts.items()])
    assert figures["basic"] == 0.5 and figures["spatial"] == 1 and figures["macro"] == 0.75
    assert figures["Development/basic"] == 0.5 and figures["Entertainment"] == 1


def osworld(name, kind, box):
    return {
        **{"id": name, "image_path": "a.png", "image_size": list(SIZE), "instruction": name, "box_type": kind},
        **{"box_coordinates": box, "GUI_types": ["Button"]},
    }


OSWORLD = [
    osworld("box", "bbox", [10, 10, 20, 20]),
    osworld("shape", "polygon", [100, 10, 160, 10, 160, 70, 150, 70, 150, 20, 100, 20]),  # an L on its head
    osworld("gone", "refusal", [-1, -1, -1, -1]),
]


def test_osworld_g_has_boxes_polygons_and_what_is_not_there(table, tmp_path):
    (tmp_path / "classification_result.json").write_text(
        json.dumps({"classified": {"text_matching": [{"id": "box"}], "element_recognition": [{"id": "box"}, {"id": "shape"}]}})
    )
    task, prompts = told(table(OSWORLD, "OSWorld-G.json"))
    assert prompts["box"].answer == [10, 10, 30, 30]
    shape, gone = prompts["shape"], prompts["gone"]
    for text, right in (("105 15", 1), ("155 65", 1), ("130 40", 0), ("130 70", 0), ("99 15", 0)):
        assert hit(shape, text) == right, text
    for text, right in (("-1 -1", 1), ("[-0.01, -0.01]", 1), ("-1 5", 0), ("0 0", 0), ("nowhere", 0)):
        assert hit(gone, text) == right, text
    assert all("both numbers are -1" in prompt.text for prompt in prompts.values())
    assert task.overlays(gone, "-1 -1") and shape.meta["boxes"] == [(100, 10, 160, 70)]
    figures = task.summarise([(p, float(name != "shape")) for name, p in prompts.items()])
    assert figures == {"text_matching": 1, "element_recognition": 0.5}
    for style in ("short", "json", "tags", "brief", "ui-tars"):
        for frame in (
            CoordinateFormat.PIXELS,
            CoordinateFormat.THOUSANDTHS,
            CoordinateFormat.THOUSANDTHS_YX,
            CoordinateFormat.UNIT,
        ):
            task, prompts = told(table(OSWORLD), style=style, frame=frame.value)
            assert [hit(p, task.gold(p)) for p in prompts.values()] == [1, 1, 1], (style, frame)


def test_osworld_g_without_a_place_is_left_out_where_none_can_be_written(table):
    path = table([*OSWORLD, osworld("odd", "circle", [1, 2, 3, 4]), osworld("line", "polygon", [1, 2, 3, 4])])
    faults = faults_of(GroundingData(path=path, shares={"test": 1}, style="gui-g1"))
    assert sum("needs a style of short" in fault for fault in faults) == 3
    faults = faults_of(GroundingData(path=path, shares={"test": 1}, grid=[10, 10]))
    assert len(faults) == 3 and any("box_type is 'circle'" in f for f in faults) and any("three corners" in f for f in faults)
    assert any("none of a grid" in fault for fault in faults)


@pytest.mark.slow
def test_osworld_g_passes_the_kit(table):
    rows = [row | {"id": f"{row['id']}{n}", "image_path": f"{n}.png"} for n in range(8) for row in OSWORLD]
    registry, given = plugins.registry(), {"path": table(rows), "shares": {"train": 0.5, "test": 0.5}}
    report = check_task(registry.get("tasks", "gui/grounding-data"), n=8, options=given)
    assert report.ok, str(report)
    task = registry.make_task("gui/grounding-data", given)
    report = check_verifier(registry.get("verifiers", "gui/hit"), [(task, p) for s in task.splits for p in task.prompts(s, 0)])
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_picture_in_the_table_is_taken_before_its_name(tmp_path):
    """As in data sets on the Hub: ScreenSpot-Pro with `img_filename` and `image`."""
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    held = io.BytesIO()
    Image.new("RGB", SIZE).save(held, "PNG")
    row = {"img_filename": "dev/1.png", "image": {"bytes": held.getvalue(), "path": "1.png"}, "bbox": [10, 10, 20, 20]}
    row |= {"instruction": "go", "ui_type": "text", "group": "Dev", "img_size": list(SIZE)}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "pro.parquet")
    _, prompts = told(str(tmp_path / "pro.parquet"))
    assert prompts["go"].meta["size"] == SIZE and prompts["go"].answer == [10, 10, 20, 20]


# -- episodes ---------------------------------------------------------------------------------------------------------------


def odyssey(folder, name, category, steps):
    """An annotation of GUI-Odyssey, as its introduction.md has it, and its pictures."""
    listed = []
    for number, (action, info, box) in enumerate(steps):
        Image.new("RGB", SIZE, (number * 40, len(name), 9)).save(folder / f"{name}_{number}.png")
        own = {"step": number, "screenshot": f"{name}_{number}.png", "action": action, "info": info, "ps": "", "sam2_bbox": box}
        listed.append(own | {"low_level_instruction": f"step {number}", "intention": "", "context": "", "description": ""})
    found = {
        **{"episode_id": name, "device_info": {"h": 2400, "w": 1080}, "step_length": len(listed), "steps": listed},
        "task_info": {"category": category, "app": ["Chrome"], "meta_task": "", "task": "a", "instruction": f"do {name}"},
    }
    (folder / f"{name}.json").write_text(json.dumps(found))


def test_gui_odyssey_has_thousandths_keys_fingers_and_the_boxes_of_a_model(tmp_path):
    for name, category in (("a", "Multi_Apps"), ("b", "Web_Shopping")):
        steps = [
            ("CLICK", [[500, 500]], [480, 480, 520, 520]),
            ("CLICK", "KEY_HOME", []),
            ("CLICK", "KEY_APPSELECT", []),
            ("SCROLL", [[500, 800], [510, 200]], []),
            ("TEXT", "New York", []),
            ("LONG_PRESS", [[100, 100]], [900, 900, 950, 950]),  # beside what was pressed
            ("COMPLETE", "", []),
        ]
        odyssey(tmp_path, name, category, steps)
    registry = plugins.registry()
    task = registry.make_task("gui/next-action@gui-odyssey", {"path": str(tmp_path), "shares": {"test": 1}, "history": 9})
    verify = registry.make_verifier("gui/action@gui-odyssey")
    prompts = {(p.id.split("-")[1] + p.id.split("-")[3]): p for p in task.prompts("test", 0)}
    assert len(prompts) == 14 and prompts["06"].text.count("\n") and "6. long-press 20 10\n" in prompts["06"].text
    assert "do a" in prompts["00"].text and prompts["00"].meta["true"] == {
        "action": {"kind": "click", "at": [100, 50]},
        "box": [96, 48, 104, 52],
    }
    kinds = [prompts[f"0{n}"].meta["true"]["action"] for n in range(7)]
    assert [k["kind"] for k in kinds] == ["click", "home", "key", "scroll", "type", "long-press", "answer"]
    assert kinds[2]["text"] == "Recent" and kinds[3]["direction"] == "down" and kinds[6]["text"] == "done"

    def score(key, text):
        prompt = prompts[key]
        return verify(Case(completion=text, answer=prompt.answer, meta=prompt.meta, image_sizes=(SIZE,))).value

    for key, text, right in (
        ("00", "click 104 52", 1),
        ("00", "click 127 50", 1),  # 0.135 of the width from the point
        ("00", "click 130 50", 0),
        ("02", "PRESS_RECENT", 1),
        ("03", '{"action": "swipe", "coordinate": [100, 80], "coordinate2": [101, 20]}', 1),
        ("03", "SCROLL: UP", 1),  # as its own models answer
        ("03", "SCROLL: DOWN", 0),
        ("04", "type York", 1),
        ("04", "type new york", 1),  # two of eight letters
        ("04", "type Boston", 0),
        ("05", "long-press 185 92", 1),
        ("05", "long-press 21 11", 1),
        ("06", "Action: finished()", 1),
        ("06", "Action: call_user()", 0),
    ):
        assert score(key, text) == right, (key, text)
    assert all(score(key, task.gold(p)) == 1 for key, p in prompts.items())
    figures = task.summarise([(p, float(key != "13")) for key, p in prompts.items()])
    assert figures["category/Multi_Apps"] == 1 and figures["macro"] == figures["episode-mean"] == pytest.approx((1 + 6 / 7) / 2)
    assert figures["episodes"] == 0.5
    with pytest.raises(UserError, match=r"a\.json item 0 step 0: its places are in thousandths, and those of a recording"):
        Recording(str(tmp_path))
    low = NextAction(path=str(tmp_path), shares={"test": 1}, level="low")
    assert "To do: step 3\n" in next(p for p in low.prompts("test", 0) if p.id.endswith("0-0-3")).text


def mind2web(number, kind, value, box="10,20,30,10", **more):
    return {
        **{"action_uid": f"u{number}", "annotation_id": "t1", "target_action_index": str(number), "domain": "Travel"},
        **{"confirmed_task": "book a table", "website": "x", "raw_html": "", "cleaned_html": "", "neg_candidates": []},
        "operation": json.dumps({"original_op": kind, "value": value, "op": "CLICK" if kind == "HOVER" else kind}),
        "pos_candidates": [
            json.dumps({"tag": "input", "attributes": json.dumps({"bounding_box_rect": box}), "is_original_target": True})
        ],
        "screenshot": f"{number}.png",
        **more,
    }


@pytest.fixture
def booking(tmp_path):
    """The path of an episode with all operations, and two rows without an element that can be hit."""
    rows = [mind2web(0, "CLICK", ""), mind2web(1, "TYPE", "New York"), mind2web(2, "SELECT", "Two"), mind2web(3, "HOVER", "")]
    rows += [mind2web(4, "CLICK", "", pos_candidates=[]), mind2web(5, "CLICK", "", "-1,-1,-1,-1")]
    for number in range(6):
        Image.new("RGB", SIZE, (number * 40, 1, 9)).save(tmp_path / f"{number}.png")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "rows.jsonl")


def test_mind2web_has_its_element_in_json_in_json_and_types_into_it(booking):
    task = NextAction(path=booking, shares={"test": 1})
    faults = faults_of(task)
    assert len(faults) == 2 and any("no action" in f and "line 5" in f for f in faults) and any("line 6" in f for f in faults)
    prompts = {p.meta["true"]["action"]["kind"] + p.meta["true"]["action"].get("text", ""): p for p in readable(task)}
    assert set(prompts) == {"click", "typeNew York"}, "options are not chosen where that isn't offered"
    typed = prompts["typeNew York"]
    assert '{"action": "type", "x": x, "y": y, "text": text}' in typed.text and "2. type" not in typed.text
    assert typed.meta["true"]["box"] == [10, 20, 40, 30]

    def parts(text):
        return verifiers.action(Case(completion=text, answer=typed.answer, meta=typed.meta, image_sizes=(SIZE,))).parts

    assert parts(task.gold(typed)) == {"type": 1, "grounding": 1, "text": 1}
    assert parts('{"action": "type", "x": 50, "y": 25, "text": "new york"}') == {"type": 1, "grounding": 0, "text": 1}
    assert parts('{"action": "type", "text": "new york"}') == {"type": 1, "grounding": 0, "text": 1}
    assert parts("Thought: t\nAction: type(start_box='(12,25)', content='Boston')") == {"type": 1, "grounding": 1, "text": 0}
    for text, element, f1 in (
        (task.gold(typed), 1, 1),
        ('{"action": "type", "x": 40, "y": 30, "text": "york NEW"}', 1, 1),
        ('{"action": "type", "x": 41, "y": 30, "text": "new york"}', 0, 1),
        ('{"action": "type", "x": 12, "y": 25, "text": "york"}', 1, 0.8),  # two words of two, and of three
        ("click 12 25", 1, 0),
        ('{"action": "type", "text": "new york"}', 0, 0),  # its model's answers always have a place
        ("nothing", 0, 0),
    ):
        found = mind2web_step.action(Case(completion=text, answer=typed.answer, meta=typed.meta, image_sizes=(SIZE,)))
        assert found.parts == {"element": element, "f1": pytest.approx(f1)} and found.value == (element and f1 == 1), text
    assert task.summarise([(p, float(p is typed)) for p in prompts.values()])["episode-mean"] == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    "style, shown, said",
    [
        ("json", '{"action": "select", "x": x, "y": y, "text": option}', '{"action": "select", "x": 12, "y": 25, "text": "two"}'),
        (
            "tags",
            '{"action": "select", "x": x, "y": y, "text": option}',
            '<think>t</think><answer>{"action": "select_option", "coordinate": [12, 25], "value": "two"}</answer>',
        ),
        (
            "ui-tars",
            "select(start_box='(x,y)', content='option')",
            "Thought: t\nAction: select(start_box='(12,25)', content='two')",
        ),
    ],
)
def test_mind2web_selects_and_typing_the_option_is_wrong(booking, style, shown, said):
    """Kind 2 of agent_tasks/mind2web_test.py in SeeClick, beside 3 that types."""
    registry = plugins.registry()
    task = registry.make_task("gui/next-action@mind2web", {"path": booking, "shares": {"test": 1}, "style": style})
    prompts = sorted(readable(task), key=lambda prompt: prompt.id)
    assert [p.meta["kind"] for p in prompts] == ["click", "type", "select", "click"]
    assert all(shown in p.text for p in prompts) and "3. select Two\n" in prompts[3].text
    _, typed, selected, _ = prompts

    def score(prompt, text):
        """Element, operation F1 and success of Mind2Web, success of AndroidControl, form."""
        case = Case(completion=text, answer=prompt.answer, meta=prompt.meta, image_sizes=(SIZE,))
        ours, step, form = (registry.make_verifier(f"gui/{name}")(case) for name in ("action@mind2web", "action", "format"))
        return ours.parts["element"], ours.parts["f1"], ours.value, step.value, form.value

    assert all(score(prompt, task.gold(prompt)) == (1, 1, 1, 1, 1) for prompt in prompts)
    instead = said.replace("select_option", "type").replace("select", "type")
    for prompt, text, f1, value in (
        (selected, said, 1, 1),
        (selected, said.replace("two", "three"), 1 / 2, 0),
        (selected, instead, 1 / 2, 0),
        (typed, instead.replace("two", "new york"), 1, 1),
        (typed, said.replace("two", "new york"), 2 / 3, 0),
    ):
        assert score(prompt, text) == (1, pytest.approx(f1), value, value, 1), text
    assert task.overlays(selected, said)[-1].label == "select two"


def test_selecting_must_be_offered(booking, table):
    steps = [{"goal": "g", "image_path": "a.png", "action": {"action": "select", "x": 5, "y": 6, "text": "Two"}}]
    task = NextAction(path=table(steps), shares={"test": 1})
    assert any("its action is select, which isn't in kinds: add it there" in fault for fault in faults_of(task))
    task = NextAction(path=task.path, shares={"test": 1}, kinds=["select"])
    (prompt,) = readable(task)
    case = Case(completion=task.gold(prompt), answer=prompt.answer, meta=prompt.meta, image_sizes=(SIZE,))
    assert verifiers.action(case).value == verifiers.action_type(case).value == 1
    for prompt in readable(NextAction(path=booking, shares={"test": 1}, history=0)):
        case = Case(completion='{"action": "select", "x": 5, "y": 6, "text": "Two"}', answer=prompt.answer, meta=prompt.meta)
        assert "select" not in prompt.text and verifiers.form(case).value == 0
        assert verifiers.action(case).detail == "there is no action called 'select'"
    published = NextAction(path=booking, shares={"test": 1}, kinds=["select"], style="gui-r1")
    assert any("there is no select in this style" in fault for fault in faults_of(published))


def readable(task):
    rows = task.prompts("test", 0)
    for number in range(len(rows)):
        try:
            yield rows[number]
        except UserError:
            continue
