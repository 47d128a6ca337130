"""What README and pyproject.toml say of the rooms of mmrl."""

import tomllib

import grimp
import pytest

from contracts import ROOT, arrows, circle, graph

LAYERS = next(
    [{room.strip() for room in layer.split("|")} for layer in contract["layers"]]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    if "containers" in contract
)
"""The highest first."""


@pytest.fixture(scope="module")
def found() -> grimp.ImportGraph:
    return graph()


def test_there_are_few_rooms_and_no_circle(found):
    assert len(arrows(found)) <= 20 and circle(found) == []
    closed = graph()
    closed.add_import(importer="mmrl.api.errors", imported="mmrl.train.run")
    assert {"mmrl.api.errors", "mmrl.train.run"} <= set(circle(closed)), "one would be found"


def test_every_arrow_points_down(found):
    height = {f"mmrl.{room}": -level for level, rooms in enumerate(LAYERS) for room in rooms}
    for room in height:
        up = [other for other in arrows(found)[room] if height[other] >= height[room]]
        assert up == [], room
    assert len(height) == 15


def test_api_imports_nothing_of_mmrl(found):
    assert arrows(found)["mmrl.api"] == []
