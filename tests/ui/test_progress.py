"""Progress of a run: lines in a log, a panel in a terminal, only notes with `quiet`."""

import io
import json
import math
import re
import time
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from mmrl.config.sections import RlStage, SftStage
from mmrl.evaluation.results import Evaluation
from mmrl.run_folder.metrics import PARTS
from mmrl.ui.cli.eval import _print, _table
from mmrl.ui.report import progress
from mmrl.ui.report.eta import TimeEstimator
from mmrl.ui.report.progress import IN_SIGHT, Show
from mmrl.ui.report.terminal_panel import ASCII_BARS, COLOURS, STOPPING, Sample, panel, sparkline


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is advanced."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def sft(steps):
    return SftStage(kind="sft", steps=steps)


def rl(steps):
    return RlStage(kind="rl", steps=steps)


def log(stages, number=0, done=0):
    """A `Show` in a stage that writes to a file, as in CI."""
    show = Show("run", stages, FOLDER, Console(file=io.StringIO(), width=200))
    show.stage_started(number, len(stages), stages[number], done)
    return show


def lines(show):
    return [line.strip() for line in show.console.file.getvalue().splitlines()]


FOLDER = Path("nowhere")
FIGURE = Evaluation(task="a/b", split="test", metric="accuracy", value=0.75, low=0.5, high=0.9, n=40)
RL = {
    "reward/mean": 0.25,
    "length/mean": 31.5,
    "length/truncated_share": 0.125,
    "entropy": 1.23456,
    "zero_std_share": 0.5,
    "logprob_gap": 1e-5,
    "time/step": 2.0,
    "loss": -9.0,
}


def test_a_log_gets_the_stage_and_ten_lines_of_it(clock):
    with log([sft(5), rl(30), rl(10)], number=1) as show:
        for step in range(30):
            clock.seconds += 2
            show.step_finished(step + 100, RL)
    left = ["1 min 14 s", "1 min 08 s", "1 min 02 s", *(f"{n} s" for n in range(56, 19, -6))]
    assert lines(show) == [
        "stage 2 of 3: rl, grpo, 30 steps",
        *(
            f"step {n}/30  reward 0.25  length 31.5  cut off 0.125  entropy 1.23  no spread 0.5  logprob gap 1e-05  s/step 2"
            f"  time left {left[n // 3 - 1]}"
            for n in range(3, 31, 3)
        ),
    ]


def test_the_last_step_has_a_line_and_short_stages_have_one_for_each(clock):
    show = log([sft(25)])
    for step in range(25):
        clock.seconds += 1
        show.step_finished(step, {"loss": 2.0, "grad_norm": 0.5, "time/step": 1.0})
    assert [line.split()[1] for line in lines(show)[1:]] == [f"{n}/25" for n in [*range(2, 25, 2), 25]]
    assert lines(show)[1] == "step 2/25  loss 2  gradient norm 0.5  s/step 1  time left 23 s"
    assert lines(show)[-1].endswith("  time left 0.0 s")
    show = log([rl(3)])
    for step in range(3):
        show.step_finished(step, RL)
    assert [line.split()[1] for line in lines(show)[1:]] == ["1/3", "2/3", "3/3"]


def test_a_resumed_stage_counts_on_and_missing_figures_are_dashes(clock):
    show = log([rl(10)], done=7)
    clock.seconds += 30
    show.step_finished(8, {"zero_std_share": 1.0, "time/step": 0.5})
    assert lines(show)[1:] == [
        "step 8/10  reward –  length –  cut off –  entropy –  no spread 1  logprob gap –  s/step 0.5  time left 1 min 00 s"
    ]


def test_evaluations_and_notes_are_written_as_they_are():
    show = log([rl(1)])
    show.evaluated(0, [FIGURE])
    show.evaluated(1, [replace(FIGURE, extra={"truncated_share": 0.25})])
    show.evaluated(30, [replace(FIGURE, low=-math.inf, high=math.inf)])
    show.evaluated(40, [replace(FIGURE, extra={"episode/intervened": 0.5, "episode/success_alone": 0.25})])
    show.note("left out [bold]: a/b \x1b[2J")
    assert lines(show) == [
        "stage 1 of 1: rl, grpo, 1 step",
        "before any training  a/b  accuracy 0.750 (0.500 to 0.900, n=40)",
        "after 1 step of the run  a/b  accuracy 0.750 (0.500 to 0.900, n=40, 25% cut off)",
        "after 30 steps of the run  a/b  accuracy 0.750 (interval unknown, n=40)",
        "after 40 steps of the run  a/b  accuracy 0.750 (0.500 to 0.900, n=40)",
        "another took over in 50% of the episodes, whose success is not the policy's alone: 0.250 in the others",
        "note: left out [bold]: a/b \\u001b[2J",
    ]


