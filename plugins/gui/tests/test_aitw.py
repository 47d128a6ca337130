"""Android in the Wild: SeeClick's files as they are, and the published action matching."""

import json
from pathlib import Path

import pytest
from mmrl_gui.action_task import NextAction
from mmrl_gui.aitw import action
from mmrl_gui.replay import Recording
from PIL import Image

from broken_rows import faults_of
from mmrl import Case, UserError
from mmrl.registry import plugins

SIZE = (100, 200)
GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "aitw.jsonl"
SCROLLS = {0: "down", 1: "up", 8: "left", 9: "right"}
OTHERS = {
    **{5: {"action": "back"}, 6: {"action": "home"}, 7: {"action": "key", "text": "Enter"}},
    **{10: {"action": "answer", "text": "done"}, 11: {"action": "answer", "text": "infeasible"}},
}


@pytest.fixture
def steps(tmp_path):
    """The task of a file of AITW, with its picture."""

    def make(found, **options):
        for name in ("general", "install"):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("RGB", SIZE, "olive").save(tmp_path / name / "a.png")
        (tmp_path / "aitw_data_test.json").write_text(json.dumps(found))
        given = {"path": str(tmp_path / "aitw_data_test.json"), "shares": {"test": 1}, **options}
        return plugins.registry().make_task("gui/next-action@aitw", given)

    return make


def step(text, id, touch=(-1, -1), lift=None, boxes=(), goal="buy coffee", **more):
    found = {"img_filename": "general/a", "goal": goal, "annot_position": list(boxes), "action_type_id": id}
    return found | {"action_type_text": text, "touch": list(touch), "lift": list(lift or touch), **more}


def judged(prompt, text):
    return action(Case(completion=text, answer=prompt.answer, meta=prompt.meta, image_sizes=(SIZE,)))


def in_words(said):
    """An answer of SeeClick's model as an action here."""
    kind = said["action_type"]
    if kind == 4:
        x, y = said["click_point"]
        return {"action": "click", "x": x * SIZE[0], "y": y * SIZE[1]}
    if kind == 3:
        return {"action": "type", "text": said["typed_text"]}
    return {"action": "scroll", "direction": SCROLLS[kind]} if kind in SCROLLS else OTHERS[kind]


def test_it_is_the_published_matching(steps):
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    task = steps({"general": [[row["step"] for row in rows]]})
    prompts = {int(prompt.id.split("-")[2]): prompt for prompt in task.prompts("test", 0)}
    assert len(prompts) == len(rows) == 80
    for number, row in enumerate(rows):
        for answer in row["answers"]:
            found = judged(prompts[number], json.dumps(in_words(answer["said"])))
            assert (found.value, found.parts) == (answer["right"], answer["parts"]), (row["step"], answer)


def test_a_files_categories_episodes_and_steps(steps):
    general = [[step("click", 4, (0.5, 0.25)), step("type", 3, type_text="Tea"), step("scroll down", 4, (0.5, 0.8), (0.5, 0.2))]]
    general += [[step("press enter", 7), step("press back", 5), step("press home", 6), step("status task complete", 10)]]
    install = [[step("status task impossible", 11, goal="install it", img_filename="install/a")]]
    task = steps({"general": general, "install": install}, history=9)
    prompts = {int(prompt.id.split("-")[2]): prompt for prompt in task.prompts("test", 0)}
    actions = [prompts[n].meta["true"]["action"] for n in range(8)]
    assert [a["kind"] for a in actions] == ["click", "type", "scroll", "key", "back", "home", "answer", "answer"]
    assert actions[0]["at"] == [50, 50] and actions[1]["text"] == "Tea" and actions[2]["direction"] == "down"
    assert [actions[n]["text"] for n in (3, 6, 7)] == ["Enter", "done", "infeasible"]
    assert "1. click 50 50\n2. type Tea\n" in prompts[2].text and "scroll down" not in prompts[3].text
    assert "To do: install it\n" in prompts[7].text and prompts[7].images[0].endswith("install/a.png")
    verify = plugins.registry().make_verifier("gui/action@aitw")
    assert all(verify(Case(completion=task.gold(p), answer=p.answer, meta=p.meta)).value == 1 for p in prompts.values())
    figures = task.summarise([(p, float(n < 3)) for n, p in prompts.items()])
    assert figures["category/general"] == pytest.approx(3 / 7) and figures["category/install"] == 0
    assert figures["macro"] == pytest.approx(3 / 14), "SeeClick's average is over its five subsets"
    assert figures["kind/click"] == figures["kind/scroll"] == 1
    assert figures["episodes"] == figures["episode-mean"] == pytest.approx(1 / 3), "also of one step"
    assert task.summarise([(prompts[n], 1.0) for n in (0, 1, 2, 7)])["episodes"] == 1, "of two that are whole"
    assert "episodes" not in task.summarise([(prompts[n], 1.0) for n in (0, 3, 7)]), "the short one of three says little"
    with pytest.raises(UserError, match=r"aitw_data_test\.json step 0: its places are in unit, and those of a recording"):
        Recording(task.path)


