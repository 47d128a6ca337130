"""Questions with specialists' opinions: MMedAgent-RL."""

from __future__ import annotations

import json

import pytest
from mmrl_vqa.consult import Consult
from PIL import Image

from mmrl import UserError


def table(folder, *cells):
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    path = folder / "rows.jsonl"
    rows = [{"image": "a.png", "question": "Which?", "options": ["x", "y"], "answer": "A", "opinions": cell} for cell in cells]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(path), "test_path": str(path)}


def said(*answers):
    return [{"role": f"doctor {n}", "answer": answer} for n, answer in enumerate(answers)]


def test_opinions_stand_before_the_question_and_say_how_easy_it_is(tmp_path):
    given = table(tmp_path, said("A", "(A)"), said("A", "B"), said("B", "y"))
    prompts = Consult(**given).prompts("train", 0)
    assert [p.meta["opinions_right"] for p in prompts] == [1.0, 0.5, 0.0]
    before, _, after = prompts[1].text.partition("\n\n")
    assert before.endswith("doctor 0: A\ndoctor 1: B") and after.startswith("Which?\nA. x\nB. y") and len(prompts[1].images) == 1
    for number, agreement in enumerate(("easy", "medium", "hard")):
        (only,) = Consult(**given, agreement=agreement).prompts("train", 0)
        assert only.meta["opinions_right"] == prompts[number].meta["opinions_right"]


def test_opinions_that_are_none_are_refused(tmp_path):
    with pytest.raises(UserError, match="leaves none of the 1 rows of 'train'"):
        Consult(**table(tmp_path, said("A")), agreement="hard")
    for cell, why in (
        ([], "must be a list of tables"),
        ("A", "must be a list"),
        ([{"role": "x", "answer": " "}], "an opinion is"),
    ):
        with pytest.raises(UserError, match=why):
            list(Consult(**table(tmp_path, cell)).prompts("train", 0))
        with pytest.raises(UserError, match=why):
            Consult(**table(tmp_path, cell), agreement="easy")
    with pytest.raises(UserError, match="agreement = 'all' is unknown"):
        Consult(**table(tmp_path, said("A")), agreement="all")
