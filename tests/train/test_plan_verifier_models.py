"""What verifiers' models take of a learner's device, against the weights that they load."""

from __future__ import annotations

import json

import pytest
import tomli_w
from click.testing import CliRunner
from huggingface_hub import errors

from mmrl.api.errors import UserError
from mmrl.config.load import to_dict
from mmrl.config.sections import RunConfig
from mmrl.judge import image_models, models
from mmrl.train.plan import check_fits, predict, verifier_models
from mmrl.train.plan.machines import GPUS, MIB, Machine
from mmrl.train.resolve import with_algorithm_defaults
from mmrl.ui.cli import main

CPU = Machine(name="cpu", kind="cpu", memory=2**34, flops=1e10, flops32=1e10, bandwidth=1e10, link=1e9, host=1e9, source="here")
SEVEN = "Qwen/Qwen2.5-VL-7B"


def run_file(verifiers, model="Qwen/Qwen2.5-VL-3B", **sections):
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 1, "group_size": 2}
    tasks = [{"id": "classification/digits", "verifiers": dict.fromkeys(verifiers, 1.0)}]
    policy = {"model": model, "dtype": "bfloat16", "max_pixels": 50176, "lora": {"rank": 8, "alpha": 8.0}}
    data = {"name": "x", "tasks": tasks, "policy": policy, "verifiers": verifiers, "stages": [stage], **sections}
    return with_algorithm_defaults(RunConfig.model_validate(data))


def parts(config, machine=GPUS["h100"], online=False):
    verifier_models.weights_of.cache_clear()
    plan = predict(config, machine, online=online)
    found = {part.because: part.bytes for part in plan.stages[0].parts if part.name.startswith("verifier")}
    return found, plan


def test_a_published_model_is_there_in_both_phases_and_beside_it_its_process():
    found, plan = parts(run_file({"judge/right": {"model": SEVEN}}))
    without = parts(run_file({"judge/right": {"model": "tiny"}}))[1]
    weights = 2 * 8_292_166_656
    assert found == {f"{SEVEN} in bfloat16": weights, "1 beside the learner's on the GPU": 1024 * MIB}
    (with_it,), (alone,) = plan.stages, without.stages
    more = {phase: with_it.peaks[phase] - alone.peaks[phase] for phase in alone.peaks}
    assert (
        more == dict.fromkeys(("generate", "update"), weights + 1024 * MIB) and with_it.certain - alone.certain == weights + 2**30
    )
    assert plan.as_json()["unknown_models"] == []


@pytest.mark.parametrize("kind", ["clip", "dino"])
def test_weights_of_a_folder_are_those_that_are_loaded(kind, tmp_path):
    made = models.contrastive("tiny").model if kind == "clip" else image_models.image_encoder("tiny").model
    made.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    count = sum(p.numel() for p in made.parameters())
    verifier = {"clip": "rendering/clip@rlrf", "dino": "rendering/dino@rlrf"}[kind]
    found, _ = parts(run_file({verifier: {"model": str(tmp_path / "model"), "dtype": "float32"}}))
    assert found[f"{tmp_path / 'model'} in float32"] == pytest.approx(4 * count, rel=1e-3)


def test_a_model_that_several_verifiers_of_a_plugin_name_is_there_once_and_another_plugin_has_its_own():
    own = {"judge/right": {"model": SEVEN}, "judge/better": {"model": SEVEN}, "gui/subgoals": {"model": SEVEN}}
    _, plan = parts(run_file(own))
    sizes = [part.bytes for part in plan.stages[0].parts if part.name == "verifier's model"]
    processes = [part.because for part in plan.stages[0].parts if part.name == "verifiers' processes"]
    assert len(sizes) == 2 and processes == ["2 beside the learner's on the GPU"]


@pytest.mark.parametrize(
    "verifier, machine, more",
    [
        ({"judge/right": {"model": SEVEN, "device": "cpu"}}, GPUS["h100"], {}),
        ({"judge/right": {"model": SEVEN, "device": "cuda:1"}}, GPUS["h100"], {}),
        ({"judge/openai": {"model": SEVEN, "url": "http://127.0.0.1:1/v1"}}, GPUS["h100"], {}),
        ({"judge/right": {"model": SEVEN}}, GPUS["h100"], {"compute": {"judges": 1}}),
        ({"classification/exact": {}}, GPUS["h100"], {}),
    ],
)
def test_what_is_elsewhere_takes_nothing(verifier, machine, more):
    assert parts(run_file(verifier, **more), machine)[0] == {}


def test_on_a_cpu_it_is_in_float32_and_needs_no_context():
    assert parts(run_file({"judge/right": {"model": SEVEN}}), CPU)[0] == {f"{SEVEN} in float32": 4 * 8_292_166_656}


def test_a_run_that_fits_but_for_its_judge_is_told_and_one_that_can_not_is_refused():
    assert not check_fits(run_file({"judge/right": {"model": "tiny"}}), GPUS["rtx-4090"])
    assert "may run out of GPU memory" in check_fits(run_file({"judge/right": {"model": SEVEN}}), GPUS["rtx-4090"])
    with pytest.raises(UserError, match=r"optimiser of stages.0 and the verifiers' models take [\d.]+ GiB") as caught:
        check_fits(run_file({"judge/right": {"model": "Qwen/Qwen2.5-VL-32B"}}), GPUS["rtx-4090"])
    assert "\n" not in str(caught.value)


def test_a_size_that_is_not_known_is_told_and_not_taken_for_nothing(monkeypatch, tmp_path):
    asked = []

    def metadata(name):
        asked.append(name)
        raise errors.NotASafetensorsRepoError("no safetensors")

    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", metadata)
    config = run_file({"rendering/clip@rlrf": {"model": "some/clip"}})
    assert parts(config)[1].unknown_models == ("some/clip",) and not asked, "offline, nothing is fetched"
    assert parts(config, online=True)[1].unknown_models == ("some/clip",) and asked == ["some/clip"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip"}))
    assert parts(run_file({"rendering/clip@rlrf": {"model": str(tmp_path)}}))[1].unknown_models == (str(tmp_path),)


def test_the_hub_says_how_many_weights_it_has(monkeypatch):
    class Said:
        parameter_count = {"F32": 10, "BF16": 32}

    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", lambda name: Said)
    found, _ = parts(run_file({"rendering/clip@rlrf": {"model": "some/clip", "dtype": "float32"}}), online=True)
    assert found["some/clip in float32"] == 4 * 42


def test_the_command_names_what_is_not_counted(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(to_dict(run_file({"rendering/clip@rlrf": {"model": str(tmp_path)}}))), encoding="utf-8")
    said = CliRunner().invoke(main, ["plan", str(path), "--machine", "h200"]).output
    assert f"not counted, as their size isn't known here: the verifiers' models {tmp_path}" in said, said
