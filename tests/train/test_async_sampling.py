"""Sampling for later steps while the learner learns: the schedule, what is refused, and that a run is the same each time."""

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.policies.vlm.families import Family
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.snapshot import SnapshotGenerator
from mmrl.train.position import StepIndex
from mmrl.train.resolve import resolve, with_algorithm_defaults
from mmrl.train.sampling.async_sampling import AsyncSampler, interruption_metrics, staleness_metrics
from mmrl.train.sampling.groups import Sampled
from runs import TOY, Silent, run, toy_config


class Stub:
    """A sampler that gives what its work makes of a moment."""

    def __init__(self, work, refresh=lambda: None, renew=lambda at: None):
        self.source = SimpleNamespace(state=lambda: None, unsettled=list, settle=lambda told: None, outcomes=[])
        self.prompts, self.work, self.refresh, self.renew = 2, work, refresh, renew
        self.run = SimpleNamespace(policy=SimpleNamespace(device=torch.device("cpu")))

    def sample(self, prompts, at):
        return Sampled(groups=[], sampled=[], counts={"of": self.work(at)}, seconds={"generate": 0.0})

    def rule_states(self):
        return []


class Line:
    """A pipeline whose sampler and learner write down what they do."""

    def __init__(self, depth, steps=8, sampling_s=0.0, learning_s=0.0, **pauses):
        self.weights, self.held, self.busy = 0, 0, False
        self.sampling_s, self.learning_s = sampling_s, learning_s
        self.steps, self.sampler = steps, AsyncSampler(Stub(self.sample, self.refresh), depth, steps=steps, **pauses)

    def sample(self, at):
        self.busy = True
        time.sleep(self.sampling_s)
        assert at.version == self.held, "weights changed hands in between"
        self.busy = False
        return at.step, at.version, threading.current_thread().name

    def refresh(self):
        assert not self.busy and not any(not job.done() for _, job in self.sampler.jobs)
        self.held = self.weights

    def run_stages(self, drains=()):
        """Version that each step's completions are of."""
        found = []
        for step in range(self.steps):
            groups = self.sampler("the prompts", StepIndex(step, step, step))
            number, version, thread = groups.counts["of"]
            assert number == step and thread.startswith("sampler")
            assert groups.seconds.keys() == {"wait"} and "async/generate" in groups.counts
            found.append(version)
            if step in drains:
                assert not self.sampler.jobs, "nobody samples while the run is evaluated or saved"
            time.sleep(self.learning_s)
            self.weights = step + 1
        self.sampler.close()
        return found


@pytest.mark.parametrize(
    ("depth", "versions"),
    [(1, [0, 0, 1, 2, 3, 4, 5, 6]), (2, [0, 0, 0, 2, 2, 4, 4, 6]), (3, [0, 0, 0, 0, 3, 3, 3, 6]), (16, [0] * 8)],
)
def test_each_step_learns_from_weights_that_are_as_old_as_the_schedule_says(depth, versions):
    for times in ({}, {"sampling_s": 0.01}, {"learning_s": 0.01}):  # whoever is quicker
        assert Line(depth, **times).run_stages() == versions


def test_nothing_is_sampled_beyond_an_evaluation_or_a_checkpoint():
    assert Line(2, evaluate_every=3).run_stages(drains=(2, 5)) == [0, 0, 0, 3, 3, 3, 6, 6]
    assert Line(2, evaluate_every=3, save_every=5).run_stages(drains=(2, 4, 5)) == [0, 0, 0, 3, 3, 5, 6, 6]


class InterruptedLine(Line):
    """Each step's answers have ten tokens, between which the weights may change."""

    def __init__(self, depth, steps=8, token_s=0.002, learning_s=0.0, **pauses):
        super().__init__(depth, steps, learning_s=learning_s)
        self.token_s, self.begun, self.lock = token_s, [], threading.Lock()
        self.sampler = AsyncSampler(Stub(self.sample, renew=self.renew), depth, interrupt=True, steps=steps, **pauses)

    def renew(self, at):
        with self.lock:
            self.held = at.version

    def sample(self, at):
        self.begun.append(at.step)
        versions = []
        for _ in range(10):
            with self.lock:
                versions.append(self.held)
            time.sleep(self.token_s)
        return at.step, tuple(versions), threading.current_thread().name


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("times", [{"token_s": 0.0}, {"learning_s": 0.03}, {"learning_s": 0.005}])
def test_interrupted_answers_are_no_older_than_the_bound_and_go_on_with_newer_weights(depth, times):
    line = InterruptedLine(depth, **times)
    found = line.run_stages()
    for step, versions in enumerate(found):
        assert list(versions) == sorted(versions) and step - depth <= versions[0] and versions[-1] <= step
    assert line.begun == list(range(8)), "each step is sampled once, in their order"
    if depth > 1 and times == {"learning_s": 0.005}:  # sampling takes longer: weights come in the middle
        assert any(len(set(versions)) > 1 for versions in found)


