"""Whose turn it is among the tests that CI leaves out, and what is written of those that ran."""

import json
import subprocess

import pytest

import exhaustive_turns
from exhaustive_turns import Outcome, in_turn, outcome, take_turns

PASSED = Outcome(passed=2, failed=0, skipped=1, said="2 passed, 1 skipped")
FAILED = Outcome(passed=1, failed=2, skipped=0, said="E  assert 3 == 4")


def row(day, failed=0):
    return {"date": f"2026-01-{day:02} 10:00:00", "commit": "abc", "seconds": 3, "passed": 1, "failed": failed, "skipped": 0}


@pytest.fixture
def root(tmp_path):
    """A folder with four files of tests."""
    (tmp_path / "tests").mkdir()
    for name in "abcd":
        (tmp_path / f"tests/{name}.py").touch()
    return tmp_path


class Runner:
    """Says of each file what is given, and moves a clock on by its minutes."""

    def __init__(self, minutes=0.0, **outcomes):
        self.minutes, self.outcomes, self.ran, self.now = minutes, outcomes, [], 100.0

    def __call__(self, file):
        self.ran.append(file)
        self.now += 60 * self.minutes
        return self.outcomes.get(file.removeprefix("tests/").removesuffix(".py"), PASSED)


def turns(root, runner, minutes=30.0, names="abcd"):
    files = [f"tests/{name}.py" for name in names]
    return take_turns(files, minutes, "1234567+", run=runner, clock=lambda: runner.now, root=root)


def stored(root):
    return json.loads((root / "tests/turns.json").read_text())


def test_failed_files_come_first_then_new_ones_then_those_that_ran_the_longest_ago():
    rows = {"old": row(2), "older": row(1), "newest": row(9), "failed": row(9, failed=1), "of no file": row(1)}
    assert in_turn(["newest", "new", "failed", "old", "another", "older"], rows) == [
        "failed",
        "another",
        "new",
        "older",
        "old",
        "newest",
    ]


@pytest.mark.parametrize(("minutes", "ran"), [(30, 3), (24.1, 3), (24, 2), (12, 1), (0, 1), (60, 4)])
def test_no_file_is_begun_once_the_minutes_are_over(root, minutes, ran):
    runner = Runner(minutes=12)
    turns(root, runner, minutes)
    assert runner.ran == [f"tests/{name}.py" for name in "abcd"[:ran]]


def test_each_turn_goes_on_where_the_last_one_ended(root):
    ran = []
    for _ in range(3):
        runner = Runner(minutes=20)
        turns(root, runner)
        ran += runner.ran
    assert ran == [f"tests/{name}.py" for name in "abcdab"]


def test_of_each_file_its_last_run_is_written_in_a_line_and_a_deleted_file_s_row_goes(root):
    before = {"tests/gone.py": row(1), "tests/d.py": row(2), "tests/a.py": row(1)}
    (root / "tests/turns.json").write_text(json.dumps(before))
    turns(root, Runner(minutes=0.05, b=FAILED), names="ba")
    first, *lines, last = (root / "tests/turns.json").read_text().splitlines()
    assert (first, last) == ("{", "}") and [line.split('"')[1] for line in lines] == ["tests/a.py", "tests/b.py", "tests/d.py"]
    found = stored(root)
    assert found["tests/d.py"] == row(2)
    date = found["tests/b.py"].pop("date")
    assert found["tests/b.py"] == {"commit": "1234567+", "seconds": 3, "passed": 1, "failed": 2, "skipped": 0}
    assert date > "2026-01-02" and found["tests/a.py"]["date"] >= date


def test_what_ran_before_a_turn_was_cut_off_is_written(root):
    def cut_off(file):
        if file == "tests/b.py":
            raise KeyboardInterrupt
        return PASSED

    with pytest.raises(KeyboardInterrupt):
        take_turns(["tests/b.py", "tests/a.py"], 30, "1234567", run=cut_off, root=root)
    assert list(stored(root)) == ["tests/a.py"]


