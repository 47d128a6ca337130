"""What a person sees of a run: lines in a log, a panel in a terminal."""

import io
import math
from types import SimpleNamespace

import pytest
from rich.console import Console

from mmrl.evaluate import Evaluation
from mmrl.schema import RlStage, SftStage
from mmrl.types import replace
from mmrl.view import progress
from mmrl.view.progress import Show, sparkline


def log(steps, done=0, number=0, count=1, kind="rl"):
    """A watcher of a stage that writes to a file, as in CI."""
    show = Show("run", Console(file=io.StringIO(), width=200))
    stage = RlStage(kind="rl", steps=steps) if kind == "rl" else SftStage(kind="sft", steps=steps)
    show.stage_started(number, count, stage, done)
    return show


def lines(show):
    return [line.strip() for line in show.console.file.getvalue().splitlines()]


RL = {
    "reward/mean": 0.25,
    "length/mean": 31.5,
    "length/truncated_share": 0.125,
    "entropy": 1.23456,
    "zero_spread_share": 0.5,
    "logprob_gap": 1e-5,
    "time/step": 2.0,
    "loss": -9.0,
}


def test_a_log_gets_the_stage_and_ten_lines_of_it():
    with log(30, number=1, count=3) as show:
        for step in range(30):
            show.step_finished(step + 100, RL)
    assert lines(show) == [
        "stage 2 of 3: rl, grpo, 30 steps",
        *(
            f"step {n}/30  reward 0.25  length 31.5  cut off 0.125  entropy 1.23  no spread 0.5  logprob gap 1e-05  s/step 2"
            for n in range(3, 31, 3)
        ),
    ]


def test_the_last_step_has_a_line_and_short_stages_have_one_for_each():
    show = log(25, kind="sft")
    for step in range(25):
        show.step_finished(step, {"loss": 2.0, "grad_norm": 0.5, "time/step": 1.0})
    assert [line.split()[1] for line in lines(show)[1:]] == [f"{n}/25" for n in [*range(2, 25, 2), 25]]
    assert lines(show)[1] == "step 2/25  loss 2  gradient norm 0.5  s/step 1"
    show = log(3)
    for step in range(3):
        show.step_finished(step, RL)
    assert [line.split()[1] for line in lines(show)[1:]] == ["1/3", "2/3", "3/3"]


def test_a_resumed_stage_counts_on_and_missing_figures_are_dashes():
    show = log(10, done=7)
    show.step_finished(8, {"zero_spread_share": 1.0, "time/step": 0.5})
    assert lines(show)[1:] == ["step 8/10  reward –  length –  cut off –  entropy –  no spread 1  logprob gap –  s/step 0.5"]


def test_evaluations_and_notes_are_written_as_they_are():
    show = log(10)
    figure = Evaluation(task="a/b", split="test", metric="accuracy", value=0.75, low=0.5, high=0.9, n=40)
    show.evaluated(0, [figure])
    show.evaluated(20, [replace(figure, extra={"truncated_share": 0.25})])
    show.note("left out [bold]: a/b")
    assert lines(show)[1:] == [
        "before any training  a/b  accuracy 0.750 (0.500 to 0.900, n=40)",
        "after 20 steps of the run  a/b  accuracy 0.750 (0.500 to 0.900, n=40, 25% cut off)",
        "note: left out [bold]: a/b",
    ]


def test_the_panel_of_a_terminal_says_how_far_and_how_long(monkeypatch):
    """Two of three steps that this process did took 60 s; of 10 there are 3 left, so 90 s."""
    now = 1000.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    show = log(10, done=5)
    for step in (6, 7):
        show.step_finished(step, {**RL, "reward/mean": step / 8})
    now = 1060.0
    console = Console(file=io.StringIO(), width=100)
    console.print(show._panel())
    text = console.file.getvalue()
    assert "run: stage 1 of 1: rl" in text and "7/10  1:00, 1:30 left" in text and "reward ▁█" in text
    assert all(label in text for label in ("length", "31.5", "no spread", "0.875", "1e-05"))


def test_a_terminal_gets_no_lines_for_steps():
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with Show("run", console) as show:
        show.stage_started(0, 1, RlStage(kind="rl", steps=3), 0)
        show.step_finished(1, RL)
    assert show.live is not None and "1/3" in console.file.getvalue() and "step 1/3" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([math.nan], ""),
        ([3.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, 7.0], "▁█"),
        (range(8), "▁▂▃▄▅▆▇█"),
        ([-1.0, 1.0, 0.0], "▁█▅"),
        ([0.0, math.nan, 0.07], "▁ █"),
        ([1.0, 1.0 + 1 / 7 * 2, 2.0], "▁▃█"),
    ],
)
def test_values_as_bars(values, bars):
    assert sparkline(values) == bars


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (61, "1:01"), (3725, "62:05")])
def test_minutes_and_seconds(seconds, text):
    assert progress._clock(seconds) == text
