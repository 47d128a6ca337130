"""`mmrl doctor`'s checks of robosuite: its package, h5py for demonstrations, and what renders."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from mmrl.api.simulators.mujoco_rendering import finding
from mmrl.api.simulators.processes.elsewhere import report_of
from mmrl_robosuite import packages

PATIENCE_S = 30.0
"""Timeout in seconds for each way to render, short because the user waits."""


def findings() -> dict[str, dict[str, str]]:
    """Name -> state, detail and cure."""
    python = packages.interpreter(None)
    installed = package(ask(python), python)
    return {"robosuite": installed} | (
        {"robosuite pictures": finding("robosuite", python, PATIENCE_S)} if installed["state"] != "missing" else {}
    )


def ask(python: str | None) -> dict[str, str]:
    """`packages.report` of the interpreter that has robosuite."""
    if python is None:
        return packages.report()
    return report_of(python, packages.__file__, packages.PYTHON, PATIENCE_S)


def package(told: Mapping[str, str], python: str | None) -> dict[str, str]:
    """told: see `packages.report`."""
    if "refused" in told:
        why, _, cure = told["refused"].partition(": ")
        if why == "robosuite is not installed":
            why = f"not installed in {python}" if python else "not installed here, and no other interpreter is named"
        return {"state": "missing", "detail": why, "cure": cure or packages.CURE}
    detail = f"{told['package']} in {python or sys.executable}"
    if not told["h5py"]:
        return {"state": "note", "detail": f"{detail}; demonstrations need h5py there", "cure": "pip install h5py"}
    return {"state": "ok", "detail": detail}