def test_what_another_turn_writes_meanwhile_is_kept(root):
    inner = Runner()

    def meanwhile(file):
        turns(root, inner, names="b")
        return PASSED

    take_turns(["tests/a.py"], 30, "1234567", run=meanwhile, root=root)
    assert list(stored(root)) == ["tests/a.py", "tests/b.py"]


def test_a_file_that_fails_is_shown_and_stays_first_until_it_passes(root, capsys):
    assert turns(root, Runner(c=FAILED)) == ["tests/c.py"]
    said = capsys.readouterr().out.splitlines()
    shown = [PASSED.said in line or FAILED.said in line for line in said]
    assert [line.partition(" since ")[0] for line in said[:4:2]] == ["tests/a.py runs", "tests/b.py runs"]
    assert said[5:7] == [FAILED.said, "tests/c.py: 1 passed, 2 failed, 0 skipped in 0 s"] and sum(shown) == 1
    again = Runner(minutes=20, c=FAILED)
    assert turns(root, again, minutes=5) == again.ran == ["tests/c.py"]
    mended = Runner(minutes=20)
    assert turns(root, mended, minutes=5) == [] and mended.ran == ["tests/c.py"]
    assert turns(root, mended, minutes=5) == [] and mended.ran == ["tests/c.py", "tests/a.py"]


REPORT = '<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10"></testsuite></testsuites>'


@pytest.mark.parametrize(
    ("report", "code", "counts"),
    [
        (REPORT, 1, (4, 3, 3)),
        (REPORT.replace('"1"', '"0"').replace('"2"', '"0"'), 0, (7, 0, 3)),
        ("", -9, (0, 1, 0)),
        ("", 5, (0, 1, 0)),
        ('<testsuite errors="0" failures="0" skipped="1" tests="1"></testsuite>', 5, (0, 0, 1)),
        (REPORT.replace('"1"', '"0"').replace('"2"', '"0"'), 3, (7, 1, 3)),
    ],
    ids=["failures and errors", "all passed", "killed", "none", "a skipped file", "a crash after the tests"],
)
def test_counts_are_those_of_the_report_and_a_process_that_dies_has_failed(report, code, counts):
    assert outcome(report, code, "said") == (*counts, "said")


@pytest.mark.slow  # it starts pytest
def test_exhaustive_tests_run_and_others_do_not(tmp_path):
    file = tmp_path / "test_it.py"
    file.write_text(
        "import pytest\n"
        "@pytest.mark.exhaustive\n@pytest.mark.parametrize('x', [1, 2, 3])\ndef test_some(x):\n    assert x < 3\n"
        "def test_quick():\n    assert False"
    )
    found = exhaustive_turns.run(str(file))
    assert found[:3] == (2, 1, 0) and "assert 3 < 3" in found.said


@pytest.mark.slow  # it starts pytest
def test_those_of_a_plugin_are_found_where_only_its_file_is_named():
    command = [*exhaustive_turns.PYTEST, "--collect-only", "plugins/grounding/tests/test_verifiers.py"]
    done = subprocess.run(command, cwd=exhaustive_turns.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("failed", "status"), [([], None), (["tests/a.py", "tests/b.py"], "failed: tests/a.py tests/b.py")])
def test_the_exit_status_is_1_if_a_file_failed(monkeypatch, failed, status):
    monkeypatch.setattr("sys.argv", ["exhaustive_turns.py", "tests/a.py", "tests/b.py", "--minutes", "2"])
    monkeypatch.setattr(exhaustive_turns, "commit", lambda: "1234567")
    monkeypatch.setattr(exhaustive_turns, "take_turns", lambda *given: failed if given[0] == ["tests/a.py", "tests/b.py"] else 0)
    try:
        exhaustive_turns.main()
    except SystemExit as error:  # with a text, which exits with 1
        assert error.code == status
    else:
        assert status is None


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "turns.json").write_text('{"a.py": ')
    with pytest.raises(SystemExit, match=r"turns\.json is damaged .*: take it from git again, or delete it$"):
        exhaustive_turns.read(tmp_path)
