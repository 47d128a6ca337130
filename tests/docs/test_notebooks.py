"""The notebooks run from their first cell to their last, and show what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import docs_blocks
import docs_notebooks

NOTEBOOKS = sorted(docs_notebooks.FOLDER.glob("*.ipynb"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    env = docs_blocks.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("PATH", "OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, env[name])
    return env


def test_a_cell_that_fails_is_named(here, tmp_path):
    path = tmp_path / "a.ipynb"

    def notebook(*sources):
        path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": [source]} for source in sources]}))
        return path

    assert docs_notebooks.run(notebook("x = 1", "%%writefile b.txt\nhello", "!cat b.txt\ny = x + 1"), here)["y"] == 2
    with pytest.raises(RuntimeError, match=r"a.ipynb, cell 2: ZeroDivisionError"):
        docs_notebooks.run(notebook("x = 1", "x / 0"), here)
    with pytest.raises(RuntimeError, match=r"a.ipynb, cell 1: false"):
        docs_notebooks.run(notebook("!false"), here)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_stored_without_outputs_and_listed(path):
    stored = json.loads(path.read_text())
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in stored["cells"] if cell["cell_type"] == "code")
    assert f"({path.name})" in (docs_notebooks.FOLDER / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path, here):
    pytest.importorskip("pandas")
    names = docs_notebooks.run(path, here)
    if path.stem == "digits":
        assert names["last"] > names["first"] and names["after"]["value"] > names["before"]["value"]
    elif path.stem == "your-folder":
        assert names["paid"].value > 1 and names["unpaid"].value == 0
        assert Path("folder.png").exists()
    elif path.stem == "your-verifier":
        assert not names["report"]["ok"] and names["mended"]["ok"]
    elif path.stem == "robot":
        assert names["by_expert"] > 0.8 > 0.3 > names["by_chance"]
    elif path.stem == "clip":
        assert names["ious"] == sorted(names["ious"], reverse=True) and names["ious"][0] == 1
        assert names["whole"].parts["video/tiou"] == pytest.approx(
            (names["end"] - names["start"]) / names["prompt"].meta["duration"]
        )
    elif path.stem == "screen":
        assert (names["inside"].value > 1) and names["outside"].value < 1 and names["prose"].value == 0
        x1, y1, x2, y2 = names["prompt"].answer
        assert 0 < names["share"] == pytest.approx((x2 - x1) * (y2 - y1) / (names["width"] * names["height"]), abs=0.1)
    else:
        assert path.stem == "run-folder", "a notebook without a check"
        assert names["difference"] > 0 and len(names["values"]) == 64 and len(names["rollouts"]) > 10
