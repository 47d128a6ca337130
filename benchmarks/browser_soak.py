"""Thousands of episodes while pages are killed: every episode must be counted, and memory must stay flat.

    python benchmarks/browser_soak.py [--episodes 2000] [--kill-every 50] [--pages 4]

Plays MiniWoB++'s click-test-2 in a pool of pages; after every `--kill-every` episodes the process of one page is killed during
its episode. Prints one JSON object: numbers of played and lost episodes (`played` + `lost` must be `episodes`), the resident
memory of the browser's processes in MB in each fifth of the run, `flat` (the last fifth over the second), and the processes that
remain after the browser is closed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil

from machine import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--kill-every", type=int, default=50)
    parser.add_argument("--pages", type=int, default=4)
    args = parser.parse_args()
    from mmrl_browser.driver import close, driver
    from mmrl_browser.miniwob import MiniWoB

    from mmrl import EnvironmentFailed
    from mmrl.api.simulators.gui import Action

    miniwob = MiniWoB()
    me, lock = psutil.Process(), threading.Lock()
    tally = {"played": 0, "lost": 0, "killed": 0}
    memory: list[tuple[int, float]] = []

    def play(seed: int) -> None:
        screen = miniwob.open()
        try:
            screen.start("click-test-2", seed)
            if seed % args.kill_every == args.kill_every - 1:
                kill()
            screen.act(Action(kind="click", at=(80.0, 120.0)))
            found = "played"
        except EnvironmentFailed:
            found = "lost"
        finally:
            screen.close()
        with lock:
            tally[found] += 1
            if seed % 20 == 0:
                memory.append((seed, resident(me)))

    def kill() -> None:
        """Kills one of the browser's renderers, of any page."""
        renderers = driver().run(driver().processes(), 30).get("renderer", [])
        if renderers:
            os.kill(renderers[-1], signal.SIGKILL)
            with lock:
                tally["killed"] += 1

    started = time.perf_counter()
    with ThreadPoolExecutor(args.pages) as pool:
        list(pool.map(play, range(args.episodes)))
    wall_s = time.perf_counter() - started
    before = {p.pid: p.name() for p in me.children(recursive=True)}
    close()
    time.sleep(3)
    left = [
        name for pid, name in before.items() if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]
    fifths = [statistics.median([mb for seed, mb in memory if n <= 5 * seed / args.episodes < n + 1] or [0.0]) for n in range(5)]
    print(
        json.dumps(
            {
                "benchmark": "browser_soak",
                "episodes": args.episodes,
                **tally,
                "memory_mb": [round(mb) for mb in fifths],
                "flat": round(fifths[-1] / fifths[1], 3) if fifths[1] else None,
                "left_behind": left,
                "episodes_per_s": round(args.episodes / wall_s, 1),
                "settings": vars(args),
                "machine": machine(),
            }
        )
    )


def resident(me: psutil.Process) -> float:
    """MB of the browser's processes and of this one; shared memory counts for each process, so this is an upper bound."""
    total = 0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it has ended
            continue
    return total / 2**20


if __name__ == "__main__":
    main()
