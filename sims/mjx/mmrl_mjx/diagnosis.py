"""`mmrl doctor`'s check of mujoco-warp: its versions, its devices, and where compiled kernels are kept."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version

CURE = 'pip install "multimodal-rl[mjx]"'


def findings() -> dict[str, dict[str, str]]:
    """Name -> state, detail and cure."""
    absent = [name for name in ("mujoco", "mujoco_warp", "warp") if importlib.util.find_spec(name) is None]
    if absent:
        return {"mjx": {"state": "missing", "detail": f"no module named {absent[0]!r}", "cure": CURE}}
    import warp

    warp.config.log_level = warp.LOG_WARNING
    warp.init()
    devices = ", ".join(device.name if device.is_cuda else "CPU" for device in warp.get_devices())
    what = f"mujoco-warp {version('mujoco-warp')}, Warp {version('warp-lang')}; devices: {devices}"
    return {"mjx": {"state": "ok", "detail": f"{what}; compiled kernels are kept in {warp.config.kernel_cache_dir}"}}
