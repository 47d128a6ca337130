"""The list of planted faults fits the code. `tests/mutants.py` plants them, which takes minutes."""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("mutants", Path(__file__).with_name("mutants.py"))
sys.modules["mutants"] = mutants = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)
ROOT, FAULTS = mutants.ROOT, mutants.faults()
ROOMS = {p.parent.name for p in (ROOT / "mmrl").glob("*/__init__.py")}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_the_text_occurs_once_and_its_tests_exist(fault):
    path = ROOT / fault.file
    count = path.read_text("utf-8").count(fault.text) if path.is_file() else 0
    if count != 1:
        files = [p for top in ("mmrl", "plugins", "sims") for p in (ROOT / top).rglob("*.py")]
        others = [str(p.relative_to(ROOT)) for p in files if p != path and fault.text in p.read_text("utf-8")]
        pytest.fail(f"{fault.id}: its text occurs {count} times in {fault.file}, and in these other files: {others or 'none'}")
    assert fault.replacement != fault.text
    assert fault.room == (fault.file.split("/")[1] if fault.file.startswith("mmrl/") else fault.file.split("/")[0])
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text("utf-8"), test


def test_every_room_has_faults_and_no_id_is_used_twice():
    assert len({fault.id for fault in FAULTS}) == len(FAULTS) >= 64
    assert {*ROOMS, "plugins", "sims"} == {fault.room for fault in FAULTS}


def test_the_stored_outcome_is_that_of_this_list():
    """At most four faults are missed, and the list has not changed since `tests/mutants.py --write`."""
    stored = json.loads(mutants.OUTCOME.read_text("utf-8"))
    assert list(stored["outcomes"]) == [fault.id for fault in FAULTS]
    assert Counter(stored["outcomes"].values()).keys() <= {"caught", "missed"}
    assert len(stored["missed"]) <= 4
