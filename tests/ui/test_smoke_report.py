"""The report of a smoke run: the update of each stage, and which figures of `smoke_shows` were seen."""

from __future__ import annotations

import html
import json
import re

import pytest

from mmrl.run_folder.writer import RunFolder
from pages import page_of

WORKS = {"stage": 1, "kind": "sft", "step": 2, "why": "", "moved": 0.5, "moved_share": 0.25, "loss": 1.0}
COUNTS = {"groups": 4, "gold": 0, "drawn": 0}
SHOWS = ["a/b > 0.2", "a/b > 0.5", "gone < 1", "part toy/b > 0", "loss != 0", "kind > 0"]


def folder(path, summary, shows=SHOWS, smoke=True):
    stages = [{"kind": "sft", "steps": 1}, {"kind": "rl", "steps": 1}]
    run = RunFolder.create(
        path, {"seed": 1, "smoke": smoke, "smoke_shows": shows, "tasks": [{"id": "toy/task"}], "stages": stages}, 1
    )
    for step, value in ((1, 0.125), (2, 0.25)):
        run.metrics(step, "rl", {"a/b": value})
    rollout = {"task": "toy/task", "group": 0, "messages": [], "completion": "x", "reward": 1.0}
    run.rollouts(2, [rollout, {**rollout, "score": {"value": 1.0, "parts": {"toy/b": 0.75}}}])
    if summary is not None:
        run.summary({"before": {}, "best": {}, "last": {}, "seconds": {}, "smoke": summary})
    return run


def rows(run):
    """{what it should show: (what it shows, how that is marked)}, of a page that a browser can read."""
    page_of(run)
    (section,) = re.findall(r'<section class="smoke">.*?</section>', (run.path / "report.html").read_text())
    found = re.findall(r'<tr><td>(?:<code>)?(.*?)(?:</code>)?</td><td class="(.*?)">(.*?)</td></tr>', section)
    return {html.unescape(name): (what, mark) for name, mark, what in found}


def test_each_figure_that_is_promised_has_what_was_seen(tmp_path):
    stages = [{**WORKS, **COUNTS}, {"stage": 2, "kind": "rl", "step": None, "why": "no group had spread"}]
    found = rows(folder(tmp_path / "run", stages))
    moved = "the update works: step 2 changed 25% of the weights, by at most 5.0e-01 (loss 1)"
    assert found == {
        "an update of stage 1 (sft)": (moved, "up"),
        "an update of stage 2 (rl)": ("no step showed an update: no group had spread", "down"),
        "a/b > 0.2": ("0.25", "up"),
        "a/b > 0.5": ("not in any step", "down"),
        "gone < 1": ("there is no such figure", "down"),
        "part toy/b > 0": ("0.75", "up"),
        "loss != 0": ("1", "up"),
        "kind > 0": ("not in any step", "down"),
    }


def test_a_run_that_goes_on_may_still_show_more(tmp_path):
    assert rows(folder(tmp_path / "run", None, shows=["a/b > 0.5"])) == {"a/b > 0.5": ("not in any step so far", "down")}


def test_other_runs_say_nothing_of_it(tmp_path):
    assert page_of(folder(tmp_path / "run", [{**WORKS, **COUNTS}], smoke=False)).count("section", "smoke") == 0


@pytest.mark.parametrize(
    "broken",
    [7, [7], [{}], [{**WORKS, **COUNTS, "moved": None}], [{**WORKS, **COUNTS, "gold": "3"}], [{**WORKS, "kind": 7}], [WORKS]],
)
def test_what_is_damaged_is_left_out(broken, tmp_path):
    run = folder(tmp_path / "run", broken, shows=["a/b > 0.2"])
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace(json.dumps("a/b > 0.2"), '7, "odd", {}, "a/b > 0.2"'))
    assert rows(run) == {"a/b > 0.2": ("0.25", "up")}