def test_nothing_is_interrupted_beyond_an_evaluation_or_a_checkpoint():
    found = InterruptedLine(2, evaluate_every=3, save_every=5).run_stages(drains=(2, 4, 5))
    assert all(found[step][0] == step for step in (0, 3, 5, 6))


def test_outcomes_reach_the_draws_of_the_steps_that_are_begun_after_them():
    """By the schedule and not by who is quicker: step s + k is drawn knowing the groups up to step s - 1."""
    for pause in (0.0, 0.01):
        told, known = [], []
        stub = Stub(lambda at, pause=pause: time.sleep(pause) or at.step)
        stub.source.unsettled = lambda told=told: [told.pop() for _ in range(len(told))][::-1]
        stub.source.settle = lambda outcomes, known=known: known.append(tuple(outcomes))
        sampler = AsyncSampler(stub, 2, interrupt=True, steps=6)
        for step in range(6):
            sampler("the prompts", StepIndex(step, step, step))
            told.append(step)
        sampler.close()
        assert known == [(), (), (), (0,), (1,), (2,)]


def test_the_next_step_is_sampled_while_one_is_learned():
    learned, sampled = ([threading.Event() for _ in range(5)] for _ in range(2))
    waited = []

    def work(at):
        sampled[at.step].set()
        if at.step:  # not done before the step before it is learned
            waited.append(learned[at.step - 1].wait(30))
        return at.step

    sampler = AsyncSampler(Stub(work), 1, steps=5)
    for step in range(5):
        sampler("the prompts", StepIndex(step, step, step))
        if step < 4:
            assert sampled[step + 1].wait(30), "the sampler doesn't wait for the learner"
        learned[step].set()
    sampler.close()
    assert waited == [True] * 4


def test_a_fault_of_the_sampler_is_raised_where_the_step_is_taken():
    def work(at):
        if at.step == 2:
            raise UserError("the page hangs")
        return at.step

    sampler = AsyncSampler(Stub(work), 2, steps=10)
    assert [sampler("the prompts", StepIndex(step, step, step)).counts["of"] for step in (0, 1)] == [0, 1]
    with pytest.raises(UserError, match="the page hangs"):
        sampler("the prompts", StepIndex(2, 2, 2))
    sampler.close()


def test_ranks_drop_the_same_steps_when_they_close(monkeypatch):
    """Each step that was begun asks the other ranks, also if it is dropped: one that begins a step alone would wait for them."""
    asked, begun = [], threading.Event()
    monkeypatch.setattr(ranks, "any_rank", lambda own: asked.append(own) or own)

    def work(at):
        if at.step:
            begun.set()
            while not sampler.closed:
                time.sleep(0.001)

    sampler = AsyncSampler(Stub(work), 3, steps=10)
    sampler("the prompts", StepIndex(0, 0, 0))
    assert begun.wait(30)
    sampler.close()
    assert asked == [False, False, True, True]

    monkeypatch.setattr(ranks, "any_rank", lambda own: True)
    with pytest.raises(RuntimeError, match=ranks.CLOSED):
        AsyncSampler(Stub(work), 1, steps=10)("the prompts", StepIndex(0, 0, 0))


def test_closing_waits_for_the_step_under_way_and_drops_the_others():
    done, begun = [], threading.Event()

    def work(at):
        if at.step:
            begun.set()
        time.sleep(0.1)
        done.append(at.step)

    sampler = AsyncSampler(Stub(work), 3, steps=10)
    sampler("the prompts", StepIndex(0, 0, 0))
    assert begun.wait(30)
    sampler.close()
    assert done == [0, 1] and not sampler.jobs


