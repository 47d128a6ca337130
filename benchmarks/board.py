"""How quickly the board opens a long run, how quickly it shows what is new, what it takes, and what it costs the run.

    python benchmarks/board.py [--steps 100000 --rollouts 1000000 --folder DIR] [--no-training]

Prints one JSON object. Needs Chromium (`make system`). The folder is kept where one is named, so that a second call needn't make
it. Seconds to open are from the request of a page to the first curve, or the first group of rollouts, on the screen.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from boards import Running, board  # noqa: E402
from long_runs import figures, write_run  # noqa: E402

DRAWN = "() => [...document.querySelectorAll('#curves canvas')].some((c) => c.width > 0)"
GROUPS = "() => document.querySelectorAll('#groups .group').length > 0"
FRAMES = """async (pixels) => {
  const frames = []; let last = performance.now(), down = 0;
  while (frames.length < 240) {
    await new Promise(requestAnimationFrame);
    const now = performance.now(); frames.push(now - last); last = now;
    window.scrollBy(0, pixels); down += pixels;
  }
  return frames;
}"""


def opened(page: Any, address: str, ready: str) -> float:
    began = time.monotonic()
    page.goto(address)
    page.wait_for_function(ready, timeout=60_000)
    return time.monotonic() - began


def memory_mb(running: Running) -> float:
    """Of the server and the process that indexes, together."""
    server = psutil.Process(running.process.pid)
    return sum(one.memory_info().rss for one in (server, *server.children(recursive=True))) / 2**20


def indexed(running: Running, steps: int) -> tuple[float, float]:
    """(seconds until all rollouts are in the index, most memory meanwhile)."""
    began, most = time.monotonic(), 0.0
    while f"of {steps:,} steps." not in running.get("/part/groups", run="long").text:
        most = max(most, memory_mb(running))
        time.sleep(0.5)
    return time.monotonic() - began, most


def shown_after(page: Any, run: Path, steps: int, times: int = 7) -> list[float]:
    """Seconds from a line in `metrics.jsonl` to its value on the page."""
    import random

    found = []
    for n in range(1, times + 1):
        row = {"step": steps + n, "stage": "rl", "time": 4.0 * (steps + n), "metrics": figures(steps, steps, random.Random(n))}
        row["metrics"]["reward/mean"] = value = round(0.1 + n / 100, 2)
        time.sleep(1.0)
        with open(run / "metrics.jsonl", "a", encoding="ascii") as file:
            file.write(json.dumps(row) + "\n")
        began = time.monotonic()
        page.wait_for_function(
            f"() => document.querySelector('#curves').innerText.includes('{value:g}')", timeout=10_000, polling=20
        )
        found.append(time.monotonic() - began)
    return found


def slowdown(folder: Path) -> dict[str, float]:
    """Seconds of a step while a board follows the run, over those while none does; in turns, by medians."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]; import runs; from pathlib import Path; import json\n"
        "stages = [{'kind': 'rl', 'steps': 60, 'prompts_per_step': 4, 'group_size': 4, 'learning_rate': 1e-3}]\n"
        "runs.run(runs.toy_config(Path(sys.argv[2]), name=sys.argv[3], stages=stages, evaluate={'n': 0}))"
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MMRL_PLUGIN_FILES": str(ROOT / "tests" / "support" / "toy.py")}
    found: dict[bool, list[float]] = {False: [], True: []}
    with board(folder, folder.parent / "caches") as running:
        for turn in range(8):
            watched = turn % 2 == 1
            name = f"turn-{turn}"
            process = subprocess.Popen([sys.executable, "-c", code, str(ROOT / "tests" / "support"), str(folder), name], env=env)
            follower = None
            while process.poll() is None:
                if watched and follower is None and (folder / name / "metrics.jsonl").exists():
                    query = f"http://127.0.0.1:{running.port}/api/live?run={name}"
                    follower = subprocess.Popen(["curl", "-sN", query], stdout=subprocess.DEVNULL)
                time.sleep(0.05)
            if follower:
                follower.kill()
                follower.wait()
            lines = (folder / name / "metrics.jsonl").read_text().splitlines()
            found[watched] += [json.loads(line)["metrics"]["time/step"] for line in lines][20:]
            time.sleep(1)
    alone, both = (statistics.median(found[watched]) for watched in (False, True))
    return {"step_s": round(alone, 4), "step_watched_s": round(both, 4), "slowdown": round(both / alone - 1, 4)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-training", action="store_true")
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    found: dict[str, Any] = {"steps": asked.steps, "rollouts": asked.rollouts}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.folder or Path(temporary)) / "runs"
        recorded = asked.steps // 10
        if not (folder / "long").exists():
            write_run(folder / "long", asked.steps, 10, asked.rollouts // recorded // 10, 10)
        run = folder / "long"
        found["metrics_mb"] = round((run / "metrics.jsonl").stat().st_size / 2**20)
        found["rollouts_mb"] = round(sum(f.stat().st_size for f in os.scandir(run / "rollouts")) / 2**20)
        chrome = {"executable_path": "/usr/bin/chromium", "args": ["--no-sandbox"]}
        with sync_playwright() as p, board(folder, Path(temporary) / "caches") as running:
            page = p.chromium.launch(**chrome).new_page(viewport={"width": 1280, "height": 900})
            page.goto(running.address + "/static/page.css")  # the browser itself is up
            curves, rollouts = (f"{running.address}/{name}?run=long" for name in ("curves", "rollouts"))
            found["list_s"] = round(opened(page, running.address, "() => document.querySelector('#runs td')"), 2)
            found["curves_without_index_s"] = round(opened(page, curves, DRAWN), 2)
            found["rollouts_without_index_s"] = round(opened(page, rollouts, GROUPS), 2)
            seconds, most = indexed(running, recorded)
            found |= {"indexed_after_s": round(seconds), "memory_while_indexing_mb": round(most)}
            found["curves_s"] = round(statistics.median(opened(page, curves, DRAWN) for _ in range(5)), 2)
            found["rollouts_s"] = round(statistics.median(opened(page, rollouts, GROUPS) for _ in range(5)), 2)
            found["search_s"] = round(opened(page, rollouts + "&q=zebra", "() => document.querySelector('#found')"), 2)
            found["failed_s"] = round(opened(page, rollouts + "&status=failed", "() => document.querySelector('#found')"), 2)
            opened(page, rollouts, GROUPS)
            frames = sorted(page.evaluate(FRAMES, 120))
            found["scroll_frame_ms"] = {
                "median": round(statistics.median(frames), 1),
                "p95": round(frames[int(0.95 * len(frames))], 1),
            }
            found["groups_scrolled"] = page.evaluate("() => document.querySelectorAll('#groups .group').length")
            opened(page, curves + "&smooth=0", DRAWN)
            delays = shown_after(page, run, asked.steps)
            found["shown_after_s"] = {"median": round(statistics.median(delays), 2), "most": round(max(delays), 2)}
            found["memory_mb"] = round(memory_mb(running))
            found["index_mb"] = round(sum(f.stat().st_size for f in (running.caches / "mmrl" / "board").iterdir()) / 2**20)
        if not asked.no_training:
            found["training"] = slowdown(Path(temporary) / "training")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
