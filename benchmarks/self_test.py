"""What works on this GPU as on the CPU: each kind of step, each family, sampling, in float32 and bfloat16, in two minutes.

    python benchmarks/self_test.py [--device cuda] [--jobs 14] [--seconds 120] [--row-seconds 60] [--only SUBSTRING]

Each row (`self_test_rows.py`) computes the same on the CPU and on the device from tiny models, and compares: whole runs by the
metrics of their steps, families by log-probabilities, gradients and samples. Rows run in several processes; one that crashes or
hangs costs its row alone. The table goes to stderr: `ok`, `differs` with the measurement and what is allowed, or `error` with its
line. With `--device cpu` nothing can differ. Prints one JSON object, and exits with 1 if a row isn't ok.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

from machine import keep, machine

Row = dict[str, Any]
STATES = ("ok", "differs", "error", "skipped", "not run")
"""`skipped`: a package is missing or too old."""


def work(device: str, module: str) -> None:
    """A worker: reads names of rows of a module, and answers each with its result."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the libraries goes to stderr
    rows = importlib.import_module(module)
    rows.prepare()
    print(json.dumps({"ready": list(rows.ROWS)}), file=answers, flush=True)
    for line in sys.stdin:
        name, started = line.strip(), time.perf_counter()
        print(
            json.dumps(_row(rows.ROWS[name], device) | {"seconds": round(time.perf_counter() - started, 1)}),
            file=answers,
            flush=True,
        )


def _row(compute: Any, device: str) -> Row:
    from mmrl.api.errors import UserError

    try:
        found = compute(device)
    except BaseException as error:  # noqa: BLE001  a row's error is its result
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        text = str(error).strip().splitlines() or [""]
        state = (
            "skipped" if isinstance(error, UserError) and (": install " in text[0] or ": pip install " in text[0]) else "error"
        )
        return {"state": state, "why": f"{type(error).__name__}: {text[0][:300]} ({where})"}
    apart = {what: {"by": float(f"{by:.3g}"), "allowed": float(f"{most:.3g}")} for what, (by, most) in found.items()}
    beyond = [what for what, (by, most) in found.items() if not by <= most]
    for one in apart.values():
        if one["allowed"] == float("inf"):  # shown, not judged
            del one["allowed"]
    return {"state": "differs" if beyond else "ok", "beyond": beyond, "measured": apart}


class Worker:
    """A process that computes rows one after the other."""

    def __init__(self, device: str, module: str, until: float) -> None:
        self.device, self.module, self.until = device, module, until
        self.process: subprocess.Popen[str] | None = None
        self.rows: list[str] = []

    def start(self, limit: float) -> Row | None:
        """Starts the process; None, or why it didn't start."""
        command = [sys.executable, __file__, "--worker", "--device", self.device, "--rows", self.module]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
            env={
                **os.environ,
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "PYTHONFAULTHANDLER": "1",
            },  # there are as many processes as cores
        )
        answer = self._answer(limit)
        self.rows = answer.get("ready", [])
        return None if self.rows else answer

    def row(self, name: str, limit: float) -> Row:
        """The result of a row. A process that crashes or takes too long is replaced at the next row."""
        limit = min(limit, self.until - time.monotonic())
        if limit < 1:
            return {"state": "not run", "why": "no time was left"}
        if self.process is None and (failed := self.start(limit)):
            return failed
        assert self.process is not None and self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        return self._answer(limit)

    def _answer(self, limit: float) -> Row:
        assert self.process is not None and self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], limit)[0]:
            self.process.send_signal(signal.SIGABRT)  # the log says where it was
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
            self.stop()
            return {"state": "error", "why": f"took more than {limit:.0f} s"}
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.stop()
            return {"state": "error", "why": f"the process ended with {signal.Signals(-code).name if code < 0 else code}"}
        found: Row = json.loads(line)
        return found

    def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def compute(args: argparse.Namespace) -> dict[str, Row]:
    """Name of a row -> its result. The row `device` is computed alone."""
    until = time.monotonic() + args.seconds
    workers = [Worker(args.device, args.rows, until) for _ in range(args.jobs)]
    found: dict[str, Row] = {}
    try:
        if failed := workers[0].start(args.seconds):
            raise SystemExit(f"no row can be computed: {failed['why']}")
        names = [name for name in workers[0].rows if args.only.lower() in name.lower()]
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        if "device" in names:
            found["device"] = workers[0].row("device", args.row_seconds)
        for name in names:
            if name not in found:
                waiting.put(name)

        def serve(worker: Worker) -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    name = waiting.get_nowait()
                    found[name] = worker.row(name, args.row_seconds)
                    print(_line(name, found[name]), file=sys.stderr, flush=True)
                    keep(summary(found))

        threads = [threading.Thread(target=serve, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for worker in workers:
            worker.stop()
    return {name: found.get(name, {"state": "error", "why": "nobody computed it"}) for name in names}


def _line(name: str, row: Row) -> str:
    """A row of the table."""
    state = row["state"]
    if state in ("ok", "differs"):
        shown = row["beyond"] or list(row["measured"])
        text = "; ".join(f"{what} {row['measured'][what]['by']:.3g}{_of(row['measured'][what])}" for what in shown)
    else:
        text = row["why"]
    return f"{state:8} {name:36} {row.get('seconds', 0):5.1f} s  {text}"


def _of(one: dict[str, float]) -> str:
    return f" of {one['allowed']:.1g}" if "allowed" in one else ""


def summary(found: dict[str, Row]) -> dict[str, Any]:
    """Counts, what is broken and why, the largest share of what was allowed, and all rows."""
    rows = dict(found)
    counts = {state: sum(row["state"] == state for row in rows.values()) for state in STATES}
    shares = [
        (one["by"] / one["allowed"], f"{name}: {what} {one['by']} of {one['allowed']}")
        for name, row in rows.items()
        for what, one in row.get("measured", {}).items()
        if one.get("allowed")
    ]
    broken = {name: _line(name, row).split(" s  ", 1)[1] for name, row in rows.items() if row["state"] not in ("ok", "skipped")}
    facts = {what: one["by"] for what, one in rows.get("device", {}).get("measured", {}).items()}
    return counts | {"device_rates": facts, "worst": max(shares, default=(0, ""))[1], "broken": broken, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=max(1, min(14, (os.cpu_count() or 1) - 2)), help="processes")
    parser.add_argument("--seconds", type=float, default=120, help="for all rows; those that are left are not run")
    parser.add_argument("--row-seconds", type=float, default=60)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--rows", default="self_test_rows", help="module with the rows")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.device, args.rows)
    started = time.perf_counter()
    found = compute(args)
    print("\n".join(_line(name, row) for name, row in found.items()), file=sys.stderr)
    seconds = round(time.perf_counter() - started, 1)
    result = {"benchmark": "self_test", "device": args.device, "jobs": args.jobs, "seconds": seconds, **summary(found)}
    print(json.dumps(result | {"machine": machine()}))
    if result["broken"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
