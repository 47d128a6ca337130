"""Tasks that act as environments of LeRobot, played by LeRobot's own programs in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[3] / ".peers" / "lerobot" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"LeRobot is not installed in {PYTHON.parents[1]}: make peers"),
]
PROGRAM = Path(__file__).parent / "programs" / "lerobot_plays.py"
OWN = {"MMRL_PLUGINS": "robotics,tabletop,interop", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def played(what, folder):
    done = subprocess.run(
        [PYTHON, PROGRAM, what, folder], capture_output=True, text=True, timeout=280, env={**os.environ, **OWN}, cwd=folder
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_lerobot_eval_runs_an_untrained_policy(tmp_path):
    found = played("command", tmp_path)
    [group] = found["per_task"]
    assert group["task_group"] == "robotics-pick" and len(group["metrics"]["successes"]) == 3
    assert found["overall"]["n_episodes"] == 3 and 0 <= found["overall"]["pc_success"] <= 100
    videos = [Path(path) for path in group["metrics"]["video_paths"]]
    assert len(videos) == 4 and all(path.stat().st_size > 500 for path in videos)


def test_the_expert_succeeds_in_a_file_of_envhub(tmp_path):
    four, two = played("hub", tmp_path)
    assert four["suite"] == "robotics-pick" and four["success"] == [True] * 4 and two["success"] == [True] * 2
    assert four["rewards"] == pytest.approx([1.0] * 4, abs=1e-5)
    assert four["shapes"] == {
        "observation.images.front": [4, 3, 32, 32],
        "observation.images.wrist": [4, 3, 32, 32],
        "observation.state": [4, four["shapes"]["observation.state"][1]],
    }
    assert all(four["tasks"]) and [four["tasks"][2], four["tasks"][0]] == two["tasks"], "a seed is a start, in any batch"
    assert [four["ends"][2], four["ends"][0]] == two["ends"]
