"""`mmrl score`: one line out for each line in; bad input gives one line on stderr."""

import base64
import io
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from PIL import Image

from bad_images import png
from mmrl.ui.cli import main

PLUGIN = """
import time
from mmrl import Score, VerifierSpec, hookimpl
from mmrl.api.coordinates import convert_coordinates

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id=f"scoring/{n}", target=f"scoring:{n}", images=n == "width", rollout=n == "talk",
                         timeout_s=1.0 if n == "slow" else 20.0)
            for n in ("same", "width", "slow", "near", "talk", "won")]

def same(case, credit=1.0):
    print("a verifier prints")
    if case.answer == "raise":
        raise ValueError("no answer")
    return Score(credit * (case.completion == case.answer), {"meta": float(case.meta.get("k", 0))}, case.status)

def width(case):
    assert case.image_sizes == tuple(i.size for i in case.images)
    return case.image_sizes[0][0] / 1000

def near(case):
    sizes = case.image_sizes[0], (case.model_sizes or [None])[0]
    found = convert_coordinates([float(v) for v in case.completion.split()], case.coordinate_format, "pixels", *sizes)
    return Score(float(all(abs(a - b) < 0.6 for a, b in zip(found, case.answer))), {}, f"{found}")

def talk(case):
    turns = case.rollout.turns
    said = [(t.text, len(t.token_ids), t.reward, [p["type"] for m in t.messages for p in m["content"]]) for t in turns]
    return Score(1.0, {}, f"{case.completion} {said} {case.rollout.prompt.text}")

def won(case):
    return case.outcome["success"]

def slow(case):
    time.sleep(case.answer)
    return 1.0
"""


def as_url(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def data_url(size):
    Image.new("RGB", size).save(file := io.BytesIO(), "PNG")
    return as_url(file.getvalue())


SMALL = data_url((8, 8))
BOMB = as_url(png(60_000, 60_000))
"""A header of 3.6 gigapixels."""
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
    monkeypatch.setattr("mmrl.api.processes.sandbox.problem", lambda: "this is a test")
    code, rows, said = score([{"completion": "a"}], "scoring/same", "--isolation", "strict")
    assert code == 2 and not rows and 'judge.isolation = "strict" needs a sandbox, and this is a test: install bubblewrap' in said


def test_set_gives_options(score):
    assert score([{"completion": "a", "answer": "a"}], "scoring/same", "--set", "credit=0.25") == (0, [ok(0.25)], "")


def test_images(score, tmp_path):
    path = str(tmp_path / "wide.png")
    Image.new("RGB", (640, 10)).save(path)
    _, rows, _ = score([{"completion": "", "images": [path]}], "scoring/width")
    assert [r["value"] for r in rows] == [0.64]


def test_images_in_base64(score):
    _, rows, _ = score([{"completion": "", "images": [data_url((640, 10))]}], "scoring/width")
    assert [r["value"] for r in rows] == [0.64]


def test_boxes_are_read_in_the_numbers_and_sizes_that_the_line_gives(score):
    box, sizes = [100, 50, 200, 100], {"image_sizes": [[400, 200]]}
    lines = [
        {"completion": "100 50 200 100", "answer": box, **sizes},
        {"completion": "250 250 500 500", "answer": box, "coordinate_format": "thousandths", **sizes},
        {"completion": "0.25 0.25 0.5 0.5", "answer": box, "coordinate_format": "unit", **sizes},
        {"completion": "50 30 100 60", "answer": box, "coordinate_format": "model-pixels", "model_sizes": [[200, 120]], **sizes},
        {"completion": "250 250 500 500", "answer": box, **sizes},
        {"completion": "250 250 500 500", "answer": box, "coordinate_format": "thousandths", "images": [data_url((400, 200))]},
    ]
    _, rows, _ = score(lines, "scoring/near")
    assert [r["value"] for r in rows] == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0], rows


@pytest.mark.slow
def test_a_model_says_in_which_numbers_and_sizes_where_a_line_does_not(score):
    """A Qwen3-VL writes thousandths, a Qwen2.5-VL pixels of the image as it sees it."""
    pytest.importorskip("torch")
    box, sizes = [28, 14, 56, 28], {"image_sizes": [[112, 56]]}
    own = {"completion": "28 14 56 28", "answer": box, "coordinate_format": "pixels", **sizes}
    _, rows, _ = score(
        [{"completion": "250 250 500 500", "answer": box, **sizes}, own], "scoring/near", "--model", "tiny:qwen3_vl"
    )
    assert [r["value"] for r in rows] == [1.0, 1.0], rows
    seen = {"completion": "250 250 500 500", "answer": [100, 100, 200, 200], "image_sizes": [[400, 400]]}
    _, rows, _ = score([seen | {"model_sizes": [[1000, 1000]]}, seen], "scoring/near", "--model", "tiny:qwen2_5_vl")
    assert [r["value"] for r in rows] == [1.0, 0.0], rows
    code, _, said = score([{"completion": "1 1", "answer": [1, 1], **sizes}], "scoring/near", "--model", "tiny:llava")
    assert code == 2 and said.startswith("mmrl: line 1 of stdin has no 'coordinate_format', and in which numbers a llava model")


