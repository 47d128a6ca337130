"""`mmrl check` of plugin code that exits or kills its process."""

import subprocess
import sys

import pytest

PLUGIN = """
import os
from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="ends/task", target="ends:T", verifiers={"ends/fine": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id=f"ends/{n}", target="ends:verify", options={"how": n}) for n in "raise exit kill fork fine".split()]

class T(Task):
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}{i}", messages=[user_message(f"what {i}")], answer=f"a{i}{split}") for i in range(4)]

def verify(case, how):
    if how == "raise":
        raise SystemExit(0)
    if how == "exit":
        os._exit(0)
    if how == "kill":
        os.kill(os.getpid(), 9)
    if how == "fork":
        os.fork()
    return float(case.completion == case.answer)
"""


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("raise", 1, "raised SystemExit: 0"),
        ("exit", 2, "mmrl: check of 'ends/exit': its process ended itself with exit code 0 before it returned a result"),
        ("kill", 2, "mmrl: check of 'ends/kill': its process was killed by signal 9 before it returned a result"),
        ("fork", 0, "checks pass, on up to 32 rows of each split"),
        ("fine", 0, "checks pass, on up to 32 rows of each split"),
    ],
)
def test_a_verifier_that_ends_its_process_never_passes(tmp_path, name, code, told):
    (tmp_path / "ends.py").write_text(PLUGIN)
    command = [sys.executable, "-m", "mmrl", "--plugin", "ends.py", "check", f"ends/{name}", "--task", "ends/task"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == code and (done.stdout + done.stderr).count(told) == 1, done.stdout + done.stderr


FAULTY = """
from mmrl import Prompt, Task, TaskSpec, UserError, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id=f"faulty/{n}", target="faulty:T", options={"how": n}) for n in ("user", "crash")]

class T(Task):
    def __init__(self, how):
        try:
            open("nope.jsonl")
        except OSError as error:
            if how == "user":
                raise UserError("nope.jsonl does not exist: check the path") from error
            raise

    def prompts(self, split, seed):
        return []
"""


@pytest.mark.parametrize(("name", "traced"), [("user", False), ("crash", True)])
def test_bad_input_is_one_line_and_a_plugins_fault_keeps_its_traceback(tmp_path, name, traced):
    (tmp_path / "faulty.py").write_text(FAULTY)
    command = [sys.executable, "-m", "mmrl", "--plugin", "faulty.py", "check", f"faulty/{name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and ("Traceback" in done.stderr) is traced, done.stderr
    assert "nope.jsonl" in done.stderr.splitlines()[-1] and (traced or len(done.stderr.splitlines()) == 1)
