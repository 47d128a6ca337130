"""What `import mmrl` and the light commands cost: no heavy package, and under 0.3 s."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import pytest

from mmrl.testing.cases import mostly_slow

HEAVY = {
    "torch",
    "transformers",
    "vllm",
    "mani_skill",
    "sapien",
    "numpy",
    "PIL",
    "cv2",
    "av",
    "datasets",
    "playwright",
    "pandas",
    "sklearn",
    "scipy",
    "peft",
    "pydantic",
    "math_verify",
    "sympy",
}
LIGHT = [
    "import mmrl",
    "import mmrl.registry.plugins, mmrl.registry.contract, mmrl.registry.importing",
    "import mmrl.testing, mmrl.testing.pytest_plugin, mmrl.ui.cli",
    "import mmrl.run_folder.writer, mmrl.judge, mmrl.api.media.images, mmrl.api.tasks.option_checks",
    "from mmrl.ui.cli import main; main(['--help'], standalone_mode=False)",
    "from mmrl.ui.cli import main; main(['--version'], standalone_mode=False)",
    "from mmrl.ui.cli import main; main(['plugins'], standalone_mode=False)",
    "from mmrl.ui.cli import main; main(['list', '--json'], standalone_mode=False)",
    "import mmrl.ui.cli as c, importlib; [importlib.import_module(f'mmrl.ui.cli.{n}') for n in c.COMMANDS]",
]


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", LIGHT)
def test_nothing_heavy_is_imported(program: str) -> None:
    loaded = json.loads(python(f"{program}\nimport json, sys\nprint()\nprint(json.dumps(sorted(sys.modules)))").splitlines()[-1])
    assert not HEAVY & set(loaded)
    assert "mmrl" in loaded


@pytest.mark.parametrize("args", mostly_slow([["--help"], ["plugins"]], everyday=1))
def test_it_answers_within_a_third_of_a_second(args: list[str]) -> None:
    """On an idle machine in 0.3 s. On a busy one the same work takes longer, so a bare interpreter sets the scale."""
    ours, bare = [], []
    for _ in range(7):
        for command, seconds in (([sys.executable, "-c", "pass"], bare), ([sys.executable, "-m", "mmrl", *args], ours)):
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, timeout=60, check=True)
            seconds.append(time.perf_counter() - start)
    assert statistics.median(ours) < 0.3 or statistics.median(ours) < 12 * statistics.median(bare), (ours, bare)
