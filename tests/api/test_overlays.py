"""Overlays as data: what can be drawn, what is kept, and what is read of a row that is damaged."""

import math
import re

import pytest
from PIL import Image

import guide
from mmrl import CoordinateFormat, ImageProcessing, Overlay, Prompt, Status, Task, Turn, UserError, user_message
from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError
from mmrl.api.tasks import overlays
from mmrl.api.types import Score
from mmrl.run_folder.rollouts import gold_with_places, overlays_of, rollout_row

SOUND = [
    Overlay(kind="box", coordinates=(0.1, 0.2, 0.3, 0.4), source="true", label="a cat"),
    Overlay(kind="box", coordinates=(-0.5, 0.2, 1.5, 0.2), source="said", label="IoU 0.62", image=2),
    Overlay(kind="point", coordinates=(1, 0), source="said"),
    Overlay(kind="path", coordinates=(0, 0, 0.5, 0.5, 1, 0), source="said", label="drag"),
    Overlay(kind="grid", coordinates=(1, 3), source="true", labels=("2", "", "1")),
    Overlay(kind="interval", coordinates=(2.5, 40, 9), source="said"),
]


def as_said(kind, *coordinates, **more):
    return Overlay(kind=kind, coordinates=coordinates, source="said", **more)


UNSOUND = {
    "is far off the image": as_said("box", 0, 0, 400, 300),
    "box (-11, 0, 0, 1) is far off": as_said("box", -11, 0, 0, 1),
    "point (12.5, 0) is far off": as_said("point", 12.5, 0),
    "must be x1, y1, x2, y2": as_said("box", 0.5, 0, 0.4, 1),
    "the box (0, 0, 1) must be": as_said("box", 0, 0, 1),
    "the point (0.5,) must be x, y": as_said("point", 0.5),
    "a path of 2 numbers": as_said("path", 0.5, 0.5),
    "a path of 5 numbers": as_said("path", 0, 0, 1, 1, 0),
    "a path of 130 numbers": as_said("path", *[0.5] * 130),
    "the grid (2, 0) must be": as_said("grid", 2, 0),
    "the grid (1.5, 2) must be": as_said("grid", 1.5, 2, labels=("", "", "")),
    "at most 400 cells": as_said("grid", 20, 21, labels=("",) * 420),
    "has 4 cells and 3 labels": as_said("grid", 2, 2, labels=("1", "2", "3")),
    "the interval (3, 2, 9) must be": as_said("interval", 3, 2, 9),
    "the interval (-1, 2, 9) must be": as_said("interval", -1, 2, 9),
    "the interval (1, 2, 0) must be": as_said("interval", 1, 2, 0),
    "the interval (1, 2000000.0, 9)": as_said("interval", 1, 2e6, 9),
    "coordinates = (nan, 0)": as_said("point", math.nan, 0),
    "coordinates = (inf, 0)": as_said("point", math.inf, 0),
    "coordinates = (1000": as_said("point", 10**400, 0),
    "coordinates = ('a', 0)": as_said("point", "a", 0),
    "coordinates = (True, 0)": as_said("point", True, 0),
    "coordinates = 'ab' must be": Overlay(kind="point", coordinates="ab", source="said"),
    "kind = 'circle' must be one of box, point, path, grid, interval": as_said("circle", 0, 0),
    "source = 'maybe' true or said": Overlay(kind="point", coordinates=(0, 0), source="maybe"),
    "image = -1 must be": as_said("point", 0, 0, image=-1),
    "image = 0.5 must be": as_said("point", 0, 0, image=0.5),
    "label must be a text": as_said("point", 0, 0, label=3),
    "labels a tuple of texts": as_said("grid", 1, 2, labels="ab"),
    "it is a dict, not a mmrl.Overlay": {"kind": "point"},
}


def plain(overlay):
    return {name: getattr(overlay, name) for name in ("kind", "source", "coordinates", "image", "label", "labels")}


