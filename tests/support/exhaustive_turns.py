"""Run some of the tests that CI leaves out: those of the files whose turn it is.

    make test-turn [MINUTES=30]
    python tests/support/exhaustive_turns.py [--minutes 30] [FILE ...]

Tests with the mark `exhaustive`, which most have from `long_tests`, take some six hours together, and only `make test-all` runs
all of them. This command runs them file by file, one after another. Once the minutes are over it begins no file, but ends the
one that runs, which may take a quarter of an hour. First come the files that failed when they were last run, then those that
were never run, then those whose last run is the longest ago. After each file it writes `tests/turns.json`: of every file its
last run, with the time in UTC, the commit (`+` says that tracked files differed from it), the seconds, and how many tests
passed, failed and were skipped. The row of a file that is no longer there is dropped. The output of a file that fails is
printed, and the exit status is 1 then. With files named, only these are run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TURNS = ROOT / "tests" / "turns.json"
PYTEST = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-q", "-m", "exhaustive and not gpu"]
"""With `-c`, as pytest would take the `pyproject.toml` of a plugin for its own, and would find no long tests there."""
TIMEOUT_S = 900
"""For each test, as in `make test-all`."""
NO_TESTS = 5
"""Exit status of pytest where no test has the marks."""

Row = dict[str, Any]


class Outcome(NamedTuple):
    """How the tests of a file ended."""

    passed: int
    failed: int
    """Errors of fixtures count too, and a process that ends without a report or finds no test counts as one."""
    skipped: int
    said: str
    """What pytest printed."""


def collected() -> list[str]:
    """The files with exhaustive tests, as pytest finds them here. If it can't import some, exits with what it says."""
    done = subprocess.run([*PYTEST, "--collect-only"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, NO_TESTS):
        raise SystemExit(f"{done.stdout[-4000:]}{done.stderr[-2000:]}\nthe tests could not be collected, see above")
    return sorted(set(re.findall(r"^(\S+\.py)::", done.stdout, re.MULTILINE)))


def run(file: str) -> Outcome:
    """Run the exhaustive tests of a file in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [*PYTEST, f"--timeout={TIMEOUT_S}", f"--junitxml={report}", file]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        text = report.read_text("utf-8") if report.is_file() else ""
    return outcome(text, done.returncode, done.stdout)


def outcome(report: str, code: int, said: str) -> Outcome:
    """What a JUnit report of pytest ("" if there is none), its exit status and its output tell."""
    suites = [*ElementTree.fromstring(report).iter("testsuite")] if report else []
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    ended = code == 0 or (code == NO_TESTS and tests)  # of a module that is skipped no test is found either
    return Outcome(max(0, tests - failed - skipped), failed or int(not ended), skipped, said)


def in_turn(files: Iterable[str], rows: Mapping[str, Row]) -> list[str]:
    """The files, those first that failed, then those that never ran, then the others from the one that ran the longest ago."""

    def key(file: str) -> tuple[bool, str, str]:
        row = rows.get(file)
        return not (row and row["failed"]), row["date"] if row else "", file

    return sorted(files, key=key)


def take_turns(
    files: Iterable[str],
    minutes: float,
    commit: str,
    run: Callable[[str], Outcome] = run,
    clock: Callable[[], float] = time.monotonic,
    root: Path = ROOT,
) -> list[str]:
    """Run the files whose turn it is until the minutes are over; at least one. Returns those that failed.

    clock: seconds from any moment on. root: the folder that the files are named from, and where `tests/turns.json` is.
    """
    began, failed = clock(), []
    for number, file in enumerate(in_turn(files, read(root))):
        start = clock()
        if number and start - began >= 60 * minutes:
            break
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        print(f"{file} runs since {date} UTC", flush=True)  # some take a quarter of an hour
        passed, failures, skipped, said = run(file)
        counts = {"passed": passed, "failed": failures, "skipped": skipped}
        row = {"date": date, "commit": commit, "seconds": round(clock() - start), **counts}
        write(read(root) | {file: row}, root)  # read again, as another turn may have written meanwhile
        if failures:
            failed.append(file)
            print(said)
        print(f"{file}: {passed} passed, {failures} failed, {skipped} skipped in {row['seconds']} s", flush=True)
    return failed


def read(root: Path) -> dict[str, Row]:
    """The rows of the files that are there, by file."""
    path = root / "tests" / TURNS.name
    try:
        rows: dict[str, Row] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise SystemExit(f"{path} is damaged ({error}): take it from git again, or delete it") from None
    return {file: row for file, row in rows.items() if (root / file).is_file()}


def write(rows: Mapping[str, Row], root: Path) -> None:
    """Write the rows, sorted and each in a line of its own, so that their changes can be read."""
    lines = [f"{json.dumps(file)}: {json.dumps(row)}" for file, row in sorted(rows.items())]
    (root / "tests" / TURNS.name).write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def commit() -> str:
    """The short name of the commit, with `+` if tracked files differ from it; "" outside of a repository."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)

    name = git("rev-parse", "--short=8", "HEAD").stdout.strip()
    changed = git("diff", "--quiet", "HEAD", "--", ".", f":!{TURNS.relative_to(ROOT)}").returncode == 1
    return name + "+" * changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="as named in tests/turns.json; by default all with such tests")
    parser.add_argument("--minutes", type=int, default=30, help="no file is begun after them (default: 30)")
    options = parser.parse_args()
    files = options.files or collected()
    if failed := take_turns(files, options.minutes, commit()):
        raise SystemExit("failed: " + " ".join(failed))


if __name__ == "__main__":
    main()
