"""LIBERO's environments, made by options, in the interpreter that has LIBERO; and a package in its form for what needs none."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the plugin isn't installed

from mmrl_libero import packages
from mmrl_libero.simulator import Libero

from mmrl import UserError
from mmrl.api.simulators.mujoco_rendering import choose
from mmrl.api.specs import SimulatorSpec

OWN = Path(__file__).parents[3] / ".simulators" / "libero"
"""Where `make simulators` puts it: its robosuite and OpenCV don't go with mmrl's packages."""
BDDL = "(define (problem LIBERO_Tabletop_Manipulation)\n  (:language {words})\n  (:goal (And (On bowl_1 plate_1))))\n"


@pytest.fixture(scope="session")
def python() -> str | None:
    """The option `python`: None where LIBERO is installed here. Skips where it is nowhere, and in the processes of
    pytest-xdist, in which its own would not always start after other tests."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("LIBERO's tests run in a process of their own, some by test_apart, all by pytest sims/libero/tests")
    if importlib.util.find_spec("libero"):
        return None
    if named := os.environ.get(packages.PYTHON):
        return named
    if (OWN / "installed").is_file():  # written when all of it was
        return str(OWN / "bin" / "python")
    pytest.skip("LIBERO is not installed: make simulators")


@pytest.fixture(scope="session")
def pictures(python: str | None) -> None:
    """Skips where nothing renders."""
    try:
        choose("libero", "auto", python)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture
def made(python: str | None) -> Iterator[Callable[..., Libero]]:
    """An instance by its spec: `made(spec, 2, size=64)`; closed at the end."""
    found: list[Libero] = []

    def make(spec: SimulatorSpec, num_envs: int, **options: Any) -> Libero:
        found.append(Libero(num_envs=num_envs, device="cpu", **{"python": python, **spec.options, **options}))
        return found[-1]

    yield make
    for each in found:
        each.close()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `libero/libero` of a small package in LIBERO's form that this interpreter finds, with assets."""
    monkeypatch.delenv(packages.VARIABLE, raising=False)
    monkeypatch.delenv(packages.PYTHON, raising=False)
    root = tmp_path / "site" / "libero" / "libero"
    names = ["pick_up_the_bowl", "LIVING_ROOM_SCENE10_close_the_drawer"]
    for name in names:
        for folder, file in (("bddl_files", f"{name}.bddl"), ("init_files", f"{name}.pruned_init.npz")):
            (root / folder / "toy").mkdir(parents=True, exist_ok=True)
            path = root / folder / "toy" / file
            if folder == "bddl_files":
                path.write_text(BDDL.format(words="Pick the  akita bowl"))
            else:
                numpy.savez(path, states=numpy.arange(6.0).reshape(2, 3))
    (root / "benchmark").mkdir()
    (root / "benchmark" / "libero_suite_task_map.py").write_text(f"libero_task_map = {{'toy': {names!r}}}\n")
    (root.parent / "__init__.py").touch()
    for name in packages.FOLDERS:
        (root / "assets" / name).mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "libero", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no assets that were downloaded before
    monkeypatch.setattr(packages, "version", {"hf-libero": "0.1.4"}.get)
    importlib.invalidate_caches()
    return root
