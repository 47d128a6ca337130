"""Faults that people ran into: names, devices, models, folders and numbers that can't be right."""

import errno
import json
import os
import platform
import shutil
from contextlib import ExitStack

import pytest
import torch
from safetensors.torch import load_file, save

import mmrl.train.run
import mmrl.train.start
import runs
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig
from mmrl.evaluation.evaluator import Evaluator
from mmrl.evaluation.results import Evaluation
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing.cases import mostly_slow
from mmrl.train import start
from mmrl.train.resolve import resolve
from mmrl.train.start import evaluate_only, load_policy, lock_run_folder

RL = {"kind": "rl", "steps": 2, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-3}


@pytest.mark.parametrize(
    "change",
    [
        "policy.device=nope", "policy.device=mps", "policy.attn_implementation=flash_attention_2", "tasks.0.weight=inf",
        "stages.1.kl_coef=nan",
        "stages.0.learning_rate=inf", "generate.max_tokens=1000000000",
        "name=-x", 'name=" "', 'name="a\\nb"', "name=...", f"name={'n' * 300}",
        'runs_dir=""', "tasks.0.verifiers={'toy/letters' = nan}",
    ],
)  # fmt: skip
def test_values_that_no_run_can_have_are_refused_with_the_key(change, tmp_path):
    with pytest.raises(UserError) as caught:
        runs.toy_config(tmp_path, overrides=(change,))
    assert change.split("=")[0].split(".")[-1] in str(caught.value) and "\n" not in str(caught.value)


def test_good_names_stay_good():
    for name in ("a", "digits-2", "ünï 名", ".h", "exp[lr=1]", "v1.0"):
        assert (
            parse_config(
                {"name": name, "policy": {"model": "m"}, "tasks": [{"id": "a"}], "stages": [{"kind": "sft", "steps": 1}]}
            ).name
            == name
        )


@pytest.mark.parametrize(
    "model",
    [
        "tiny:qwen2_5_vl:layers=²",
        "tiny:qwen2_5_vl:seed=99999999999999999999",  # torch takes no more than 64 bits
        "tiny:qwen2_5_vl:hidden=99968",
        "tiny:qwen2_5_vl:layers=99999999999",
        "./nowhere",
    ],
)
def test_models_that_cannot_be(model):
    with pytest.raises(UserError, match=r"policy\.model"):
        VLM(PolicyConfig(model=model))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda f: (f / "model.safetensors").write_bytes(b"cut off"), r"model\.safetensors is damaged"),
        (lambda f: (f / "config.json").write_text("[]"), r"its config\.json is damaged"),
        (lambda f: change_json(f / "config.json", lambda c: c["text_config"].update(hidden_size=64)), "in its files, and"),
        (lambda f: (f / "chat_template.jinja").write_text("{% if %}"), "can't write a picture"),
        (lambda f: (f / "chat_template.jinja").write_text("{{ raise_exception('no pictures please') }}"), "no pictures please"),
        (lambda f: (f / "chat_template.jinja").write_text("user: x"), "leaves pictures out"),
        (lambda f: change_json(f / "tokenizer_config.json", lambda c: c.update(eos_token=None)), "end-of-sequence"),
    ],
)
def test_a_damaged_checkpoint_is_one_line_and_leaves_no_folder(tmp_path, fault, message):
    cases.policy("qwen2_5_vl", 32).save(tmp_path / "model")
    fault(tmp_path / "model")
    with pytest.raises(UserError, match=message) as caught:
        runs.run(runs.toy_config(tmp_path, policy={"model": str(tmp_path / "model")}))
    assert "\n" not in str(caught.value) and not (tmp_path / "toy").exists()


