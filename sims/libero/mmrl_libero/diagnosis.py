"""`mmrl doctor`'s checks of LIBERO: its package, its folder of assets, and what renders. Nothing is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from mmrl.api.simulators.mujoco_rendering import finding
from mmrl.api.simulators.processes.elsewhere import report_of
from mmrl_libero import packages

PATIENCE_S = 30.0
"""Timeout in seconds for each way to render, short because the user waits."""


def findings() -> dict[str, dict[str, str]]:
    """Name -> state, detail and cure."""
    python = packages.interpreter(None)
    installed = package(ask(python), python)
    return {"libero": installed} | (
        {"libero pictures": finding("libero", python, PATIENCE_S)} if installed["state"] == "ok" else {}
    )


def ask(python: str | None) -> dict[str, str]:
    """`packages.report` of the interpreter that has LIBERO."""
    if python is None:
        return packages.report()
    return report_of(python, packages.__file__, packages.PYTHON, PATIENCE_S)


def package(told: Mapping[str, str], python: str | None) -> dict[str, str]:
    """told: see `packages.report`."""
    if "refused" in told:
        why, _, cure = told["refused"].partition(": ")
        if why == "LIBERO is not installed":
            why = f"not installed in {python}" if python else "not installed here, and no other interpreter is named"
        return {"state": "missing", "detail": why, "cure": cure or packages.CURE}
    where = f" in {python}" if python else f" in {sys.executable}"
    return {"state": "ok", "detail": f"{told['package']}{where}; assets of {told['source']}: {told['assets']}"}
