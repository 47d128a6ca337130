"""`mmrl doctor`'s checks of Gymnasium and of the library that Meta-World renders with."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Mapping
from importlib import metadata

NAMES = ("gymnasium", "pygame", "metaworld", "mujoco")


def findings() -> dict[str, dict[str, str]]:
    """Name -> state, detail and cure."""
    have = {}
    for name in NAMES:
        try:
            have[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    library = ctypes.util.find_library("OSMesa")
    return {"gymnasium": gymnasium(have), "metaworld": metaworld(have, library, loads(library) if library else False)}


def gymnasium(have: Mapping[str, str]) -> dict[str, str]:
    """have: installed distribution -> version."""
    if "gymnasium" not in have:
        return {"state": "missing", "detail": "would add gym/env", "cure": 'pip install "multimodal-rl[gym]"'}
    if "pygame" not in have:
        detail = f"{have['gymnasium']}; without pygame its classic environments don't render"
        return {"state": "note", "detail": detail, "cure": 'pip install "multimodal-rl[gym]"'}
    return {"state": "ok", "detail": f"{have['gymnasium']}, pygame {have['pygame']}"}


def metaworld(have: Mapping[str, str], library: str | None, sound: bool) -> dict[str, str]:
    """library: OSMesa's library, with which MuJoCo renders without a display, or None. sound: whether it can be loaded."""
    packages = (
        f"{have['metaworld']}, MuJoCo {have['mujoco']}"
        if "metaworld" in have and "mujoco" in have
        else "not installed here (its option python names the interpreter that has it)"
    )
    if library is None or not sound:
        what = "libOSMesa is missing" if library is None else f"{library} doesn't load"
        return {"state": "missing", "detail": f"{packages}; can't render: {what}", "cure": "apt-get install libosmesa6"}
    if "metaworld" not in have:
        cure = 'python -m venv metaworld && metaworld/bin/pip install metaworld "numpy<2" packaging'
        return {"state": "missing", "detail": f"{packages}; it can render: {library}", "cure": cure}
    return {"state": "ok", "detail": f"{packages}; renders with {library}"}


def loads(library: str) -> bool:
    """Whether the linker finds the library and all its dependencies."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
