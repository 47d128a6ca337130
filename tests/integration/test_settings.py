"""Every setting of a run file does what its line in docs/run-files.md says."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import mmrl.rollout.turns
import mmrl.train.run
import mmrl.train.stages.distill
import mmrl.train.stages.rl
import mmrl.train.stages.sft
import mmrl.train.start
import mmrl.train.update.pack_conversations
import runs
from mmrl.algorithms.advantage import group_relative
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Score
from mmrl.config.load import parse_config
from mmrl.evaluation.evaluator import Evaluator
from mmrl.evaluation.results import Evaluation
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.run_folder.writer import RunFolder
from mmrl.testing.cases import mostly_slow
from mmrl.train.resolve import resolve
from mmrl.train.run import Run
from mmrl.train.sampling.groups import Group
from mmrl.train.smoke import smoke
from mmrl.train.start import evaluate_only, load_policy
from mmrl.train.update.learner import Learner
from mmrl.train.update.optimizer import Optimizer
from mmrl.ui.cli import main

MORE = """
from mmrl import AlgorithmSpec, Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="shapes/shape", target="shapes:Shape", verifiers={"shapes/length": 0.5, "shapes/vowels": 2.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="shapes/length", target="shapes:length"), VerifierSpec(id="shapes/vowels", target="shapes:vowels")]

@hookimpl
def mmrl_algorithms():
    return [AlgorithmSpec(id="shapes/plain", target="mmrl.algorithms.advantage:group_relative", options={"scale": "batch"},
                          loss="shapes:loss", normalise="constant", constant=2.5)]

class Shape(Task):
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{seed}-{i}", messages=[user_message(f"shape {i}")], answer=f"circle {i}") for i in range(40)]

def length(case):
    return len(case.completion) / (10 + len(case.completion))

def vowels(case):
    return sum(c in "aeiou" for c in case.completion) / (1 + len(case.completion))

def loss(inputs):
    return -inputs.logprobs_L * inputs.advantages_L, 0 * inputs.logprobs_L
