"""robosuite as it is installed. Imports nothing of mmrl: workers load this file by its path, and `mmrl doctor` asks with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os

PYTHON = "MMRL_ROBOSUITE_PYTHON"
"""Environment variable with the interpreter that has robosuite."""
VERSIONS = ("robosuite", "mujoco", "numpy")
"""Distributions that decide what a simulation and a picture look like."""
INSTALL = 'pip install "robosuite>=1.5.1,<1.6" "mujoco>=3.3,<3.6" h5py'
CURE = f"{INSTALL} in an environment of its own, and name its interpreter by the option python or {PYTHON}"


class Refused(Exception):
    """An error that the user can fix; the message is one line."""

    plain = True


def interpreter(option: str | None) -> str | None:
    """The interpreter that has robosuite: the option's, else the environment variable's, else None for this one."""
    return option or os.environ.get(PYTHON) or None


def version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check() -> None:
    """Raises Refused where this interpreter has no robosuite, or one whose controllers are others."""
    if importlib.util.find_spec("robosuite") is None:
        raise Refused(f"robosuite is not installed: {CURE}")
    found = version("robosuite") or "0"
    if [int(part) for part in found.split(".")[:2] if part.isdigit()] != [1, 5]:
        raise Refused(f"robosuite {found} is installed, and its version must be 1.5: {CURE}")


def versions() -> str:
    """The versions that matter, for messages."""
    return ", ".join(f"{name} {version(name)}" for name in VERSIONS)


def said(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def report() -> dict[str, str]:
    """What is installed in this interpreter, for `mmrl doctor`."""
    try:
        check()
    except Refused as error:
        return {"refused": str(error)}
    return {"package": versions(), "h5py": version("h5py") or ""}


if __name__ == "__main__":  # another interpreter is asked
    print(json.dumps(report()))
