"""A run in a terminal: what is on the screen while it goes, what Ctrl-C does there, and what `--quiet` leaves."""

import fcntl
import importlib
import json
import os
import re
import select
import shlex
import struct
import termios
import time

import pytest

import forked
import runs
from mmrl.ui.cli import main

RUN_FILE = """
name = "seen"
policy = {model = "tiny:qwen2_5_vl:hidden=32,layers=1"}
tasks = [{id = "slow/colour", name = "a [b] 'c'"}]
stages = [{kind = "rl", steps = 4, prompts_per_step = 2, group_size = 2}]
generate = {max_tokens = 4}
evaluate = {num_prompts = 4}
record = {rollouts_every = 1}
train = {threads = 1}
"""
SLOW = """
import time
from mmrl import TaskSpec, VerifierSpec, hookimpl

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="slow/colour", target="toy:Colour", verifiers={"slow/letters": 1.0}, metric="toy/exact")]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="slow/letters", target="slow:letters", timeout_s=20.0)]

def letters(case):
    import toy
    time.sleep(0.5)
    return toy.letters(case)
"""
STEERS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command in a terminal of 100 columns and 40 rows."""

    def __init__(self, folder, *arguments, **environment):
        self.ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        files = [runs.TOY, folder / "slow.py"]
        plugins = [word for file in files for word in ("--plugin", str(file))]
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")}
        env = kept | {"TERM": "xterm"} | environment
        self.process = forked.start(
            [*plugins, *arguments], cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs, terminal=True
        )
        os.close(theirs)
        self.raw = b""

    @property
    def text(self):
        return STEERS.sub(b"", self.raw).decode(errors="replace").replace("\r\n", "\n")

    def until(self, *words, seconds=100):
        """Read until all words were written since the last time."""
        start, deadline = len(self.text), time.monotonic() + seconds
        while not all(word in self.text[start:] for word in words):
            assert time.monotonic() < deadline and self.read(), f"no {words} in {self.text[start:]}"

    def read(self):
        """Whether there is more to come."""
        if not select.select([self.ours], [], [], 0.1)[0]:
            return True
        try:
            found = os.read(self.ours, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += found
        return bool(found)

    def type(self, keys):
        os.write(self.ours, keys)

    def end(self):
        """(the exit code, all that was written)."""
        deadline = time.monotonic() + 100
        while self.read():
            assert time.monotonic() < deadline, self.text
        os.close(self.ours)
        return self.process.wait(20), self.text


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_says_so_saves_and_says_how_to_go_on(folder):
    """What is seen while the run goes, then Ctrl-C in the middle of a step, then the very command that was printed."""
    seen = Terminal(folder, "train", "run.toml", "--set", "seed=3", "--set", "name='x y'", "--overwrite")
    seen.until("x y  starting")
    seen.until("stage 1 of 1: rl, grpo", "1/4", "left", "reward ", "evaluated", "time  ", "rollout", "said  ")
    seen.until("2/4", "Ctrl-C stops after this step")
    seen.type(b"\x03")
    seen.until("stopping after this step; Ctrl-C again to stop at once", seconds=5)
    assert seen.process.poll() is None, "it was said before the step was over"
    code, text = seen.end()
    assert code == 130 and "Traceback" not in text
    step = int(re.search(r"stopped after step (\d) of the run; the newest checkpoint is step-00000\1\n", text)[1])
    assert step in (3, 4)
    again = shlex.split(re.search(r"^resume    (.*)$", text, re.MULTILINE)[1])
    words = ["train", "run.toml", "--set", "seed=3", "--set", "name='x y'", "--resume"]
    assert again == ["mmrl", "--plugin", runs.TOY, "--plugin", str(folder / "slow.py"), *words]
    code, text = Terminal(folder, *again[5:]).end()
    assert code == 0 and f"note: resumed after step {step}" in text
    assert json.loads((folder / "runs" / "x y" / "summary.json").read_text())["steps"] == 4
    assert text.rstrip().splitlines()[-1].startswith("evaluate  mmrl "), "nothing of the panel is left below the end"


def test_a_quiet_run_says_its_figures_and_where_it_is(folder):
    shown = Terminal(folder, "train", "run.toml", "--quiet", "--set", "stages.0.steps=1")
    code, text = shown.end()
    assert code == 0
    figures, more, report = text.splitlines()
    assert re.fullmatch(r"a \[b\] 'c'  accuracy 0\.\d{3} \(.* to .*\) -> 0\.\d{3} \(.* to .*\) last, n=4, 95% intervals", figures)
    assert more.startswith("  truncated share 1.000") and report == "report    runs/seen/report.html"
    code, text = Terminal(folder, "train", "run.toml", "--quiet").end()
    assert code == 2 and text == (
        "mmrl: runs/seen already has a run: choose another name, --resume it, or remove it with --overwrite\n"
    )


def test_a_learner_that_nobody_hears_ends_without_a_word(folder, monkeypatch, capfd):
    """An empty line of its own would shift what the first learner shows."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("mmrl.ui.cli.train"), "_train", interrupted)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, str(folder / "slow.py")]))
    for rank, said in (("0", "\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(SystemExit) as ended:
            main(["train", str(folder / "run.toml")])
        assert (ended.value.code, capfd.readouterr().err) == (130, said)
