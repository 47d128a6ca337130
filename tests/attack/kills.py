"""A run is killed or told to stop at any time; resumed, it must end as if nothing had been."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

import forked
import runs
from mmrl.testing.attack import Attempt
from processes import gone

RUN_FILE = """
name = "run"
runs_dir = "."
policy = {model = "tiny:qwen2_5_vl:hidden=32,layers=1"}
tasks = [{id = "toy/colour"}]
stages = [
  {kind = "sft", steps = 2, batch_size = 4, learning_rate = 1e-3},
  {kind = "rl", steps = 6, prompts_per_step = 3, group_size = 4, learning_rate = 1e-3, kl_coef = 0.1, epochs = 2},
]
generate = {max_tokens = 6}
evaluate = {num_prompts = 4, every = 3}
record = {rollouts_every = 2, rollouts = 8}
train = {threads = 1}
checkpoint = {every = 2, keep = 2}
"""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGSTOP)
STOPPED = 130
"""The exit code of a run that was asked to stop, by whatever signal."""
MOST_S = 120.0
"""Seconds that a command may take."""


def kills(count: int = 20) -> Iterator[Attempt]:
    """It held if the resumed run has the figures and weights of the undisturbed one, no process is left, and a run that could say
    goodbye ended with 130, as after Ctrl-C."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        _train(Path(folder, "warm"))  # the first one waits until the server of forks has imported what it needs
        start = time.monotonic()
        code, said = _train(Path(folder, "whole"))
        took = time.monotonic() - start
        if code:
            raise RuntimeError(f"the undisturbed run ended with {code}: {said[-300:]}")
        for number in range(count):
            kind, after = SIGNALS[number % len(SIGNALS)], rng.uniform(0.05, 0.95) * took
            name = f"{kind.name} after {after:.2f} s of {took:.1f}"
            yield Attempt(name, _fault(Path(folder, "whole"), Path(folder, str(number)), kind, after))


def _fault(whole: Path, folder: Path, kind: signal.Signals, after: float) -> str:
    code, said = _train(folder, kill=(kind, after))
    if code not in (0, *_codes(kind)):  # 0: the run was over before the signal came
        return f"it ended with {code}: {said[-300:]}"
    if "Traceback" in said:
        return f"it ended with a traceback: {said[-300:]}"
    begun = (folder / "run" / "manifest.json").exists()
    code, said = _train(folder, *(["--resume"] if begun else []))
    if code:
        return f"the resumed run ended with {code}: {said[-300:]}"
    if runs.trajectory(folder / "run") != runs.trajectory(whole / "run"):
        return "the resumed run has other figures"
    one, two = (
        load_file(sorted((path / "run/checkpoints").glob("step-*"))[-1] / "policy/model.safetensors") for path in (whole, folder)
    )
    if one.keys() != two.keys() or not all(torch.equal(one[key], two[key]) for key in one):
        return "the resumed run has other weights"
    beside = [path.name for path in (folder / "run").rglob("*") if ".tmp" in path.name or path.name.endswith(".part")]
    return f"these files are left: {beside}" if beside else ""


def _codes(kind: signal.Signals) -> tuple[int, ...]:
    """How a command may end after a signal: before it listens to signals, by the signal itself."""
    return (-kind,) if kind in (signal.SIGKILL, signal.SIGSTOP) else (STOPPED, -kind)


def _train(folder: Path, *options: str, kill: tuple[signal.Signals, float] | None = None) -> tuple[int, str]:
    """The exit code of a command, and all that it said. A stopped process is killed, and counts as stopped."""
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_text(RUN_FILE)
    env = os.environ | {"MMRL_PLUGIN_FILES": runs.TOY, "MMRL_PLUGINS": ""}
    with open(folder / "said.txt", "w+") as said:
        process = forked.start(
            ["train", "run.toml", "--quiet", *options], cwd=folder, env=env, stdout=said.fileno(), stderr=subprocess.STDOUT
        )
        started: list[int] = []
        if kill:
            time.sleep(kill[1])
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself
                started = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
            process.send_signal(kill[0])
            if kill[0] is signal.SIGSTOP:
                time.sleep(0.5)
                process.kill()
        code = process.wait(MOST_S)
        if kill and kill[0] is signal.SIGSTOP and code == -signal.SIGKILL:
            code = -signal.SIGSTOP
        said.seek(0)
        text = said.read()
    left = [pid for pid in started if not gone(pid, 10)]
    return (code, text) if not left else (99, f"{len(left)} processes are left")
