"""`mmrl score`: one line out for each line in; bad input gives one line on stderr."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mmrl.ui.cli import main

PLUGIN = """
import time
from mmrl import Score, VerifierSpec, hookimpl

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id=f"scoring/{n}", target=f"scoring:{n}", images=n == "width", timeout_s=1.0)
            for n in ("same", "width", "slow")]

def same(case, credit=1.0):
    print("a verifier prints")
    if case.answer == "raise":
        raise ValueError("no answer")
    return Score(credit * (case.completion == case.answer), {"meta": float(case.meta.get("k", 0))}, case.status)

def width(case):
    assert case.image_sizes == tuple(i.size for i in case.images)
    return case.image_sizes[0][0] / 1000

def slow(case):
    time.sleep(case.answer)
    return 1.0
"""


GOOD = b'{"completion": "a", "answer": "a"}\n'


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("score") / "scoring.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture
def score(plugin, monkeypatch):
    """Run the command in this process: (exit code, rows, stderr)."""
    monkeypatch.setenv("MMRL_PLUGINS", "")

    def score(stdin, *args):
        if not isinstance(stdin, bytes):
            stdin = "\n".join(s if isinstance(s, str) else json.dumps(s) for s in stdin).encode()
        done = CliRunner().invoke(main, ["--plugin", plugin, "score", *args], input=stdin)
        return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    return score


@pytest.fixture
def process(plugin):
    """The command in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "mmrl", "--plugin", plugin, "score", "scoring/same"],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "MMRL_PLUGINS": ""},
    ) as process:
        yield process
        process.kill()


def ok(value, meta=0.0, detail="finished"):
    return {"value": value, "parts": {"meta": meta}, "status": "ok", "detail": detail}


def test_a_line_for_a_line(score):
    lines = [
        {"completion": "ä", "answer": "ä", "meta": {"k": 0.5}},
        {"completion": "a"},
        "",
        {"completion": "a", "answer": "raise"},
        {"completion": "a", "answer": "a", "status": "truncated-length"},
    ]
    code, rows, stderr = score(lines, "scoring/same")
    assert (code, stderr) == (0, "")
    failed = rows.pop(2)
    assert rows == [ok(1.0, 0.5), ok(0.0), ok(1.0, detail="truncated-length")]
    assert (failed["value"], failed["parts"], failed["status"]) == (None, {}, "failed")
    assert failed["detail"].startswith("ValueError: no answer (scoring.py:")


def test_order_is_kept_over_many_lines_and_processes(score):
    lines = [{"completion": "a", "answer": "a" if i % 3 else "b", "meta": {"k": i}} for i in range(20000)]
    code, rows, _ = score(lines, "scoring/same", "--num-workers", "2")
    assert code == 0
    assert rows == [ok(float(i % 3 > 0), float(i)) for i in range(20000)]


def test_no_input(score):
    assert score(b"", "scoring/same") == (0, [], "")


def test_one_huge_line(score):
    text = "x" * 5_000_000
    assert score([{"completion": text, "answer": text}], "scoring/same") == (0, [ok(1.0)], "")


def test_a_deadline_is_a_failure(score):
    code, rows, _ = score([{"completion": "", "answer": 0}, {"completion": "", "answer": 60}], "scoring/slow")
    assert code == 0
    assert [(r["value"], r["status"]) for r in rows] == [(1.0, "ok"), (None, "failed")]
    assert rows[1]["detail"] == "took longer than its deadline of 1 s"


def test_isolation_reaches_the_judge(score, monkeypatch):
    monkeypatch.setattr("mmrl.judge.sandbox.problem", lambda: "this is a test")
    code, rows, said = score([{"completion": "a"}], "scoring/same", "--isolation", "strict")
    assert code == 2 and not rows and 'judge.isolation = "strict" needs a sandbox, and this is a test: install bubblewrap' in said


def test_set_gives_options(score):
    assert score([{"completion": "a", "answer": "a"}], "scoring/same", "--set", "credit=0.25") == (0, [ok(0.25)], "")


def test_images(score, tmp_path):
    from PIL import Image

    path = str(tmp_path / "wide.png")
    Image.new("RGB", (640, 10)).save(path)
    _, rows, _ = score([{"completion": "", "images": [path]}], "scoring/width")
    assert [r["value"] for r in rows] == [0.64]


def test_a_score_comes_before_the_next_line_is_asked_for(process):
    for answer, value in (("a", 1.0), ("b", 0.0)):
        process.stdin.write(json.dumps({"completion": "a", "answer": answer}) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["value"] == value
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_a_reader_that_leaves_is_no_traceback(process):
    process.stdout.close()
    process.stdin.write(GOOD.decode())
    process.stdin.close()
    assert process.wait(timeout=10) == 1
    assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"completion": "a"',
            "line 2 of stdin is not JSON (Expecting ',' delimiter: line 1 column 19 (char 18)): write one object",
        ),
        (b"\xff\xfe\xfd", "line 2 of stdin is not JSON ('utf-8' codec can't decode byte 0xff"),
        ("[" * 200_000, "line 2 of stdin is not JSON (maximum recursion depth exceeded"),
        ("[1]", "line 2 of stdin is not a JSON object"),
        ('{"answer": "a"}', "line 2 of stdin has no 'completion'"),
        ('{"completion": 1}', "line 2 of stdin: 'completion' must be text, found 1"),
        ('{"completion": "a", "meta": []}', "line 2 of stdin: 'meta' must be an object, found []"),
        ('{"completion": "a", "answr": 1}', "line 2 of stdin has an unknown key 'answr'. Did you mean 'answer'?"),
        ('{"completion": "a", "status": "done"}', "line 2 of stdin: unknown status 'done'. Known: finished, truncated-length, "),
        ('{"completion": "a", "status": "finish"}', "line 2 of stdin: unknown status 'finish'. Did you mean 'finished'? Known: "),
        ('{"completion": "a", "images": [1]}', "line 2 of stdin: 'images' must be a list of paths, found 1"),
        ('{"completion": "a", "images": ["missing.png"]}', "line 2 of stdin: "),
    ],
)
def test_bad_line_is_named_after_the_good_ones_are_answered(score, line, message):
    code, rows, stderr = score(GOOD + (line if isinstance(line, bytes) else line.encode()) + b"\n" + GOOD, "scoring/same")
    assert code == 2
    assert rows == [ok(1.0)]
    assert stderr.startswith("mmrl: " + message)
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["scoring/sam"], "no verifier 'scoring/sam'. Did you mean 'scoring/same'?"),
        (["scoring/same", "--set", "credits=1"], "verifier 'scoring/same' has no option 'credits'. Did you mean 'credit'?"),
        (["scoring/same", "--set", "credit"], "--set 'credit' has no value: write --set key=value"),
        (["scoring/same", "--num-workers", "0"], "Invalid value for '--num-workers'"),
    ],
)
def test_bad_arguments(score, args, message):
    code, rows, stderr = score([{"completion": "a"}], *args)
    assert (code, rows) == (2, [])
    assert stderr.startswith("mmrl: " + message)
    assert stderr.count("\n") == 1
