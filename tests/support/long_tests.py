"""Which tests are long: those that were measured to be, and not those that somebody took for it.

    MMRL_TEST_SECONDS=FOLDER make test-all
    python tests/support/long_tests.py FOLDER

The first command writes the seconds of each test into the folder, the second writes `tests/long.json` from them: the functions
whose cases take more than `LONG_S` on average on a quiet machine, with these seconds; it drops those that are gone. At
collection they get the mark `long`, unless they are marked `everyday`, and `make test` leaves them out. A new test is short until
it is measured.

CI runs some of the long tests: of a function with many cases as many as take `CASES_S` seconds, spread evenly over their list,
and two at least if one takes less; of these, in each file, the shortest that together take `FILE_S` seconds, and those marked
`always`. The others get the mark `exhaustive`, and `make test-all` runs them too.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

LONG_S = 0.15
CASES_S = 7
FILE_S = 10
UNKNOWN_S = 5
"""Of a test that is marked `slow` and wasn't measured, as it was skipped where others were."""
LIST = Path(__file__).parents[1] / "long.json"
EVERYDAY = "not slow and not long and not gpu"
"""The marks of `make test`."""
LONG = ("(slow or long) and not exhaustive and not gpu", "(slow or long) and not gpu")
"""Those of `make test-slow`, and of the long tests of `make test-all`."""
FOLDER = "MMRL_TEST_SECONDS"
"""The variable with the folder where seconds are written, a file for each process of pytest-xdist."""


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> list[pytest.Item] | None:
    """Make no items only to leave them out: of the everyday tests those of long functions, which are nearly half of all cases, of
    the long ones those of short functions."""
    chosen = collector.config.option.markexpr
    if chosen not in (EVERYDAY, *LONG) or not name.startswith("test"):
        return None
    marks = [*collector.iter_markers(), *getattr(obj, "pytestmark", ())]
    names = {mark.name for mark in marks}
    is_long = f"{collector.nodeid}::{name}" in seconds_in(LIST) and "everyday" not in names
    if chosen == EVERYDAY:
        return [] if is_long or "slow" in names else None
    # of one case, which may come from another file; marks of a fixture's parameters are in the text
    marked = any(getattr(case, "marks", ()) for mark in marks if mark.name == "parametrize" for case in values(mark))
    return None if is_long or names & {"slow", "long"} or marked or says_so(collector.path) else []


def values(parametrize: pytest.Mark) -> list[object]:
    """The cases of `@pytest.mark.parametrize`, where they are a list."""
    given = parametrize.kwargs.get("argvalues", parametrize.args[1] if len(parametrize.args) > 1 else ())
    return [*given] if isinstance(given, list | tuple) else []


@functools.cache
def says_so(file: Path) -> bool:
    """Whether a file may mark tests as slow or long."""
    text = file.read_text("utf-8")
    return "slow" in text or "mark.long" in text


@functools.cache
def seconds_in(file: Path) -> dict[str, float]:
    """Function -> seconds, of the list."""
    return json.loads(file.read_text("utf-8"))


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long = seconds_in(LIST)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        function = function_of(item.nodeid)
        if function not in long or item.get_closest_marker("everyday"):
            continue
        item.add_marker("long")
        if not item.get_closest_marker("exhaustive"):
            cases.setdefault(function, []).append(item)
    files: dict[Path, list[tuple[float, pytest.Item]]] = {}
    for function, its in cases.items():
        fewest = 2 if long[function] < CASES_S else 1
        chosen = spread(len(its), max(fewest, int(CASES_S / long[function])))
        for number, item in enumerate(its):
            if number in chosen:
                files.setdefault(item.path, []).append((long[function], item))
            else:
                item.add_marker("exhaustive")
    for found in files.values():
        taken = 0.0
        for seconds, item in sorted(found, key=lambda each: (not each[1].get_closest_marker("always"), each[0])):
            if taken and taken + seconds > FILE_S and not item.get_closest_marker("always"):
                item.add_marker("exhaustive")
            taken += seconds
    longest_files_first(items, long)


def longest_files_first(items: list[pytest.Item], long: Mapping[str, float]) -> None:
    """Sort files by the seconds of what CI runs of them: where the last files are short, processes that take whole files end at
    about the same time."""
    seconds: dict[Path, float] = {}
    for item in items:
        if not item.get_closest_marker("exhaustive"):
            unknown = UNKNOWN_S if item.get_closest_marker("slow") else 0.0
            seconds[item.path] = seconds.get(item.path, 0.0) + long.get(function_of(item.nodeid), unknown)
    items.sort(key=lambda item: (-seconds.get(item.path, 0.0), str(item.path)))


def spread(of: int, wanted: int) -> set[int]:
    """So many of the numbers below `of`, the first among them, as far apart as can be."""
    if wanted >= of:
        return set(range(of))
    return {round(i * (of - 1) / max(1, wanted - 1)) for i in range(wanted)}


def function_of(nodeid: str) -> str:
    """The id of a test without its parameters."""
    return nodeid.partition("[")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    started = time.monotonic()
    answer = yield
    if folder := os.environ.get(FOLDER):
        name = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with open(Path(folder) / f"{name}.jsonl", "a", encoding="utf-8") as file:
            print(json.dumps([item.nodeid, round(time.monotonic() - started, 3)]), file=file)
    return answer


def is_there(function: str, root: Path = LIST.parents[1]) -> bool:
    """Whether a function of the list, `file::name` or `file::Class::name`, is still in its file."""
    path, *_, name = function.split("::")
    file = root / path
    return file.is_file() and f"def {name}(" in file.read_text("utf-8")


def seconds_of(folder: Path, before: Mapping[str, float]) -> dict[str, float]:
    """Function -> seconds of its average case, of those that are long; sorted. before: the same as it was, for functions that the
    folder knows nothing of. The longest case says less: it may be the first one, which pays for imports that all need."""
    found: dict[str, list[float]] = {name: [seconds] for name, seconds in before.items()}
    measured: dict[str, list[float]] = {}
    for path in folder.glob("*.jsonl"):
        for nodeid, seconds in map(json.loads, path.read_text("utf-8").splitlines()):
            measured.setdefault(function_of(nodeid), []).append(seconds)
    means = {name: round(sum(cases) / len(cases), 2) for name, cases in sorted((found | measured).items())}
    return {name: seconds for name, seconds in means.items() if seconds > LONG_S}


if __name__ == "__main__":
    measured = seconds_of(Path(sys.argv[1]), json.loads(LIST.read_text("utf-8")))
    measured = {function: seconds for function, seconds in measured.items() if is_there(function)}
    LIST.write_text(json.dumps(measured, indent=0) + "\n", "utf-8")
    print(f"{len(measured)} tests take more than {LONG_S} s a case")