"""
RL = {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-3}
SFT = {"kind": "sft", "steps": 2, "batch_size": 4, "learning_rate": 1e-3}
NOTHING = {"num_prompts": 0}


@pytest.fixture(scope="module")
def more_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "shapes.py"
    path.write_text(MORE)
    return path


@pytest.fixture
def more(more_file, monkeypatch):
    """A second plugin: a task with two verifiers, and an algorithm."""
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, str(more_file)]))


@pytest.fixture
def learners(monkeypatch):
    """The learner of each stage that was prepared."""
    made = []

    class Kept(Learner):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    for kind in (mmrl.train.stages.sft, mmrl.train.stages.rl, mmrl.train.stages.distill):
        monkeypatch.setattr(kind, "Learner", Kept)
    return made


@pytest.fixture
def packed(monkeypatch):
    """The arguments with which each step was packed."""
    calls, pack = [], mmrl.train.update.pack_conversations.pack

    def keep(rollouts, credit, policy, **options):
        calls.append(SimpleNamespace(rollouts=rollouts, advantages=credit.advantages.tolist(), **options))
        return pack(rollouts, credit, policy, **options)

    monkeypatch.setattr(mmrl.train.update.pack_conversations, "pack", keep)
    return calls


def recorded(folder):
    """Step -> its recorded rollouts."""
    return {
        int(f.stem[5:]): [json.loads(line) for line in f.read_text().splitlines()]
        for f in sorted((folder.path / "rollouts").glob("*.jsonl"))
    }


def metric(folder, key):
    return [r["metrics"][key] for r in runs.rows(folder) if "metrics" in r and key in r["metrics"]]


def steps(folder):
    return [int(p.name[5:]) for p in folder.checkpoints()]


# -- tasks --------------------------------------------------------------------------------------------------------------


def test_tasks_come_by_weight_and_each_is_paid_by_its_own_verifiers(tmp_path, more, packed):
    tasks = [{"id": "toy/colour", "weight": 1.0}, {"id": "shapes/shape", "weight": 4.0}]
    record = {"rollouts_every": 1, "rollouts": 999}
    stage = {**RL, "steps": 5, "prompts_per_step": 8, "group_size": 2}
    folder = runs.run(runs.toy_config(tmp_path, tasks=tasks, stages=[stage], evaluate=NOTHING, record=record))
    rows = [row for step in recorded(folder).values() for row in step]
    assert len(rows) == 80
    shapes = [r for r in rows if r["task"] == "shapes/shape"]
    assert 52 <= len(shapes) <= 76, "64 of 80 on average"
    for row in rows:
        parts, value = row["score"]["parts"], row["score"]["value"]
        if row["task"] == "shapes/shape":
            assert value == pytest.approx(0.5 * parts["shapes/length"] + 2.0 * parts["shapes/vowels"])
        else:
            assert parts == {"toy/letters": value}
    assert {r.prompt.id[: len("train")] for call in packed for r in call.rollouts} == {"train"}
    assert {r.turns[0].policy_version for r in packed[3].rollouts} == {3}, "the sampling weights had seen three updates"


def test_verifiers_of_the_run_file_replace_the_tasks_own(tmp_path, more):
    task = {"id": "shapes/shape", "verifiers": {"toy/letters": 0.25, "shapes/vowels": -1.0}}
    folder = runs.run(runs.toy_config(tmp_path, tasks=[task], stages=[RL], evaluate=NOTHING))
    for row in recorded(folder)[1]:
        parts = row["score"]["parts"]
        assert set(parts) == {"toy/letters", "shapes/vowels"}
        assert row["score"]["value"] == pytest.approx(0.25 * parts["toy/letters"] - parts["shapes/vowels"])


def test_a_stage_takes_its_split_its_order_and_the_runs_seed(tmp_path, more):
    stage = {**RL, "steps": 1, "prompts_per_step": 6, "group_size": 2}
    folder = runs.run(
        runs.toy_config(
            tmp_path,
            overrides=("seed=5",),
            tasks=[{"id": "shapes/shape"}],
            stages=[stage, stage, {**stage, "split": "test"}],
            evaluate=NOTHING,
            record={"rollouts": 12},
        )
    )
    one, two, three = ([r["prompt_id"] for r in rows[::2]] for rows in recorded(folder).values())
    assert {i.rsplit("-", 1)[0] for i in one + two} == {"train-5"} and {i.rsplit("-", 1)[0] for i in three} == {"test-5"}
    assert one != two, "each stage draws an order of its own"


def test_demonstrations_are_the_gold_of_their_own_prompts(tmp_path, packed, learners):
    runs.run(runs.toy_config(tmp_path, stages=[{**SFT, "steps": 1, "batch_size": 16}], evaluate=NOTHING))
    (call,) = packed
    assert [r.completion for r in call.rollouts] == [r.prompt.answer for r in call.rollouts]
    assert len({r.prompt.answer for r in call.rollouts}) == 4 and len({r.group for r in call.rollouts}) == 16
    assert call.advantages == [1.0] * 16
    end = learners[0].policy.end_id
    assert all(r.turns[0].token_ids[-1] == end and end not in r.turns[0].token_ids[:-1] for r in call.rollouts)


# -- stages -------------------------------------------------------------------------------------------------------------


def test_each_stage_has_its_own_schedule(tmp_path):
    slow = {**RL, "steps": 4, "schedule": "linear", "warmup_steps": 2}
    folder = runs.run(runs.toy_config(tmp_path, stages=[SFT, slow, slow], evaluate=NOTHING))
    assert metric(folder, "learning_rate") == pytest.approx([1e-3, 1e-3, *[5e-4, 1e-3, 1e-3, 5e-4] * 2])


def test_the_algorithm_brings_advantage_loss_and_average_and_a_stage_changes_its_settings(tmp_path, more, learners):
    own = {**RL, "algorithm": "shapes/plain", "steps": 1}
    changed = [{"scale": "none", "normalise": "sequence"}, {"constant": 4.0}]
    stages = [{**RL, "steps": 1}, own, *({**own, "settings": settings} for settings in changed)]
    folder = runs.run(runs.toy_config(tmp_path, stages=stages, evaluate=NOTHING))
    assert [made.normalise for made in learners] == ["sequence", "constant", "sequence", "constant"]
    assert [made.loss.func.__name__ for made in learners] == ["clipped_surrogate", *["loss"] * 3]
    assert [made.constant for made in learners] == [6.0, 2.5, 2.5, 4.0], "generate.max_tokens, unless it says its own"
    groups = torch.tensor([0] * 4 + [1] * 4)
    for (step, rows), scale in zip(recorded(folder).items(), ("group", "batch", "none", "batch"), strict=True):
        rewards = torch.tensor([r["score"]["value"] for r in rows], dtype=torch.float64)
        expected = group_relative(rewards, groups, scale=scale).tolist()
        assert [r["advantage"] for r in rows] == pytest.approx(expected, abs=1e-6), step


def test_a_stage_hands_its_numbers_to_its_learner(tmp_path, learners):
    numbers = {
        "epochs": 2,
        "weight_decay": 0.5,
        "max_grad_norm": 0.25,
        "kl_coef": 0.1,
        "settings": {"clip_low": 0.1, "clip_high": 0.3},
    }
    runs.run(
        runs.toy_config(
            tmp_path,
            stages=[SFT, {**RL, **numbers}, RL],
            evaluate=NOTHING,
            generate={"max_tokens": 6, "temperature": 0.7},
            limits={"logprob_gap": 0.05},
        )
    )
    sft, full, plain = learners
    assert (sft.temperature, sft.normalise, sft.rl, sft.reference, sft.gap_limit) == (1.0, "token", None, None, torch.inf)
    assert (full.loss.keywords, full.rl.epochs, full.rl.kl_coef) == ({"clip_low": 0.1, "clip_high": 0.3}, 2, 0.1)
    assert (full.gap_limit, full.temperature, full.stage.max_grad_norm) == (0.05, 0.7, 0.25)
    assert full.reference is not None and full.optimizer.rule.param_groups[0]["weight_decay"] == 0.5
    assert plain.reference is None and plain.loss.keywords == {"clip_low": 0.2, "clip_high": 0.2} and plain.rl.epochs == 1
    assert plain.optimizer.rule.param_groups[0]["weight_decay"] == 0.0
    reference = full.reference.state()
    assert any(not torch.equal(p, reference[name]) for name, p in full.policy.parameters())


@pytest.mark.parametrize(("limits", "stop"), [({}, 0.1), ({"logprob_gap": {"warn": 0.01}}, torch.inf)])
def test_the_gap_between_sampler_and_learner_stops_where_the_limits_say(tmp_path, learners, limits, stop):
    runs.run(runs.toy_config(tmp_path, stages=[{**RL, "steps": 1}], evaluate=NOTHING, limits=limits))
    assert learners[0].gap_limit == stop


# -- generate and train -------------------------------------------------------------------------------------------------


def test_sampling_follows_the_run_file_and_every_step_has_a_seed_of_its_own(tmp_path, monkeypatch):
    asked, generate = [], LocalGenerator.generate

    def keep(self, inputs, group_size, sampling, numbers=()):
        asked.append((self.batch_size, len(inputs), group_size, sampling.max_tokens, sampling.temperature, sampling.seed))
        return generate(self, inputs, group_size, sampling, numbers)

    monkeypatch.setattr(LocalGenerator, "generate", keep)
    settings = {"max_tokens": 5, "temperature": 0.7, "batch_size": 9}
    folder = runs.run(
        runs.toy_config(tmp_path, overrides=("seed=3",), stages=[RL, {**RL, "steps": 1}], evaluate=NOTHING, generate=settings)
    )
    assert asked == [(9, 2, 4, 5, 0.7, derive(3, "sample", step)) for step in range(3)]
    assert max(metric(folder, "logprob_gap")) < 1e-5, "the learner divides by the same temperature"
    assert max(metric(folder, "length/max")) <= 5


@pytest.mark.parametrize(
    ("train", "stage", "expected"),
    [
        ({}, {}, (True, 16384, False)),
        ({"packing": "per-completion", "micro_batch_tokens": 77}, {}, (False, 77, False)),
        ({"packing": "shared-prefix"}, {"kl_coef": 0.1}, (True, 16384, True)),
    ],
)
def test_packing_follows_the_run_file(tmp_path, packed, train, stage, expected):
    runs.run(runs.toy_config(tmp_path, stages=[{**RL, "steps": 1, **stage}], evaluate=NOTHING, train=train))
    assert [(c.shared_prefix, c.budget, c.keep_zero) for c in packed] == [expected]


def test_threads(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        runs.run(runs.toy_config(tmp_path, stages=[{**SFT, "steps": 1}], evaluate=NOTHING, train={"threads": 1}))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def weights(policy):
    return torch.cat([p.detach().flatten() for _, p in policy.parameters()])


def test_the_seed_fixes_the_first_weights(tmp_path):
    a, b, c = (weights(load_policy(resolve(runs.toy_config(tmp_path, overrides=(f"seed={seed}",))), None)) for seed in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)


# -- evaluate and checkpoint --------------------------------------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch, more):
    """Evaluations of two tasks with figures from a list; their means are 0.5, 0.45, 0.625, 0.625 and 0.5."""
    figures = iter([0.5, 0.5, 0.9, 0.0, 0.25, 1.0, 0.625, 0.625, 0.9, 0.1])

    def figure(self, task):
        value = next(figures)
        return Evaluation(task=task, split="test", metric="accuracy", value=value, low=0.0, high=1.0, n=1), []

    monkeypatch.setattr(Evaluator, "__call__", figure)


STAGES = [{**SFT, "steps": 3}, {**RL, "steps": 5}, {**RL, "steps": 4}]
TASKS = [{"id": "toy/colour"}, {"id": "shapes/shape"}]


@pytest.mark.parametrize(("keep", "left"), mostly_slow([(1, [7, 12]), (2, [7, 9, 12]), (3, [7, 9, 12])], everyday=1))
def test_evaluations_and_checkpoints_come_when_they_should_and_the_best_is_kept(tmp_path, scripted, keep, left):
    """Evaluated before the first RL stage and every two of its steps; saved every three of all steps and at a new best. Three are
    kept at most: 3 is the first best, 6 and 9 are periodic, 7 the best, 12 the end."""
    config = runs.toy_config(
        tmp_path, tasks=TASKS, stages=STAGES, evaluate={"every": 2}, checkpoint={"every": 3, "keep": keep}, record={"rollouts": 1}
    )
    folder = runs.run(config)
    evaluated = [(r["step"], r["stage"], r["eval"]["task"]) for r in runs.rows(folder) if "eval" in r]
    assert evaluated == [(s, "rl", t["id"]) for s in (3, 5, 7, 10, 12) for t in TASKS]
    summary = json.loads((folder.path / "summary.json").read_text())
    values = {name: [f["value"] for f in summary[name].values()] for name in ("before", "best", "last")}
    assert values == {"before": [0.5, 0.5], "best": [0.25, 1.0], "last": [0.9, 0.1]}, "the first of two that are equally good"
    assert summary["best_step"] == 7 and steps(folder) == left
    state = json.loads((folder.checkpoint_dir(12) / "state.json").read_text())
    assert (state["step"], state["best_step"], state["evaluated_step"]) == (12, 7, 12)


def test_a_new_best_is_saved_without_periodic_checkpoints(tmp_path, scripted):
    folder = runs.run(runs.toy_config(tmp_path, tasks=TASKS, stages=STAGES, evaluate={"every": 2}))
    assert steps(folder) == [7, 12]


def test_evaluation_of_a_checkpoint_uses_its_weights_and_every_task(tmp_path, scripted, monkeypatch):
    config = runs.toy_config(tmp_path, tasks=TASKS, stages=STAGES, evaluate={"every": 2})
    folder = runs.run(config)
    seen = []

    def figure(self, task):
        seen.append(weights(self.collector.policy))
        return task, []

    monkeypatch.setattr(Evaluator, "__call__", figure)
    first, best, last = (
        weights(load_policy(resolve(config), path)) for path in (None, *(folder.checkpoint_dir(s) / "policy" for s in (7, 12)))
    )
    for where, which, expected in (
        (folder.path, "best", best),
        (folder.path, "last", last),
        (folder.path, "7", best),
        (None, "best", first),  # the run file's own policy
    ):
        assert evaluate_only(config, where, which) == ["toy/colour", "shapes/shape"]
        assert torch.equal(seen[-1], expected)
    assert not torch.equal(first, best) and not torch.equal(best, last)
    with pytest.raises(UserError, match=r"evaluate\.num_prompts = 0 switches evaluation off: give -n"):
        evaluate_only(runs.toy_config(tmp_path, evaluate=NOTHING), folder.path, "best")


def test_without_evaluation_there_are_no_figures_and_the_end_is_saved(tmp_path):
    folder = runs.run(runs.toy_config(tmp_path, stages=[SFT, RL], evaluate={"num_prompts": 0, "every": 1}))
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["before"] == summary["best"] == summary["last"] == {} and summary["best_step"] is None
    assert not [r for r in runs.rows(folder) if "eval" in r] and steps(folder) == [4]


# -- record -------------------------------------------------------------------------------------------------------------


def test_rollouts_are_recorded_when_and_as_many_as_the_run_file_says(tmp_path):
    stages = [{**RL, "steps": 4}, {**RL, "steps": 4}]
    for every, expected in ((3, [1, 3, 4, 5, 6, 8]), (99, [1, 4, 5, 8]), (0, [])):
        record = {"rollouts_every": every, "rollouts": 5}
        folder = runs.run(runs.toy_config(tmp_path, str(every), stages=stages, evaluate=NOTHING, record=record))
        found = recorded(folder)
        assert list(found) == expected, "the first and last of a stage, and every so many of all steps"
        assert all(len(rows) == 4 and len({r["group"] for r in rows}) == 1 for rows in found.values()), "whole groups"


# -- judge --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "failed", "stops"), [(0.1, 1, False), (0.1, 2, True), (0.0, 0, False), (0.0, 1, True), (1.0, 10, False)]
)
def test_more_failures_than_the_limit_stop_a_run(tmp_path, limit, failed, stops):
    folder = RunFolder(tmp_path)
    run = SimpleNamespace(
        config=SimpleNamespace(judge=SimpleNamespace(failure_limit=limit)), folder=folder, at=SimpleNamespace(step=4)
    )
    scores = [Score(0.5)] * (10 - failed) + [Score(None, detail="no")] * failed
    groups = [
        Group(
            number=i,
            place=("a/b", i),
            prompt=Prompt(messages=[], task="a/b", id=str(i)),
            inputs=None,
            rollouts=[],
            scores=scores[k : k + 2],
        )
        for i, k in enumerate(range(0, 10, 2))
    ]
    if stops:
        with pytest.raises(UserError, match=rf"{failed} of 10 scores of step 5 failed.*judge\.failure_limit = {limit}.*: no"):
            Run.report_failures(run, groups)
    else:
        Run.report_failures(run, groups)
    errors = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()] if failed else []
    first = {"step": 5, "where": f"a/b {(10 - failed) // 2}", "what": "no"}
    assert len(errors) == min(failed, 8) and errors[:1] == [first][:failed]


@pytest.mark.slow
def test_the_deadline_of_the_run_file_replaces_that_of_the_verifier(tmp_path):
    stage = {**RL, "prompts_per_step": 1, "group_size": 2}
    task = {"id": "toy/colour", "verifiers": {"toy/hangs": 1.0}}
    with pytest.raises(UserError, match=r"0\.1"):
        runs.run(runs.toy_config(tmp_path, tasks=[task], stages=[stage], evaluate=NOTHING, judge={"timeout_s": 0.1}))


# -- what goes wrong ----------------------------------------------------------------------------------------------------


def broken(tmp_path, each, stage):
    task = {"id": "toy/broken-images", "options": {"folder": str(tmp_path), "each": each}}
    return runs.run(runs.toy_config(tmp_path, tasks=[task], stages=[{**RL, **stage, "group_size": 2}], evaluate=NOTHING))


def test_a_tenth_and_two_more_may_be_broken(tmp_path):
    """4 of 16: when the last of them is met, at the 16th prompt at the latest, 2 + 16 // 10 = 3 are allowed."""
    with pytest.raises(UserError, match="4 prompts are broken so far"):
        broken(tmp_path, 4, {"steps": 9, "prompts_per_step": 4})
    written = [json.loads(line)["where"] for line in (tmp_path / "toy" / "errors.jsonl").read_text().splitlines()]
    assert written.pop() == "the end of the run" and len(written) == 4


