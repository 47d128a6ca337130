"""benchmarks/pipeline.py: the simulated pipeline against what can be computed by hand."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("simpy")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import pipeline_costs as sources
import pipeline_model as model
from model_shapes import shape
from pipeline_faults import Faults, best_interval, endure
from pipeline_model import Costs, Job, Network

EVEN = Job(prompts=8, group=4, prompt_tokens=100, length=50, spread=0.0, limit=64)
UNEVEN = replace(EVEN, prompts=32, spread=0.8)
PARTS = Costs(process=0.5, prefill=0.25, decode_step=0.1, decode_row=0.01, judge=0.125, update_prompt=2.0, update_token=0.01)


def seconds(job, costs, plan, staleness, steps=40, skip=10):
    return model.simulate(job, costs, plan, staleness, steps).step_seconds(skip)


def staged(sampling, learning):
    """Costs of which sampling a step of EVEN takes so long on one unit, and learning from it on one."""
    return Costs(decode_step=sampling / 50, update_prompt=learning / 8)


def test_a_synchronous_step_on_one_gpu_is_the_sum_of_its_parts():
    costs = replace(PARTS, cores=2, judges=3, other=0.7, optimizer=0.3, load=0.2)
    process, generate = 4 * 0.5, 8 * 0.25 + 50 * 0.1 + 32 * 50 * 0.01
    judge, update = 11 * 0.125, 8 * 2.0 + 32 * 50 * 0.01 + 0.3
    assert seconds(EVEN, costs, model.colocated(1), 0) == pytest.approx(process + generate + judge + update + 0.7 + 0.2)


def test_rollouts_a_step_behind_halve_the_time_where_sampling_and_learning_take_as_long():
    plan = model.separate(2, 1)
    assert seconds(EVEN, staged(6.0, 6.0), plan, 0) == pytest.approx(12.0)
    assert seconds(EVEN, staged(6.0, 6.0), plan, 1) == pytest.approx(6.0)


@pytest.mark.parametrize(("sampling", "learning"), [(6.0, 2.0), (1.0, 5.0)])
@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_of_two_that_work_side_by_side_the_slower_decides(sampling, learning, staleness):
    assert seconds(EVEN, staged(sampling, learning), model.separate(2, 1), staleness) == pytest.approx(max(sampling, learning))


def test_one_gpu_gains_by_staleness_that_pictures_are_processed_while_it_learns():
    """Judging comes before the next step's pictures, so the GPU still waits for it."""
    costs = replace(staged(6.0, 6.0), process=0.25, judge=1 / 32)
    assert seconds(EVEN, costs, model.colocated(1), 0) == pytest.approx(2 + 6 + 1 + 6)
    assert seconds(EVEN, costs, model.colocated(1), 1) == pytest.approx(6 + 1 + 6)


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("plan", [model.colocated(4), model.separate(4, 3), model.hybrid(4, 2, 0.5)], ids=lambda p: p.name)
def test_weights_are_never_further_behind_than_allowed_and_as_far_where_learning_is_slow(plan, staleness):
    job, costs = replace(EVEN, prompts=12), staged(1.0, 50.0)
    lag = model.simulate(job, costs, plan, staleness, 12).lag_SU[:, plan.samplers]
    assert lag.min() >= 0 and lag.max() <= staleness
    if plan.name == "separate":
        assert (lag[staleness:] == staleness).all()


def test_generation_is_linear_in_the_longest_and_in_all_tokens():
    lengths, costs = np.array([[3, 5], [9, 1]]), Costs(prefill=1.0, decode_step=0.5, decode_row=0.25)
    assert model.generating(lengths, costs) == 2 + 9 * 0.5 + 18 * 0.25
    assert model.generating(lengths, costs, even=True) == 2 + 4.5 * 0.5 + 18 * 0.25
    assert model.generating(lengths, replace(costs, at_once=2)) == 2 + 12 * 0.5 + 18 * 0.25  # 3 then 9; 5 then 1
    assert model.generating(lengths, replace(costs, tensor_parallel=2)) == (2 + 9 * 0.5 + 18 * 0.25) / 2


def test_processes_that_judge_take_the_next_case_when_they_are_free():
    assert model.makespan([4, 1, 1, 1, 3], 2) == 6  # 4 | 1 1 1 3
    assert model.makespan([2, 5], 8) == 5 and model.makespan([], 3) == 0


def test_a_ring_moves_what_a_rank_lacks_and_data_enters_a_machine_once():
    network = Network(node=8, inside=400.0, between=20.0, hop=1e-3, hop_between=1e-2)
    assert network.gather(800.0, 1) == 0
    assert network.gather(800.0, 8) == pytest.approx(800 * 7 / 8 / 400 + 7e-3)
    assert network.gather(800.0, 32) == pytest.approx(800 * 31 / 32 / 160 + 28e-3 + 3e-2)
    assert network.send(800.0, 4) == pytest.approx(2.0 + 4e-3) and network.send(800.0, 0) == 0
    assert network.send(800.0, 16) == pytest.approx(40.0 + 2e-2 + 8e-3)


