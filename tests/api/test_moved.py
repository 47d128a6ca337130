"""Old imports say where to go, from one table that keeps up with the tree."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
import sys
from pathlib import Path

import pytest

import mmrl
from mmrl.api.moved import MOVED, MovedFinder

ROOT = Path(__file__).parents[2]


def test_every_row_leads_from_what_is_gone_to_what_exists() -> None:
    homes = {path.name: path.parent for path in (ROOT / "mmrl", *ROOT.glob("*/*/mmrl_*"))}
    for old, new in MOVED.items():
        path = old.replace(":", ".")
        with pytest.raises(ImportError, match=f"^{path} moved to {new} in mmrl 0.2"):
            importlib.import_module(path) if path.rpartition(".")[0] in sys.modules else MovedFinder.find_spec(path)
        place = homes[new.partition(".")[0]].joinpath(*new.split("."))
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert source.is_file(), f"{old} moved to {new}, which is not there"
        if name := old.partition(":")[2]:
            defined = re.search(rf"^(class |def |){name}\b", source.read_text("utf-8"), re.MULTILINE)
            assert defined, f"{old} moved to {new}, where it is not"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import mmrl.parse", "mmrl.parse moved to mmrl.api.verifiers.parse in mmrl 0.2: import it from there"),
        ("from mmrl.parse import x", "mmrl.parse moved to mmrl.api.verifiers.parse in mmrl 0.2: import it from there"),
        ("from mmrl import parse", "mmrl.parse moved to mmrl.api.verifiers.parse in mmrl 0.2: import it from there"),
        (
            "from mmrl.types import Frame",
            "mmrl.types moved to mmrl.api.types in mmrl 0.2 (Batch, Credit, MicroBatch to mmrl.policies.batches; "
            "Eyes, Frame to mmrl.api.coordinates): import it from there",
        ),
        (
            "import mmrl.view.sound",
            "mmrl.view moved to mmrl.ui.report in mmrl 0.2 (catalogue to mmrl.run_folder.metrics; "
            "sound to mmrl.run_folder.validated): import it from there",
        ),
        (
            "from mmrl.config import load_config",
            "mmrl.config.load_config moved to mmrl.config.load in mmrl 0.2: import it from there",
        ),
        ("import mmrl.never", "No module named 'mmrl.never'"),
    ],
)
def test_an_old_import_says_where_to_go(code: str, message: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(code)
    assert str(raised.value) == message
    assert not isinstance(raised.value, ModuleNotFoundError) or "never" in code, "nobody takes it for a missing package"


def test_nothing_else_changes() -> None:
    assert hasattr(mmrl, "Task") and not hasattr(mmrl, "parse") and not hasattr(mmrl, "__wrapped__")
    case = mmrl.Case(completion="a", answer="b")
    assert copy.deepcopy(case) == pickle.loads(pickle.dumps(case)) == case
    assert [finder for finder in sys.meta_path if finder is MovedFinder] == [MovedFinder]
    assert sys.meta_path.index(MovedFinder) > 0, "whoever knows a module is asked first"


def test_the_changelog_says_the_same() -> None:
    rows = re.findall(r"^\| `(mmrl\.\w+)` \| `([\w.]+)`", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 20 and dict(rows) == {old: MOVED[old] for old, _ in rows}