def test_an_evaluation_says_whose_the_success_is(capsys):
    helped = replace(
        FIGURE, extra={"failed": 0.0, "episode/success": 0.75, "episode/intervened": 0.5, "episode/success_alone": 0.25}
    )
    _print(helped, 40)
    assert "  another took over in 50% of the episodes, whose" in capsys.readouterr().out.splitlines()[1]
    _table([FIGURE, replace(helped, task="c/d")])
    assert "c/d: another took over in 50% of the episodes, whose" in capsys.readouterr().out.splitlines()[-1]


def test_a_quiet_watcher_says_notes_alone():
    with Show("run", [rl(2)], FOLDER, screen(), quiet=True) as show:
        show.stage_started(0, 1, rl(2), 0)
        for step in (1, 2):
            show.step_finished(step, RL)
        show.evaluated(2, [FIGURE])
        show.note("look at this")
    assert show.under_way and show.console.export_text() == "  note: look at this\n"


def test_a_note_is_told_again_only_after_many_lines():
    show = log([rl(10)])
    show.note("early")
    for step in range(IN_SIGHT + 1):
        assert show.scrolled() == [], step
        show.evaluated(step, [FIGURE])
    show.note("late")
    assert show.scrolled() == ["early"]


def test_a_wish_to_stop_is_told_past_the_console(capfd):
    log([rl(3)]).stopping()
    assert capfd.readouterr().err == f"\n{STOPPING}\n"


@pytest.mark.parametrize(
    ("environment", "terminal"),
    [({"TERM": "dumb"}, True), ({"TERM": "unknown"}, True), ({"FORCE_COLOR": "1"}, False), ({}, False)],
    ids=["dumb", "unknown", "coloured log", "log"],
)
def test_where_nothing_can_be_drawn_lines_are_written(environment, terminal, monkeypatch):
    """A log with forced colours is still a log: no panel is drawn."""
    for name in ("TERM", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    out.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdout", out)
    with Show("run", [rl(2)], FOLDER) as show:
        show.stage_started(0, 1, rl(2), 0)
        show.step_finished(1, RL)
    assert "  step 1/2  reward 0.25" in out.getvalue() and "Ctrl-C" not in out.getvalue()
    assert "\x1b[?25l" not in out.getvalue(), "the cursor stays"
    assert "\x1b" not in out.getvalue() or "FORCE_COLOR" in environment


# -- remaining time -------------------------------------------------------------------------------------------------------


def test_time_left_goes_by_the_stage_and_by_the_latest_of_a_kind():
    pace = TimeEstimator([sft(10), rl(4), sft(20), rl(6)], 0.0)
    assert pace.left(5.0) == 0.0 and pace.run_steps == (0, 40)
    pace.enter(0, pace.stages[0], 8, 10.0)
    assert pace.left(12.0) is None and pace.left_of_run(12.0) is None, "nothing is known before the first step"
    pace.step(13.0)
    assert pace.left(13.0) == 3.0
    assert pace.left_of_run(13.0) == (3.0 + 20 * 3.0, False), "of rl nothing is known"
    pace.step(15.0)
    assert pace.left(15.0) == 0.0 and pace.left_of_run(15.0) == (20 * 2.5, False)
    pace.enter(1, pace.stages[1], 0, 20.0)
    pace.step(30.0)
    assert pace.left_of_run(30.0) == (3 * 10.0 + 20 * 2.5 + 6 * 10.0, True)
    assert pace.left(34.0) == 2 * 10.0 + 6.0, "the step under way counts down"
    assert pace.left(70.0) == 2 * 10.0, "and not below nothing"
    assert pace.run_steps == (11, 40)


# -- the panel ------------------------------------------------------------------------------------------------------------

TIMES = {"generate": 1.0, "update": 0.5, "judge": 0.25, "process": 0.125, "wait": 0.1, "other": 0.025}
HOSTILE = "<think>\x1b]0;owned\x07 hm</think>it [bold]is[/] \x1b[2J\u202e\x9b31m\r\n7\x00 \ud800 <answer>7</answer>"
ROW = {
    "step": 18,
    "task": "a/b",
    "prompt_id": "train-7",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "image", "path": "media/0.png"}, {"type": "text", "text": "Which [i]digit\n?"}]},
    ],
    "completion": HOSTILE,
    "source": "policy",
    "status": "truncated-length",
    "score": {"value": 0.5, "parts": {}},
}