def test_ranks_with_shards_go_in_step_and_replicas_meet_once():
    job = replace(EVEN, prompt_tokens=0)
    lengths = [np.full((1, 4), 10.0), np.full((1, 4), 30.0)]  # 40 and 120 tokens
    costs = Costs(update_token=1.0, micro_tokens=40)
    assert model.updating(lengths, job, costs) == (pytest.approx(120.0), 0)  # 40 each; the first rank waits for two of them
    assert model.updating(lengths, job, costs, even=True)[0] == pytest.approx(80.0)
    network = Network(inside=10.0)
    alike = replace(costs, sharded=False, weights=10.0, network=network)
    assert model.updating(lengths, job, alike) == (pytest.approx(121.0), pytest.approx(1.0))


@pytest.mark.parametrize("bandwidth", [0.5, 10.0])
def test_weights_that_are_gathered_hide_behind_computing_where_they_can(bandwidth):
    """One micro-batch of 12 s in four layers on two ranks: of a layer 1 s forward and 2 s backward, against 0.5 / bandwidth."""
    costs = Costs(update_token=12 / 40, weights=4.0, layers=4, network=Network(inside=bandwidth))
    gather = 0.5 / bandwidth
    by_hand = 4 * (max(1.0, gather) + max(2.0, 2 * gather)) + 3 * gather
    found, moved = model.updating([np.full((1, 4), 10.0)] * 2, replace(EVEN, prompt_tokens=0), costs)
    assert (found, moved) == (pytest.approx(by_hand), pytest.approx(by_hand - 12))


def test_more_gpus_with_more_prompts_lose_by_stragglers_and_by_telling():
    costs = replace(PARTS, told_read=0.05)
    found = [model.simulate(replace(UNEVEN, prompts=8 * n), costs, model.colocated(n), 0, 20) for n in (1, 4, 16)]
    each = [p.tokens_per_second() / n for p, n in zip(found, (1, 4, 16), strict=True)]
    assert each[0] > each[1] > each[2]
    plain = replace(costs, told_read=0.0)
    assert model.simulate(replace(EVEN, prompts=128), plain, model.colocated(16), 0).tokens_per_second() == pytest.approx(
        16 * model.simulate(EVEN, plain, model.colocated(1), 0).tokens_per_second()
    )


def test_every_rank_gets_all_texts_and_reads_all_completions():
    costs = Costs(told_bytes=4.0, told_completion_bytes=100.0, told_read=0.25, network=Network(objects=1000.0))
    by_hand = 32 * (50 * 4 + 100) / 1000 + 32 * 0.25  # 8 prompts, 4 completions of 50 tokens each
    for plan in (model.colocated(2), model.colocated(8), model.separate(3, 1)):
        assert model.timed(EVEN, costs, plan, 2).telling_S.tolist() == pytest.approx([by_hand] * 2)
    assert model.timed(EVEN, costs, model.separate(2, 1), 1).telling_S == 0  # one learns: nobody is told
    assert model.timed(EVEN, replace(costs, tensor_parallel=2), model.colocated(1), 1).telling_S == pytest.approx(by_hand)


@pytest.mark.slow
def test_what_is_told_is_measured_from_groups_as_ranks_tell_them(capsys, monkeypatch):
    import telling

    options = "--tokens 100 200 400 --prompts 3 --group 2 --ranks 2 --rounds 1 --characters 3"
    monkeypatch.setattr(sys, "argv", ["telling.py", *options.split()])
    telling.main()
    found = json.loads(capsys.readouterr().out)
    assert found["told_bytes"] == pytest.approx(3, abs=0.02)  # no ids, no probabilities
    assert 0 < found["columns_told_read_s"] < found["told_read_s"] < 1e-3
    made = telling.columns(telling.share(3, 2, 50, 3))
    assert [len(t) for t in made["texts"]] == [150] * 6 == (3 * made["lengths"]).tolist() and len(set(made["texts"])) == 6


def test_what_limits_a_step_is_what_it_would_gain_most_without():
    gains = model.losses(EVEN, replace(staged(2.0, 1.0), judge=3 / 32, other=2.0), model.colocated(1), 0)
    assert list(gains)[:2] == ["judge", "generate"] or list(gains)[:2] == ["judge", "other"]
    assert gains["judge"] == pytest.approx(8 / 5 - 1) and gains["update"] == pytest.approx(8 / 7 - 1)
    assert gains["sync"] == gains["imbalance"] == pytest.approx(0)


def test_every_prompt_is_sampled_once():
    for plan in (model.colocated(7), model.hybrid(6, 2, 0.3), model.separate(5, 2)):
        dealt = [i for d in plan.dealt(50) for i in range(d.start, d.stop)]
        assert dealt == list(range(50))


