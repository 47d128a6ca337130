"""Sampling rules of plugins that break their contract: each is named in one line, and nothing is trained on."""

from __future__ import annotations

import pytest

import runs
from mmrl.api.errors import PluginError

RULES = """
from mmrl import SamplingRule, SamplingRuleSpec, hookimpl

@hookimpl
def mmrl_sampling_rules():
    names = ("Phase", "Drops", "Nothing", "Counts", "Good")
    return [SamplingRuleSpec(id=f"odd/{name.lower()}", target=f"odd:{name}") for name in names]

class Phase(SamplingRule):
    phase = "selct"
    def __call__(self, groups, sample): return groups

class Drops(SamplingRule):
    def __call__(self, groups, sample): return groups[1:]

class Nothing(SamplingRule):
    phase = "select"
    def __call__(self, groups, sample): groups.reverse()

class Counts(SamplingRule):
    def __call__(self, groups, sample): return groups
    def counts(self, groups): return {"odd/many": "many"}

class Good(SamplingRule):
    phase, leaves_out = "select", True
    def __call__(self, groups, sample): return groups[1:]
    def counts(self, groups): return {"odd/groups": len(groups)}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "odd.py"
    path.write_text(RULES)
    return path


@pytest.fixture(autouse=True)
def loaded(file, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", f"{runs.TOY}:{file}")


def trained(tmp_path, name):
    rl = {"kind": "rl", "steps": 1, "prompts_per_step": 3, "group_size": 2, "rules": [{"id": f"odd/{name}"}]}
    return runs.run(runs.toy_config(tmp_path, stages=[rl]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("phase", r"sampling rule 'odd/phase': phase = 'selct' is unknown: choose \"score\" or \"select\""),
        ("drops", r'sampling rule Drops left groups out in the phase "score": write `phase = "select"` in its class'),
        ("nothing", r"sampling rule Nothing must return a list of groups, not NoneType: is the `return` missing\?"),
        ("counts", r"sampling rule Counts: counts\(\) must return numbers, and 'odd/many' is 'many'"),
    ],
)
def test_what_breaks_the_contract_is_named(tmp_path, name, message):
    with pytest.raises(PluginError, match=message):
        trained(tmp_path, name)


def test_what_keeps_it_leaves_groups_out_and_reports_its_counts(tmp_path):
    (row,) = [row["metrics"] for row in runs.rows(trained(tmp_path, "good")) if "metrics" in row]
    assert row["odd/groups"] == 3 and row["sampling/filtered_share"] == pytest.approx(1 / 3)
