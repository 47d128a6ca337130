"""Chooses what MuJoCo renders with: EGL on a GPU, else OSMesa on the CPU, else nothing. Each is tried in a separate process, as
EGL without a device may hang, or crash at exit."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path

from mmrl.api.errors import UserError
from mmrl.api.simulators.gpus import egl_variables
from mmrl.api.simulators.processes import EnvironmentProcesses

PROBE_S = 60.0
"""Timeout in seconds for the first picture of a way."""
WAYS = {"gpu": "egl", "software": "osmesa"}
"""Ours -> MuJoCo's, as in MUJOCO_GL."""
DEVICES = ("nvidia[0-9]*", "dri/renderD*")
"""Files in /dev of GPUs that EGL may find."""
CURE = "apt-get install libosmesa6, which renders in software; or a GPU with EGL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A way to render."""

    rendering: str
    """`gpu`, `software` or `none`."""
    skipped: str = ""
    """Why others were skipped."""
    device: str = "cpu"
    """The simulator's, which draws if it is a GPU."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that processes need before they import MuJoCo. robosuite always imports a library: GLFW's comes
        with MuJoCo."""
        return {"MUJOCO_GL": WAYS.get(self.rendering, "glx")} | (egl_variables(self.device) if self.rendering == "gpu" else {})


def choose(what: str, wanted: str, python: str | None = None, seconds: float = PROBE_S, device: str = "cpu") -> Rung:
    """The first way that works. what: whose pictures they are, which begins every message. wanted: `auto`, `gpu`, `software` or
    `none`. python: the interpreter that has MuJoCo. seconds: timeout for each way. device: the simulator's.

    Raises UserError if none works. Warns if `auto` skips a GPU that doesn't work.
    """
    if wanted == "none":
        return Rung(rendering="none")
    ways = [wanted] if wanted != "auto" else ["gpu", "software"] if _devices() else ["software"]
    skipped: list[str] = []
    for way in ways:
        rung = Rung(rendering=way, skipped="; ".join(skipped), device=device)
        why = _probe(rung, python, seconds)
        if why is None:
            if skipped:
                warnings.warn(f"{what} renders with {WAYS[way]}: {'; '.join(skipped)}", stacklevel=2)
            return rung
        skipped.append(f"{WAYS[way]} doesn't work ({why})")
    raise UserError(f'{what} can\'t render: {"; ".join(skipped)}: {CURE}; or set rendering = "none", for states alone')


def finding(what: str, python: str | None, seconds: float) -> dict[str, str]:
    """What `mmrl doctor` says of the way that `auto` chooses, and why it skips others: state, detail and cure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rung = choose(what, "auto", python, seconds)
    except UserError as error:
        why = str(error).removeprefix(f"{what} can't render: ").partition(f": {CURE}")[0]
        return {"state": "missing", "detail": f"none, only states: {why}", "cure": CURE}
    by = {"gpu": "a GPU, by EGL", "software": "the CPU, by OSMesa"}[rung.rendering]
    if rung.skipped:
        return {"state": "note", "detail": f"rendered by {by}; skipped: {rung.skipped}"}
    return {"state": "ok", "detail": f"rendered by {by}"}


def _devices() -> bool:
    return any(any(Path("/dev").glob(pattern)) for pattern in DEVICES)


@functools.cache
def _probe(rung: Rung, python: str | None, seconds: float) -> str | None:
    """Why a way doesn't work, or None."""
    way = WAYS[rung.rendering]
    try:
        EnvironmentProcesses(
            "mmrl.api.simulators.processes.probe:Probe",
            {},
            1,
            what=way,
            python=python,
            environment=rung.environment,
            start_s=seconds,
            tries=1,
        ).close()
    except UserError as error:
        return str(error).removeprefix(f"{way} can't be made: ")
    return None
