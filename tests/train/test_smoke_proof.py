"""What a smoke run proves: each stage's update ran on something, or the run says that it didn't."""

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import runs
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.errors import NoGold
from mmrl.api.sampling import Group
from mmrl.api.types import Prompt, Score
from mmrl.config.sections import RlStage
from mmrl.run_folder.reader import read_run
from mmrl.train.sampling.rules import rules_of
from mmrl.train.sampling.smoke_gold import SmokeGold
from mmrl.train.sampling.smoke_spread import SmokeSpread, needs_spread, with_spread
from mmrl.train.sampling.success_filter import SuccessFilter
from mmrl.train.smoke import smoke
from mmrl.train.smoke_proof import SmokeProof
from mmrl.train.smoke_shows import figures, seen, told, told_shown, unproved


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)


class Weights:
    """A policy of two numbers, and six that never move."""

    def __init__(self):
        self.tensor, self.frozen = torch.zeros(2), torch.ones(2, 3)

    def parameters(self):
        return [("a", self.tensor), ("b", self.frozen)]


def judged(change, stage=None, compares=True, **metrics):
    """The entry of a stage with one step that changes a weight by so much."""
    proof, policy = SmokeProof(), Weights()
    proof.begin(policy)
    policy.tensor[1] += change
    stage = stage or RlStage(kind="rl", steps=1, group_size=4)
    proof.end(1, stage, 3, policy, {"loss": 0.5, "grad_norm": 1.0, "zero_std_share": 0.5, **metrics}, compares)
    return proof.seen[1]


def test_a_step_proves_the_update_if_groups_had_spread_and_weights_moved_by_a_finite_loss():
    found = judged(0.25)
    assert (found["step"], found["moved"], found["moved_share"], found["loss"]) == (3, 0.25, 1 / 8, 0.5) and not unproved([found])
    (line,) = told([found])
    assert line == "stage 1 (rl): the update works: step 3 changed 12.5% of the weights, by at most 2.5e-01 (loss 0.5)"


@pytest.mark.parametrize(
    ("change", "metrics", "why"),
    [
        (0.25, {"zero_std_share": 1.0}, "all completions of a group scored the same, in every group"),
        (0.25, {"loss": math.nan}, "the loss was nan"),
        (0.25, {"grad_norm": 0.0}, "the gradient was 0"),
        (0.0, {}, "no weight moved (the largest change was 0)"),
        (math.nan, {}, "no weight moved (the largest change was nan)"),
    ],
)
def test_a_step_that_lacks_one_of_them_proves_nothing(change, metrics, why):
    found = judged(change, **metrics)
    assert found["step"] is None and found["why"] == why and unproved([found])
    assert told([found]) == [f"stage 1 (rl): no step showed an update: {why}"]


def test_groups_of_one_need_no_spread():
    assert judged(0.25, RlStage(kind="rl", steps=1, group_size=1), zero_std_share=1.0)["step"] == 3


@pytest.mark.parametrize(("compares", "gold", "step"), [(True, 1.0, None), (False, 0.0, None), (False, 1.0, 3)])
def test_gold_completions_are_spread_enough_for_what_compares_no_group(compares, gold, step):
    found = judged(0.25, compares=compares, zero_std_share=1.0, **{"sampling/smoke_gold": gold})
    assert found["step"] == step and (found["why"] == "") == (step is not None)


def test_what_was_changed_is_told_of_how_many():
    found = judged(0.25, **{"sampling/smoke_gold": 9.0, "sampling/smoke_drawn": 4.0, "sampling/smoke_groups": 16.0})
    (said,) = told([found])
    assert "; gold completions took the place of some in 9 of 16 groups, so that" in said
    assert "; 4 of 16 groups got invented rewards, as all completions had scored the same: the task's own" in said


def test_what_one_step_proved_a_later_one_does_not_take_back():
    proof, policy = SmokeProof(), Weights()
    stage = RlStage(kind="rl", steps=2, group_size=1)
    for step, change in ((1, 1.0), (2, 0.0)):
        proof.begin(policy)
        policy.tensor += change
        proof.end(1, stage, step, policy, {"loss": 0.0, "grad_norm": change})
    assert proof.seen[1]["step"] == 1


class Rollout:
    environment_reward = 0.0


