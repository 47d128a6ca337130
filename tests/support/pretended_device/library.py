"""The C++ side of the pretended device, compiled where it is needed: torch asks a device's library for streams, hooks and pinned
memory, and takes no Python for these on CUDA."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import shutil
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("library.cpp")


class NoCompiler(Exception):
    """The library can't be made on this machine."""


@functools.cache
def load(folder: Path) -> ctypes.CDLL:
    """The library, compiled to a file in this folder unless it is there. Raises NoCompiler with the reason."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise NoCompiler("there is no C++ compiler (g++) to make the pretended device with")
    home = Path(torch.__file__).parent
    key = hashlib.sha256(f"{torch.__version__} {home} {SOURCE.read_text('utf-8')}".encode()).hexdigest()[:16]
    path = folder / f"pretended-{key}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes that run side by side compile once
        if not path.exists():
            made = path.with_suffix(".partial")
            # -O0: it takes two seconds of a processor, half of what -O2 does
            command = [compiler, "-O0", "-std=c++20", "-shared", "-fPIC", f"-I{home / 'include'}", str(SOURCE)]
            command += [f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python", "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise NoCompiler(
                    f"{compiler} can't compile the pretended device for torch {torch.__version__}: {done.stderr[-800:]}"
                )
            made.rename(path)
    return ctypes.CDLL(str(path))
