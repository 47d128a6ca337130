"""Cases per second that the judge scores with a trivial verifier: the cost of processes and deadlines.

    python benchmarks/judge.py [--processes 1] [--cases 50000] [--cores 1] [--isolation process]

Start-up is excluded. Prints one JSON object; `cases_per_s` is the median of five rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PLUGIN = """
from mmrl import VerifierSpec, hookimpl

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="bench_judge/equal", target="bench_judge:equal")]

def equal(case):
    return float(case.completion == case.answer)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--cores", type=int, default=1, help="cores that engine and workers share; 0 for all")
    parser.add_argument("--isolation", choices=("process", "strict"), default="process")
    args = parser.parse_args()
    if args.cores and sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench_judge.py").write_text(PLUGIN)
        os.environ.update(MMRL_PLUGINS="", MMRL_PLUGIN_FILES=str(Path(folder) / "bench_judge.py"))
        print(
            json.dumps(
                measure(args.cases, args.processes, args.isolation)
                | {
                    "cases": args.cases,
                    "processes": args.processes,
                    "isolation": args.isolation,
                    "cores": args.cores or os.cpu_count(),
                    "python": platform.python_version(),
                    "machine": platform.machine(),
                    "system": platform.system(),
                }
            )
        )


def measure(n: int, processes: int, isolation: Any, rounds: int = 5) -> dict[str, float]:
    from mmrl import Case
    from mmrl.judge import local_judge

    cases = [Case(completion=f"the answer is {i}", answer=f"the answer is {i}", meta={"index": i}) for i in range(n)]
    start = time.perf_counter()
    with local_judge({"bench_judge/equal": {}}, num_workers=processes, isolation=isolation) as judge:
        judge.ready()
        ready = time.perf_counter() - start
        rates = []
        for _ in range(rounds):
            start = time.perf_counter()
            scores = judge.score(cases, [{"bench_judge/equal": 1.0}] * n)
            rates.append(n / (time.perf_counter() - start))
            assert all(s.value == 1.0 for s in scores)
    return {"cases_per_s": round(statistics.median(rates)), "start_s": round(ready, 3)}


if __name__ == "__main__":
    main()
