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
        return {"figures": found} | ({"aim": self.aim} if self.aim else {}) if found else {}

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


ROOM = ("peak_gpu_memory_mb", "peaks_mb", "weights", "counted_steps", "error")
TRL = {"tiny": "--case adapters --case 112px --steps 1 --threads 1", "full": "--case 112px --case 3b --steps 1 --threads 4"}

PARTS = (
    Part(
        name="self_test",
        limit=200,
        command=_sized("self_test.py", "--seconds 190 --row-seconds 90", "--jobs 2 --seconds 400 --row-seconds 120"),
        keys=("ok", "differs", "error", "skipped", "not run", "device_rates", "worst", "broken"),
        shares=True,
    ),
    Part(
        name="digits",
        limit=100,
        command=_sized("digits_gpu.py", "", "--steps 3 --warm 3"),
        keys=("sft.largest", "rl.largest", "rl.gradient_norm", "rl.first_other_sample", "after_warm_start"),
        aim="losses within 1e-4",
        shares=True,
        needs=("sklearn",),
    ),
    Part(
        name="step",
        limit=140,
        command=_sized("step_gpu.py", "--size 3b --steps 1", "--size tiny"),
        keys=("tokens_per_s", "mfu", "mfu_update", "median_s", "decode_step_s", "logprob_gap", *ROOM),
        aim="10,000 tokens a second on an H200, 7,000 on an H100",
    ),
    Part(
        name="gap",
        limit=150,
        command=_sized("gap_gpu.py", "--size 3b", "--size tiny --prompts 2 --tokens 16"),
        keys=("bfloat16", "invariant", "float16", "float32"),
        aim="mean 5e-3 in bfloat16, 1e-5 in float32; 0 where passes are invariant",
    ),
    Part(
        name="trl",
        limit=220,
        command=_sized("vs_trl.py", TRL["full"], TRL["tiny"]),
        keys=tuple(f"{case}.{key}" for case in ("3b", "adapters", "112px") for key in ("ratio", "median_s", "peak_mb", "error")),
        aim="5 times",
        needs=("trl", "datasets", "accelerate", "pyarrow", "sklearn"),
    ),
    Part(
        name="packing",
        limit=100,
        command=_sized("packing_gpu.py", "--size 3b --runs 2", "--size tiny --runs 1"),
        keys=("cases",),
        aim="as many times as there are fewer tokens",
    ),
    Part(
        name="decode",
        limit=90,
        command=_sized("decode_gpu.py", "--size 3b", "--size tiny"),
        keys=("cases", "peak_gpu_memory_mb", "error"),
        aim="6 ms a token for 64 rows, 11 ms for 320",
    ),
    Part(
        name="vla",
        limit=150,
        command=_sized(
            "vla_gpu.py",
            "--size 7b --steps 1 --episode 10 --no-profile --graphs",
            "--size tiny --environments 4 --episode 2 --steps 1 --pixels 56 --graphs",
        ),
        keys=("steps_per_s", "collect_steps_per_s", "collect_s", "update_s", "policy_idle_share", "logprob_gap", "graphs", *ROOM),
        aim="50 environment steps a second",
    ),
    Part(
        name="plan",
        limit=85,
        command=_sized(
            "plan.py", "--size 3b --checkpointing --prompts 8 --group 5 --tokens 200 --pixels 512 --steps 1", "--steps 1"
        ),
        keys=("memory", "seconds", "step.ratio"),
        aim="memory within 10%, time within 25%",
    ),
    Part(
        name="memory",
        limit=110,
        command=_sized("memory_gpu.py", "", "--size tiny"),
        keys=("cases",),
        aim="within 10% of mmrl plan, 7B over 4 bits within 24 GB",
        needs=("bitsandbytes",),
    ),
    Part(
        name="curves",
        limit=330,
        command=_sized("curves_gpu.py", "", "--steps 3"),
        keys=(*(f"{task}.{key}" for task in ("digits", "grounding", "robot") for key in ("last", "within")), "failed"),
        aim="within the CPU's interval",
        shares=True,
        needs=("sklearn", "scipy"),
    ),
    Part(
        name="attention",
        limit=60,
        command=_sized("attention.py", "--lengths 4096 16384 --runs 3", "--lengths 256 --runs 1"),
        keys=("failure", "rows"),
        aim="no square of the row, and faster",
    ),
    Part(
        name="adapters",
        limit=40,
        command=_sized("adapters_gpu.py", "", "--width 64 --inner 96 --rank 4 --tokens 16 64 --runs 2"),
        keys=("rows",),
        aim="an update's adapters in half of the time",
        needs=("peft",),
    ),
)
