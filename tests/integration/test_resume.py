"""Resume is exact: stopped, killed, or killed in the middle of writing a checkpoint."""

import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import forked
import runs
from mmrl.registry import plugins
from mmrl.testing.cases import mostly_slow
from mmrl.train.update import loss_scale

KILLER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {support!r})
import runs

def die(folder, at):
    seen = 0
    def watch(event, arguments):
        nonlocal seen
        if event in ("open", "os.rename", "os.mkdir", "shutil.rmtree", "os.rmdir") and "step-000004" in str(arguments[0]):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    runs.run(runs.toy_config(folder, checkpoint={{"every": 2, "keep": 9}}))
    sys.stdout.flush()

first, last, apart = map(int, sys.argv[2:])
for at in range(first, last + 1, apart):  # each in a process of its own, which needn't import torch again
    if not (child := os.fork()):
        die(Path(sys.argv[1]) / str(at), at)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(at, code, flush=True)
    if code != -signal.SIGKILL:
        break
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    os.environ["MMRL_PLUGIN_FILES"] = runs.TOY  # module-scoped: before the fixture that every test has
    folder = runs.run(runs.toy_config(tmp_path_factory.mktemp("whole"), checkpoint={"every": 2, "keep": 9}))
    return folder


def same_end(a: Path, b: Path) -> bool:
    one, two = (
        load_file(next(iter(sorted((p / "checkpoints").glob("step-*"), reverse=True))) / "policy" / "model.safetensors")
        for p in (a, b)
    )
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("stop_after", mostly_slow([1, 2, 3, 4, 5], everyday=2))
def test_a_stopped_run_goes_on_bit_for_bit(whole, tmp_path, stop_after):
    config = runs.toy_config(tmp_path, checkpoint={"every": 2, "keep": 9})
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(stop_after))
    folder = runs.run(config, resume=True)
    assert runs.trajectory(folder) == runs.trajectory(whole)
    assert same_end(folder.path, whole.path)


def test_held_out_prompts_that_are_others_than_before_are_told(tmp_path):
    """As after a change of a table, or of how mmrl divides it: what was held out before may be trained on."""
    stages = [{"kind": "rl", "steps": 2, "prompts_per_step": 1, "group_size": 2}]
    config = runs.toy_config(tmp_path, stages=stages, evaluate={"num_prompts": 16})
    for others, told in ((3, 0), (4, 1)):  # of 16, of which 3 may be left out as broken
        shutil.rmtree(tmp_path / "toy", ignore_errors=True)
        with pytest.raises(KeyboardInterrupt):
            runs.run(config, progress=runs.Silent(1))
        asked = tmp_path / "toy" / "evaluations" / "step-000000.jsonl"
        asked.write_text(asked.read_text().replace('"id":"test-', '"id":"old-', others))
        watcher = runs.Silent()
        runs.run(config, progress=watcher, resume=True)
        said = "the held-out prompts of 'toy/colour' are others than before"
        assert sum(note.startswith(said) for note in watcher.notes) == told
        errors = tmp_path / "toy" / "errors.jsonl"
        assert (errors.read_text().count(said) if errors.exists() else 0) == told


def test_training_prompts_that_are_others_than_before_are_told_once(tmp_path, monkeypatch):
    """As after a change of a table: a row that was corrected, or rows that are gone."""
    colour = type(plugins.registry().make_task("toy/colour", {}))
    prompts = colour.prompts

    def cut(task, split, seed):
        return [*prompts(task, split, seed)][: 12 if split == "train" else None]

    def corrected(task, split, seed):
        found = cut(task, split, seed)
        return [*found[:-1], replace(found[-1], answer="corrected")] if split == "train" else found

    config = runs.toy_config(tmp_path, stages=[{"kind": "rl", "steps": 6, "prompts_per_step": 1, "group_size": 2}])
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(1))
    count = len([*prompts(plugins.registry().make_task("toy/colour", {}), "train", 0)])
    said = []
    for given in (prompts, cut, cut, corrected):
        monkeypatch.setattr(colour, "prompts", given)
        watcher = runs.Silent(len(said) + 2)
        with pytest.raises(KeyboardInterrupt):
            runs.run(config, progress=watcher, resume=True)
        said.append([note.partition(", as")[0] for note in watcher.notes if "training prompts" in note])
    others = "the training prompts of 'toy/colour' are others than before"
    assert said == [[], [f"{others}, {count} then and 12 now"], [], [f"{others}, 12 then and 12 now"]]
    assert (tmp_path / "toy" / "errors.jsonl").read_text().count(others) == 2


