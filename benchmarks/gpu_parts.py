"""The parts of `gpu_all.py` in order of worth: their commands, limits and figures. Not a benchmark itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One benchmark."""

    name: str
    limit: float
    """Seconds that it may take."""
    command: Callable[[str, str], list[str]]
    """(size, device) -> file and arguments."""
    keys: tuple[str, ...]
    """Figures that the summary shows; a dot leads into a table."""
    aim: str = ""
    shares: bool = False
    """It measures no speed, so it may run beside its neighbours that don't either."""
    needs: tuple[str, ...] = ()
    """Modules without which it is left out."""

    def figures(self, result: Mapping[str, Any]) -> Row:
        """What the summary shows of a result."""
        found = {key: value for key in self.keys if (value := _at(result, key)) is not None}
        return found | ({"aim": self.aim} if found and self.aim else {})

    def lacks(self, device: str, env: Mapping[str, str]) -> str:
        """Why it can't run here; empty if it can."""
        code = "import importlib.util, sys; print(*(m for m in sys.argv[1:] if not importlib.util.find_spec(m)), sep=', ')"
        done = subprocess.run([sys.executable, "-c", code, *self.needs], capture_output=True, text=True, env=dict(env))
        missing = done.stdout.strip()
        return f"needs {missing}" if missing else ""


def _at(result: Any, key: str) -> Any:
    for name in key.split("."):
        if not isinstance(result, Mapping):
            return None
        result = result.get(name)
    return result


def _sized(file: str, full: str, tiny: str) -> Callable[[str, str], list[str]]:
    """A command with other arguments for each size."""
    return lambda size, device: [file, *(tiny if size == "tiny" else full).split(), "--device", device]


PARTS = (
    Part("self_test", 130, _sized("self_test.py", "", "--jobs 2"), ("ok", "differs", "error", "skipped", "worst", "broken"), shares=True),
    Part(
        "digits", 90, _sized("digits_gpu.py", "", "--steps 3"), ("sft.largest", "rl.largest", "rl.first_other_sample"),
        "at most 1e-4 each", shares=True, needs=("sklearn",),
    ),
    Part(
        "step", 150, _sized("step_gpu.py", "--size 3b --steps 2", "--size tiny"),
        ("tokens_per_s", "mfu", "mfu_update", "median_s", "peak_gpu_memory_mb", "peaks_mb", "logprob_gap", "weights", "error"),
        "10,000 tokens a second on an H200, 7,000 on an H100",
    ),
    Part(
        "trl", 110,
        lambda size, device: [
            "vs_trl.py", "--device", device,
            *(["--case", "112px", "--steps", "1"] if size == "tiny" else ["--case", "3b", "--case", "112px", "--steps", "2"]),
        ],
        ("3b.ratio", "3b.median_s", "3b.peak_mb", "112px.ratio", "112px.median_s", "error"),
        "5 times", needs=("trl", "datasets", "accelerate", "pyarrow"),
    ),
    Part(
        "packing", 80, _sized("packing_gpu.py", "--size 3b --runs 2", "--size tiny --runs 1"), ("cases",),
        "as many times as there are fewer tokens",
    ),
    Part("gap", 70, _sized("gap_gpu.py", "--size 3b", "--size tiny"), ("bfloat16", "float32"), "mean 5e-3 in bfloat16, 1e-5 in float32"),
    Part(
        "vla", 120, _sized("vla_gpu.py", "--size 7b --steps 2 --episode 10", "--size tiny --environments 4 --episode 2 --steps 1"),
        ("steps_per_s", "collect_steps_per_s", "collect_s", "update_s", "peak_gpu_memory_mb", "logprob_gap", "weights", "error"),
        "50 environment steps a second",
    ),
    Part(
        "plan", 60,
        _sized("plan.py", "--size 3b --checkpointing --prompts 8 --group 5 --tokens 200 --pixels 512 --steps 1", "--steps 1"),
        ("memory", "seconds", "step.ratio"), "memory within 10%, time within 25%",
    ),
    Part(
        "curves", 300, _sized("curves_gpu.py", "", "--steps 2"), ("digits", "grounding", "robot"),
        "within the CPU's interval", shares=True, needs=("sklearn", "scipy"),
    ),
)  # fmt: skip