def test_faults_cost_what_young_says():
    """First order: checkpoints take C / tau, a fault loses half an interval and the restart."""
    faults = Faults(mean_hours=1000, checkpoint_s=20, restart_s=100)
    between = 1000 * 3600 / 512
    every = round(best_interval(faults, 512) / 10)
    assert every == round((2 * 20 * between) ** 0.5 / 10)
    found = endure(10.0, 512, every, faults, steps=100_000)
    tau = every * 10
    assert found["kept"] == pytest.approx(1 / (1 + 20 / tau + (tau / 2 + 100) / between), abs=0.01)
    assert found["restarts"] == pytest.approx(100_000 * 10 / found["kept"] / between, rel=0.15)
    for other in (every // 4, every * 4):
        assert endure(10.0, 512, other, faults, steps=100_000)["kept"] < found["kept"]


def run_folder(path, costs, steps, prompts=8, group=4, limit=64):
    """A run whose stage times are exactly those of `costs`."""
    rng, rows = np.random.default_rng(steps), []
    for step in range(steps):
        mean, longest, idle = rng.uniform(20, 40), rng.uniform(40, 64), rng.choice([0, 0.25, 0.5])
        tokens, trained = mean * prompts * group, (1 - idle) * prompts
        own = {
            "process": prompts * costs.process,
            "generate": prompts * costs.prefill + longest * costs.decode_step + tokens * costs.decode_row,
            "judge": prompts * group * costs.judge,
            "update": costs.optimizer + trained * (costs.update_prompt + group * mean * costs.update_token),
            "other": costs.other,
        }
        metrics = {"length/mean": mean, "length/max": longest, "zero_std_share": idle, "time/step": sum(own.values())}
        rows.append({"step": step + 1, "stage": "rl", "metrics": metrics | {f"time/{k}": v for k, v in own.items()}})
    path.mkdir()
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (path / "config.toml").write_text(
        f'[[stages]]\nkind = "rl"\nprompts_per_step = {prompts}\ngroup_size = {group}\n[generate]\nmax_tokens = {limit}\n'
    )
    return path


def test_costs_are_found_again_from_runs_of_two_sizes(tmp_path):
    costs = replace(PARTS, optimizer=0.3, other=0.7)
    runs = [run_folder(tmp_path / "a", costs, 60), run_folder(tmp_path / "b", costs, 40, prompts=3, group=8)]
    found = sources.calibrated([sources.read_run(run) for run in runs])
    for name in (
        "process",
        "prefill",
        "decode_step",
        "decode_row",
        "judge",
        "update_prompt",
        "update_token",
        "optimizer",
        "other",
    ):
        assert getattr(found, name) == pytest.approx(getattr(costs, name), rel=1e-6), name


def test_a_run_is_predicted_from_its_costs(tmp_path):
    import pipeline

    costs = replace(PARTS, optimizer=0.3, other=0.7)
    folder = run_folder(tmp_path / "a", costs, 200)
    found = pipeline.validated([folder], [])
    assert abs(found["error"]) < 0.02 and found["steps"] == 99 and found["calibrated_on"] == "their first halves"


def test_shapes_have_as_many_weights_as_published():
    for size, billions in (("3b", 3.75), ("7b", 8.29), ("72b", 73.4)):
        assert shape(size).weights / 1e9 == pytest.approx(billions, rel=0.003)
    small = shape("3b")
    assert small.text_flops(1, 0, 1) == 2 * (small.matrices + small.output) and small.kv * 2 == 36_864
    assert [sources.smallest(size) for size in ("3b", "7b", "72b")] == [1, 2, 16]


def test_the_command_prints_one_object_and_draws(tmp_path, capsys, monkeypatch):
    import pipeline

    monkeypatch.setattr(sys, "argv", ["pipeline.py", "--gpus", "1", "2", "16", "--staleness", "0", "1", "--prompts", "4"])
    pipeline.main()
    found = json.loads(capsys.readouterr().out)
    rows = {(r["gpus"], r["placement"], r["staleness"]): r for r in found["points"]}
    assert (1, "separate", 0) not in rows and rows[1, "colocated", 0]["efficiency"] == 1.0
    assert rows[16, "separate", 1]["tokens_per_s"] > rows[16, "separate", 0]["tokens_per_s"]
    assert rows[16, "colocated", 0]["limit"] in model.PARTS and found["faults"][-1]["gpus"] == 16
    assert found["source"]["assumed"]["update_share"] == 0.35


def test_units_that_learn_are_as_many_as_the_model_needs():
    import pipeline

    assert pipeline.plans("separate", 2, least=2) == []
    for plan in [*pipeline.plans("separate", 8, least=4), *pipeline.plans("hybrid", 8, least=4)]:
        assert len(plan.learners) >= 4 and len(plan.shares) == 8
    assert {len(p.learners) for p in pipeline.plans("separate", 8, least=4)} == {4, 5, 6}
    assert pipeline.plans("colocated", 1) == [model.colocated(1)]