def test_turns_and_an_outcome(score):
    turns = [
        {"text": "look", "tokens": 7},
        {"text": "it is red", "reward": 0.5, "messages": [{"role": "user", "content": [{"type": "text", "text": "so?"}]}]},
    ]
    line = {"turns": turns, "messages": [{"role": "user", "content": "What is it?"}], "outcome": {"success": 1}}
    _, rows, _ = score([line], "scoring/talk")
    assert rows[0]["detail"] == "it is red [('look', 7, 0.0, []), ('it is red', 3, 0.5, ['text'])] What is it?"
    _, rows, _ = score(
        [line, {"completion": "", "outcome": {}}, {"completion": "", "status": "environment-error"}], "scoring/won"
    )
    assert [(r["value"], r["status"]) for r in rows] == [(1.0, "ok"), (None, "failed"), (None, "lost")]


def test_a_line_without_end_is_refused(score, monkeypatch):
    monkeypatch.setattr("mmrl.ui.cli.score.LONGEST_LINE", 2000)
    code, _, said = score(GOOD + b"x" * 4000, "scoring/same")
    assert (code, said) == (2, "mmrl: line 2 of stdin is longer than 2,000 bytes: give images as paths\n")


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
    assert process.wait(timeout=60) == 1
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
        ('{"completion": "a", "images": [1]}', "line 2 of stdin: 'images' must be a list of paths or data URLs, found 1"),
        ('{"completion": "a", "images": ["data:image/png;base64,@@"]}', "line 2 of stdin: an image in base64 can't be read ("),
        (
            '{"completion": "a", "images": ["data:text/html,hello"]}',
            "line 2 of stdin: 'data:text/html' is no image in base64: write",
        ),
        (
            '{"completion": "a", "images": ["data:image/png;base64,aGVsbG8="]}',
            "line 2 of stdin: image of 5 bytes is broken or of an",
        ),
        (json.dumps({"completion": "a", "images": [BOMB]}), "line 2 of stdin: image of "),
        (
            '{"completion": "a", "image_sizes": [[1]]}',
            "line 2 of stdin: 'image_sizes' must be a list of [width, height] in pixels,",
        ),
        ('{"completion": "a", "image_sizes": [[0, 5]]}', "line 2 of stdin: 'image_sizes' must be a list of [width, height] in"),
        ('{"completion": "a", "image_sizes": [[1e3, 5]]}', "line 2 of stdin: 'image_sizes' must be a list of [width, height] in"),
        ('{"completion": "a", "image_sizes": 3}', "line 2 of stdin: 'image_sizes' must be a list, found 3"),
        (
            '{"completion": "a", "model_sizes": [[8, 8]]}',
            "line 2 of stdin: 'model_sizes' has 1 entries for 0 images: give one for",
        ),
        (
            '{"completion": "a", "image_sizes": [[8, 8]], "coordinate_format": "model-pixels"}',
            "line 2 of stdin: coordinates in model-pixels need 'model_sizes', [width, height] of each image for the model",
        ),
        (
            json.dumps({"completion": "a", "images": [SMALL], "image_sizes": [[9, 8]]}),
            "line 2 of stdin: 'image_sizes' says [[9, 8]], and the images are [[8, 8]]: leave it out",
        ),
        (
            '{"completion": "a", "coordinate_format": "thousandth"}',
            "line 2 of stdin: unknown coordinate_format 'thousandth'. Did you mean 'thousandths'? Known: pixels, model-pixels, ",
        ),
        (
            '{"completion": "a", "frame": "pixels"}',
            "line 2 of stdin has an unknown key 'frame'. Known keys: completion, answer, ",
        ),
        (
            '{"completion": "a", "outcome": {"success": "yes"}}',
            "line 2 of stdin: 'outcome' must give a finite number for 'success', ",
        ),
        (
            '{"completion": "a", "outcome": {"success": NaN}}',
            "line 2 of stdin: 'outcome' must give a finite number for 'success', ",
        ),
        ('{"turns": []}', "line 2 of stdin has no 'completion': add it"),
        ('{"turns": ["a"]}', 'line 2 of stdin: turn 0 is not a JSON object: write {"text": ...}'),
        ('{"turns": [{"tokens": 3}]}', "line 2 of stdin: turn 0 has no 'text': add it"),
        ('{"turns": [{"text": "a", "tokens": -1}]}', "line 2 of stdin: turn 0: 'tokens' must be from 0 to 10000000, found -1"),
        ('{"turns": [{"text": "a", "tokens": true}]}', "line 2 of stdin: turn 0: 'tokens' must be a whole number, found true"),
        ('{"turns": [{"text": "a", "reward": Infinity}]}', "line 2 of stdin: turn 0: 'reward' must be a number, found Infinity"),
        (
            '{"completion": "b", "turns": [{"text": "a"}]}',
            "line 2 of stdin: 'completion' is not the text of the last turn: leave",
        ),
        (
            '{"turns": [{"text": "a", "messages": [3]}]}',
            'line 2 of stdin: turn 0: message 0 must be {"role": ..., "content": text or',
        ),
        (
            '{"turns": [{"text": "a"}], "messages": [{"role": "user", "content": [{"type": "audio"}]}]}',
            'line 2 of stdin: message 0: a part must be {"type": "text", "text": ...} or {"type": "image", "image": path or data',
        ),
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
        (["scoring/same", "--model", "./nowhere"], "policy.model: './nowhere' is not a folder"),
    ],
)
def test_bad_arguments(score, args, message):
    code, rows, stderr = score([{"completion": "a"}], *args)
    assert (code, rows) == (2, [])
    assert stderr.startswith("mmrl: " + message)
    assert stderr.count("\n") == 1
