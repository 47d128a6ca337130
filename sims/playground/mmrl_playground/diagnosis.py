"""`mmrl doctor`'s check of MuJoCo Playground: its package, JAX's devices, the folder of its robots. Nothing is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from mmrl.api.simulators.processes.elsewhere import report_of
from mmrl_playground import packages
from mmrl_playground.simulator import cache

PATIENCE_S = 60.0
"""Timeout in seconds for the interpreter, which imports JAX."""


def findings() -> dict[str, dict[str, str]]:
    """Name -> state, detail and cure."""
    python = packages.interpreter(None)
    return {"playground": package(ask(python), python)}


def ask(python: str | None) -> dict[str, str]:
    """`packages.report` of the interpreter that has Playground."""
    try:
        if python is None:
            packages.check_installed()  # or this one would be started for nothing
    except packages.Refused as error:
        return {"refused": str(error)}
    return report_of(python or sys.executable, packages.__file__, packages.PYTHON, PATIENCE_S)


def package(told: Mapping[str, str], python: str | None) -> dict[str, str]:
    """told: see `packages.report`."""
    where = f" in {python}" if python else " here"
    if "refused" in told:
        why, _, cure = told["refused"].rpartition(": ")
        return {"state": "missing", "detail": f"{why}{where if why.startswith('no module') else ''}", "cure": cure}
    robots = told["menagerie"] or f"none, so the Control Suite alone ({packages.MENAGERIE} names the folder)"
    what = f"{told['package']}{where}; devices: {told['devices']}; MuJoCo Menagerie: {robots}"
    return {"state": "ok", "detail": f"{what}; compiled programs are kept in {cache()}"}
