"""Figures of matplotlib: what a program draws, all that it can't do, and the rewards through the judge."""

import time

import pytest
from mmrl_rendering import plots
from mmrl_rendering.plot_code import as_program
from mmrl_rendering.plots import HEADER, Refused
from mmrl_rendering.random_pictures import random_chart
from mmrl_rendering.task import Own, Plots

from mmrl import Case, UserError
from mmrl.api.processes import sandbox
from mmrl.api.tasks.image_sources import chance
from mmrl.judge import local_judge
from mmrl.registry import plugins
from mmrl.testing import check_task
from mmrl.testing.cases import mostly_slow

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
needs_sandbox = pytest.mark.skipif(bool(sandbox.problem()), reason=f"no sandbox here: {sandbox.problem()}")
FIGURE = "import matplotlib.pyplot as plt\nplt.figure(figsize=(2, 1), dpi=100, facecolor='navy')\n"
FORBIDDEN = {
    "open('/etc/passwd')": "FileNotFoundError",
    "open('/usr/x', 'w')": "Read-only file system",
    "import os; os.fork()": "PermissionError",
    "import os; os.execv('/bin/sh', ['sh'])": "PermissionError",
    "import subprocess; subprocess.run(['true'])": "PermissionError",
    "import socket; socket.socket()": "PermissionError",
    "import os; os.stat('/home')": "FileNotFoundError",
    "import mmrl": "ModuleNotFoundError",
    "x = [0] * 10**10": "MemoryError",
    "open('big', 'wb').write(bytes(2**27))": "File too large",
    "1 / 0": "ZeroDivisionError: division by zero",
    "import sys; sys.exit(3)": "the program draws no figure",
    "print('a figure')": "the program draws no figure",
    "import os; os._exit(3)": "the program ended early: it exited with code 3",
    "import os; os._exit(0)": "the program gives no figure",
    "import os, signal; os.kill(os.getpid(), 9)": "the program ended early",
    "import matplotlib.pyplot as plt; plt.figure(figsize=(1000, 1000))": "the figure has 100000 x 100000 pixels",
    "import matplotlib.pyplot as plt; plt.figure(); plt.title('$x')\nplt.text(0, 0, r'$\\nothing$')": "ValueError",
    "raise ValueError('a\\nb')": "ValueError: a b",
}


@needs_sandbox
def test_the_figure_is_the_open_one_or_that_which_was_saved_last():
    shown = plots.render(FIGURE)
    assert shown.size == (200, 100) and shown.getpixel((5, 5)) == (0, 0, 128)
    saved = FIGURE + "plt.savefig('a.png'); plt.close()\nplt.figure(figsize=(1, 1)); plt.show()"
    assert plots.render(saved).tobytes() == shown.tobytes()
    assert plots.render(FIGURE, (20, 10)).size == (20, 10)
    plots._shown.cache_clear()
    assert plots.render(FIGURE).tobytes() == shown.tobytes()
    shown.putpixel((0, 0), (1, 2, 3))
    assert plots.render(FIGURE).getpixel((0, 0)) == (0, 0, 128), "what is kept is not what is handed out"


@needs_sandbox
@pytest.mark.parametrize("code", mostly_slow(list(FORBIDDEN), everyday=1))
def test_what_a_program_cannot_do(code):
    with pytest.raises(Refused, match=FORBIDDEN[code]) as caught:
        plots.render(code)
    assert "\n" not in str(caught.value)


@needs_sandbox
@pytest.mark.slow
def test_an_endless_program_is_stopped():
    started = time.monotonic()
    with pytest.raises(Refused, match="took too long"):
        plots.render("while True: pass")
    assert time.monotonic() - started < 3 * plots.SECONDS + 5


def test_the_program_is_found_after_the_thinking_and_in_the_last_fence():
    assert plots.find("<think>plt.plot()</think>\nFirst:\n```python\nx = 1\n```\nBetter:\n```python\nx = 2\n```") == "x = 2"
    assert plots.find("x = 3") == "x = 3"
    for text, why in (
        ("", "no program"),
        ("<think>x = 1</think>", "no program"),
        ("x = " + "1" * 30_000, "more than 20,000 characters"),
        ("I can't draw that.", "SyntaxError"),
        ("x = '\0'", "SyntaxError|ValueError"),
        ("(" * 5_000, "SyntaxError|MemoryError|RecursionError"),
    ):
        with pytest.raises(Refused, match=why):
            plots.find(text)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"plot", HEADER.pack(b"plot", 2, 2) + bytes(11), HEADER.pack(b"plot", 2, 2) + bytes(13)),
        *(HEADER.pack(b"plot", 0, 0), HEADER.pack(b"plot", 2**31, 2**31) + bytes(9), HEADER.pack(b"png!", 1, 1) + bytes(3)),
    ],
)
def test_an_answer_that_is_no_figure_is_refused(answer):
    """The program has the pipe, so it may write there itself."""
    with pytest.raises(Refused, match="gives no figure"):
        plots._read(answer)


def test_without_a_sandbox_or_matplotlib_the_task_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sandbox, "problem", lambda: "bubblewrap isn't installed")
    with pytest.raises(
        UserError, match=r"code = 'matplotlib' needs a sandbox, and bubblewrap isn't installed: install bubblewrap"
    ):
        Plots()
    monkeypatch.setattr(sandbox, "problem", str)
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"code = 'matplotlib' needs matplotlib: pip install"):
        Plots()


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("level", ["easy", "middle", "hard"])
def test_the_programs_of_all_charts_draw_what_they_say(level):
    kinds = {}
    for number in range(12):
        chart = random_chart(chance(0, level, str(number)), level)
        kinds.setdefault(chart.type, plots.render(as_program(chart)))
    assert len(kinds) >= 2 and all(len(shown.getcolors(100_000)) > 5 for shown in kinds.values())


@needs_sandbox
@pytest.mark.slow
def test_rows_of_programs_are_drawn(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"code": "import matplotlib.pyplot as plt\\nplt.bar([1, 2], [3, 4])"}\n' * 2)
    task = Own(path=str(tmp_path / "rows.jsonl"), test_path=str(tmp_path / "rows.jsonl"), code="matplotlib", size=112)
    prompt = task.prompts("train", 0)[0]
    assert prompt.images[0].size == (112, 84) and prompt.meta["code"] == "matplotlib"


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("isolation", ["process", "strict"])
def test_the_judge_scores_programs(isolation):
    task = Plots(size=160)
    prompt, other = task.prompts("train", 0)[0], task.prompts("train", 0)[1]
    texts = (task.gold(prompt), task.gold(other), FIGURE, "1 / 0")
    cases = [Case(completion=t, answer=prompt.answer, meta=prompt.meta, media=prompt.images) for t in texts]
    with local_judge({"rendering/picture": {}}, isolation=isolation) as judge:
        scores = judge.run("rendering/picture", cases)
    if isolation == "strict":  # a sandbox within a sandbox can't be made, and reading all files is no way out
        assert all(s.failed and "needs a sandbox" in s.detail for s in scores), scores
        return
    right, wrong, blank, refused = (s.value for s in scores)
    assert right == pytest.approx(1.0) and wrong < 0.9 and blank < 0.1 and refused == 0.0
    assert "ZeroDivisionError" in scores[3].detail


@pytest.mark.slow
@needs_sandbox
def test_plots_keep_the_rules_of_tasks():
    report = check_task(
        plugins.registry().get("tasks", "rendering/plot"), lambda: Plots(size=160, items={"train": 2, "test": 2}), n=2
    )
    assert report.ok, str(report)
