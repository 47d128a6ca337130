"""All GPU benchmarks within one command's time, in order of worth, on a machine that may have neither mmrl nor a network.

    python3 benchmarks/gpu_all.py [--seconds 540] [--parts self_test step ...] [--out FOLDER] [--resume FOLDER]
        [--bundle .gpu-bundle] [--size full|tiny] [--device cuda|cpu]

Needs torch and transformers. What else mmrl needs and the machine lacks comes from `--bundle`, which `make bench-gpu-bundle`
makes elsewhere. Each part is a process group with a limit of its own; parts that measure no speed run side by side, the others
alone. A part for which less than its limit is left lets later ones go first that fit, and has what is left at last. The folder
(`--out`, else $OUT, else benchmarks-gpu) gets four files as the parts end: `parts.jsonl`, a part's JSON object a line;
`summary.json`, what matters of them; `log.txt`, what the parts wrote to stderr; `profile.txt`, the costliest kernels. SIGTERM or
Ctrl-C stops the part that is running, and what it had found is kept.

Where one command may not take as long as all parts, give the same command with `--resume FOLDER` again: the folder keeps what was
found so far, parts that ended well aren't repeated, and those that didn't come after those that never ran. No part is begun then
that doesn't fit. `--size tiny --device cpu` runs all of it anywhere, with four times the limits. Prints one JSON object,
`summary.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_bundle
from gpu_parts import PARTS, Part

HERE = Path(__file__).parent
GRACE_S, LEAST_S, LINES = 3.0, 15.0, 12
"""Seconds between SIGTERM and SIGKILL; seconds below which no part is begun; last lines of a failed part that are shown."""
FILES = ("parts.jsonl", "summary.json", "log.txt", "profile.txt")
MOST_LOG = 2**20
"""Characters of a part's stderr that are kept: a machine may give back small files alone."""
SLOW = 4
"""How many times its limit a part has on a CPU."""


class Running:
    """A part's process, its output, and the lines that it writes to stderr."""

    def __init__(self, part: Part, command: Sequence[str], limit: float, env: dict[str, str], scratch: Path, log: Path) -> None:
        self.part, self.limit, self.started = part, limit, time.monotonic()
        self.partial, self.output = scratch / f"{part.name}.json", scratch / f"{part.name}.out"
        self.tail: deque[str] = deque(maxlen=LINES)
        with open(self.output, "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-u", str(HERE / command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**env, "MMRL_BENCH_PARTIAL": str(self.partial)},
                start_new_session=True,
            )
        self.reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self.reader.start()

    def _read(self, log: Path) -> None:
        assert self.process.stderr is not None
        room = MOST_LOG
        with self.process.stderr as lines, open(log, "a", buffering=1) as file:
            for line in lines:
                self.tail.append(line.rstrip()[:400])
                if room > 0:  # later lines are read all the same, or the part would wait for ever
                    file.write(f"{self.part.name}: {line.rstrip()[:room]}\n")
                room -= len(line)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def stop(self) -> None:
        """End the whole process group, first kindly."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)

    def result(self, why: str = "") -> dict[str, Any]:
        """What the part has found: its last line, or what it kept, and why it isn't whole."""
        self.stop()  # also children that it left behind
        self.reader.join(1.0)
        found = _last_object(self.output) or _last_object(self.partial)
        code = self.process.returncode
        if not why and code:
            why = f"ended with {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
        state = "ok" if not why and found else "partial" if found else "failed"
        row = {"part": self.part.name, "state": state, "seconds": round(self.seconds, 1)}
        if state != "ok":
            row |= {
                "why": why or "printed no JSON object",
                "last_lines": list(self.tail),
                "whole": _last_object(self.output) is not None,
            }
        return row | ({"result": found} if found else {})


def _last_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file's last line."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
        found = json.loads(lines[-1]) if lines else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _earlier(folder: Path) -> dict[str, dict[str, Any]]:
    """Name of a part -> its last line in a folder's `parts.jsonl`."""
    path = folder / "parts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {row["part"]: row for row in rows}


