"""Plant one fault at a time and see whether the tests that aren't slow catch it.

    python tests/mutants.py [--only ID ...] [--write]

The faults stand in `mutants.toml`: a text that occurs once in a file, what takes its place, and the test files that should fail.
The tracked files are copied to a temporary folder, so the working tree stays as it is. First the unmutated copy must pass all of
these tests, in one process. A fault is caught when pytest exits with 1, which means that a test failed; any other exit code
except 0 is an error of the list and not a catch. The command prints one JSON object; `--write` also stores the outcome in
`mutants.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST, OUTCOME = ROOT / "tests" / "mutants.toml", ROOT / "tests" / "mutants.json"
SECONDS = 900
"""A pytest process that takes longer is killed, and its fault is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that a person could make."""

    id: str
    room: str
    """A package of mmrl, or `plugins` or `sims`."""
    file: str
    kind: str
    """What kind of fault it is, in a few words."""
    text: str
    """What is replaced; it occurs exactly once in the file."""
    replacement: str
    tests: tuple[str, ...]
    """Files or node ids of everyday tests, one of which should fail."""


def faults() -> list[Fault]:
    """All faults of the list, in its order."""
    rows = tomllib.loads(LIST.read_text("utf-8"))["fault"]
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def copied(folder: Path) -> None:
    """Copy the tracked files, as they are in the working tree."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def environment(folder: Path) -> dict[str, str]:
    """Imports come from the copy, also in child processes, and not from an editable install."""
    packages = [folder, *sorted(folder.glob("plugins/*/")), *sorted(folder.glob("sims/*/"))]
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MMRL_", "PYTEST_"))}
    return {"OMP_NUM_THREADS": "1", **plain, "PYTHONPATH": os.pathsep.join(map(str, packages))}


def check_imports(folder: Path) -> str:
    """The path of the `mmrl` that the tests import. SystemExit when it, or a plugin, is imported from elsewhere."""
    names = ["mmrl", *sorted(p.parent.name for p in folder.glob("[ps]*/*/mmrl_*/__init__.py"))]
    code = f"import importlib; [print(importlib.import_module(n).__file__) for n in {names}]"
    paths = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment(folder), capture_output=True, text=True)
    lines = paths.stdout.split()
    if paths.returncode or not lines or not all(Path(line).is_relative_to(folder) for line in lines):
        raise SystemExit(f"the tests would not import the copy in {folder}: {paths.stdout}{paths.stderr[-500:]}")
    return lines[0]


@contextlib.contextmanager
def planted(folder: Path, fault: Fault, number: int) -> Iterator[None]:
    """Inside, the copy has the fault. Each fault gives its file another time, so that no stale bytecode is used."""
    path = folder / fault.file
    before, times = path.read_text("utf-8"), path.stat()
    if before.count(fault.text) != 1:
        raise SystemExit(f"{fault.id}: its text occurs {before.count(fault.text)} times in {fault.file}")
    path.write_text(before.replace(fault.text, fault.replacement), "utf-8")
    os.utime(path, (times.st_atime, times.st_mtime + 10 * (number + 1)))
    try:
        yield
    finally:
        path.write_text(before, "utf-8")
        os.utime(path, (times.st_atime, times.st_mtime))


def run(folder: Path, tests: Sequence[str], *options: str, seconds: float = SECONDS) -> tuple[int | None, list[str]]:
    """(exit code of pytest, its lines about failures and errors); the code is None when it took too long."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "pyproject.toml",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not gpu",
        *options,
        *tests,
    ]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, cwd=folder, env=environment(folder), start_new_session=True, **pipes) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, [f"took longer than {seconds:g} s"]
    lines = [line[:300] for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return process.returncode, lines or said.strip().splitlines()[-1:]


def outcomes(chosen: Sequence[Fault]) -> dict[str, str]:
    """Id -> `caught`, `missed`, or what went wrong."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="mmrl-mutants-") as name:
        folder = Path(name).resolve()
        copied(folder)
        log(check_imports(folder))
        began = time.monotonic()
        code, said = run(
            folder, [*dict.fromkeys(test for fault in chosen for test in fault.tests)], seconds=len(chosen) * SECONDS
        )
        log(f"without a fault pytest exits with {code} after {time.monotonic() - began:.0f} s: {said}")
        if code not in (0, 1):
            raise SystemExit(f"without a fault pytest exits with {code}: {said}")
        broken = {line.split()[1].partition("::")[0] for line in said if code and " " in line}
        for number, fault in enumerate(chosen):
            began = time.monotonic()
            if bad := sorted({test.partition("::")[0] for test in fault.tests} & broken):
                found[fault.id] = f"error: {', '.join(bad)} fails without the fault"
                continue
            with planted(folder, fault, number):
                code, said = run(folder, fault.tests, "-x")
            found[fault.id] = "missed" if code == 0 else "caught" if code == 1 else f"error: pytest exits with {code}: {said}"
            log(f"{found[fault.id]}  {fault.id}  {time.monotonic() - began:.0f} s  {said[-1] if said else ''}")
    return found


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def store(found: dict[str, str], seconds: int) -> None:
    """Write the outcome of all faults; of those that were not planted this time it is the one that was stored before, and then
    the seconds are those of before."""
    before: dict[str, Any] = json.loads(OUTCOME.read_text("utf-8")) if OUTCOME.is_file() else {"outcomes": {}, "seconds": 0}
    every = {fault.id: found.get(fault.id, before["outcomes"].get(fault.id, "never planted")) for fault in faults()}
    result = summary(every, seconds if len(found) == len(every) else before["seconds"])
    stored = {"date": datetime.date.today().isoformat(), **result, "outcomes": every}
    OUTCOME.write_text(json.dumps(stored, indent=2) + "\n", "utf-8")


def summary(found: dict[str, str], seconds: int) -> dict[str, Any]:
    return {
        "planted": len(found),
        "caught": sum(outcome == "caught" for outcome in found.values()),
        "missed": [id for id, outcome in found.items() if outcome == "missed"],
        "errors": {id: outcome for id, outcome in found.items() if outcome not in ("caught", "missed")},
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant one fault at a time and see whether the tests that aren't slow catch it.")
    parser.add_argument("--only", nargs="+", metavar="ID", help="plant these alone")
    parser.add_argument("--write", action="store_true", help="store the outcome in tests/mutants.json")
    options = parser.parse_args()
    known = {fault.id: fault for fault in faults()}
    if unknown := sorted(set(options.only or ()) - known.keys()):
        parser.error(f"no fault has the id {', '.join(unknown)}: see tests/mutants.toml")
    began = time.monotonic()
    found = outcomes([known[id] for id in options.only or known])
    result = summary(found, round(time.monotonic() - began))
    print(json.dumps(result, indent=2))
    if options.write:
        store(found, result["seconds"])
    raise SystemExit(bool(result["errors"]))


if __name__ == "__main__":
    main()
