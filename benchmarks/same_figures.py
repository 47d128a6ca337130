"""Checks that two versions of the code give the same numbers, for refactorings.

    cd ONE_CHECKOUT && .venv/bin/python benchmarks/same_figures.py record before.json [--only SUBSTRING] [--full-demos]
    cd ANOTHER_CHECKOUT && .venv/bin/python benchmarks/same_figures.py record after.json
    python benchmarks/same_figures.py compare before.json after.json [--only SUBSTRING] [--renamed renamed.json]

`record` trains every run file below configs/ of the current folder with the current interpreter, one after the other, each by
`mmrl train FILE --smoke` with one thread and a separate runs folder. `--full-demos` trains the demos of the digits and of the
robot without `--smoke`. It writes {run file: rows}: the rows of metrics.jsonl, then those of evaluations/, each as {"evaluation":
row}. A run that isn't possible here (for example, its simulator isn't installed) has the reason instead of rows. It prints one
JSON object with the seconds of each run, and exits with 1 if a run failed for another reason.

`compare` reports any difference, however small: in numbers, in texts such as completions, and in missing values. It ignores keys
that depend on the clock or on memory (`CLOCK`), and maps metrics that were renamed since mmrl 0.1 (`RENAMED`), so a recording of
0.1 can be compared with a current one. renamed.json maps further old names to names in the second file, {"old": "new"}, or to
null if they were removed, {"old": null}. A name is a key in any place ("loss"), a key in one place ("metrics.loss",
"eval.extra.failed", "evaluation.value"), or a run file. It prints one JSON object, and exits with 1 if there is a difference; a
run in only one of the files is a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

DEMOS = ("configs/demo/digits.toml", "configs/demo/robot.toml")
CLOCK = (
    *("time", "time/*", "async/*", "ranks/wait_s", "*seconds", "*_per_s", "*_per_second"),
    *("simulator/busy_share", "policy/idle_share", "memory", "memory/*", "peak_*memory_mb"),
)
"""Keys whose values differ between any two runs."""
CLOCK_0_1 = ("ahead/*", "ranks/waiting")
"""Some of their names in mmrl 0.1."""
RENAMED = {
    "zero_spread_share": "zero_std_share",
    "reward/world": "reward/environment",
    "world/lost": "environment/lost",
    "answers/top_share": "answers/most_common_share",
    "sampling/left_out_share": "sampling/filtered_share",
    "kl_weight": "kl_coef",
    "updates": "optimizer_steps",
    "value_clip": "value_clip_share",
    "importance/cut_share": "importance/capped_share",
}
"""A metric of mmrl 0.1, or the end of one such as `task/boxes/zero_spread_share` -> its current name."""
BAD_INPUT = 2
"""mmrl's exit status for an error that the user can fix, such as a missing package."""
FEW = 10
"""Maximum number of printed differences."""
ABSENT = "absent"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The rows of a run folder's metrics and evaluations."""
    items = [{"evaluation": row} for file in sorted((run / "evaluations").glob("*.jsonl")) for row in lines(file)]
    return lines(run / "metrics.jsonl") + items


def trained(run_file: str, full: bool) -> tuple[list[dict[str, Any]] | str, int]:
    """The rows of a run, or the reason why there are none, and mmrl's exit status."""
    environment = {k: v for k, v in os.environ.items() if k != "MMRL_PLUGIN_FILES"} | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as runs:
        folder = "runs_dir" if Path("mmrl/config/renamed.py").exists() else "runs"  # 0.1 calls it that
        command = [sys.executable, "-m", "mmrl", "train", run_file, "--quiet", "--set", f"{folder}={runs}"]
        done = subprocess.run([*command, *([] if full else ["--smoke"])], env=environment, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip().splitlines() or [f"it exited with {done.returncode}"])[-1], done.returncode
        (metrics,) = Path(runs).glob("*/metrics.jsonl")
        return rows_of(metrics.parent), 0


def record(out: Path, only: str, full_demos: bool) -> int:
    run_files = [path.as_posix() for path in sorted(Path("configs").rglob("*.toml")) if only in path.as_posix()]
    if not run_files:
        raise SystemExit(f"no run file below configs/ has {only!r} in its name; start this in the root of a checkout")
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    failed: list[str] = []
    for run_file in run_files:
        started = time.perf_counter()
        found[run_file], code = trained(run_file, full_demos and run_file in DEMOS)
        seconds[run_file] = round(time.perf_counter() - started, 1)
        if code not in (0, BAD_INPUT):
            failed.append(run_file)
        told = f"no rows: {found[run_file]}" if code else f"{len(found[run_file])} rows"
        print(f"{run_file}  {seconds[run_file]} s  {told}", file=sys.stderr, flush=True)
        out.write_text(json.dumps(found))  # after each run, so that finished runs are kept if this is stopped
    done = [rows for rows in found.values() if isinstance(rows, list)]
    skipped = {name: why for name, why in found.items() if isinstance(why, str) and name not in failed}
    figures: dict[str, Any] = {"benchmark": "same_figures", "runs": len(done), "rows": sum(map(len, done)), "skipped": skipped}
    print(json.dumps({**figures, "failed": {name: found[name] for name in failed}, "seconds": seconds}))
    return 1 if failed else 0


