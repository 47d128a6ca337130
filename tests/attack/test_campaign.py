"""A part of `make attack`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from browser_deaths import browser_deaths
from hostile_workers import forged_replies, hostile_verifiers
from installed import attacks
from kills import kills
from simulator_deaths import simulator_deaths

from browsers import no_browser
from mmrl.testing.attack import run, show


def test_forged_replies():
    [found] = run({"forged replies": lambda: forged_replies(500)})
    assert found.tried == 500 and not found.fell, show([found])


@pytest.mark.slow
def test_hostile_verifiers():
    [found] = run({"hostile verifiers": hostile_verifiers})
    assert found.tried >= 46 and not found.fell, show([found])


@pytest.mark.exhaustive  # two minutes each
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["options", "turns", "actions"])
def test_all_that_is_installed(kind, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    [found] = run({kind: attacks()[kind]}, seconds=120)
    assert found.tried > 100 and not found.fell, show([found])


def test_processes_of_a_simulator_that_die():
    [found] = run({"simulator deaths": lambda: simulator_deaths(3)})
    assert found.tried == 4 and not found.fell, show([found])


@pytest.mark.slow
@pytest.mark.skipif(bool(no_browser()), reason=str(no_browser()))
def test_browsers_that_die():
    [found] = run({"browser deaths": lambda: browser_deaths(8)})
    assert found.tried == 9 and not found.fell, show([found])


@pytest.mark.slow
def test_killed_runs():
    [found] = run({"kills": lambda: kills(5)})
    assert found.tried == 5 and not found.fell, show([found])
