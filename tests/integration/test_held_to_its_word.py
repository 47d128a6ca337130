"""What a run is told to do it does, also where two features meet: conditions and checkpoints, penalties and baselines, names."""

import json
import os
import signal

import pytest
from click.testing import CliRunner

import mmrl.api.types
import mmrl.evaluation.evaluator
import mmrl.rollout.turns
import mmrl.train.run
import mmrl.train.start
import runs
from mmrl.api.errors import UserError
from mmrl.run_folder.reader import read_jsonl
from mmrl.run_folder.writer import ENDED
from mmrl.train.start import evaluate_only
from mmrl.train.update.learner import Learner
from mmrl.ui.cli import main

RL = {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-3}


def metrics(folder):
    return [row["metrics"] for row in runs.rows(folder) if "metrics" in row]


def test_a_checkpoint_is_evaluated_as_its_own_stage_shows_prompts(tmp_path, monkeypatch):
    stages = [{**RL, "condition": {"positive": "Advantage: good"}}, RL]
    config = runs.toy_config(tmp_path, stages=stages, checkpoint={"every": 2, "keep": 9})
    folder = runs.run(config)
    seen = []
    real = mmrl.evaluation.evaluator.Evaluator.__call__

    def look(self, task):
        seen.append(self.shown(mmrl.api.types.Prompt(messages=[mmrl.api.types.user_message("x")])).text)
        return real(self, task)

    monkeypatch.setattr(mmrl.evaluation.evaluator.Evaluator, "__call__", look)
    for which in ("2", "4"):
        evaluate_only(config, folder.path, which)
    evaluate_only(config, None, "best")
    assert seen == ["x\n\nAdvantage: good", "x", "x\n\nAdvantage: good"], "the first stage, the second, and where a run begins"


def test_another_policy_than_the_checkpoints_is_not_the_checkpoints_fault(tmp_path):
    lora = {"model": "tiny:qwen2_5_vl:hidden=32,layers=1", "lora": {"rank": 4, "alpha": 8.0}}
    folder = runs.run(runs.toy_config(tmp_path, stages=[RL], policy=lora))
    for change in ("policy.lora.rank=8", "policy.lora.alpha=1.0"):
        other = runs.toy_config(tmp_path, overrides=(change,), stages=[RL], policy=lora)
        with pytest.raises(UserError, match=r"leave out the --set options of \[policy\]") as caught:
            evaluate_only(other, folder.path, "last")
        assert "remove" not in str(caught.value)


def test_the_greedy_baseline_is_rewarded_like_what_it_is_compared_with(tmp_path):
    """Nothing ends here before the limit, so that each pays the whole penalty, and the advantages are as without one."""
    stage = {**RL, "algorithm": "remax"}
    long = {"generate": {"max_tokens": 6}, "record": {"rollouts_every": 1, "rollouts": 8}}
    plain = runs.run(runs.toy_config(tmp_path / "plain", stages=[stage], **long))
    buffer = {"overlong_buffer": 1.0, "overlong_penalty": 6.0}
    paid = runs.run(runs.toy_config(tmp_path / "paid", stages=[{**stage, **buffer}], **long))
    for one, other in zip(rollouts(plain), rollouts(paid), strict=True):
        assert one["completion"] == other["completion"]
        if one["status"] == "truncated-length":
            assert other["score"]["value"] == pytest.approx(one["score"]["value"] - 6)
    cut_off = [(a, b) for a, b in zip(rollouts(plain), rollouts(paid), strict=True) if a["status"] == "truncated-length"]
    assert cut_off and all(b["advantage"] == pytest.approx(a["advantage"], abs=1e-6) for a, b in cut_off)


def rollouts(folder):
    return [json.loads(line) for line in (folder.path / "rollouts" / "step-000001.jsonl").read_text().splitlines()]


def test_greedy_completions_that_could_not_be_scored_are_written_down(tmp_path, monkeypatch):
    reported = []
    real = mmrl.train.run.Run.report_failures
    monkeypatch.setattr(mmrl.train.run.Run, "report_failures", lambda self, groups: (reported.append(groups), real(self, groups)))
    tasks = [{"id": "toy/colour", "verifiers": {"toy/raises": 1.0}}]
    with pytest.raises(UserError, match=r"scores of step 1 failed, more than judge.failure_limit"):
        runs.run(runs.toy_config(tmp_path, stages=[{**RL, "algorithm": "remax"}], tasks=tasks))
    reported.clear()
    runs.run(runs.toy_config(tmp_path / "b", stages=[{**RL, "algorithm": "remax"}]))
    assert [[len(g.rollouts) for g in groups] for groups in reported] == [[4, 4], [1, 1]] * 2, "sampled ones, then greedy ones"


