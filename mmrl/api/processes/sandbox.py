"""Sandboxes for processes, made by bubblewrap: name spaces of their own, no network, a file system that can only be read, or in
which there is nothing but an interpreter.

docs/isolation.md says what holds in the first, docs/tools.md what holds in the second.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from mmrl.api.errors import UserError, shorten
from mmrl.api.processes import system_calls

CURE = "install bubblewrap 0.8 or newer (`apt install bubblewrap`) where unprivileged user name spaces are allowed"
SCRATCH = "/dev/shm"
"""The only folder that can be written in, with a file system of its own in memory."""
SCRATCH_MB = 256
GPUS = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
"""Where shared libraries are; those that a machine lacks are left out."""
PROBE_S = 20.0
"""Seconds that an empty program may take in a sandbox."""


def wrapper(gpu: bool = False) -> list[str]:
    """The command that runs a program in a sandbox, without the program. gpu: GPUs can be used in it. Raises UserError if this
    machine can't make a sandbox."""
    check('judge.isolation = "strict"')
    return _command(gpu)


def check(what: str) -> None:
    """Raise UserError if this machine can't make a sandbox. what: what needs one, for the message."""
    if reason := problem():
        raise UserError(f"{what} needs a sandbox, and {reason}: {CURE}")


def bare_wrapper(shown: Sequence[Path], scratch_mb: int = 0) -> list[str]:
    """The command that runs `interpreter()` in a sandbox in which nothing is there but the interpreter with its libraries, the
    system's shared libraries, and these folders. Nothing can be written, except for so many MB in the folder `SCRATCH`, if they
    aren't 0. For code that nobody has read."""
    standard = Path(os.__file__).parent
    folders = dict.fromkeys(map(str, (interpreter(), standard, *_python_libraries(), *shown)))
    return [
        *_separate(),
        *(part for folder in LIBRARIES for part in ("--ro-bind-try", folder, folder)),
        *(part for folder in folders for part in ("--ro-bind", folder, folder)),
        *(("--size", str(scratch_mb * 2**20), "--tmpfs", SCRATCH) if scratch_mb else ()),
        *("--remount-ro", "/", "--chdir", "/"),
    ]


def interpreter() -> str:
    """The interpreter of this process, without a virtual environment."""
    return os.path.realpath(sys.executable)


def _python_libraries() -> list[Path]:
    """The files of the interpreter's shared library that aren't in the folders of the system. Without them another version's
    would be loaded, or none."""
    folders = dict.fromkeys((Path(os.__file__).parents[1], Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")))
    found = [path for folder in folders for path in sorted(folder.glob("libpython*.so*"))]
    return [path for path in found if path.exists() and not any(path.is_relative_to(system) for system in LIBRARIES)]


@functools.cache
def problem() -> str:
    """Why this machine can't make a sandbox; empty if it can."""
    if not system_calls.supported():
        return "it is made for Linux on x86-64 and 64-bit ARM"
    if not shutil.which("bwrap"):
        return "bubblewrap isn't installed"
    try:
        ended = subprocess.run([*_command(False), "true"], capture_output=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap failed: {shorten(error, 200)}"
    return "" if ended.returncode == 0 else f"bubblewrap failed: {shorten(ended.stderr.decode(errors='replace'), 200)}"


def _separate() -> list[str]:
    """Name spaces of its own, and no rights in them."""
    spaces = [f"--unshare-{space}" for space in ("user", "ipc", "pid", "net", "uts")]
    return [shutil.which("bwrap") or "bwrap", *spaces, "--disable-userns", "--die-with-parent", "--cap-drop", "ALL"]


def _command(gpu: bool) -> list[str]:
    devices = [f"--dev-bind {path} {path}".split() for pattern in GPUS for path in glob.glob(pattern)] if gpu else []
    return [
        *_separate(),
        *("--ro-bind", "/", "/", "--dev", "/dev", *(part for device in devices for part in device)),
        *("--size", str(SCRATCH_MB * 2**20), "--tmpfs", SCRATCH, "--proc", "/proc", "--chdir", os.getcwd()),
        *("--setenv", "TMPDIR", SCRATCH, "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
    ]
