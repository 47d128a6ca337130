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
from mmrl.api.moved import MOVED, RENAMED, MovedFinder

ROOT = Path(__file__).parents[2]


def test_every_row_leads_from_what_is_gone_to_what_exists() -> None:
    homes = {path.name: path.parent for path in (ROOT / "mmrl", *ROOT.glob("plugins/*/mmrl_*"), *ROOT.glob("sims/*/mmrl_*"))}
    for old, new in MOVED.items():
        path = old.replace(":", ".")
        module, _, called = new.partition(":")
        with pytest.raises(ImportError, match=f"^{path} moved to {new.replace(':', '.')} in mmrl 0.2"):
            importlib.import_module(path) if path.rpartition(".")[0] in sys.modules else MovedFinder.find_spec(path)
        place = homes[module.partition(".")[0]].joinpath(*module.split("."))
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert source.is_file(), f"{old} moved to {module}, which is not there"
        if name := old.partition(":")[2]:
            defined = re.search(rf"^(class |def |){called or name}\b", source.read_text("utf-8"), re.MULTILINE)
            assert defined, f"{old} moved to {new}, where it is not"
            assert called != name, f"{old} has the same name there"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import mmrl.noise", "mmrl.noise moved to mmrl.api.simulators.noise in mmrl 0.2: import it from there"),
        ("from mmrl.noise import x", "mmrl.noise moved to mmrl.api.simulators.noise in mmrl 0.2: import it from there"),
        ("from mmrl import noise", "mmrl.noise moved to mmrl.api.simulators.noise in mmrl 0.2: import it from there"),
        (
            "from mmrl.types import Frame",
            "mmrl.types moved to mmrl.api.types in mmrl 0.2 (Batch, Credit, MicroBatch to mmrl.policies.batches; "
            "Eyes as ImageProcessing, Frame as CoordinateFormat to mmrl.api.coordinates; user as user_message): "
            "import it from there",
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
        (
            "from mmrl.config import as_data",
            "mmrl.config.as_data moved to mmrl.config.load.to_dict in mmrl 0.2: import it from there",
        ),
        ("import mmrl.never", "No module named 'mmrl.never'"),
    ],
)
def test_an_old_import_says_where_to_go(code: str, message: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(code)
    assert str(raised.value) == message
    assert not isinstance(raised.value, ModuleNotFoundError) or "never" in code, "nobody takes it for a missing package"


def test_a_name_of_mmrl_that_was_renamed_says_what_it_is_called() -> None:
    assert {"World", "WorldLost", "Mark", "Frame", "Eyes", "user"} == set(RENAMED)
    for old, new in RENAMED.items():
        message = f"mmrl.{old} is called mmrl.{new} in mmrl 0.2: import that"
        assert new in mmrl.__all__ and old not in mmrl.__all__ and not hasattr(mmrl, old)
        with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
            exec(f"from mmrl import {old}")
        with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
            getattr(mmrl, old)
    with pytest.raises(AttributeError, match=r"^module 'mmrl' has no attribute 'Tasks'$") as raised:
        _ = mmrl.Tasks  # type: ignore[attr-defined]
    assert (raised.value.name, raised.value.obj) == ("Tasks", mmrl), "from which Python finds what was meant"
    with pytest.raises(ImportError, match=r"^cannot import name 'Tasks' from 'mmrl'"):
        exec("from mmrl import Tasks")


def test_nothing_else_changes() -> None:
    assert hasattr(mmrl, "Task") and not hasattr(mmrl, "parse") and not hasattr(mmrl, "__wrapped__")
    case = mmrl.Case(completion="a", answer="b")
    assert copy.deepcopy(case) == pickle.loads(pickle.dumps(case)) == case
    assert [finder for finder in sys.meta_path if finder is MovedFinder] == [MovedFinder]
    assert sys.meta_path.index(MovedFinder) > 0, "whoever knows a module is asked first"


def test_the_changelog_says_the_same() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    rows = re.findall(r"^\| `(mmrl\.\w+)` \| `(mmrl[\w.]+)`", changelog, re.MULTILINE)
    assert len(rows) > 20 and dict(rows) == {old: MOVED[old] for old, _ in rows}
    renamed = {
        (module, *pair)
        for module, cell in re.findall(r"^\| `(mmrl[.\w]*)` \| (`\w+` → .*) \|$", changelog, re.MULTILINE)
        for pair in re.findall(r"`(\w+)` → `(\w+)`", cell)
    }
    assert {(old, new) for module, old, new in renamed if module == "mmrl"} == RENAMED.items() and len(renamed) > 40
    for module, old, new in renamed:
        assert module == "mmrl" or MOVED[f"{module}:{old}"].endswith(f":{new}")