def test_lag_is_counted_by_tokens():
    vlm = cases.policy("qwen2_5_vl")
    one, two = cases.rollouts(vlm, [cases.prompt(1)], group=2)
    old = replace(one, turns=(replace(one.turns[0], token_ids=(5,) * 6, policy_version=3),))
    new = replace(two, turns=(replace(two.turns[0], token_ids=(5,) * 2, policy_version=5),))
    assert staleness_metrics([old, new], 5, 2) == {"staleness/mean": 1.5, "staleness/max": 2.0}
    with pytest.raises(RuntimeError, match=r"^step 6 got tokens of weights 2 versions old, above compute.staleness = 1$"):
        staleness_metrics([old, new], 5, 1)


def test_lag_is_that_of_the_oldest_token_and_interrupted_answers_are_counted():
    vlm = cases.policy("qwen2_5_vl")
    one, two = cases.rollouts(vlm, [cases.prompt(1)], group=2)
    turn = replace(one.turns[0], token_ids=(5,) * 6, policy_version=3, token_versions=((3, 2), (4, 1), (5, 3)))
    old, new = (replace(r, turns=(t,)) for r, t in ((one, turn), (two, replace(turn, policy_version=5, token_versions=()))))
    assert staleness_metrics([old, new], 5, 2) == {"staleness/mean": 5 / 12, "staleness/max": 2.0}
    with pytest.raises(RuntimeError, match="2 versions old"):
        staleness_metrics([old, new], 5, 1)
    assert interruption_metrics([old, new]) == {"interrupted/share": 0.5, "interrupted/versions": 2.0}
    assert list(old.turn_versions) == [(3, 6)] and list(old.token_versions) == [(3, 2), (4, 1), (5, 3)]
    assert list(new.token_versions) == [(5, 6)] and interruption_metrics([]) == {
        "interrupted/share": 0.0,
        "interrupted/versions": 0.0,
    }


def test_a_snapshot_samples_as_the_weights_were_when_it_woke():
    vlm = cases.policy("qwen2_5_vl")
    snapshot = SnapshotGenerator(vlm)
    inputs, sampling = [vlm.encode(cases.prompt(1))], SamplingParams(max_tokens=6, temperature=1.0)
    before = LocalGenerator(vlm).generate(inputs, 4, sampling)
    weight = vlm.model.get_output_embeddings().weight
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(-3.0)
        after = LocalGenerator(vlm).generate(inputs, 4, sampling)
        assert after != before and snapshot.generate(inputs, 4, sampling) == before
        snapshot.wake_up()
        assert snapshot.generate(inputs, 4, sampling) == after
        assert all(not p.requires_grad for p in snapshot.policy.model.parameters())
    finally:
        with torch.no_grad():
            weight.copy_(kept)


# -- whole runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", TOY)


def metrics(folder):
    rows = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    timed = ("time/", "memory/", "async/", "simulator/")
    return [{k: v for k, v in row["metrics"].items() if not k.startswith(timed)} for row in rows if "metrics" in row]


def rollouts(folder):
    files = sorted((folder.path / "rollouts").glob("step-*.jsonl"))
    return [json.loads(line) | {"step": file.name} for file in files for line in file.read_text().splitlines()]


def drawn(folder):
    return sorted({(row["step"], row["prompt_id"]) for row in rollouts(folder)})


def stale(folder, name, **compute):
    record = ("record.rollouts_every=1", "record.rollouts=100")
    return toy_config(folder, name, ("stages.1.steps=7", "evaluate.every=4", *record), compute=compute)


def test_a_run_is_the_same_each_time_and_as_far_behind_as_it_says(tmp_path):
    one, two = (metrics(run(stale(tmp_path, name, staleness=2))) for name in ("one", "two"))
    assert one == two
    assert [row["staleness/max"] for row in one[2:]] == [0, 1, 2, 1, 0, 1, 2]  # the evaluation after the fourth step finds nobody
    assert all(row["logprob_gap"] < 1e-5 for row in one[2:] if not row["staleness/max"])
    assert all(row["logprob_gap"] > 1e-4 for row in one[2:] if row["staleness/max"])
    now = metrics(run(stale(tmp_path, "now", staleness=0)))
    assert "staleness/max" not in now[2] and now[2]["reward/mean"] == one[2]["reward/mean"]
    assert [row["reward/mean"] for row in now[2:]] != [row["reward/mean"] for row in one[2:]]


def test_gold_completions_among_those_of_older_weights_are_of_no_weights(tmp_path):
    """They counted as those of a run's first weights, so that the third step met what it takes for a bug."""
    config = toy_config(tmp_path, "gold", ("stages.1.steps=3", "stages.1.ground_truth=always"), compute={"staleness": 1})
    assert [row["staleness/max"] for row in metrics(run(config))[2:]] == [0, 1, 1]


