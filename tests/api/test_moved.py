"""Old imports say where to go, from one table that keeps up with the tree."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import mmrl
from mmrl.api.moved import MOVED, RENAMED, RENAMED_FIELDS, MovedFinder
from mmrl.api.simulators.types import ActionSpec

ROOT = Path(__file__).parents[2]
NOT_THERE = "; a name that is not there is gone"
GONE = "; a name that is neither there nor listed is gone"


def test_every_row_leads_from_what_is_gone_to_what_exists() -> None:
    homes = {path.name: path.parent for path in (ROOT / "mmrl", *ROOT.glob("plugins/*/mmrl_*"), *ROOT.glob("sims/*/mmrl_*"))}
    for old, new in MOVED.items():
        path = old.replace(":", ".")
        module, _, called = new.partition(":")
        before, _, name = old.partition(":")
        with pytest.raises(ImportError, match=f"^{path} moved to {new.replace(':', '.')} in mmrl 0.2"):
            if name and ROOT.joinpath(*before.split(".")).with_suffix(".py").is_file():  # no package: the finder isn't asked
                exec(f"from {before} import {name}")
            else:
                importlib.import_module(path) if path.rpartition(".")[0] in sys.modules else MovedFinder.find_spec(path)
        if module.partition(".")[0] not in homes:
            assert hasattr(importlib.import_module(module), called or name), f"{old} moved to {new}, where it is not"
            continue
        place = homes[module.partition(".")[0]].joinpath(*module.split("."))
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert source.is_file(), f"{old} moved to {module}, which is not there"
        if name:
            assert attribute(source, called or name), f"{old} moved to {new}, where it is not"
            assert called != name, f"{old} has the same name there"


def attribute(source: Path, name: str) -> bool:
    """Whether a file defines `Name` or, in a class, `Name.attribute`. It is read and not imported, which takes seconds."""
    body: Sequence[ast.stmt] = ast.parse(source.read_text("utf-8")).body
    for part in name.split("."):
        found = None
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            if part in [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]:
                found = node
        if found is None:
            return False
        body = getattr(found, "body", [])
    return True


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import mmrl.noise", "mmrl.noise moved to mmrl.api.simulators.noise in mmrl 0.2: import it from there" + NOT_THERE),
        (
            "from mmrl.noise import x",
            "mmrl.noise moved to mmrl.api.simulators.noise in mmrl 0.2: import it from there" + NOT_THERE,
        ),
        ("from mmrl import noise", "mmrl.noise moved to mmrl.api.simulators.noise in mmrl 0.2: import it from there" + NOT_THERE),
        (
            "from mmrl.types import Frame",
            "mmrl.types moved to mmrl.api.types in mmrl 0.2 (Batch, Credit, MicroBatch to mmrl.policies.batches; "
            "Eyes as ImageProcessing, Frame as CoordinateFormat to mmrl.api.coordinates; replace to dataclasses; "
            "user as user_message): import it from there" + GONE,
        ),
        (
            "import mmrl.view.sound",
            "mmrl.view moved to mmrl.ui.report in mmrl 0.2 (catalogue to mmrl.run_folder.metrics; "
            "sound to mmrl.run_folder.validated): import it from there" + GONE,
        ),
        (
            "from mmrl.config import load_config",
            "mmrl.config.load_config moved to mmrl.config.load in mmrl 0.2: import it from there",
        ),
        (
            "from mmrl.config import as_data",
            "mmrl.config.as_data moved to mmrl.config.load.to_dict in mmrl 0.2: import it from there",
        ),
        (
            "from mmrl.tracks import targets",
            "mmrl.tracks moved to mmrl.policies.batches in mmrl 0.2 (ends_of as call_ends, rewards_of as target_rewards, "
            "size as num_targets, targets as per_target, units_of as credit_units, values_of as values_per_target to "
            "mmrl.api.simulators.layout): import it from there" + GONE,
        ),
        (
            "from mmrl.gather import Gatherer",
            "mmrl.gather moved to mmrl.train.sampling.sampler in mmrl 0.2 (Gatherer as Sampler): import it from there" + GONE,
        ),
        (
            "from mmrl.generate.sampling import Sampling",
            "mmrl.generate moved to mmrl.rollout.generate in mmrl 0.2 (sampling.Sampling as SamplingParams to "
            "mmrl.rollout.generate.sampling): import it from there" + GONE,
        ),
        (
            "from mmrl.testing.checks import Fault",
            "mmrl.testing.checks.Fault moved to mmrl.testing.checks.CheckFailed in mmrl 0.2: import it from there",
        ),
        (
            "from mmrl.testing.verifiers import check_frames",
            "mmrl.testing.verifiers.check_frames moved to mmrl.testing.verifiers.check_coordinate_formats in mmrl 0.2: "
            "import it from there",
        ),
        ("from mmrl.judge import lost", "mmrl.judge.lost moved to mmrl.api.types.Score.lost in mmrl 0.2: use that"),
        ("from mmrl.testing.checks import Nothing", "cannot import name 'Nothing' from 'mmrl.testing.checks' "),
        ("import mmrl.never", "No module named 'mmrl.never'"),
    ],
)
def test_an_old_import_says_where_to_go(code: str, message: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(code)
    assert str(raised.value).startswith(message) if message.endswith(" ") else str(raised.value) == message
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


def test_an_old_module_as_an_attribute_says_where_to_go() -> None:
    message = "mmrl.noise moved to mmrl.api.simulators.noise in mmrl 0.2: import it from there" + NOT_THERE
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        _ = mmrl.noise  # type: ignore[attr-defined]


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
        for module, cell in re.findall(r"^\| `(mmrl[.\w]*)` \| (`[\w.]+` → .*) \|$", changelog, re.MULTILINE)
        for pair in re.findall(r"`([\w.]+)` → `([\w.]+)`", cell)
    }
    assert {(old, new) for module, old, new in renamed if module == "mmrl"} == RENAMED.items() and len(renamed) > 40
    for module, old, new in renamed:
        module, old = (f"{module}.{old.partition('.')[0]}", old.partition(".")[2]) if "." in old else (module, old)
        assert module == "mmrl" or MOVED[f"{module}:{old}"].endswith(f":{new.rpartition('.')[2]}")
    else_changed = changelog.partition("What else has changed:")[2].partition("###")[0]
    rows = re.findall(r"^\| `(mmrl\.[\w.]+)", else_changed, re.MULTILINE)
    known, names = ({old.replace(":", ".") for old in MOVED if mark in old} for mark in ("", ":"))
    stays = {"mmrl.judge.Judge"}
    assert len(rows) > 8 and {old for old in rows if old not in known and old.rpartition(".")[0] not in names} == stays
    for old, new in RENAMED_FIELDS.items():
        cls, _, name = old.partition(".")
        assert new in getattr(mmrl, cls, ActionSpec).__slots__ and f"`{name}` → `{new}`" in changelog