def test_the_state_of_a_kl_reference_and_of_several_epochs_survives(tmp_path):
    stage = {"kind": "rl", "steps": 4, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-2, "kl_coef": 0.5, "epochs": 2}
    whole = runs.run(runs.toy_config(tmp_path / "a", stages=[stage]))
    config = runs.toy_config(tmp_path / "b", stages=[stage])
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(2))
    assert runs.trajectory(runs.run(config, resume=True)) == runs.trajectory(whole)
    kl = [r["metrics"]["kl"] for r in runs.rows(whole) if "metrics" in r]
    assert kl[-1] > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["seen", "both"])
def test_masks_and_noise_are_drawn_again(tmp_path, gradient):
    """In mini-batches, and afresh in every step."""
    stage = {"kind": "rl", "steps": 4, "prompts_per_step": 4, "group_size": 2, "learning_rate": 1e-3, "minibatches": 2}
    stage |= {"perception": {"coef": 0.5, "gradient": gradient}, "noisy": {"share": 0.5}, "entropy_penalty": 0.01}
    sections = {"stages": [stage], "checkpoint": {"every": 2, "keep": 9}}
    whole = runs.run(runs.toy_config(tmp_path / "a", **sections))
    config = runs.toy_config(tmp_path / "b", **sections)
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(3))
    folder = runs.run(config, resume=True)
    assert runs.trajectory(folder) == runs.trajectory(whole) and same_end(folder.path, whole.path)
    metrics = [r["metrics"] for r in runs.rows(whole) if "metrics" in r]
    assert all(m["perception/kl"] > 0 and m["noisy/level"] < 500 for m in metrics)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_follow_float32_masters_through_a_resume(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWS_AFTER", 1)
    policy = {"model": "tiny:qwen2_5_vl:hidden=32,layers=1", "dtype": str(dtype).removeprefix("torch.")}
    stage = {"kind": "rl", "steps": 4, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-4}
    whole = runs.run(runs.toy_config(tmp_path / "a", stages=[stage], policy=policy))
    config = runs.toy_config(tmp_path / "b", stages=[stage], policy=policy)
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(2))
    folder = runs.run(config, resume=True)
    assert runs.trajectory(folder) == runs.trajectory(whole) and same_end(folder.path, whole.path)
    weights = load_file(whole.checkpoint_dir(4) / "policy" / "model.safetensors")
    masters = {
        k.removeprefix("optimizer/").removesuffix("/master"): v
        for k, v in load_file(whole.checkpoint_dir(4) / "learner.safetensors").items()
        if k.endswith("/master")
    }
    assert all(v.dtype == dtype for v in weights.values()) and len(masters) >= len(weights)
    assert all(v.dtype == torch.float32 and not torch.equal(v, v.to(dtype).float()) for v in masters.values() if v.numel() > 100)
    scales = [r["metrics"].get("loss_scale") for r in runs.rows(folder) if "metrics" in r]
    if dtype == torch.bfloat16:
        assert scales == [None] * 4
    else:
        assert scales[0] == loss_scale.FIRST < scales[2], "it had changed before the run was stopped"


def test_at_the_edge_of_an_epoch(tmp_path):
    """12 prompts a step of 16: every other step crosses an epoch."""
    stage = {"kind": "rl", "steps": 4, "prompts_per_step": 12, "group_size": 2, "learning_rate": 1e-3}
    whole = runs.run(runs.toy_config(tmp_path / "a", stages=[stage], record={"rollouts_every": 1, "rollouts": 24}))
    config = runs.toy_config(tmp_path / "b", stages=[stage], record={"rollouts_every": 1, "rollouts": 24})
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(2))
    found = runs.trajectory(runs.run(config, resume=True))
    assert found == runs.trajectory(whole)
    drawn = [r["prompt_id"] for r in found[1]][::2]
    assert sorted(drawn[:16]) == sorted(drawn[16:32]) and drawn[:16] != drawn[16:32]


def killed_and_resumed(whole, tmp_path, first, last, apart=1):
    """Kills a run at each of these writes of a checkpoint, `apart` from each other, and goes on with it. How many there were."""
    (tmp_path / "killer.py").write_text(KILLER.format(support=str(Path(runs.__file__).parent)))
    done = forked.run([*map(str, (tmp_path, first, last, apart))], script=str(tmp_path / "killer.py"), timeout=600)
    said = [tuple(map(int, line.split())) for line in done.stdout.splitlines() if re.fullmatch(r"\d+ -?\d+", line)]
    killed = [at for at, code in said if code == -signal.SIGKILL]
    assert all(code == 0 for at, code in said if at not in killed), done.stderr
    for at in killed:
        folder = runs.run(runs.toy_config(tmp_path / str(at), checkpoint={"every": 2, "keep": 9}), resume=True)
        assert runs.trajectory(folder) == runs.trajectory(whole) and same_end(folder.path, whole.path)
        assert not list((folder.path / "checkpoints").glob(".*"))
        shutil.rmtree(tmp_path / str(at))
    return len(killed)


