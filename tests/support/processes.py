"""Processes that tests look after."""

from __future__ import annotations

import signal
import time

import psutil


def heeding_ctrl_c() -> None:
    """`preexec_fn` of what is sent one: a suite that a script has put into the background ignores it, and hands that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def alive(pid: int) -> bool:
    """It runs: neither gone nor a zombie."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def gone(pid: int, within_s: float = 30.0) -> bool:
    """Whether it ends so soon."""
    end = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def of_ray(name: str) -> list[psutil.Process]:
    """This process's actors of a class whose name begins so, those that were started first in front. Linux keeps 15 letters of a
    process's name. One may end while it is asked."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith(f"ray::{name}"[:15]):
                found.append((process.create_time(), process))
        except psutil.NoSuchProcess:
            continue
    return [process for _, process in sorted(found, key=lambda each: each[0])]