def change_json(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_setting_outside_its_choices_is_refused(tmp_path):
    with pytest.raises(UserError, match="scale = 'groups' is not one of 'group', 'batch', 'none'"):
        runs.run(runs.toy_config(tmp_path, overrides=("stages.1.settings={scale = 'groups'}",)))


def test_one_completion_a_prompt_cannot_be_compared(tmp_path):
    with pytest.raises(UserError, match="group_size = 1, but grpo compares"):
        runs.run(runs.toy_config(tmp_path, overrides=("stages.1.group_size=1",)))


def test_a_ruined_model_ends_the_run_in_one_line(tmp_path):
    with pytest.raises(UserError, match="not finite"):
        runs.run(runs.toy_config(tmp_path, overrides=("stages.0.learning_rate=1e30",)))


def test_a_file_in_the_place_of_the_run_folder(tmp_path):
    (tmp_path / "toy").write_text("mine")
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(UserError, match=r"cannot use .* as a run folder"):
            runs.run(runs.toy_config(tmp_path), **options)
    assert (tmp_path / "toy").read_text() == "mine"


def test_a_link_to_a_run_is_not_overwritten(tmp_path):
    real = runs.run(runs.toy_config(tmp_path / "real"))
    (tmp_path / "toy").symlink_to(real.path)
    with pytest.raises(UserError, match=r"--overwrite can't use .* as a run folder, as it is a link: choose another name"):
        runs.run(runs.toy_config(tmp_path), overwrite=True)
    assert (real.path / "summary.json").exists()


def test_overwrite_removes_no_folder_that_only_has_a_config_toml(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.toml").write_text("theme = 'dark'")
    (tmp_path / "toy" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError):
        runs.run(runs.toy_config(tmp_path), overwrite=True)
    assert (tmp_path / "toy" / "thesis.txt").exists()


def test_overwrite_removes_nothing_that_no_run_wrote(tmp_path):
    folder = runs.run(runs.toy_config(tmp_path)).path
    (folder / "notes.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"--overwrite would remove .*toy with notes\.txt, which no run wrote: move it away"):
        runs.run(runs.toy_config(tmp_path), overwrite=True)
    (folder / "notes.txt").unlink()
    (folder / "manifest.json").write_text('{"site": "mine"}')
    with pytest.raises(UserError, match=r"with a manifest\.json that no run wrote"):
        runs.run(runs.toy_config(tmp_path), overwrite=True)
    assert (folder / "summary.json").exists()


def test_a_run_folder_has_one_writer(tmp_path):
    folder = runs.run(runs.toy_config(tmp_path))
    (folder.path / "summary.json").unlink()
    with lock_run_folder(folder.path):
        assert (folder.path / ".lock").read_text() == platform.node()
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match="in use by another mmrl"):
                runs.run(runs.toy_config(tmp_path), **options)
    assert runs.run(runs.toy_config(tmp_path), resume=True)
    assert (folder.path / ".lock").read_bytes() == b"", "no board takes it for a run that goes on elsewhere"


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(start.fcntl, "flock", flock)
    with (
        pytest.raises(UserError, match=f"{tmp_path} can't be locked: No locks available: set runs_dir"),
        lock_run_folder(tmp_path),
    ):
        pass


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_two_runs_that_begin_at_once_do_not_remove_each_other(tmp_path, options):
    """The other one found no run folder either, and loaded its model meanwhile."""
    config, path, first, second = runs.toy_config(tmp_path), tmp_path / "toy", ExitStack(), ExitStack()
    with first, second:
        for held in (first, second):
            begun = start.open_run(config, path, held, **{"resume": False, "overwrite": False, **options})
            assert begun == (None, False)
        start.create_run(config, path, first, False).metrics(1, "rl", {"loss": 0.5})
        with pytest.raises(UserError, match=r"toy is in use by another mmrl process"):
            start.create_run(config, path, second, False)
        first.close()
        with pytest.raises(UserError, match=r"toy already has a run"):
            start.create_run(config, path, second, False)
    assert len(runs.rows(path)) == 1


@pytest.mark.parametrize("first", [{"kind": "sft", "steps": 2, "batch_size": 4}, RL])
def test_a_stop_in_the_first_step_of_a_stage_keeps_the_stage_before(tmp_path, monkeypatch, first):
    score = mmrl.train.run.Run.report_failures

    def fail(self, groups):
        if self.at.stage == 1:
            raise KeyboardInterrupt
        score(self, groups)

    config = runs.toy_config(tmp_path, stages=[first, RL], evaluate={"num_prompts": 0})
    with monkeypatch.context() as patch:
        patch.setattr(mmrl.train.run.Run, "report_failures", fail)
        with pytest.raises(KeyboardInterrupt):
            runs.run(config)
    assert [p.name for p in (tmp_path / "toy" / "checkpoints").iterdir()] == ["step-000002"]
    whole = runs.run(runs.toy_config(tmp_path / "whole", stages=[first, RL], evaluate={"num_prompts": 0}))
    assert runs.trajectory(runs.run(config, resume=True)) == runs.trajectory(whole)


def test_the_best_may_be_what_the_run_began_with(tmp_path, monkeypatch):
    values = iter([0.9, 0.1])

    def figure(self, task):
        return Evaluation(task=task, split="test", metric="accuracy", value=next(values), low=0, high=1, n=1), []

    monkeypatch.setattr(Evaluator, "__call__", figure)
    config = runs.toy_config(tmp_path, stages=[RL])
    folder = runs.run(config)
    assert json.loads((folder.path / "summary.json").read_text())["best_step"] == 0
    seen = []

    def look(self, task):
        seen.append([p.clone() for _, p in self.collector.policy.parameters()])
        return None, []

    monkeypatch.setattr(Evaluator, "__call__", look)
    evaluate_only(config, folder.path, "best")
    first = [p for _, p in load_policy(resolve(config), None).parameters()]
    assert all(torch.equal(a, b) for a, b in zip(seen[0], first, strict=True))


STOPPED = {"stages": [{**RL, "kl_coef": 0.1}], "checkpoint": {"every": 1}}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was stopped after its first step."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
        with pytest.raises(KeyboardInterrupt):
            runs.run(runs.toy_config(folder, **STOPPED), progress=runs.Silent(1))
    return folder / "toy"


@pytest.mark.parametrize(
    ("name", "content"),
    mostly_slow(
        [
            ("state.json", b"[1]"),
            ("state.json", b'{"step": 4}'),
            ("state.json", b'{"stp": 4}'),
            ("state.json", b'{"step": 1, "stage": 9}'),
            ("state.json", b'{"step": 1, "stage_step": -5}'),
            ("state.json", b'{"step": 1, "stage_step": 1, "source": [1]}'),
            ("state.json", b'{"step": 1, "stage_step": 1, "source": {"toy/colour": -3}}'),
            ("state.json", b'{"step": 1, "seconds": []}'),
            ("policy/tokenizer.json", b"{}"),
            ("state.json", b"{"),
            ("learner.safetensors", b"cut"),
            ("learner.safetensors", save({})),  # whole, but without the reference
            ("learner.safetensors", save({"other/w": torch.zeros(1)})),
        ],
        everyday=3,
    ),
)
def test_a_damaged_checkpoint_of_the_run_is_named(tmp_path, stopped, name, content):
    config = runs.toy_config(tmp_path, **STOPPED)
    shutil.copytree(stopped, tmp_path / "toy")
    (tmp_path / "toy" / "checkpoints" / "step-000001" / name).write_bytes(content)
    with pytest.raises(UserError, match="step-000001 can't be read") as caught:
        runs.run(config, resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        "5",
        "{}",
        '{"step": "two", "time": 1.0}',
        '{"step": 1, "time": 1.0, "eval": 5}',
        '{"step": 1, "metrics": {}}',
        "[" * 99999 + "x\n{}",
    ],
)
def test_a_damaged_row_is_named(tmp_path, stopped, line):
    config = runs.toy_config(tmp_path, **STOPPED)
    shutil.copytree(stopped, tmp_path / "toy")
    with open(tmp_path / "toy" / "metrics.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"metrics.jsonl line 3 is not (a row|JSON)"):
        runs.run(config, resume=True)


def test_a_deleted_checkpoint_begins_again_and_a_damaged_one_is_named(tmp_path):
    config = runs.toy_config(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(4))
    checkpoint = tmp_path / "toy" / "checkpoints" / "step-000004"
    (checkpoint / "learner.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="step-000004 can't be read"):
        runs.run(config, resume=True)
    shutil.rmtree(tmp_path / "toy" / "checkpoints")
    (tmp_path / "toy" / "checkpoints").mkdir()
    whole = runs.run(runs.toy_config(tmp_path / "whole"))
    assert runs.trajectory(runs.run(config, resume=True)) == runs.trajectory(whole)
    end = "checkpoints/step-000006/policy/model.safetensors"
    a, b = (load_file(p / end) for p in (whole.path, tmp_path / "toy"))
    assert all(torch.equal(a[k], b[k]) for k in a)
