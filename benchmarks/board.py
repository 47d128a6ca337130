"""The board on a long run: seconds to open it, delay of new values, memory, and the slowdown of a run.

    python benchmarks/board.py [--steps 100000 --rollouts 1000000 --folder DIR] [--no-training | --only-training]

Prints one JSON object. Needs Chromium (`make system`). A folder given with `--folder` is kept and reused by a later call. Seconds
to open count from the request of a page to the first curve, or the first group of rollouts, on the screen.
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
from mmrl.api.statistics import mean_interval  # noqa: E402

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
    """Memory of the server and the indexing process together."""
    server = psutil.Process(running.process.pid)
    return sum(one.memory_info().rss for one in (server, *server.children(recursive=True))) / 2**20


def indexed(running: Running, steps: int) -> tuple[float, float]:
    """(seconds until all rollouts are indexed, peak memory in MB)."""
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


def slowdown(folder: Path, turns: int = 120, seconds: float = 1.0) -> dict[str, float]:
    """Ratio of a run's step time with and without a board that follows it: one run, which is followed in every other turn of a
    few seconds. Mean over turns of the ratio of their median step to that of the two neighbouring turns, with its 95% interval,
    without the most extreme tenth; and the board's share of one core."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]; import runs; from pathlib import Path\n"
        "stages = [{'kind': 'rl', 'steps': 100_000, 'prompts_per_step': 4, 'group_size': 4, 'learning_rate': 1e-3}]\n"
        "runs.run(runs.toy_config(Path(sys.argv[2]), name='followed', stages=stages, evaluate={'num_prompts': 0}))"
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MMRL_PLUGIN_FILES": str(ROOT / "tests" / "support" / "toy.py")}
    folder.mkdir()
    metrics, medians, used = folder / "followed" / "metrics.jsonl", [], 0.0
    process = subprocess.Popen([sys.executable, "-c", code, str(ROOT / "tests" / "support"), str(folder)], env=env)
    try:
        with board(folder, folder.parent / "caches") as running:
            while not metrics.exists() or metrics.read_bytes().count(b"\n") < 50:
                time.sleep(0.2)
            query = f"http://127.0.0.1:{running.port}/api/live?run=followed"
            for turn in range(turns):
                follower = subprocess.Popen(["curl", "-sN", query], stdout=subprocess.DEVNULL) if turn % 2 else None
                time.sleep(0.5)  # starts and ends are not measured
                first, before = metrics.read_bytes().count(b"\n"), cpu_seconds(running)
                time.sleep(seconds)
                used += cpu_seconds(running) - before if follower else 0.0
                lines = metrics.read_text().splitlines()[first:]
                medians.append(statistics.median(json.loads(line)["metrics"]["time/step"] for line in lines))
                if follower:
                    follower.kill()
                    follower.wait()
    finally:
        process.kill()
        process.wait()
    ratios = sorted(medians[i] / statistics.fmean((medians[i - 1], medians[i + 1])) - 1 for i in range(1, turns - 1, 2))
    kept = ratios[len(ratios) // 20 : len(ratios) - len(ratios) // 20]
    low, high = mean_interval(kept)
    middle = {"step_s": medians[::2], "step_watched_s": medians[1::2]}
    return {name: round(statistics.median(some), 4) for name, some in middle.items()} | {
        "slowdown": round(statistics.fmean(kept), 4),
        "interval": [round(low, 4), round(high, 4)],
        "board_cpu_share": round(used / (seconds * (turns // 2)), 4),
    }


def cpu_seconds(running: Running) -> float:
    """CPU seconds of the board's processes so far."""
    process = psutil.Process(running.process.pid)
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--only-training", action="store_true")
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    if asked.only_training:
        with tempfile.TemporaryDirectory() as temporary:
            print(json.dumps({"training": slowdown(Path(temporary) / "training")}))
        return
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
            page.goto(running.address + "/static/page.css")  # the browser is started
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
