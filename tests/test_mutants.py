"""The list of planted faults fits the code. `tests/mutants.py` plants them, which takes minutes."""

import functools
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

spec = importlib.util.spec_from_file_location("mutants", Path(__file__).with_name("mutants.py"))
sys.modules["mutants"] = mutants = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)
ROOT, FAULTS = mutants.ROOT, mutants.faults()
ROOMS = {p.parent.name for p in (ROOT / "mmrl").glob("*/__init__.py")}


def test_each_text_occurs_once_and_its_tests_exist():
    read = functools.cache(lambda path: path.read_text("utf-8") if path.is_file() else "")
    wrong = []
    for fault in FAULTS:
        path = ROOT / fault.file
        if (count := read(path).count(fault.text)) != 1:
            files = [p for top in ("mmrl", "plugins", "sims") for p in (ROOT / top).rglob("*.py")]
            others = [str(p.relative_to(ROOT)) for p in files if p != path and fault.text in read(p)]
            wrong.append(
                f"{fault.id}: its text occurs {count} times in {fault.file}, and in these other files: {others or 'none'}"
            )
        assert fault.replacement != fault.text, fault.id
        assert fault.room == (fault.file.split("/")[1] if fault.file.startswith("mmrl/") else fault.file.split("/")[0]), fault.id
        for test in fault.tests:
            file, _, name = test.partition("::")
            if f"def {name}" not in read(ROOT / file):
                wrong.append(f"{fault.id}: there is no test {test}")
    assert not wrong, "\n".join(wrong)


def test_every_room_has_faults_and_no_id_is_used_twice():
    assert len({fault.id for fault in FAULTS}) == len(FAULTS) >= 64
    assert {*ROOMS, "plugins", "sims"} == {fault.room for fault in FAULTS}


def test_the_stored_outcome_is_that_of_this_list():
    """At most four faults are missed, and the list has not changed since `tests/mutants.py --write`."""
    stored = json.loads(mutants.OUTCOME.read_text("utf-8"))
    assert list(stored["outcomes"]) == [fault.id for fault in FAULTS]
    assert Counter(stored["outcomes"].values()).keys() <= {"caught", "missed"}
    assert len(stored["missed"]) <= 4
