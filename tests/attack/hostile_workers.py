"""Verifiers that misuse their process, and lines that a worker shouldn't write."""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from mmrl import Case, VerifierSpec
from mmrl.api.processes import sandbox
from mmrl.compute.crossing import Fault
from mmrl.judge import Isolation, Judge, local_judge
from mmrl.judge.messages import BadReply, Ready, Scores, parse, scored
from mmrl.testing.attack import Attempt
from processes import gone

PLUGIN = Path(__file__).parents[1] / "support" / "hostile_verifiers.py"
NAME = "hostile_verifiers/act"
ACTS = {
    "nothing": "",
    "return": "float('nan')",
    "forge": '["done", 0, 7]',
    "endless_line": "",
    "patch_builtins": "",
    "patch_json": "",
    "chdir": "/",
    "environment": "LEAKED",
    "path": "/leaked",
    "signals": "",
    "alarm": 0.01,
    "hang": "",
    "own_limit": "",
    "leak_descriptors": 1000,
    "start_thread": "",
    "shared_map": 200,
    "lift_limit": 200,
    "hoard": 200,
    "child_hoards": 200,
    "move_progress": "",
    "signal_parent": "SIGTERM",
    "new_space": "",
    "trace": "",
}
RETURNS = [
    *(
        "None",
        "'1'",
        "1j",
        "[1.0]",
        "lambda: 1",
        "10 ** 400",
        "1.5",
        "-0.001",
        "Score(float('nan'))",
        "Score(1.0, {'a': float('inf')})",
    ),
    *(
        "Score(1.0, {str(i): 1.0 for i in range(100_000)})",
        "Score(1.0, {}, 'x' * 10**7)",
        "Score(1.0, {'\\ud800': 1.0}, '\\ud800')",
    ),
    *("Score(1.0, {}, '', (1.0,) * 10**6)", "exit()", "__import__('os')._exit(3)", "__import__('ctypes').string_at(0)", "1 / 0"),
    *(
        "exec('def f(): f()\\nf()')",
        "__import__('os').closerange(0, 256)",
        "__import__('os').abort()",
        "open('/dev/zero').read()",
    ),
]


def hostile_verifiers() -> Iterator[Attempt]:
    """It held if the case has a value in its range or none, the next request is scored, and no process is left."""
    levels: list[Isolation] = ["process"] if sandbox.problem() else ["process", "strict"]
    with _plugin():
        for level in levels:
            for act, needs in [*ACTS.items(), *(("return", text) for text in RETURNS)]:
                others = _children()
                with local_judge({NAME: {}}, timeout_s=1.0, memory_mb=64, isolation=level) as judge:
                    judge.ready()
                    started = _children()
                    fault = _fault(judge, act, needs)
                    started = (started | _children()) - others
                left = [pid for pid in started if not gone(pid)]
                yield Attempt(f"{level}: {act} {needs}"[:80], fault or (f"{len(left)} processes are left" if left else ""))
            yield _daemon(level)


def _fault(judge: Judge, act: str, needs: object) -> str:
    cases = [Case(completion="nothing"), Case(completion=act, answer=needs), Case(completion="nothing")]
    first, middle, last = judge.submit(cases, [{NAME: 1.0}] * 3).result(60)
    if (first.value, last.value) != (1.0, 1.0):
        return f"the cases beside it got {first} and {last}"
    if middle.value is not None and not 0 <= middle.value <= 1:
        return f"it got {middle.value}"
    after = judge.submit([Case(completion="nothing")], [{NAME: 1.0}]).result(60)
    return "" if after[0].value == 1.0 else f"the next request got {after[0]}"


def _daemon(level: Isolation) -> Attempt:
    with tempfile.TemporaryDirectory() as folder:
        path = Path("/dev/shm/pid" if level == "strict" else f"{folder}/pid")
        others = _children()
        with local_judge({NAME: {}}, timeout_s=3.0, isolation=level) as judge:
            judge.run(NAME, [Case(completion="daemon", answer=str(path))])
            started = _children() - others
            if level == "process":
                started.add(int(path.read_text()))
        return Attempt(f"{level}: a daemon", "" if all(gone(pid) for pid in started) else "a process is left")


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def forged_replies(count: int = 2000) -> Iterator[Attempt]:
    """Changed lines: parsed as what was asked for or refused, and every score in its range."""
    rng = random.Random(0)
    spec = VerifierSpec(id="a/b", target="a:b")
    honest = [["ready"], ["fault", ["UserError", "text", "", {}]], ["scores", 3, [[1.0, {"a": 0.5}, "", []]]]]
    honest.append(["done", 3, [[0.5, {}, "x", []], [None, {}, "why", []]], True])
    for number in range(count):
        line = _changed(rng, json.dumps(rng.choice(honest)).encode())
        loading = rng.random() < 0.3
        fault = ""
        try:
            reply = parse(line, loading, 3, 2)
            if isinstance(reply, Scores):
                values = [scored(row, spec, b"").value for row in reply.rows]
                fault = "" if all(v is None or 0 <= v <= 1 + 1e-6 for v in values) and len(values) <= 2 else f"scores of {values}"
            elif not loading or not isinstance(reply, Ready | Fault):
                fault = f"it was taken for {reply}"
        except BadReply:
            pass
        except Exception as error:  # the judge would end
            fault = f"{type(error).__name__}: {error}"
        yield Attempt(f"line {number}: {line[:60]!r}", fault)


ODD = [
    b"NaN",
    b"Infinity",
    b"-1",
    b"1e999",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b'"\\ud800"',
    b"9" * 400,
    b"[" * 2000,
    b"\xff",
    b"\0",
    b",",
]


def _changed(rng: random.Random, line: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(line) + 1)
        end = min(len(line), start + rng.choice((0, 0, 1, 2, 5, 20)))
        line = line[:start] + rng.choice([*ODD, line[start:end], bytes([rng.randrange(256)])]) + line[end:]
    return line


@contextlib.contextmanager
def _plugin() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in ("MMRL_PLUGINS", "MMRL_PLUGIN_FILES")}
    os.environ |= {"MMRL_PLUGINS": "", "MMRL_PLUGIN_FILES": str(PLUGIN)}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
