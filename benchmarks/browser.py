"""Episodes per second of MiniWoB++'s one-click pages in mmrl's browser, against the package's own environment, in one run.

    python benchmarks/browser.py [--pages 1 2 4] [--seconds 8] [--rounds 3]

Both play the same pages with the same seeds and the same click, and take a screenshot before each action. The package's
environment is unchanged, with selenium and one page; mmrl's has one thread per page of the pool. `fresh` loads the page anew for
each episode, which is mmrl's default; `kept` reuses the page, as the package does. Rounds alternate, so that a busy machine slows
all. Prints one JSON object; `times` is mmrl's rate over the package's, the median of the rounds, for each size of the pool.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from machine import machine

PAGES = ("click-test-2", "click-dialog", "focus-text-2")
AT = (80.0, 120.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    theirs, close = package()
    ways: dict[str, Callable[[float], float]] = {"package": theirs}
    ways |= {f"{n} {how}": ours(n, how == "fresh") for how in ("kept", "fresh") for n in args.pages}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(1.0)  # opens the pages
    for _ in range(args.rounds):
        for name, way in ways.items():
            rates[name].append(way(args.seconds))
    close()
    times = {name: [a / b for a, b in zip(found, rates["package"], strict=True)] for name, found in rates.items()}
    del times["package"]
    print(
        json.dumps(
            {
                "benchmark": "browser",
                "episodes_per_s": {name: round(statistics.median(found), 2) for name, found in rates.items()},
                "times": {n: round(statistics.median(found), 2) for n, found in times.items()},
                "rounds": {n: [round(t, 2) for t in found] for n, found in times.items()},
                "settings": vars(args),
                "machine": machine(),
            }
        )
    )


def ours(pages: int, fresh: bool) -> Callable[[float], float]:
    """A function that plays for given seconds in a pool of this size and returns the episodes per second."""
    from mmrl_browser.miniwob import MiniWoB

    from mmrl.api.simulators.gui import Action

    miniwob = MiniWoB(fresh=fresh)
    seeds = count()

    def play(end: float) -> int:
        played = 0
        while time.perf_counter() < end:
            seed = next(seeds)
            screen = miniwob.open()
            screen.start(PAGES[seed % len(PAGES)], seed)
            screen.act(Action(kind="click", at=AT))
            screen.close()
            played += 1
        return played

    def run(seconds: float) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(pages) as pool:
            played = sum(pool.map(play, [started + seconds] * pages))
        return played / (time.perf_counter() - started)

    return run


def package() -> tuple[Callable[[float], float], Callable[[], None]]:
    """(the same with the package's environments, one for each page, one page at a time; a function that closes them)."""
    driver, chrome = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or chrome is None:
        raise SystemExit("chromedriver or Chromium is not installed: make system")
    os.environ |= {"MINIWOB_CHROMEDRIVER": driver, "MINIWOB_CHROME_BINARY": chrome}
    import gymnasium
    import miniwob
    from miniwob.action import ActionTypes

    gymnasium.register_envs(miniwob)
    environments = [gymnasium.make(f"miniwob/{page}-v1").unwrapped for page in PAGES]
    seeds = count()

    def run(seconds: float) -> float:
        started, played = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            seed = next(seeds)
            env = environments[seed % len(PAGES)]
            env.reset(seed=seed)
            env.step(env.create_action(ActionTypes.CLICK_COORDS, coords=list(AT)))
            played += 1
        return played / (time.perf_counter() - started)

    return run, lambda: [env.close() for env in environments] and None


if __name__ == "__main__":
    main()
