"""Runs on videos: a clip that breaks costs its prompt, the others are decoded once, and the report plays them."""

import json
import sys

import pytest

import footages
import runs
from mmrl.api.media.decoding import Count, clear_cache
from mmrl.ui.report.report import write_report

PLUGIN = """
from pathlib import Path
from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message
from mmrl.api.media.clips import Clip

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="films/what", target="films:Films", verifiers={"films/any": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="films/any", target="films:any_")]

def any_(case):
    return float(len(case.completion) % 2)

class Films(Task):
    def prompts(self, split, seed):
        files = sorted(Path(__file__).parent.glob("*.mp4"))
        return [Prompt(id=file.stem, messages=[user_message("What?", Clip(path=str(file)))], answer="x") for file in files]
"""
COUNT = 12


@pytest.fixture
def films(tmp_path, monkeypatch):
    """Twelve clips, one of which is broken in the middle; makes a configuration."""
    for number in range(COUNT):
        path = footages.write(tmp_path / f"{number:02d}.mp4", footages.frames(20), fps=10, crf="10", g="5")
    data = bytearray(path.read_bytes())
    middle = slice(data.index(b"mdat") + 400, data.index(b"mdat") + 900)
    data[middle] = bytes(255 - b for b in data[middle])
    path.write_bytes(data)
    (tmp_path / "films.py").write_text(PLUGIN)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "films.py"))
    clear_cache()
    yield lambda **stage: runs.toy_config(
        tmp_path / "runs",
        tasks=[{"id": "films/what"}],
        policy={"model": "tiny:qwen2_5_vl:hidden=32,layers=1", "video": {"max_frames": 4}},
        stages=[{"kind": "rl", "steps": 3, "prompts_per_step": 4, "group_size": 4, "learning_rate": 1e-3, **stage}],
        evaluate={"num_prompts": 0},
        record={"rollouts_every": 1, "rollouts": 99, "trackers": []},
    )
    sys.modules.pop("films", None)


def test_a_broken_clip_costs_its_prompt_and_others_are_read_once(films):
    before = Count.files
    folder = runs.run(films())
    errors = [json.loads(line) for line in (folder.path / "errors.jsonl").read_text().splitlines()]
    assert [e["what"].count("11.mp4") for e in errors] == [1] and "left out" in errors[0]["what"]
    rows = [r for f in sorted((folder.path / "rollouts").glob("*.jsonl")) for r in map(json.loads, f.read_text().splitlines())]
    assert len(rows) == 3 * 16 and {r["prompt_id"] for r in rows} <= {f"{n:02d}" for n in range(COUNT - 1)}
    assert Count.files - before <= COUNT, "for the policy, its group and the report"
    page = write_report(folder.path).read_text()
    assert 'class="moving' in page and "data:image/webp" in page and "video is missing" not in page


def test_t_grpo_answers_shuffled_clips_too(films):
    folder = runs.run(films(algorithm="video/t-grpo"))
    metrics = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert len(metrics) == 3
    for m in metrics:
        assert 0 <= m["temporal/ordered"] <= 1 and 0 <= m["temporal/shuffled"] <= 1 and 0 <= m["temporal/paid_share"] <= 1
        assert m["reward/mean"] == pytest.approx(m["reward/films/any"] + m["reward/temporal"])