def test_a_resume_with_verifiers_in_another_order_is_refused(tmp_path):
    tasks = [{"id": "toy/colour", "verifiers": {"toy/letters": 1.0, "toy/exact": 1.0}}]
    with pytest.raises(KeyboardInterrupt):
        runs.run(runs.toy_config(tmp_path, tasks=tasks, stages=[RL]), progress=runs.Silent(1))
    tasks = [{"id": "toy/colour", "verifiers": {"toy/exact": 1.0, "toy/letters": 1.0}}]
    with pytest.raises(UserError, match=r"made with other settings: tasks\.0\.verifiers = \['toy/letters', 'toy/exact'\], now"):
        runs.run(runs.toy_config(tmp_path, tasks=tasks, stages=[RL]), resume=True)


def write(tmp_path, name, **changes):
    import tomli_w

    from mmrl.config.load import to_dict

    path = tmp_path / f"{name}.toml"
    path.write_text(tomli_w.dumps(to_dict(runs.toy_config(tmp_path / "runs", name=name, stages=[RL], **changes))))
    return str(path)


def command(*arguments):
    return CliRunner().invoke(main, ["--plugin", runs.TOY, *arguments], catch_exceptions=False)


def test_a_smoke_run_replaces_smoke_runs_and_nothing_else(tmp_path):
    real = runs.run(runs.toy_config(tmp_path / "runs", name="x-smoke", stages=[{**RL, "steps": 3}]))
    kept = (real.path / "summary.json").read_bytes()
    found = command("train", write(tmp_path, "x"), "--smoke")
    assert found.exit_code == 2 and "x-smoke already has a run" in found.output
    assert (real.path / "summary.json").read_bytes() == kept
    for name in ("y", "y"):
        found = command("train", write(tmp_path, name), "--smoke")
        assert found.exit_code == 0, found.output


def test_an_interrupt_in_the_last_evaluation_ends_what_would_follow(tmp_path, monkeypatch):
    """The run is finished, and whoever trains one after another hears of it."""
    real = mmrl.train.run.Run.evaluate

    def interrupted(self, names):
        real(self, names)
        if names == ("last",):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(mmrl.train.run.Run, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs.run(runs.toy_config(tmp_path, stages=[RL]))
    assert (tmp_path / "toy" / "summary.json").is_file()
    found = command("train", write(tmp_path, "z"))
    assert found.exit_code == 130 and "accuracy" not in found.output.split("report")[1] and "\nresume " not in found.output
    two = [{"id": "toy/colour", "name": "a"}, {"id": "toy/colour", "name": "b"}]
    found = command("mix", write(tmp_path, "m", tasks=two), "--pilots", "3", "--steps", "1")
    assert found.exit_code == 130 and "stopped in pilot 1 of 3; the same command resumes here" in found.output
    assert [p.name for p in (tmp_path / "runs" / "m-mix").iterdir()] == ["m-mix-01"]


def test_out_of_memory_in_an_update_is_one_line_and_what_was_learned_is_kept(tmp_path, monkeypatch):
    """The half of an update that was computed is dropped; the run folder says why it ended, and the run goes on from there."""
    import torch

    real, calls = Learner._objective, []

    def hungry(self, *given):
        calls.append(len(calls))
        if len(calls) == 5:  # the second micro-batch of the second step
            torch.empty(2**60)
        return real(self, *given)

    monkeypatch.setattr(Learner, "_objective", hungry)
    config = runs.toy_config(tmp_path, stages=[{**RL, "steps": 3}], train={"threads": 1, "micro_batch_tokens": 32})
    with pytest.raises(UserError, match=r"^out of memory \(.*\): lower train\.micro_batch_tokens = 32, .* --resume$"):
        runs.run(config)
    assert [p.name for p in (tmp_path / "toy" / "checkpoints").iterdir()] == ["step-000001"]
    (row,) = [r for r in read_jsonl(tmp_path / "toy" / "errors.jsonl") if r["where"] == ENDED]
    assert row["what"].startswith("out of memory") and row["step"] == 1
    folder = runs.run(config, resume=True)
    assert [r["step"] for r in runs.rows(folder) if "metrics" in r] == [1, 2, 3]
    monkeypatch.setattr(mmrl.train.start, "load_policy", lambda *_: (_ for _ in ()).throw(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match=r"^something else$"):
        runs.run(runs.toy_config(tmp_path / "b", stages=[RL]))


def test_rules_at_work_are_in_the_metrics(tmp_path):
    two = [{"id": "toy/colour", "name": "a"}, {"id": "toy/colour", "name": "b", "weight": 3.0}]
    stage = {
        **RL,
        "steps": 6,
        "replay_share": 0.9,
        "adapt_task_weights": "variance",
        "success_threshold": 2.0,
        "ground_truth": "when-failed",
    }
    found = metrics(runs.run(runs.toy_config(tmp_path, stages=[stage], tasks=two)))
    assert found[0]["sampling/replayed"] == 0 and sum(m["sampling/replayed"] for m in found) > 0
    assert {m["sampling/ground_truth"] for m in found} == {2.0}
    assert found[0]["task/a/share"] == 0.25 and all(m["task/a/share"] + m["task/b/share"] == pytest.approx(1) for m in found)
    found = metrics(runs.run(runs.toy_config(tmp_path / "b", stages=[{**RL, "condition": {"top": 0.25, "drop": 0.0}}])))
    assert all(0 < m["condition/positive_share"] < 1 for m in found)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"stages": [{**RL, "condition": {"positive": "see <|image_pad|>"}}]}, "prompt 't"),
        ({"tasks": [{"id": "toy/colour", "prompt_template": "<|vision_start|> {text}"}]}, "prompt 't"),
    ],
)
def test_text_that_stands_for_a_picture_is_named(tmp_path, changes, where):
    with pytest.raises(UserError, match=rf"{where}.* the text \(with hint and condition\) contains '<\|"):
        runs.run(runs.toy_config(tmp_path, **changes))


