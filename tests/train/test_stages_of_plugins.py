"""Kinds of stages that plugins bring: the guide's own example trains, and those that break the contract are named in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import guide
import runs
from mmrl.api.errors import PluginError, UserError
from mmrl.testing.cases import mostly_slow

ODD = """
from mmrl import StageSpec, hookimpl
from mmrl.api.stages import SampledSteps

@hookimpl
def mmrl_stages():
    names = ("Raises", "Short", "Endless", "Text", "Nothing", "Other", "Refuses", "Gold")
    return [StageSpec(id=f"odd/{name.lower()}", target=f"odd:{name}") for name in names]

class Raises(SampledSteps):
    def __call__(self): return {}["gone"]

class Short(SampledSteps):
    def __call__(self): return self.learn(self.sample(), [1.0])

class Endless(SampledSteps):
    def __call__(self):
        sampled = self.sample()
        return self.learn(sampled, [float("inf")] * len(sampled.rollouts))

class Text(SampledSteps):
    def __call__(self): return {"mood": "good"}

class Nothing(SampledSteps):
    def __call__(self): pass

class Other:
    def __init__(self, run, stage): pass

class Refuses(SampledSteps):
    def __init__(self, run, stage, share: float = 0.5) -> None:
        from mmrl import UserError
        super().__init__(run, stage)
        if share > 1: raise UserError(f"share = {share} is above 1: lower it")
    def __call__(self): return {}

class Gold(SampledSteps):
    def __call__(self):
        from mmrl.policies.batches import ones
        rollouts = self.demonstrated(3)
        return self.update(self.pack(rollouts, ones(rollouts)))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    example = re.search(r"in the file `rejection.py`.*?```python\n(.*?)^```", guide.TEXT, re.DOTALL | re.MULTILINE)
    assert example
    folder = tmp_path_factory.mktemp("stages")
    (folder / "rejection.py").write_text(example[1])
    (folder / "odd.py").write_text(ODD)
    return f"{runs.TOY}:{folder}/rejection.py:{folder}/odd.py"


@pytest.fixture(autouse=True)
def loaded(files, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", files)


def trained(tmp_path, kind, **keys) -> Path:
    stage = {"kind": kind, "steps": 2, "prompts_per_step": 3, "group_size": 4, **keys}
    return runs.run(runs.toy_config(tmp_path, stages=[stage])).path


def test_the_guide_s_example_imitates_what_is_good_enough(tmp_path: Path) -> None:
    folder = trained(tmp_path, "rejection/best", options={"above": 0.0})
    rows = [row for line in (folder / "metrics.jsonl").read_text().splitlines() if "metrics" in (row := json.loads(line))]
    assert [row["metrics"]["rejection/imitated"] for row in rows] == [3.0, 3.0]
    assert all(row["metrics"]["grad_norm"] > 0 and row["stage"] == "rejection/best" for row in rows)
    recorded = [json.loads(line) for line in next(folder.glob("rollouts/step-000001*.jsonl")).read_text().splitlines()]
    by_group: dict[int, list[float]] = {}
    for row in recorded:
        by_group.setdefault(row["group"], []).append(row["advantage"])
    assert all(sorted(advantages) == [0, 0, 0, 1] for advantages in by_group.values())


def test_a_step_without_anything_good_leaves_the_weights(tmp_path: Path) -> None:
    folder = trained(tmp_path, "rejection/best", options={"above": 2.0})
    rows = [row for line in (folder / "metrics.jsonl").read_text().splitlines() if "metrics" in (row := json.loads(line))]
    assert [row["metrics"]["rejection/imitated"] for row in rows] == [0.0, 0.0]
    assert all(row["metrics"]["grad_norm"] == 0 for row in rows)


@pytest.mark.slow
def test_it_can_imitate_gold_completions(tmp_path: Path) -> None:
    assert trained(tmp_path, "odd/gold").is_dir()


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    mostly_slow(
        [
            ("odd/raises", {}, "stage 'odd/raises': its step raised KeyError: 'gone'"),
            ("odd/short", {}, r"stage 'odd/short' must give learn\(\) a finite advantage for each of 12 rollouts, not \[1.0\]"),
            ("odd/endless", {}, r"stage 'odd/endless' must give learn\(\) a finite advantage for each of 12 rollouts, not \[inf"),
            ("odd/text", {}, "stage 'odd/text': its step must return a dict of metrics, name -> number, not {'mood': 'good'}"),
            ("odd/nothing", {}, "stage 'odd/nothing': its step must return a dict of metrics, name -> number, not None"),
            ("odd/other", {}, "stage 'odd/other': its target 'odd:Other' gave a Other: subclass mmrl.api.stages.SampledSteps"),
        ],
        everyday=2,
    ),
)
def test_a_broken_one_is_named(tmp_path: Path, kind: str, keys: dict, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        trained(tmp_path, kind, **keys)


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    mostly_slow(
        [
            ("odd/rfuses", {}, "stages.0: no stage 'odd/rfuses'. Did you mean 'odd/refuses'?"),
            ("gone/away", {}, "stages.0: no stage 'gone/away': is the package for 'gone' installed?"),
            ("rejection/best", {"options": {"abov": 1}}, "stage 'rejection/best' has no option 'abov'. Did you mean 'above'?"),
            ("odd/refuses", {"options": {"share": True}}, "stage 'odd/refuses': share = True must be a number"),
            ("odd/refuses", {"options": {"share": 3.0}}, "stage 'odd/refuses': share = 3.0 is above 1: lower it"),
            ("rejection/best", {"batch_size": 3}, r"key 'stages.0.batch_size': it belongs in \[\[stages\]\] of kind 'sft'"),
            (
                "rejection",
                {},
                'needs kind = "sft", .*kind = "preference", kind = "off-policy", kind = "recap", kind = "hg-dagger", or the id',
            ),
            ("toy/colour", {}, "stages.0: no stage 'toy/colour': that is one of the tasks"),
            ("rejection/best", {"options": {"above": "high"}}, "stage 'rejection/best': .*above.*'high'"),
        ],
        everyday=7,
    ),
)
def test_a_wrong_key_is_refused(tmp_path: Path, kind: str, keys: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        trained(tmp_path, kind, **keys)