@dataclass
class Comparison:
    """Comparison of two recordings."""

    renamed: dict[str, str | None]
    runs: int = 0
    rows: int = 0
    numbers: int = 0
    skipped: list[str] = field(default_factory=list)
    different: list[dict[str, Any]] = field(default_factory=list)

    def recordings(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        names = {name: self.renamed.get(name, name) for name in old}
        for name, other in names.items():
            if other is not None:
                self.run(name, old[name], new.get(other, ABSENT))
        for name in new.keys() - names.values():
            self.differ({"run": name}, ABSENT, new[name])

    def run(self, name: str, old: Any, new: Any) -> None:
        place: dict[str, Any] = {"run": name}
        if isinstance(old, str) and (isinstance(new, str) and new != ABSENT):  # both have a reason instead of rows
            self.skipped.append(f"{name}: {old}" if old == new else f"{name}: {old}; then: {new}")
        elif isinstance(old, str) or isinstance(new, str):
            self.differ(place, old, new)
        else:
            self.runs, self.rows = self.runs + 1, self.rows + min(len(old), len(new))
            if len(old) != len(new):
                self.differ(place, old, new)
            for number, (one, other) in enumerate(zip(old, new, strict=False)):
                self.values(place | {"row": number}, "", one, other)

    def values(self, place: dict[str, Any], path: str, old: Any, new: Any) -> None:
        """path: the keys that lead here, joined by dots; members of a list have their list's path."""
        if isinstance(old, dict) and isinstance(new, dict):
            names = {key: self.name(f"{path}.{key}".lstrip("."), key, new) for key in old}
            for key, other in names.items():
                if other is not None and not depends(key):
                    self.values(place, f"{path}.{key}".lstrip("."), old[key], new.get(other, ABSENT))
            for key in sorted(k for k in new.keys() - names.values() if not depends(k)):
                self.differ(place | {"key": f"{path}.{key}".lstrip(".")}, ABSENT, new[key])
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            for one, other in zip(old, new, strict=True):
                self.values(place, path, one, other)
        else:
            self.numbers += is_number(old) and is_number(new)
            if old != new and not (old != old and new != new):  # NaN differs from itself
                self.differ(place | {"key": path}, old, new)

    def name(self, path: str, key: str, new: dict[str, Any]) -> str | None:
        """The key's name in the second recording, whose object at this place is `new`; None if it was removed."""
        for known in (path, key):
            if known in self.renamed:
                return self.renamed[known]
        return key if key in new else called_now(key)

    def differ(self, place: dict[str, Any], old: Any, new: Any) -> None:
        self.different.append(place | {"old": short(old), "new": short(new)})


def called_now(key: str) -> str:
    """The current name of a metric of mmrl 0.1; most are unchanged."""
    for old, new in RENAMED.items():
        if key == old or key.endswith(f"/{old}"):
            return key.removesuffix(old) + new
    return key


def depends(key: str) -> bool:
    """Whether it depends on the clock or the memory."""
    return any(fnmatchcase(key, pattern) for pattern in CLOCK + CLOCK_0_1)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def short(value: Any) -> Any:
    """A value as shown in a difference."""
    if isinstance(value, list):
        return f"{len(value)} of them"
    return value if value is None or isinstance(value, int | float) else str(value)[:120]


def compare(before: Path, after: Path, only: str, renamed: Path | None) -> int:
    comparison = Comparison(json.loads(renamed.read_text()) if renamed else {})
    old, new = ({name: rows for name, rows in json.loads(p.read_text()).items() if only in name} for p in (before, after))
    comparison.recordings(old, new)
    shown, more = comparison.different[:FEW], len(comparison.different) - FEW
    figures = {name: getattr(comparison, name) for name in ("runs", "rows", "numbers", "skipped")}
    print(json.dumps({**figures, "different": [*shown, *([f"and {more} more"] if more > 0 else [])]}))
    return 1 if comparison.different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording, comparing = commands.add_parser("record"), commands.add_parser("compare")
    for command in (recording, comparing):
        command.add_argument("--only", default="", metavar="SUBSTRING", help="only run files whose path contains this")
    recording.add_argument("out", type=Path)
    recording.add_argument("--full-demos", action="store_true", help="train the two demos to their end")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--renamed", type=Path, help="JSON object of further names that differ in the second file")
    args = parser.parse_args()
    if args.command == "record":
        return record(args.out, args.only, args.full_demos)
    return compare(args.before, args.after, args.only, args.renamed)


if __name__ == "__main__":
    sys.exit(main())