def screen(width=100, height=50, encoding="utf-8", **environment):
    """A terminal that records its output."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor", **environment}
    return Console(file=file, width=width, height=height, force_terminal=True, record=True, _environ=environment)


def watching(clock, console, figures=(FIGURE,), row=ROW):
    """A `Show` after 8 steps of 10 s each in the second of three stages."""
    show = Show("run", [sft(10), rl(20), rl(30)], FOLDER, console)
    show.stage_started(1, 3, rl(20), 0)
    for step in range(8):
        clock.seconds += 10
        show.step_finished(step + 11, {**RL, **{f"time/{k}": v for k, v in TIMES.items()}, "reward/mean": step / 8})
    show.evaluated(15, figures)
    show.seen.sample = Sample.of_row(row)
    console.export_text()
    return show


def drawn(show, now):
    """The panel's lines as the terminal shows them."""
    show.console.print(panel(show.seen, show.console, now))
    return show.console.export_text().splitlines()


def written(show):
    """All output to the terminal, control sequences included."""
    return show.console.file.buffer.getvalue().decode(show.console.encoding)


def test_the_panel_has_all_that_is_known(clock):
    show = watching(clock, screen(101))
    assert [line.rstrip() for line in drawn(show, clock.seconds + 3)] == [
        "run  stage 2 of 3: rl, grpo  " + "─" * 71,
        "stage      " + "━" * 22 + "─" * 32 + "  8/20  1 min 23 s, 1 min 57 s left",
        "run        " + "━" * 16 + "─" * 38 + " 18/60  1 min 23 s, 6 min 57 s left",
        "",
        "reward     length     cut off    entropy    no spread  logprob gap  s/step",
        "0.875      31.5       0.125      1.23       0.5        1e-05        2",
        "reward     ▁▂▃▄▅▆▇█  0 to 0.875",
        "",
        "evaluated  after 15 steps of the run, 95% intervals",
        "           0.750 (0.500 to 0.900)  a/b accuracy",
        "",
        "time       " + "g" * 44 + "u" * 23 + "j" * 11 + "p" * 5 + "o" * 2 + "w" * 4,
        "           g generate 50%  u update 25%  j judge 12%  p process 6%  o other 1%  w wait 5%",
        "",
        "rollout    score 0.5, cut off  step 18, a/b train-7",
        "asked      [image] Which [i]digit ?",
        "said       (13 characters of thinking) it [bold]is[/] \\u001b[2J\\u202e\\u009b31m 7\\u0000 \\ud800",
        "           <answer>7</answer>",
        "",
        "Ctrl-C stops after this step and saves",
    ]


def test_before_the_first_stage_there_is_a_clock(clock):
    assert drawn(Show("run", [rl(2)], FOLDER, screen()), clock.seconds + 62) == ["run  starting, 1 min 02 s"]


WIDE = "今日は天気がいい " * 400
JOINED = "👩\u200d👩\u200d👧\u200d👦🇧🇪👋🏽❤\ufe0f1\ufe0f\u20e3" * 200
MANY = [replace(FIGURE, task=f"plugin-with-a-long-name/task-{n}") for n in range(7)]


