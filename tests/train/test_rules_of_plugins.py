"""Sampling rules of plugins that break their contract: each is named in one line, and nothing is trained on."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch

import runs
from mmrl import Prompt, SamplingRule, Score
from mmrl.api.errors import PluginError, UserError
from mmrl.api.sampling import Group
from mmrl.config.sections import RlStage
from mmrl.registry import plugins
from mmrl.train.remarks import remarks
from mmrl.train.resolve import resolve
from mmrl.train.sampling.guard import applied, counted, credited
from mmrl.train.sampling.rule_states import load_states, save_states, states_of
from mmrl.train.sampling.rules import check_plugin_rules
from mmrl.train.smoke import smoke

RULES = """
from mmrl import SamplingRule, SamplingRuleSpec, UserError, hookimpl

@hookimpl
def mmrl_sampling_rules():
    names = ("Phase", "Drops", "Nothing", "Counts", "Good", "Taken", "Asks", "Many", "None_", "Refuses", "Lacks", "Pays")
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
    def __init__(self, bonus=1.0): pass
    def __call__(self, groups, sample): return groups
    def counts(self, groups): return {"odd/many": "many"}

class Taken(SamplingRule):
    def __call__(self, groups, sample): return groups
    def counts(self, groups): return {"reward/mean": 99.0}

class Asks(SamplingRule):
    def __call__(self, groups, sample): return groups + sample.more(1)

class Many(SamplingRule):
    oversample = -3
    def __call__(self, groups, sample): return groups

class None_(SamplingRule):
    groups_per_prompt = 0
    def __call__(self, groups, sample): return groups

class Refuses(SamplingRule):
    def __call__(self, groups, sample): return groups
    def check(self, verifiers): return verifiers["gone"]

class Lacks(SamplingRule):
    def __call__(self, groups, sample): return groups
    def check_tasks(self, tasks): raise UserError(f"judge is none of {', '.join(tasks)}")

class Pays(SamplingRule):
    def __init__(self, bonus=1.0): pass
    def __call__(self, groups, sample): return groups

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
        ("nothing", r"sampling rule Nothing must return a list of mmrl.api.sampling.Group, not None: is the `return` missing\?"),
        ("counts", r"sampling rule Counts: counts\(\) must return numbers by names, and 'odd/many' is 'many'"),
        ("taken", r"counts\(\) of a sampling rule gives 'reward/mean', which is a metric of mmrl: choose another name"),
        ("asks", r'sample.more\(\) is for the phase "select": write `phase = "select"` in the rule'),
        ("many", r"stages.0.rules.0: sampling rule 'odd/many': oversample = -3 must be a number from 1 to 1000"),
        ("none_", r"sampling rule 'odd/none_': groups_per_prompt = 0 must be a whole number of at least 1"),
        ("refuses", r"stages.0.rules.0: sampling rule 'odd/refuses': check\(\) raised TypeError"),
    ],
)
def test_what_breaks_the_contract_is_named(tmp_path, name, message):
    with pytest.raises(PluginError, match=message):
        trained(tmp_path, name)


def test_a_task_that_a_rule_lacks_is_told_before_the_run(tmp_path):
    with pytest.raises(UserError, match=r"stages.0.rules.0: judge is none of toy/"):
        trained(tmp_path, "lacks")


@pytest.mark.parametrize(
    ("first", "again", "refused"),
    [
        (("pays", {}), ("pays", {}), True),
        (("pays", {}), ("pays", {"bonus": 2.0}), False),  # two bonuses
        (("counts", {}), ("counts", {"bonus": 2.0}), True),  # whose metrics have the same names
        (("pays", {}), ("counts", {}), False),
    ],
)
def test_a_rule_that_is_there_twice_is_told_with_both_places(first, again, refused):
    rules = [{"id": f"odd/{name}", "options": options} for name, options in (first, ("good", {}), again)]
    stage = RlStage(kind="rl", steps=1, rules=rules)
    told = pytest.raises(UserError) if refused else contextlib.nullcontext()
    with told as error:
        check_plugin_rules("stages.3", stage, {}, {})
    if refused:
        twice = f"'odd/{again[0]}' is there twice, here and as stages.3.rules.0: drop one of them"
        assert str(error.value) == f"stages.3.rules.2: {twice}"


@pytest.mark.parametrize(
    ("reaches", "limits", "told"),
    [
        (64, {}, None),
        (65, {}, "generate.max_tokens = 64"),
        (65, {"max_tokens": 65}, None),
        (64, {"max_tokens": 63}, "stages.0.max_tokens = 63"),
        (0, {"max_tokens": 1}, None),
    ],
)
def test_a_rule_that_lets_answers_go_on_beyond_the_limit_is_told_before_the_run(reaches, limits, told, tmp_path, monkeypatch):
    rules = [{"id": "odd/pays"}, {"id": "odd/good"}]
    config = runs.toy_config(
        tmp_path,
        stages=[{"kind": "rl", "steps": 1, "rules": rules, **limits}],
        generate={"max_tokens": 64 + ("max_tokens" in limits)},
    )
    setup = resolve(config)
    kind = type(plugins.registry().make_sampling_rule("odd/good", {}))
    monkeypatch.setattr(kind, "longest_continued", reaches)
    found = [said for said in remarks(setup) if "go on" in said]
    begins = f"stages.0.rules.1: answers may go on to {reaches} tokens, but penalties of length count with {told}"
    assert [said.startswith(begins) for said in found] == [True] * bool(told)
    assert not any("go on" in said for said in remarks(resolve(smoke(config)))), "a smoke run lowers the limit itself"