def test_a_tap_by_hand(steps):
    """An element of 0.1 by 0.1 at 0.4, 0.4 reaches from 0.33 to 0.57; the tap is at its corner."""
    task = steps({"general": [[step("click", 4, (0.34, 0.34), boxes=[0.4, 0.4, 0.1, 0.1, 0.9, 0.9, 0.01, 0.01])]]})
    (prompt,) = task.prompts("test", 0)
    (region,) = prompt.meta["true"]["regions"]
    assert region == pytest.approx([33, 66, 57, 114])
    for text, right in (
        ("click 56.8 113.8", 1),  # in the same element, 0.32 away
        ("click 57.2 113.8", 0),
        ("click 20.4 68", 1),  # 0.136 away
        ("click 19.6 68", 0),
        ("drag 56.8 113.8 56.8 120", 1),  # 0.031 long
        ("drag 56.8 100 56.8 112", 0),
        ("long-press 34 68", 0),
        ("nothing", 0),
    ):
        assert judged(prompt, text).value == right, text


def test_swipes_texts_and_drags(steps):
    swiped = step("click", 4, (0.5, 0.8), (0.45, 0.3))  # a swipe that its file calls a click
    task = steps({"general": [[step("scroll left", 4), swiped, step("type", 3, type_text="Coffee maker")]]})
    left, up, typed = sorted(task.prompts("test", 0), key=lambda prompt: prompt.id)
    assert up.meta["true"]["action"] == {"kind": "scroll", "direction": "down"} and "regions" not in up.meta["true"]
    for prompt, text, right in (
        (left, "scroll right", 1),
        (left, "drag 20 100 80 140", 1),  # 0.6 of the width, 0.2 of the height
        (left, "drag 20 100 40 180", 0),
        (left, "scroll down", 0),
        (up, "scroll up", 1),
        (up, "drag 20 100 20 180", 1),
        (typed, "type tea", 1),
    ):
        assert judged(prompt, text).value == right, text
    assert judged(typed, "type tea").parts == {"type": 1, "text": 0} and judged(typed, "type COFFEE").parts["text"] == 1
    assert judged(typed, "nothing").parts == {"type": 0, "text": 0} and judged(left, "click 1 1").parts == {"type": 1}
    assert judged(typed, "answer done").value == 0 and judged(left, "answer horizontal").parts == {"type": 0}


BAD = [
    ({"img_filename": None}, "it has no picture under img_filename"),
    ({"img_filename": "general/b"}, "general/b.png does not exist"),
    ({"touch": [0.5]}, "its touch is [0.5] and not x, y"),
    ({"lift": [0.5, float("nan")]}, "its lift is [0.5, nan] and not x, y"),
    ({"annot_position": [0.1, 0.2, 0.3]}, "annot_position is [0.1, 0.2, 0.3] and not y, x, height, width of each element"),
    ({"annot_position": None}, "annot_position is None and not"),
    ({"touch": [7, 7], "lift": [7, 7]}, "is outside its picture of 100 x 200"),
    ({"action_type_id": 2, "action_type_text": "jump"}, "there is no action called 'jump'"),
    ({"action_type_id": [4], "action_type_text": [4]}, "there is no action called '[4]'"),
    ({"action_type_text": "scroll away"}, "scroll says no direction"),
    ({"action_type_id": 3, "action_type_text": "type"}, "type says no text"),
    ({"goal": " "}, "it has no goal or instruction"),
]


@pytest.mark.parametrize("change, message", BAD, ids=[message for _, message in BAD])
def test_a_bad_step_is_named(steps, change, message):
    good = step("click", 4, (0.5, 0.5))
    (fault,) = faults_of(steps({"general": [[good, good | change]]}))
    assert "aitw_data_test.json step 1" in fault and message in fault and "\n" not in fault, fault


def test_what_is_no_file_of_steps(steps, tmp_path):
    assert len(faults_of(steps({"general": [[step("click", 4, (0.5, 0.5)), "step"]]}))) == 1
    for found in ({}, {"general": []}, {"general": [{}]}, {"general": [[step("click", 4)]], "about": 3}):
        (tmp_path / "rows.json").write_text(json.dumps(found))
        (fault,) = faults_of(NextAction(path=str(tmp_path / "rows.json"), shares={"test": 1}))
        assert "rows.json item 0" in fault and "it has no picture under any of" in fault
