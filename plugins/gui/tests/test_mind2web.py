"""Multimodal-Mind2Web: steps and figures are those of SeeClick's evaluation."""

import ast
import json
from pathlib import Path

import pytest
from mmrl_gui import mind2web

from mmrl import Case, Prompt, user_message

SIZE = (1000, 500)
ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[3] / "tests" / "golden" / "mind2web.jsonl").read_text(encoding="utf-8").splitlines()
]
KINDS = {"CLICK": "click", "HOVER": "click", "ENTER": "click", "SELECT": "select", "TYPE": "type"}
NUMBERS = {4: "click", 2: "select", 3: "type"}


def prompt_of(row):
    operation, box = row["step"]["operation"], row["step"]["bbox"]
    corners = [box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]]
    kind = KINDS[operation["original_op"]]
    action = {"kind": kind, "at": [corners[0], corners[1]], **({"text": operation["value"]} if operation["value"] else {})}
    meta = {"true": {"action": action, "box": corners}, "kind": kind, "episode": row["episode"], "selects": True}
    return Prompt(id="p", messages=[user_message("?")], meta=meta)


def in_words(said):
    """An answer of SeeClick's model as an action here."""
    if not said.startswith("{"):
        return said
    found = ast.literal_eval(said)
    (x, y), more = found["click_point"], {"text": found["value"]} if "value" in found else {}
    return json.dumps({"action": NUMBERS[found["action_type"]], "x": x * SIZE[0], "y": y * SIZE[1], **more})


def test_steps_and_figures_are_those_of_the_published_evaluation():
    *rows, whole = ROWS
    scored, parts = [], {"element": [], "f1": []}
    for row in rows:
        prompt = prompt_of(row)
        score = mind2web.action(Case(completion=in_words(row["said"]), meta=prompt.meta, image_sizes=(SIZE,)))
        assert score.parts == {"element": row["element"], "f1": pytest.approx(row["f1"])}, row
        scored.append((prompt, score.value))
        for name, own in parts.items():
            own.append((prompt, score.parts[name]))
    assert len(rows) == 138
    found = mind2web.part_figures(parts) | {"step": mind2web.mean_of_means(scored, "episode")}
    names = {"element/episode-mean": "macro_ele_acc", "f1/episode-mean": "macro_action_f1", "f1/kind-mean": "marco_op_f1"}
    names |= {"step": "macro_step_acc"}
    assert found == pytest.approx({ours: whole["figures"][theirs] for ours, theirs in names.items()})


def test_by_hand_and_without_episodes():
    def rows(*pairs):
        return [(Prompt(id="p", messages=[user_message("?")], meta=meta), value) for meta, value in pairs]

    one, two = {"episode": "1", "kind": "click"}, {"episode": "2", "kind": "type"}
    found = mind2web.part_figures({"f1": rows((one, 1.0), (one, 0.0), (two, 0.2))})
    assert found == {"f1/episode-mean": pytest.approx(0.35), "f1/kind-mean": pytest.approx(0.35)}
    assert mind2web.part_figures({"f1": rows(({"kind": "click"}, 1.0)), "type": rows(({}, 1.0))}) == {"f1/kind-mean": 1.0}
    assert mind2web.part_figures({}) == {}
