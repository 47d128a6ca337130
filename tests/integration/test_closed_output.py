"""Commands whose output nobody reads any more: a run goes on, other commands end without a word."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import runs

RUN_FILE = """
name = "unread"
policy = {model = "tiny:qwen2_5_vl:hidden=32,layers=1"}
tasks = [{id = "toy/colour"}]
stages = [{kind = "rl", steps = 2, prompts_per_step = 1, group_size = 2}]
generate = {max_tokens = 2}
evaluate = {num_prompts = 2}
train = {threads = 1}
"""


def closed_pipe() -> int:
    """The end of a pipe that is written to, after the other was closed."""
    ours, theirs = os.pipe()
    os.close(ours)
    return theirs


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(("output", "why"), [(closed_pipe, "Broken pipe"), (full, "No space left on device")])
def test_a_run_goes_on_without_its_output(tmp_path: Path, output, why) -> None:
    """As after `mmrl train run.toml | head`. One line on stderr says so."""
    (tmp_path / "run.toml").write_text(RUN_FILE)
    out = output()
    process = forked.start(["--plugin", runs.TOY, "train", "run.toml"], cwd=tmp_path, stdout=out, stderr=subprocess.PIPE)
    os.close(out)
    told = process.communicate(timeout=100)[1]
    assert process.returncode == 0, told
    assert told == f"mmrl: the output can't be written any more ({why}): the run goes on, and its folder has all of it\n"
    assert {"summary.json", "report.html"} <= {p.name for p in (tmp_path / "runs" / "unread").iterdir()}


def test_a_run_goes_on_where_stderr_is_closed_too(tmp_path: Path) -> None:
    """As after `mmrl train run.toml 2>&1 | head`."""
    (tmp_path / "run.toml").write_text(RUN_FILE)
    out = closed_pipe()
    process = forked.start(["--plugin", runs.TOY, "train", "run.toml"], cwd=tmp_path, stdout=out, stderr=out)
    os.close(out)
    assert process.wait(timeout=100) == 0
    assert (tmp_path / "runs" / "unread" / "summary.json").is_file()


@pytest.mark.parametrize("arguments", [("list", "tasks"), ("list", "tasks", "--json")])
def test_other_commands_end_without_a_word(arguments) -> None:
    """With 1, as programs made with click and rich do."""
    out = closed_pipe()
    process = forked.start(arguments, stdout=out, stderr=subprocess.PIPE)
    os.close(out)
    assert (process.communicate(timeout=100)[1], process.returncode) == ("", 1)


def test_a_process_without_stdout_works() -> None:
    """As after `mmrl list tasks >&-`."""
    command = f"exec {sys.executable} -m mmrl list tasks >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