def made(values):
    scores, rollouts = [Score(value) for value in values], [Rollout() for _ in values]
    return Group(
        place=("t", 0), number=0, prompt=Prompt(id="a", task="t", messages=[]), inputs=None, rollouts=rollouts, scores=scores
    )


def test_where_nothing_has_spread_every_second_rollout_is_paid_and_it_is_counted():
    groups, rule = [made([0.5, 0.5, 0.5]), made([0.0, 0.0])], SmokeSpread(True)
    rule(groups, None)
    assert [group.rewards for group in groups] == [[0.5, 1.5, 0.5], [0.0, 1.0]]
    assert rule.counts(groups) == {"sampling/smoke_gold": 0.0, "sampling/smoke_drawn": 2.0, "sampling/smoke_groups": 2.0}
    mixed = [made([0.0, 0.0]), made([0.0, 1.0])]
    assert [group.rewards for group in rule(mixed, None)] == [[0.0, 0.0], [0.0, 1.0]], "what has some is left to the rules"


@pytest.mark.parametrize(
    ("keys", "kept"),
    [({}, 3), ({"dynamic_sampling": 1}, 3), ({"oversample": 1.5, "prompts_per_step": 2}, 2), ({"min_success_rate": 0.1}, 2)],
)
def test_rules_that_leave_groups_out_have_some_to_leave_out(keys, kept):
    """Three groups of a random model, which all fail. Those that dynamic sampling asks for are new ones, and paid too."""
    config = RlStage(kind="rl", steps=1, **keys)
    groups, more = [made([0.0, 0.0]) for _ in range(3)], [made([0.0, 1.0])]
    sample = SimpleNamespace(wanted=config.prompts_per_step if "oversample" in keys else 3, more=lambda n: more[:n])
    for rule in with_spread(rules_of(config)[1:], config, load_algorithm("grpo", {})):
        groups = rule(groups, sample)
    assert len(groups) == kept and (more[0] in groups) == ("dynamic_sampling" in keys)
    assert all(group.spread for group in groups), "what is left teaches something"


def test_what_is_paid_counts_as_a_success_where_a_rule_asks_for_one():
    config = RlStage(kind="rl", steps=1, success_threshold=2.5, min_success_rate=0.1, max_success_rate=0.9)
    spread, *others = with_spread(rules_of(config)[1:], config, load_algorithm("grpo", {}))
    group = made([0.0, 0.0])
    assert isinstance(spread, SmokeSpread) and isinstance(others[0], SuccessFilter), "before what leaves groups out"
    assert others[0](spread([group], None), None) == [group] and group.rewards == [0.0, 2.5]


@pytest.mark.parametrize(("name", "needs"), [("grpo", True), ("gdpo", True), ("opd", False)])
def test_what_is_paid_for_each_verifier_needs_spread_too(name, needs):
    assert needs_spread(load_algorithm(name, {})) is needs


def test_groups_of_one_are_told_apart_over_the_step():
    groups = [made([0.0]) for _ in range(3)]
    SmokeSpread(False)(groups, None)
    assert [group.rewards for group in groups] == [[1.0], [0.0], [1.0]]
    differ = [made([0.0]), made([0.3])]
    SmokeSpread(False)(differ, None)
    assert [group.rewards for group in differ] == [[0.0], [0.3]]


@dataclass
class Said:
    """A rollout."""

    text: str
    group: int = 0


class Shows:
    """A run with a task that knows these gold completions, or none."""

    def __init__(self, *gold, simulation=None):
        self.known, self.simulation = gold, simulation
        self.prompts = [Prompt(id=str(n), messages=[]) for n in range(len(gold))]
        self.tasks, self.collector, self.splits = {"t": self}, self, ("train",)
        self.setup = SimpleNamespace(splits=lambda *place: {("t", "train"): self.prompts}[place])

    def gold(self, prompt):
        if self.known[int(prompt.id)] is None:
            raise NoGold("nobody knows")
        return self.known[int(prompt.id)]

    def try_answers(self, prompts, inputs, texts):
        return [Said(text) for text in texts]

    def __call__(self, *sizes, step=0, first=True):
        """What groups of these sizes consist of then; their own completions are s."""
        groups = [
            Group(
                number=n, place=("t", 0), prompt=Prompt(id="0", task="t", messages=[]), inputs=None, rollouts=[Said("s")] * size
            )
            for n, size in enumerate(sizes)
        ]
        SmokeGold(self, RlStage(kind="rl", steps=1))(groups, step, first)
        assert all(("smoke_gold" in g.notes) == any(r.text != "s" for r in g.rollouts) for g in groups)
        return ["".join(r.text for r in g.rollouts) for g in groups]