def test_what_can_be_drawn_comes_back_from_plain_data():
    assert [overlays.overlay_error(overlay) for overlay in SOUND] == [""] * len(SOUND)
    kept = overlays.to_json(SOUND)
    assert kept[:3] == [  # what is true first
        {"kind": "box", "source": "true", "coordinates": [0.1, 0.2, 0.3, 0.4], "label": "a cat"},
        {"kind": "grid", "source": "true", "coordinates": [1.0, 3.0], "labels": ["2", "", "1"]},
        {"kind": "box", "source": "said", "coordinates": [-0.5, 0.2, 1.5, 0.2], "label": "IoU 0.62", "image": 2},
    ]
    back = overlays.from_json(kept)
    assert [(m.kind, m.source, m.label, m.image, list(m.labels)) for m in back[:3]] == [
        ("box", "true", "a cat", 0, []),
        ("grid", "true", "", 0, ["2", "", "1"]),
        ("box", "said", "IoU 0.62", 2, []),
    ]
    assert len(back) == len(SOUND) and overlays.to_json(back) == kept


@pytest.mark.parametrize("why", UNSOUND)
def test_what_can_not_be_drawn_is_named_and_left_out(why):
    assert why in overlays.overlay_error(UNSOUND[why])
    assert overlays.to_json([UNSOUND[why], SOUND[2]]) == overlays.to_json([SOUND[2]])


@pytest.mark.parametrize(
    "damaged",
    [
        *map(plain, (overlay for overlay in UNSOUND.values() if isinstance(overlay, Overlay))),
        None,
        7,
        [],
        {},
        {"kind": "point", "source": "said"},
        {"kind": ["point"], "source": "said", "coordinates": [0, 0]},
        {"kind": "point", "source": {}, "coordinates": [0, 0]},
        {"kind": "point", "source": "said", "coordinates": {"x": 1}},
        {"kind": "point", "source": "said", "coordinates": [[0], 0]},
        {"kind": "point", "source": "said", "coordinates": [0, 0], "labels": 5},
        {"kind": "grid", "source": "said", "coordinates": [1, 1], "labels": [None]},
        {"kind": "grid", "source": "said", "coordinates": [1e300, 1e300], "labels": []},
    ],
)
def test_a_damaged_overlay_is_left_out_and_the_others_are_read(damaged):
    good = {"kind": "point", "source": "true", "coordinates": [0.5, 0.5], "of_later": "what a later version may add"}
    assert overlays.from_json([damaged, good]) == [Overlay(kind="point", coordinates=[0.5, 0.5], source="true")]


@pytest.mark.parametrize("value", [None, "overlays", 5, {}, {"kind": "point"}])
def test_what_is_no_list_of_overlays_is_none(value):
    assert overlays.from_json(value) == []


def test_so_many_are_kept_of_what_is_true_and_of_what_is_said():
    def many(source, count):
        return [Overlay(kind="point", coordinates=(k / 1000, 0.123456789), source=source, label="x" * 200) for k in range(count)]

    kept = overlays.to_json([*many("said", 100), *many("true", 100)])
    assert [one["source"] for one in kept] == ["true"] * overlays.MOST + ["said"] * overlays.MOST
    assert kept[overlays.MOST]["coordinates"] == [0.0, 0.12346] and kept[-1]["coordinates"][0] == (overlays.MOST - 1) / 1000
    assert {len(one["label"]) for one in kept} == {overlays.LONGEST}
    assert len(overlays.from_json(kept * 3)) == 2 * overlays.MOST