def test_a_broken_picture_is_named_once_in_all_epochs(tmp_path):
    folder = broken(tmp_path, 8, {"steps": 7, "prompts_per_step": 8})
    errors = [json.loads(line)["where"] for line in (folder.path / "errors.jsonl").read_text().splitlines()]
    assert sorted(errors) == ["toy/broken-images train-blue-0", "toy/broken-images train-red-0"]


def test_an_update_that_was_broken_off_is_not_kept(tmp_path, monkeypatch):
    step = Optimizer.step

    def fail(self, number, **options):
        if self.steps == 3:  # the second of two passes of the second step
            raise UserError("no")
        return step(self, number, **options)

    monkeypatch.setattr(Optimizer, "step", fail)
    with pytest.raises(UserError, match="step 2: no"):
        runs.run(runs.toy_config(tmp_path, stages=[{**RL, "epochs": 2}], evaluate=NOTHING))
    assert list((tmp_path / "toy" / "checkpoints").iterdir()) == []


def test_an_interrupt_in_the_middle_of_an_update_keeps_nothing(tmp_path, monkeypatch):
    update = Learner.update

    def interrupted(self, batches, step, **options):
        if step == 1:
            self.optimizer.steps += 1  # the weights are being stepped
            raise KeyboardInterrupt
        return update(self, batches, step, **options)

    monkeypatch.setattr(Learner, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs.run(runs.toy_config(tmp_path, stages=[RL], evaluate=NOTHING))
    assert list((tmp_path / "toy" / "checkpoints").iterdir()) == []


def test_any_failure_beside_an_update_keeps_the_last_finished_step(tmp_path, monkeypatch):
    collect = mmrl.rollout.turns.ConversationCollector.collect

    def bug(self, *args, version, numbers):
        if version == 2:
            raise RuntimeError("a bug")
        return collect(self, *args, version=version, numbers=numbers)

    monkeypatch.setattr(mmrl.rollout.turns.ConversationCollector, "collect", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        runs.run(runs.toy_config(tmp_path, stages=[{**RL, "steps": 4}], evaluate=NOTHING))
    assert [p.name for p in (tmp_path / "toy" / "checkpoints").iterdir()] == ["step-000002"]


# -- the command line ---------------------------------------------------------------------------------------------------


def test_smoke_makes_everything_small_and_nothing_larger():
    data = {
        "name": "x",
        "policy": {"model": "big/model", "trust_remote_code": True, "max_pixels": 10**6, "min_pixels": 10**5}
        | {"chat_template": "own.jinja", "chat_template_kwargs": {"enable_thinking": False}, "shown_tokens": ["[THINK]"]},
        "tasks": [{"id": "a/b", "weight": 2.0}],
        "stages": [
            {"kind": "sft", "steps": 100, "batch_size": 64, "warmup_steps": 10},
            {
                "kind": "rl",
                "steps": 100,
                "prompts_per_step": 64,
                "group_size": 32,
                "epochs": 8,
                "warmup_steps": 10,
                "kl_coef": 0.1,
            },
            {"kind": "rl", "steps": 1, "prompts_per_step": 1, "group_size": 3, "epochs": 1},
        ],
        "generate": {"max_tokens": 512},
        "evaluate": {"num_prompts": 200},
    }
    small = smoke(parse_config(data))
    sft, large, tiny = small.stages
    assert (sft.steps, sft.batch_size, sft.warmup_steps) == (2, 4, 0)
    assert (large.steps, large.prompts_per_step, large.group_size, large.epochs, large.warmup_steps) == (2, 2, 4, 2, 0)
    assert (tiny.steps, tiny.prompts_per_step, tiny.group_size, tiny.epochs) == (1, 1, 3, 1)
    assert (small.policy.max_pixels, small.policy.min_pixels, small.policy.trust_remote_code) == (12544, 3136, False)
    assert (small.policy.chat_template_kwargs, small.policy.shown_tokens) == ({}, []), "the tiny model has none of them"
    assert small.policy.chat_template is None, "which may have other signs of pictures than the tiny model"
    assert (small.generate.max_tokens, small.evaluate.num_prompts, small.name, large.kl_coef, small.tasks[0].weight) == (
        16,
        4,
        "x-smoke",
        0.1,
        2.0,
    )
    little = {
        **data,
        "policy": {"model": "tiny:qwen3_vl", "max_pixels": 5000},
        "generate": {"max_tokens": 8},
        "evaluate": {"num_prompts": 2},
    }
    small = smoke(parse_config(little))
    assert (small.policy.model, small.policy.max_pixels, small.generate.max_tokens, small.evaluate.num_prompts) == (
        "tiny:qwen3_vl",
        5000,
        8,
        2,
    )


FIGURE = {"metric": "accuracy", "value": 0.25, "low": 0.125, "high": 0.5, "n": 8, "extra": {}}
RUN_FILE = """
name = "toy"
policy.model = "tiny:qwen2_5_vl:hidden=32,layers=1"
tasks = [{id = "toy/colour"}]
stages = [{kind = "rl", steps = 30, prompts_per_step = 20}]
"""


@pytest.mark.parametrize(
    ("arguments", "steps", "name", "resume", "overwrite"),
    [
        ([], 30, "toy", False, False),
        (["--set", "stages.0.steps=7", "--set", "name=other"], 7, "other", False, False),
        (["--resume"], 30, "toy", True, False),
        (["--overwrite"], 30, "toy", False, True),
        (["--smoke"], 2, "toy-smoke", False, False),
        (["--smoke", "--overwrite", "--set", "stages.0.steps=1"], 1, "toy-smoke", False, True),
    ],
)
def test_the_switches_of_mmrl_train(tmp_path, monkeypatch, arguments, steps, name, resume, overwrite):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    asked = []

    def train(config, progress, **options):
        asked.append((config.stages[0].steps, config.name, options))
        folder = RunFolder(tmp_path)
        (tmp_path / "config.toml").write_text(RUN_FILE)
        (tmp_path / "manifest.json").write_text("{}")
        seconds = dict.fromkeys(("total", "generate", "update", "judge", "process", "evaluate", "other"), 1.0)
        later = {"a/b": {**FIGURE, "value": 0.75}}
        values = {"before": {"a/b": FIGURE}, "best": later, "last": {"a/b": {**FIGURE, "value": 0.5}}}
        folder.summary({**values, "seconds": seconds, "peak_memory_mb": 300})
        return folder

    monkeypatch.setattr("mmrl.train.start.train", train)
    monkeypatch.setattr("mmrl.ui.report.report.write_report", lambda path: path / "report.html")
    done = CliRunner().invoke(main, ["train", str(tmp_path / "run.toml"), *arguments], catch_exceptions=False)
    assert done.exit_code == 0 and asked == [(steps, name, {"resume": resume, "overwrite": overwrite})]
    lines = [line for line in done.stdout.splitlines() if line.startswith("a/b")]
    assert lines == [
        f"a/b  accuracy 0.250 (0.125 to 0.500) -> {value} (0.125 to 0.500) {which}, n=8, 95% intervals"
        for value, which in (("0.750", "best"), ("0.500", "last"))
    ]


def test_the_switches_of_mmrl_eval(tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(RUN_FILE + 'evaluate = {num_prompts = 50, split = "valid"}')
    asked = []

    def evaluate(config, folder, which):
        asked.append((folder, which, config.evaluate.num_prompts, config.evaluate.split, config.seed))
        return [Evaluation(task="a/b", split="test", metric="a/v", value=0.75, low=0.5, high=1.0, n=8, extra={"failed": 2.0})]

    monkeypatch.setattr("mmrl.train.start.evaluate_only", evaluate)
    monkeypatch.setattr("mmrl.ui.cli.eval._weights", lambda config, folder, which: (f"the {which} weights", folder and 4))
    last = [
        tmp_path / "run",
        "-n",
        "7",
        "--split",
        "train",
        "--checkpoint",
        "last",
        "--set",
        "seed=9",
        "--set",
        "evaluate.num_prompts=3",
    ]
    for asked_for, which, arguments in (
        (200, "best", [tmp_path / "run.toml"]),
        (50, "best", [tmp_path / "run"]),
        (7, "last", last),
    ):
        done = CliRunner().invoke(main, ["eval", *map(str, arguments)], catch_exceptions=False)
        few = [f"  {asked_for} prompts were requested, and the split has 10"] if asked_for > 10 else []
        figure = ["a/b  test  a/v 0.750 (0.500 to 1.000), n=8", *few, "  failed 2.000"]
        assert done.stdout.splitlines() == [f"the {which} weights", *figure]
    assert asked == [
        (None, "None", 200, "test", 0),
        (tmp_path / "run", "4", 50, "valid", 0),
        (tmp_path / "run", "4", 7, "train", 9),
    ], "the step that was found, and without one the run file's own weights"
    done = CliRunner().invoke(main, ["eval", str(tmp_path / "run"), "--json"], catch_exceptions=False)
    figure = json.loads(done.stdout)["a/b"]
    assert figure == {
        "task": "a/b", "split": "test", "metric": "a/v", "value": 0.75, "low": 0.5, "high": 1.0, "n": 8, "extra": {"failed": 2.0},
        "intervals": {}, "samples": 1, "temperature": 0.0,
    }  # fmt: skip


def test_a_smoke_run_can_be_repeated(tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text(RUN_FILE + f'runs_dir = "{tmp_path / "runs"}"\n')
    for _ in range(2):
        done = CliRunner().invoke(main, ["train", str(tmp_path / "run.toml"), "--smoke"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "runs" / "toy-smoke" / "summary.json").read_text())
    assert summary["steps"] == 2 and summary["last"]["toy/colour"]["n"] == 4