class Results:
    """The files of the output folder, written anew after each part."""

    def __init__(self, folder: Path, about: dict[str, Any], kept: Path | None = None) -> None:
        """kept: a folder with the files of earlier commands, which these go on with; it gets a copy of them."""
        self.folder, self.about, self.kept, self.rows = folder, about, kept, dict[str, dict[str, Any]]()
        self.started = time.monotonic()
        for place in (folder, kept or folder):
            place.mkdir(parents=True, exist_ok=True)
        for name in FILES if kept != folder else ():
            (folder / name).unlink(missing_ok=True)
            if kept and (kept / name).is_file():
                shutil.copyfile(kept / name, folder / name)
        self.earlier = _earlier(folder)
        """Name of a part -> its line of `parts.jsonl`, of earlier commands."""
        for part in PARTS:
            if part.name in self.earlier:
                self._show(part, self.earlier[part.name])

    def left(self, parts: Sequence[Part]) -> list[Part]:
        """The parts that haven't come to their end, be it a bad one: those that never began, then the others."""
        begun = {name for name, row in self.earlier.items() if row["state"] != "skipped"}
        whole = {name for name, row in self.earlier.items() if row["state"] == "ok" or row.get("whole")}
        return sorted((part for part in parts if part.name not in whole), key=lambda part: part.name in begun)

    def add(self, part: Part, row: dict[str, Any]) -> None:
        with open(self.folder / "parts.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        self._show(part, row)
        self.write()
        print(f"{part.name:10} {json.dumps(self.rows[part.name])[:1000]}", file=sys.stderr)
        for line in row.get("last_lines", ()):
            print(f"    {line}", file=sys.stderr)
        sys.stderr.flush()

    def _show(self, part: Part, row: dict[str, Any]) -> None:
        short = {key: row[key] for key in ("state", "seconds", "why") if key in row}
        self.rows[part.name] = short | part.figures(row.get("result") or {})

    def write(self) -> dict[str, Any]:
        found = {"benchmark": "gpu_all", **self.about, "seconds": round(time.monotonic() - self.started, 1), "parts": self.rows}
        new = self.folder / "summary.json.new"
        new.write_text(json.dumps(found, indent=1) + "\n")
        new.replace(self.folder / "summary.json")
        if self.kept and self.kept != self.folder:
            for name in FILES:
                if (self.folder / name).is_file():
                    shutil.copyfile(self.folder / name, self.kept / name)
        return found


def groups(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts in their order; neighbours that may share the machine are together."""
    made: list[list[Part]] = []
    for part in parts:
        if made and part.shares and made[-1][0].shares:
            made[-1].append(part)
        else:
            made.append([part])
    return made


def run(parts: Sequence[Part], args: argparse.Namespace, env: dict[str, str], results: Results, scratch: Path) -> None:
    """Runs the parts one group after the other within the time. Also on an exception, such as that of a signal, every process
    is ended, and what was found is written."""
    until = results.started + args.seconds
    able = []
    for part in parts:
        if lacks := part.lacks(args.device, env):
            results.add(part, {"part": part.name, "state": "skipped", "why": lacks})
        else:
            able.append(part)
    waiting = groups(able)
    while waiting:
        group = next_group(waiting, until - time.monotonic(), args)
        waiting.remove(group)
        alive: list[Running] = []
        try:
            for part in group:
                left, limit = until - time.monotonic() - GRACE_S, limit_of(part, args)
                if left < (limit if args.resume else LEAST_S):
                    results.add(part, {"part": part.name, "state": "skipped", "why": "no time was left"})
                else:
                    command = part.command(args.size, args.device)
                    alive.append(Running(part, command, min(limit, left), env, scratch, results.folder / "log.txt"))
            while alive:
                for running in list(alive):
                    if running.process.poll() is not None:
                        results.add(running.part, running.result())
                    elif running.seconds > running.limit:
                        results.add(running.part, running.result(f"took more than {running.limit:.0f} s"))
                    else:
                        continue
                    alive.remove(running)
                time.sleep(0.1)
        finally:
            for running in alive:
                results.add(running.part, running.result("was stopped before its end"))


def limit_of(part: Part, args: argparse.Namespace) -> float:
    """Seconds that a part may take."""
    return part.limit * (SLOW if args.device == "cpu" else 1)


def next_group(waiting: Sequence[list[Part]], left: float, args: argparse.Namespace) -> list[Part]:
    """The first group whose limits fit into the seconds that are left; if none does, the first."""
    fits = [group for group in waiting if max(limit_of(part, args) for part in group) <= left - GRACE_S]
    return [*fits, *waiting][0]


def environment(bundle: Path, folder: Path, scratch: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """(variables for the parts, what was brought and what is lacking)."""
    prepared = gpu_bundle.prepare(bundle, scratch / "site")
    path = os.pathsep.join([*prepared.path, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "MMRL_BENCH_PROFILE": str(folder / "profile.txt")}
    env |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    env.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # what a step needs differs from stage to stage
    env.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # each of many processes would start one for each core
    return env, {"brought": prepared.brought, "lacking": prepared.lacking}


def check(env: dict[str, str]) -> None:
    """Exits with a line if mmrl can't be imported, as without a bundle: no part could do anything."""
    done = subprocess.run([sys.executable, "-P", "-c", "import mmrl.config.load"], capture_output=True, text=True, env=env)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"{sys.executable} ended with {done.returncode}"])[-1]
        raise SystemExit(
            f"mmrl can't be imported here, so nothing was run: {why[:300]}: is the bundle there (make bench-gpu-bundle)?"
        )


def stop(number: int, _: Any) -> None:
    """End at the first signal; the second one must not keep the results from being written."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540, help="for all parts together")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="only these, in their usual order")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "benchmarks-gpu"))
    parser.add_argument("--resume", type=Path, help="go on with what is in this folder, which keeps the results")
    parser.add_argument("--bundle", type=Path, default=gpu_bundle.ROOT / gpu_bundle.FOLDER)
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    args = parser.parse_args()
    chosen = [part for part in PARTS if not args.parts or part.name in args.parts]
    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as scratch:
        out = args.out.absolute()
        env, found = environment(args.bundle.absolute(), out, Path(scratch))
        kept = args.resume.absolute() if args.resume else None
        results = Results(out, {"size": args.size, "device": args.device, **found}, kept)
        results.write()
        try:
            check(env)
            run(results.left(chosen), args, env, results, Path(scratch))
        finally:
            print(json.dumps(results.write()), flush=True)
    if any(row["state"] in ("failed", "partial") for row in results.rows.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