@pytest.mark.parametrize(
    ("width", "height"),
    [(9, 60), (20, 60), (59, 24), (60, 12), (60, 60), (80, 24), (80, 60), (100, 4), (100, 24), (160, 6), (300, 60)],
)
def test_no_terminal_wraps_or_scrolls_the_panel(clock, width, height):
    """No line is too wide and none too many; otherwise each redraw would leave a part of the previous one."""
    for completion in (HOSTILE, WIDE, JOINED, "word " * 5000, ""):
        for encoding in ("utf-8", "ascii"):
            show = watching(clock, screen(width, height, encoding), MANY, {**ROW, "completion": completion})
            got = drawn(show, clock.seconds)
            assert max(sum(map(cell_len, line)) for line in got) < width and len(got) < height
            assert got[0].startswith("run  stage 2 of 3"[: width - 1]) and ("Ctrl-C" in got[-1] or height == 4)
            assert not re.search(r"[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e]|\x1b(?!\[[\d;]*m)", written(show))
            if (width, height) == (80, 60):
                rows = [line.rstrip() for line in got]
                assert "           0.750 (0.500 to 0.900)  plugin-with-a-long-name/task-3 accuracy" in rows
                assert "           and 3 more tasks" in rows and not any("task-4" in row for row in rows)


def test_a_completion_is_shortened_in_the_middle(clock):
    show = watching(clock, screen(80), row={**ROW, "completion": f"first {'and then ' * 3000} last"})
    first, between, last = drawn(show, clock.seconds)[-5:-2]
    assert first.startswith("said       first and then") and " ... " in first + between and last.rstrip().endswith("then last")


def test_a_terminal_without_colours_has_the_letters(clock):
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        show = watching(clock, screen(**environment))
        assert "gggg" in "".join(drawn(show, clock.seconds))
        assert bool(re.search(r"\x1b\[[\d;]*[34]8;", written(show))) == coloured


def test_the_parts_of_the_time_have_the_report_s_colours_on_dark_pages():
    dark = files("mmrl.ui.report").joinpath("page.css").read_text("utf-8").partition("prefers-color-scheme: dark")[2]
    assert list(COLOURS) == list(PARTS)
    assert list(COLOURS.values()) == [re.search(rf"--c{n}: (#\w+)", dark)[1] for n in range(1, len(PARTS) + 1)]


def test_what_a_terminal_has_no_characters_for_does_not_end_a_run(clock):
    show = watching(clock, screen(encoding="ascii"))
    show.note("Größe – ✓")
    got = drawn(show, clock.seconds)
    assert "note: Gr??e ? ?" in written(show) and f"reward     {ASCII_BARS[1:]}  0 to 0.875" in [line.rstrip() for line in got]
    assert any(line.startswith("stage      ####") for line in got)


def eventually(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_terminal_gets_the_panel_and_no_lines_for_steps(tmp_path, monkeypatch):
    """A thread draws the panel while a step takes long."""
    monkeypatch.setattr(progress, "DRAWINGS", 50)
    (tmp_path / "rollouts").mkdir()
    kept = [{**ROW, "source": "gold", "completion": "gold"}, {**ROW, "completion": "sampled"}, {**ROW, "completion": "later"}]
    (tmp_path / "rollouts" / "step-000001.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    (tmp_path / "rollouts" / "step-000002.jsonl").write_text("torn\n{}\n")
    with Show("run", [rl(3)], tmp_path, screen()) as show:
        eventually(lambda: "starting" in written(show))
        show.stage_started(0, 1, rl(3), 0)
        for step in (1, 2):
            show.step_finished(step, RL)
        eventually(lambda: "2/3" in written(show) and "sampled" in written(show))
        show.stopping()
        eventually(lambda: STOPPING in written(show))
    assert not any(word in written(show) for word in ("step 1/3", "gold", "later"))


def test_a_rollout_without_a_score_or_of_gold_says_so():
    assert Sample.of_row({**ROW, "status": "finished", "score": {"value": None}}).outcome == "score failed"
    assert Sample.of_row({**ROW, "status": "finished", "score": {"value": None, "status": "lost"}}).outcome == "episode lost"
    assert Sample.of_row({**ROW, "status": "finished", "source": "gold"}).outcome == "score 0.5, gold completion"
    assert Sample.of_row({"step": 3}).asked == "", "whatever a row lacks"


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
        ([0.0, math.inf, 0.07], "▁ █"),
        ([-1.7e308, 0.0, 1.7e308], "▁▅█"),
        ([1.0, 1.0 + 1 / 7 * 2, 2.0], "▁▃█"),
    ],
)
def test_values_as_bars(values, bars):
    assert sparkline(values) == bars