def test_it_goes_on_after_a_stop_at_a_checkpoint_as_if_nothing_had_happened(tmp_path):
    whole = stale(tmp_path, "whole", staleness=1)
    config = whole.model_copy(update={"checkpoint": whole.checkpoint.model_copy(update={"every": 5})})
    straight = metrics(run(config))
    stopped = config.model_copy(update={"name": "stopped"})
    with pytest.raises(KeyboardInterrupt):
        run(stopped, progress=Silent(stop_after=5))
    assert metrics(run(stopped, resume=True)) == straight


def test_interrupted_answers_train_and_no_prompt_is_lost_or_read_twice(tmp_path, monkeypatch):
    step = Family.step
    monkeypatch.setattr(Family, "step", lambda *given: time.sleep(0.01) or step(*given))
    folder = run(stale(tmp_path, "cut", staleness=2, interrupt=True))
    monkeypatch.undo()
    monkeypatch.setenv("MMRL_PLUGIN_FILES", TOY)
    found = metrics(folder)[2:]
    assert all(row["staleness/max"] <= 2 for row in found) and [row["staleness/max"] for row in found][::4] == [0, 0]
    assert any(row["interrupted/share"] > 0 and 1 < row["interrupted/versions"] <= 3 for row in found)
    assert all(row["logprob_gap"] < 1e-5 for row in found if not row["staleness/max"])
    plain = run(stale(tmp_path, "plain", staleness=2))
    assert drawn(folder) == drawn(plain), "the schedule draws the prompts, not who is quicker"
    versions = [row["policy_versions"] for row in rollouts(folder)]
    assert any(len(one) > 1 for one in versions) and all(one == sorted(one) for one in versions)


@pytest.mark.parametrize("stop_after", [4, 5])
def test_an_interrupted_run_goes_on_after_a_stop_with_the_prompts_that_come_next(tmp_path, stop_after):
    """After a step whose checkpoint finds nobody sampling, and after one where two steps are under way."""
    base = stale(tmp_path, "cut", staleness=2, interrupt=True)
    config = base.model_copy(update={"checkpoint": base.checkpoint.model_copy(update={"every": 5})})
    with pytest.raises(KeyboardInterrupt):
        run(config, progress=Silent(stop_after=stop_after))
    folder = run(config, resume=True)
    assert drawn(folder) == drawn(run(stale(tmp_path, "plain", staleness=2)))
    assert all(row["staleness/max"] <= 2 for row in metrics(folder)[2:])


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (
            {"importance_sampling": "off"},
            r'^stages.0.importance_sampling = "off" with compute.staleness = 1: .*"mask", or ratio_to = "sampler"$',
        ),
        ({"algorithm": "remax"}, r"^stages.0.algorithm = 'remax' compares with greedy answers of the current weights"),
        ({"imitation": {"rule": "mixed"}}, r"^stages.0.imitation reads prompts while compute.staleness = 1 samples others"),
        ({"algorithm": "vppo"}, r"^stages.0.perception reads prompts while compute.staleness = 1 samples others"),
        ({"condition": {}}, r"^stages.0.condition reads prompts while compute.staleness = 1 samples others"),
    ],
)
def test_what_can_not_be_sampled_beside_is_refused(tmp_path, stage, said):
    rl = {"kind": "rl", "steps": 4, "prompts_per_step": 3, "group_size": 4, **stage}
    with pytest.raises(UserError, match=said):
        resolve(toy_config(tmp_path, stages=[rl, rl], compute={"staleness": 1}))


def test_the_correction_is_on_unless_the_run_file_says_which(tmp_path):
    stages = [{"kind": "rl", "steps": 1}, {"kind": "rl", "steps": 1, "importance_sampling": "mask"}]
    found = [with_algorithm_defaults(toy_config(tmp_path, stages=stages, compute={"staleness": k})).stages for k in (0, 1)]
    assert [[stage.importance_sampling for stage in some] for some in found] == [["off", "mask"], ["truncate", "mask"]]
    rl = {"kind": "rl", "steps": 1, "ratio_to": "sampler", "prompts_per_step": 3, "group_size": 4}
    resolved = resolve(toy_config(tmp_path, stages=[rl], compute={"staleness": 1}))
    assert resolved.config.stages[0].importance_sampling == "off", "the ratio corrects for it"
