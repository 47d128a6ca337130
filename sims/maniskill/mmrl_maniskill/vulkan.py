"""`mmrl doctor`'s check of Vulkan, with which ManiSkill renders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.api.processes.attempt import try_python

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""A software driver in Debian's package chromium."""
FOLDERS = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "~/.local/share/vulkan/icd.d")
PATIENCE_S = 20.0
ASK = """
import ctypes, json
class Create(ctypes.Structure):  # VkInstanceCreateInfo, whose type is number 1
    _fields_ = [("type", ctypes.c_int), ("next", ctypes.c_void_p), ("flags", ctypes.c_uint), ("app", ctypes.c_void_p),
                ("layers", ctypes.c_uint), ("layer_names", ctypes.c_void_p),
                ("extensions", ctypes.c_uint), ("extension_names", ctypes.c_void_p)]
try:
    vulkan = ctypes.CDLL("libvulkan.so.1")
except OSError:
    print(json.dumps({"loader": False, "devices": 0}))
else:
    instance, count = ctypes.c_void_p(), ctypes.c_uint()
    if vulkan.vkCreateInstance(ctypes.byref(Create(1)), None, ctypes.byref(instance)) == 0:
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    print(json.dumps({"loader": True, "devices": count.value}))
"""


def finding() -> dict[str, str]:
    """State, detail and cure of this machine's Vulkan."""
    return judged(drivers(), try_python(ASK, PATIENCE_S))


def judged(drivers: Sequence[Path], tried: Mapping[str, Any], swiftshader: Path = SWIFTSHADER) -> dict[str, str]:
    """drivers: the driver files that the loader reads. tried: the output of `ASK`."""
    install = "apt-get install libvulkan1 mesa-vulkan-drivers, version 25 or later"
    if gone := [p for p in drivers if not p.is_file()]:
        detail = f"VK_ICD_FILENAMES names {gone[0]}, which does not exist"
        return {"state": "broken", "detail": detail, "cure": "unset VK_ICD_FILENAMES, or name a file that exists"}
    if "error" in tried:
        return {"state": "broken", "detail": f"the driver failed: {tried['error']}", "cure": install}
    if not tried["loader"]:
        return {"state": "missing", "detail": "no libvulkan.so.1: simulators can't render", "cure": install}
    if tried["devices"]:
        return {"state": "ok", "detail": f"{tried['devices']} device(s)"}
    if drivers:
        return {"state": "broken", "detail": f"the drivers find no device: {', '.join(map(str, drivers))}", "cure": install}
    if swiftshader.is_file():
        return {
            "state": "note",
            "detail": f"the system has no driver, but Chromium has one that renders in software: {swiftshader}",
            "cure": f"export VK_ICD_FILENAMES={swiftshader}, for programs that don't find it themselves",
        }
    return {"state": "missing", "detail": "no driver: simulators can't render", "cure": install}


def drivers(env: Mapping[str, str] = os.environ, folders: Iterable[str] = FOLDERS) -> list[Path]:
    """The driver files (ICDs) that Vulkan's loader reads: those in environment variables, else those of the system."""
    named = env.get("VK_DRIVER_FILES") or env.get("VK_ICD_FILENAMES")
    if named:
        return [Path(p) for p in named.split(os.pathsep) if p]
    return sorted(p for folder in folders for p in Path(folder).expanduser().glob("*.json"))