def test_a_teacher_that_can_not_be_loaded_is_named_as_such(tmp_path):
    from mmrl.policies.vlm.vlm import VLM

    VLM(runs.toy_config(tmp_path).policy).save(tmp_path / "teacher")
    (tmp_path / "teacher" / "model.safetensors").write_bytes(b"cut off")
    stage = {"kind": "distill", "steps": 1, "teacher": str(tmp_path / "teacher")}
    with pytest.raises(UserError, match=r"^stages\.0\.teacher: '.*': model\.safetensors is damaged"):
        runs.run(runs.toy_config(tmp_path, stages=[stage]))


def test_the_later_layers_of_a_critic_may_be_trained_otherwise(tmp_path):
    stage = {**RL, "algorithm": "ppo", "critic": {"hidden_sizes": [8]}}
    part = {"match": "value.2.*", "learning_rate": 1e-3}
    assert runs.run(runs.toy_config(tmp_path, stages=[{**stage, "parts": [part]}])).path.is_dir()
    with pytest.raises(UserError, match=r"'value\.4\.\*' matches none"):
        runs.run(runs.toy_config(tmp_path / "b", stages=[{**stage, "parts": [{**part, "match": "value.4.*"}]}]))


@pytest.mark.parametrize("which", ["²", "٣", "-1", "1.0", ""])
def test_a_checkpoint_that_is_no_number_is_unknown(tmp_path, which):
    folder = runs.run(runs.toy_config(tmp_path, stages=[RL]))
    with pytest.raises(UserError, match=r"has no checkpoint .*: give best, last or one of 2"):
        evaluate_only(runs.toy_config(tmp_path, stages=[RL]), folder.path, which)


@pytest.mark.parametrize(("family", "frame"), [("qwen2_5_vl", "model-pixels"), ("qwen3_vl", "thousandths")])
def test_tasks_know_how_the_policy_sees_before_they_are_asked(tmp_path, monkeypatch, family, frame):
    """In a run and in an evaluation: the prompt names the policy's frame, and the gold answer, in it, is right."""
    asked = []
    real = mmrl.rollout.turns.ConversationCollector.encode

    def watched(self, prompts):
        asked.extend(prompts)
        return real(self, prompts)

    monkeypatch.setattr(mmrl.rollout.turns.ConversationCollector, "encode", watched)
    policy = {"model": f"tiny:{family}:hidden=32,layers=1"}
    tasks = [{"id": "grounding/refer", "options": {"size": 100, "objects": 1}}]
    config = runs.toy_config(tmp_path, stages=[RL], tasks=tasks, policy=policy)
    config_of = config.model_copy(update={"generate": config.generate.model_copy(update={"max_tokens": 24})})
    folder = runs.run(config_of)
    evaluate_only(config_of, folder.path, "last")
    words = {"model-pixels": "pixels of the 112 x 112 picture", "thousandths": "in thousandths of its width and height"}[frame]
    assert asked and all(words in prompt.text for prompt in asked)
    assert not (folder.path / "errors.jsonl").exists() or "gold completion" not in (folder.path / "errors.jsonl").read_text()
