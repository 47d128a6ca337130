"""MuJoCo Playground as it is installed: its package, the folder with the models of its robots, JAX's devices.

Imports nothing of mmrl, and neither JAX nor Playground before they are needed: the worker loads this file by its path, and `mmrl
doctor` looks with it. Nothing is downloaded: Playground's own clone of MuJoCo Menagerie is replaced.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYTHON = "MMRL_PLAYGROUND_PYTHON"
"""Environment variable with the interpreter that has Playground."""
MENAGERIE = "MMRL_PLAYGROUND_MENAGERIE"
"""Environment variable with the folder of MuJoCo Menagerie, the robots' models."""
VERSIONS = ("playground", "jax", "mujoco", "mujoco-mjx")
"""Distributions that decide what a simulation is."""
PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}
"""Ours -> JAX's, as in JAX_PLATFORMS."""
INSTALL = 'pip install "playground>=0.2,<0.3"'
CURE = f"{INSTALL} in an environment of its own, and name its interpreter by the option python or {PYTHON}"


class Refused(Exception):
    """An error that the user can fix; the message is one line."""

    plain = True


def interpreter(option: str | None) -> str | None:
    """The interpreter that has Playground: the option's, else the environment variable's, else None for this one."""
    return option or os.environ.get(PYTHON) or None


def check_installed() -> None:
    """Raises Refused where Playground or JAX is missing."""
    for name in ("mujoco_playground", "jax"):
        if importlib.util.find_spec(name) is None:
            raise Refused(f"no module named {name!r}: {CURE}")


def devices(platform: str) -> str:
    """What JAX computes on, such as `2 x cpu`. platform: auto, cpu or gpu, as JAX_PLATFORMS has told it. Raises Refused if it
    has no such device."""
    import jax

    try:
        found = jax.devices()
    except (RuntimeError, AssertionError) as error:  # the second without the build for a GPU
        raise Refused(
            f"JAX has no device for platform = {platform!r} ({said(error)}): install its build for one, such as "
            'pip install "jax[cuda12]", or set platform = "cpu"'
        ) from error
    return f"{len(found)} x {found[0].platform}"


def load(task: str, impl: str, config: Mapping[str, Any], menagerie: str | None) -> Any:
    """A Playground environment. impl: what simulates, `jax` or `warp`. config: dotted name -> value, of its default config.
    menagerie: the folder of MuJoCo Menagerie. Raises Refused for an unknown task, a wrong config, or missing models."""
    import mujoco
    from mujoco_playground import dm_control_suite, locomotion, manipulation, registry

    mujoco.set_mju_user_warning(lambda text: print(text, file=sys.stderr))  # or it writes a file into the folder of the run
    known = dm_control_suite.ALL_ENVS + locomotion.ALL_ENVS + manipulation.ALL_ENVS  # those that were registered later too
    if task not in known:
        near = difflib.get_close_matches(task, known, 3, 0.5)
        meant = f"did you mean {' or '.join(near)}?"
        others = f"its registry has {', '.join(known[:3])} and {len(known) - 3} others"
        raise Refused(f"Playground has no task {task!r}: {meant if near else others}")
    if task not in dm_control_suite.ALL_ENVS:
        _show_menagerie(task, menagerie)
    default = registry.get_default_config(task)
    if "impl" in config:
        raise Refused("config has impl: set the option impl instead")
    wanted = ({"impl": impl} if "impl" in default else {}) | dict(config)
    try:
        return registry.load(task, config_overrides=wanted)
    except (AttributeError, KeyError, TypeError, ValueError, OSError, NotImplementedError) as error:
        why = f"{type(error).__name__}: {said(error)}"
        raise Refused(f"{task} can't be made ({why}): correct config, impl or menagerie") from error


def _show_menagerie(task: str, option: str | None) -> None:
    """Makes Playground read its robots from the folder that was named, or from the one that it cloned before."""
    from mujoco_playground._src import mjx_env

    named = option or os.environ.get(MENAGERIE)
    source = "the option menagerie" if option else MENAGERIE
    folder = Path(named).expanduser() if named else Path(mjx_env.MENAGERIE_PATH)
    if named and not folder.is_dir():
        raise Refused(f"{folder}, which {source} names for MuJoCo Menagerie, is no folder: correct it")
    if not folder.is_dir():
        raise Refused(
            f"{task} needs MuJoCo Menagerie, which Playground would clone from GitHub: git clone "
            f"https://github.com/deepmind/mujoco_menagerie, git checkout {mjx_env.MENAGERIE_COMMIT_SHA[:12]} in it, and name the "
            f"folder by the option menagerie or {MENAGERIE}"
        )
    mjx_env.MENAGERIE_PATH = type(mjx_env.MENAGERIE_PATH)(str(folder))
    mjx_env.ensure_menagerie_exists = lambda: None


def said(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def report() -> dict[str, str]:
    """What is installed in this interpreter, for `mmrl doctor`."""
    try:
        check_installed()
        found = devices("auto")
    except Refused as error:
        return {"refused": str(error)}
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
    named = os.environ.get(MENAGERIE)
    cloned = importlib.util.find_spec("mujoco_playground")
    assert cloned and cloned.origin
    folder = Path(named) if named else Path(cloned.origin).parent / "external_deps" / "mujoco_menagerie"
    return {"package": versions, "devices": found, "menagerie": str(folder) if folder.is_dir() else ""}


if __name__ == "__main__":  # another interpreter is asked
    print(json.dumps(report()))