def test_what_keeps_it_leaves_groups_out_and_reports_its_counts(tmp_path):
    (row,) = [row["metrics"] for row in runs.rows(trained(tmp_path, "good")) if "metrics" in row]
    assert row["odd/groups"] == 3 and row["sampling/filtered_share"] == pytest.approx(1 / 3)


def group(number=0):
    scores = [Score(0.5), Score(0.5)]
    return Group(
        place=("t", number), number=number, prompt=Prompt(messages=[]), inputs=None, rollouts=[None, None], scores=scores
    )


def rule(call, **others):
    return type("Odd", (SamplingRule,), {"__call__": lambda self, groups, sample: call(groups), **others})()


def emptied(groups):
    groups[0].rollouts = groups[0].scores = []
    return groups


def unscored(groups):
    groups[1].scores = groups[1].scores[:1]
    return groups


def renumbered(groups):
    groups[0].number = 7
    return groups


def paying(*amounts):
    def call(groups):
        groups[0].pay("brief", amounts)
        return groups

    return call


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda groups: groups[0].notes["speed"], "sampling rule Odd raised KeyError: 'speed'"),
        (lambda groups: [1, 2], r"sampling rule Odd must return a list of mmrl.api.sampling.Group, not \[1, 2\]"),
        (emptied, "sampling rule Odd returned a group with 0 rollouts and 0 scores: there must be one score for each rollout"),
        (unscored, "sampling rule Odd returned a group with 2 rollouts and 1 scores"),
        (renumbered, "sampling rule Odd changed the number of a group"),
        (paying(math.nan, 0.0), "sampling rule Odd raised ValueError: 'brief' of a score must be a finite number, not nan"),
        (paying("much", 0.0), "sampling rule Odd raised ValueError: 'brief' of a score must be a finite number, not 'much'"),
        (paying(1.0), "sampling rule Odd raised ValueError"),
    ],
)
def test_a_rule_that_breaks_a_group_is_named(call, message):
    with pytest.raises(PluginError, match=message):
        applied(rule(call), [group(0), group(1)], None)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda self, groups: None, r"sampling rule Odd: counts\(\) raised TypeError"),
        (lambda self, groups: {3: 4.0}, r"sampling rule Odd: counts\(\) must return numbers by names, and 3 is 4.0"),
        (lambda self, groups: {"a": 1}, r"sampling rule Odd: counts\(\) gives 'a', which is another metric"),
    ],
)
def test_counts_that_are_none_are_named(method, message):
    with pytest.raises(PluginError, match=message):
        counted(rule(list, counts=method), [group()], known={"a"})


def test_credit_is_finite_or_left_out():
    def fill(value):
        return rule(list, credit=lambda self, groups, advantages: advantages.fill_(value))

    credited(fill(math.nan), [group()], torch.ones(2))
    with pytest.raises(PluginError, match=r"sampling rule Odd: credit\(\) made an advantage infinite"):
        credited(fill(math.inf), [group()], torch.ones(2))
    with pytest.raises(PluginError, match=r"sampling rule Odd: credit\(\) raised TypeError"):
        credited(fill("x"), [group()], torch.ones(2))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda self: self.gone, r"sampling rule Odd: state\(\) raised AttributeError: .*'gone'"),
        (lambda self: None, r"sampling rule Odd: state\(\) raised TypeError"),
        (lambda self: {"seen": 3}, r"sampling rule Odd: state\(\) must return tensors by names, not 'seen': int"),
        (lambda self: {3: torch.ones(1)}, r"sampling rule Odd: state\(\) must return tensors by names, not 3: Tensor"),
        (lambda self: {"a": torch.ones(2, device="meta")}, r"no checkpoint holds 'a' of state\(\) \(torch.float32, .* on meta\)"),
        (lambda self: {"a": torch.eye(2).to_sparse()}, r"no checkpoint holds 'a' of state\(\) \(torch.float32, torch.sparse_coo"),
        (lambda self: {"a": torch.ones(2, dtype=torch.complex128)}, r"no checkpoint holds 'a' of state\(\) \(torch.complex128"),
    ],
)
def test_a_state_that_no_checkpoint_holds_is_named_at_once(state, message):
    with pytest.raises(PluginError, match=message):
        states_of([rule(list, state=state)])


def test_a_state_goes_through_a_checkpoint_however_its_tensors_lie(tmp_path):
    """Several may share memory. A rule that can't go on from it is named."""
    whole, found = torch.arange(6.0).reshape(2, 3), {}
    state = {"a": whole, "b": whole[1], "c": whole.T, "d": torch.ones(1).expand(4), "e": torch.nn.Parameter(torch.ones(2))}
    kept = states_of([rule(list, state=lambda self: state)])
    whole += 1
    save_states(kept, tmp_path)
    load_states([rule(list, load_state=lambda self, tensors: found.update(tensors))], tmp_path)
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and torch.equal(found["c"], found["a"].T)
    assert found["b"].tolist() == [3, 4, 5] and found["d"].tolist() == [1] * 4 and found["e"].tolist() == [1, 1]
    with pytest.raises(PluginError, match=r"sampling rule Odd: load_state\(\) raised KeyError: 'older'"):
        load_states([rule(list, load_state=lambda self, tensors: tensors["older"])], tmp_path)
