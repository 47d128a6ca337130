"""A part of `make attack`: files that others made."""

import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from files import images, tables, videos
from run_files import run_files

from mmrl.testing.attack import run, show

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")
KINDS = {
    "images": (images, 20, 80, 1900),
    "videos": (videos, 25, 50, 1300),
    "tables": (tables, 20, 250, 5000),
    "run files": (run_files, 4, 500, 2000),
}
"""Kind -> (attack, one of how many attempts is made every day, how many these are at least, and how many there are)."""


@pytest.mark.parametrize("kind", KINDS)
def test_some_of_the_files(kind):
    attack, every, least, _ = KINDS[kind]
    [found] = run({kind: partial(attack, every)})
    assert found.tried >= least and not found.fell, show([found])


@pytest.mark.exhaustive  # some of them are tested above
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_files(kind):
    attack, _, _, count = KINDS[kind]
    [found] = run({kind: attack})
    assert found.tried >= count and not found.fell, show([found])