def test_gold_completions_and_one_of_another_prompt_are_among_those_of_every_second_group():
    run = Shows("g", "g", "o")
    assert run(4, 4, 4) == ["sogg", "ssss", "sogg"]
    assert run(4, 4, 1, 1, step=1) == ["sssg", "ssss", "s", "g"], "in every second step a success is rare"
    assert run(8, 8, 2, first=False) == ["ssoogggg", "ssoogggg", "sg"], "what rules sample has them all"
    assert run(1, 1, 1) == ["s", "g", "s"], "the first group of one stays, as a step with one prompt needs one"
    assert Shows("g", "g")(4) == ["ssgg"] and Shows("g", None)(4) == ["ssgg"], "no other has another answer"
    assert Shows(None)(4) == ["ssss"] and Shows("g", simulation=object())(4) == ["ssss"]


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "reinforce++", "ppo"])
def test_a_smoke_run_shows_the_update_and_says_how(algorithm, tmp_path, toy):
    overrides = ("generate.temperature=0.001",)  # all completions of a prompt are the same
    config = runs.toy_config(tmp_path, overrides=overrides, smoke_shows=["part toy/letters > 0.5", "moved_share < 0"])
    stage = config.stages[1].model_copy(update={"algorithm": algorithm})
    config = config.model_copy(update={"stages": [config.stages[0], stage]})
    folder = runs.run(smoke(config))
    stages = json.loads((folder.path / "summary.json").read_text())["smoke"]
    assert [(found["kind"], found["step"] is not None) for found in stages] == [("sft", True), ("rl", True)]
    assert stages[1]["moved"] > 0 and stages[1]["gold"] > 0 and not stages[1]["drawn"]
    told = told_shown(config.smoke_shows, read_run(folder.path))
    assert told == ["smoke_shows held: part toy/letters > 0.5 (1)", "smoke_shows held in no step: moved_share < 0"]


def test_a_figure_is_shown_by_any_step_stage_or_recorded_rollout():
    metrics = [{"metrics": found} for found in ({"a/b": None, "c": 0.5}, {"a/b": 0.25}, {"a/b": 0.125})]
    run = SimpleNamespace(rollout_files=[], steps=metrics, summary={"smoke": [{"moved_share": 0.125}]})
    found = figures(run)
    said = ("a/b > 0.2", "a/b < 0.2", "a/b > 0.25", "c != 0.5", "d > 0", "moved_share < 0.5")
    assert [seen(each, found).value for each in said] == [0.25, 0.125, None, None, None, 0.125]
    assert told_shown(["c > 0"], run) == ["smoke_shows held: c > 0 (0.5)"] and told_shown([], run) == []
    assert told_shown(["c > 1", "cc > 0"], run) == ["smoke_shows held in no step: c > 1, cc > 0 (no such figure)"]


def test_a_run_that_is_no_smoke_run_mixes_in_nothing(tmp_path, toy):
    folder = runs.run(runs.toy_config(tmp_path))
    assert "smoke" not in json.loads((folder.path / "summary.json").read_text())
    assert "smoke" not in (folder.path / "metrics.jsonl").read_text()


def test_a_smoke_run_without_an_update_exits_with_1_and_one_line(tmp_path, monkeypatch):
    from mmrl.ui.cli import train as command

    monkeypatch.setattr("mmrl.train.smoke_proof._missing", lambda *_: "no group had spread")
    path = tmp_path / "run.toml"
    path.write_text(
        f'name = "x"\nruns_dir = "{tmp_path}"\npolicy = {{ model = "tiny:qwen2_5_vl:hidden=32,layers=1" }}\n'
        'tasks = [{ id = "classification/digits" }]\n'
        'stages = [{ kind = "rl", steps = 1, prompts_per_step = 2, group_size = 2 }]\n'
    )
    done = CliRunner().invoke(command.command, [str(path), "--smoke", "--quiet"])
    assert done.exit_code == 1, done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("mmrl:")]
    assert "x-smoke failed: stage 1 (rl): no step showed an update: no group had spread: see" in line