# -- of a task ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "meta",
    [
        {"boxes": [(100, 50, 300, 150)], "points": [(200, 100)]},
        {"boxes": [(300, 150, 100, 50)], "points": [(200, 100)]},
        {"boxes": [{"bbox_2d": [250, 250, 750, 750], "label": "it"}], "points": [(500, 500)], "frame": "thousandths"},
        {"boxes": [(0.25, 0.25, 0.75, 0.75)], "points": [(0.5, 0.5)], "frame": CoordinateFormat.UNIT},
        {"boxes": [(50, 25, 150, 75)], "points": [(100, 50)], "frame": "model-pixels"},
    ],
)
def test_by_default_a_task_draws_the_places_of_its_prompt(meta):
    task = Task()
    task.image_processing = ImageProcessing(CoordinateFormat.MODEL_PIXELS, lambda size: (size[0] // 2, size[1] // 2))
    box, point = task.overlays(Prompt(messages=[user_message("?", Image.new("RGB", (400, 200)))], meta=meta), "whatever is said")
    assert (box.kind, tuple(box.coordinates), box.source) == ("box", (0.25, 0.25, 0.75, 0.75), "true")
    assert (point.kind, tuple(point.coordinates), point.source) == ("point", (0.5, 0.5), "true")
    assert box.label == ("it" if isinstance(meta["boxes"][0], dict) else "")


def test_a_prompt_without_places_or_pictures_has_no_overlays():
    assert Task().overlays(Prompt(messages=[user_message("?", Image.new("RGB", (4, 2)))]), "") == []
    assert Task().overlays(Prompt(messages=[user_message("?")], meta={"boxes": [(0, 0, 1, 1)]}), "") == []


class Named(Task):
    def overlays(self, prompt, completion):
        if completion == "broken":
            raise UserError("line 3 is broken") if prompt.answer else ValueError("no such word")
        return [
            Overlay(kind="point", coordinates=(0.5, 0.5), source="said", label=completion),
            Overlay(kind="point", coordinates=(99, 0), source="said"),
        ]


def rollout(said, answer=None):
    turn = Turn(observed_ids=(), token_ids=(1,), logprobs=(0.0,), text=said)
    return Conversation(
        prompt=Prompt(messages=[user_message("?")], task="a", answer=answer), group=0, turns=(turn,), status=Status.FINISHED
    )


def test_a_row_has_the_overlays_that_its_task_draws_for_what_was_said():
    found = overlays_of({"a": Named()}, rollout("here"))
    assert found == [{"kind": "point", "source": "said", "coordinates": [0.5, 0.5], "label": "here"}]
    assert rollout_row(rollout("here"), Score(1.0), 0.0, overlays=found)["overlays"] == found
    assert "overlays" not in rollout_row(rollout("here"), Score(1.0), 0.0)
    with pytest.raises(PluginError, match=r"task 'a': overlays\(\) raised ValueError: no such word"):
        overlays_of({"a": Named()}, rollout("broken"))
    with pytest.raises(UserError, match="line 3 is broken"):
        overlays_of({"a": Named()}, rollout("broken", answer=1))


@pytest.mark.parametrize(
    ("answer", "gold", "kept"),
    [
        ([2, 1, 3, 2], lambda prompt: "500 250 750 500", "500 250 750 500"),
        (3, lambda prompt: "3", ""),  # a number of things has no coordinates, though the things are marked
        ([2, 1, 3, 2], lambda prompt: 1 / 0, ""),  # nobody but people needs it
    ],
)
def test_a_row_has_the_gold_completion_of_an_answer_with_places(answer, gold, kept):
    """The answer is in pixels of the original, the gold completion in the coordinates that the prompt asks for."""
    task = Task()
    task.gold = gold
    prompt = Prompt(messages=[user_message("?", Image.new("RGB", (4, 4)))], answer=answer, meta={"boxes": [(2, 1, 3, 2)]})
    assert gold_with_places(task, prompt) == kept
    assert rollout_row(rollout("here"), Score(1.0), 0.0, gold=kept).get("gold", "") == kept


def test_the_guides_task_draws_what_it_reads():
    (code,) = re.findall(
        r"```python\n(from mmrl import Task\nfrom mmrl.api.tasks import overlays\n.*?)```", guide.TEXT, re.DOTALL
    )
    exec(code, names := {})
    prompt = Prompt(messages=[user_message("?", Image.new("RGB", (40, 20)))], answer=(10, 5, 20, 10))
    true = overlays.box_overlay((10, 5, 20, 10), (40, 20), "true")
    assert names["Where"]().overlays(prompt, "hm") == [true] and true.coordinates == (0.25, 0.25, 0.5, 0.5)
    assert names["Where"]().overlays(prompt, "0 0 40 20")[1] == Overlay(
        kind="box", coordinates=(0, 0, 1, 1), source="said", label="a guess"
    )