@pytest.mark.always
@pytest.mark.slow
def test_killed_while_a_checkpoint_is_written(whole, tmp_path):
    """At the first write and at the ninth."""
    assert killed_and_resumed(whole, tmp_path, 1, 9, apart=8) == 2


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_killed_at_every_other_write_of_a_checkpoint(whole, tmp_path):
    assert 6 <= killed_and_resumed(whole, tmp_path, 2, 999, apart=2) < 499


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_twenty_steps_are_ten_and_resume_and_ten(tmp_path, threads):
    before = torch.get_num_threads()
    stages = [{"kind": "rl", "steps": 20, "prompts_per_step": 4, "group_size": 8, "learning_rate": 1e-3}]
    model = {"model": "tiny:qwen2_5_vl"}
    given = {"stages": stages, "policy": model, "train": {"threads": threads}}
    try:
        whole = runs.run(runs.toy_config(tmp_path / "a", **given))
        config = runs.toy_config(tmp_path / "b", **given)
        with pytest.raises(KeyboardInterrupt):
            runs.run(config, progress=runs.Silent(10))
        folder = runs.run(config, resume=True)
    finally:
        torch.set_num_threads(before)
    assert runs.trajectory(folder) == runs.trajectory(whole) and same_end(folder.path, whole.path)
    assert len(runs.trajectory(folder)[0]) == 22


def test_other_settings_are_refused(whole, tmp_path):
    shutil.copytree(whole.path, tmp_path / "toy")
    with pytest.raises(Exception, match=r"generate\.temperature"):
        runs.run(
            runs.toy_config(tmp_path, overrides=("generate.temperature=0.5",), checkpoint={"every": 2, "keep": 9}), resume=True
        )
    assert runs.trajectory(tmp_path / "toy") == runs.trajectory(whole)


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path):
    shutil.copytree(whole.path, tmp_path / "toy")
    config = runs.toy_config(tmp_path, checkpoint={"every": 2, "keep": 9})
    (tmp_path / "toy" / "config.toml").write_text(
        (whole.path / "config.toml").read_text().replace(str(whole.path.parent), str(tmp_path))
    )
    before = (tmp_path / "toy" / "summary.json").read_text()
    runs.run(config, resume=True)
    assert runs.trajectory(tmp_path / "toy") == runs.trajectory(whole)
    assert (tmp_path / "toy" / "summary.json").read_text() == before


def test_killed_between_the_last_checkpoint_and_the_summary(whole, tmp_path):
    shutil.copytree(whole.path, tmp_path / "toy")
    config = runs.toy_config(tmp_path, checkpoint={"every": 2, "keep": 9})
    (tmp_path / "toy" / "config.toml").write_text(
        (whole.path / "config.toml").read_text().replace(str(whole.path.parent), str(tmp_path))
    )
    (tmp_path / "toy" / "summary.json").unlink()
    runs.run(config, resume=True)
    assert runs.trajectory(tmp_path / "toy") == runs.trajectory(whole) and (tmp_path / "toy" / "summary.json").exists()


class KilledAfterAnEvaluation(runs.Silent):
    """Ends the run when an evaluation after this step has been written."""

    def evaluated(self, step, figures):
        if step == 2:
            raise SystemExit


def test_killed_after_the_evaluation_that_opens_a_later_stage(tmp_path):
    stages = [
        {"kind": "sft", "steps": 2, "batch_size": 2, "learning_rate": 1e-3},
        {"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 2, "learning_rate": 1e-3},
    ]
    given = {"stages": stages, "checkpoint": {"every": 2, "keep": 9}, "evaluate": {"num_prompts": 2}}
    whole = runs.run(runs.toy_config(tmp_path / "a", **given))
    config = runs.toy_config(tmp_path / "b", **given)
    with pytest.raises(SystemExit):
        runs.run(config, progress=KilledAfterAnEvaluation())
    folder = runs.run(config, resume=True)
    assert runs.trajectory(folder) == runs.trajectory(whole) and same_end(folder.path, whole.path)


def test_what_only_computes_or_records_otherwise_may_change(whole, tmp_path):
    config = runs.toy_config(tmp_path, checkpoint={"every": 2, "keep": 9})
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(3))
    changed = runs.toy_config(
        tmp_path, checkpoint={"every": 3, "keep": 9}, overrides=("judge.num_workers=2", "limits.logprob_gap=inf")
    )
    folder = runs.run(changed, resume=True)
    assert runs.trajectory(folder) == runs.trajectory(whole)
    assert folder.config["judge"]["num_workers"] == 2 and folder.config["checkpoint"]["every"] == 3
