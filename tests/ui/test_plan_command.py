"""`mmrl plan`, and `mmrl train` refusing a run that does not fit."""

import json
import re
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from mmrl.api.errors import UserError
from mmrl.train import start
from mmrl.train.plan.machines import GPUS
from mmrl.ui.cli import main

RUN = """
name = "x"
[policy]
model = "Qwen/Qwen2.5-VL-3B-Instruct"
dtype = "bfloat16"
max_pixels = 262144
[[tasks]]
id = "classification/digits"
[[stages]]
kind = "sft"
steps = 1
[[stages]]
kind = "rl"
steps = 1
prompts_per_step = 8
[train]
gradient_checkpointing = true
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return str(path)


def ask(*arguments):
    return CliRunner().invoke(main, ["plan", *arguments], catch_exceptions=True, standalone_mode=False)


def test_json_has_the_keys_that_are_promised(run_file):
    told = json.loads(ask(run_file, "--machine", "h200", "--json").stdout)
    assert set(told) == {
        "fits", "model", "machine", "devices", "sizes", "stages", "engine_fits", "unknown_models", "changes", "offload",
    }  # fmt: skip
    assert told["fits"] and told["model"]["parameters"] == sum(told["model"]["parts"].values()) == 3_754_622_976
    assert [stage["kind"] for stage in told["stages"]] == ["sft", "rl"]
    stage = told["stages"][1]
    assert set(stage) == {"stage", "kind", "trained", "work", "memory", "seconds"}
    assert set(stage["memory"]) == {"parts", "peaks", "peak", "phase", "certain"}
    assert stage["memory"]["peaks"][stage["memory"]["phase"]] == stage["memory"]["peak"] and stage["work"]["asked"] > 0
    for phase, peak in stage["memory"]["peaks"].items():
        assert peak == sum(part["bytes"] for part in stage["memory"]["parts"] if phase in part["phases"])
    assert stage["seconds"]["step"] == pytest.approx(sum(part["seconds"] for part in stage["seconds"]["parts"]))
    names = [part["name"] for part in stage["seconds"]["parts"]]
    assert names[:3] == ["process", "generate: prefill", "generate: decode"] and "update: backward" in names


def test_people_are_told_what_limits_and_what_to_change(run_file):
    found = ask(run_file, "--machine", "h100", "--set", "train.gradient_checkpointing=false")
    text = found.stdout
    assert "it does not fit: learning needs" in text and "Each of these makes it fit, the mildest first" in text
    assert "train.gradient_checkpointing = true" in text and "offload" not in text
    assert "float32 masters" in text and "generate: decode" in text and "starting operations" in text
    large = ask(run_file, "--machine", "h100", "--set", "policy.max_pixels=12845056").stdout
    assert re.search(r"^  policy.max_pixels = \d+ +[\d.]+ GiB +[\d.]+ s a step  smaller pictures$", large, re.MULTILINE)
    assert ask(run_file, "--machine", "h200").exit_code == 0
    far = ask(run_file, "--machine", "rtx-4090", "--set", 'policy.model="Qwen/Qwen3-VL-235B-A22B-Instruct"').stdout
    assert "None of the settings that are tried makes it fit; these save most" in far
    full = ask(run_file, "--machine", "h100", "--set", "policy.dtype=float32").stdout
    assert 'dtype    float32: products run at 67 TFLOP/s at most, in bfloat16 at 989 (policy.dtype = "bfloat16")' in full
    assert "float32: products" not in text
    with pytest.raises(SystemExit) as exit_:
        main.main(args=["plan", run_file, "--machine", "l4"], prog_name="mmrl")
    assert exit_.value.code == 1


def test_more_devices_share_the_weights(run_file):
    one, eight = (json.loads(ask(run_file, "--machine", "h100", "--gpus", n, "--json").stdout) for n in "18")
    first, last = (told["stages"][1]["memory"]["parts"] for told in (one, eight))
    size = lambda parts, name: next(part["bytes"] for part in parts if part["name"] == name)  # noqa: E731
    assert size(first, "optimiser") == 8 * size(last, "optimiser")
    assert eight["devices"] == {"learners": 8, "engines": 0}


def test_bad_input_is_one_line(run_file, tmp_path):
    for arguments, words in (
        ([run_file, "--machine", "h300"], "--machine 'h300' is unknown"),
        ([run_file, "--set", "policy.kind=openai"], "and policies that act, not 'openai'"),
        ([run_file, "--set", "stages.1.group_size=2147483647"], "lower its prompts_per_step and group_size"),
        ([run_file, "--set", 'stages.1.rules=[{id="vqa/self-reward"}]'], "stages.1.rules.0: verifier = 'vqa/answer' rewards"),
        ([str(tmp_path / "none.toml")], "none.toml"),
    ):
        error = ask(*arguments).exception
        assert isinstance(error, UserError) and words in str(error) and "\n" not in str(error)


class Told:
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_train_asks_before_it_loads(run_file, monkeypatch):
    from mmrl.config.load import load_config

    monkeypatch.setattr(start, "prepare_device", lambda device, dtype: None)  # tests/compute/test_devices.py has both
    monkeypatch.setattr(start, "held_by_others", lambda device: 0)
    setup = SimpleNamespace(config=load_config(run_file), device="cuda")
    monkeypatch.setattr(start, "current_machine", lambda device, measured: (GPUS["rtx-4090"], 1))
    with pytest.raises(UserError, match="RTX 4090 is too small"):
        start.check_memory(setup, Told())
    monkeypatch.setattr(start, "current_machine", lambda device, measured: (GPUS["h200"], 1))
    told = Told()
    start.check_memory(setup, told)
    assert told.notes == []
    setup.device = "cpu"
    monkeypatch.setattr(start, "current_machine", None)
    start.check_memory(setup, told)


def test_the_moment_of_the_peak_and_what_a_model_hears_are_told(tmp_path):
    path = tmp_path / "hears.toml"
    path.write_text(
        'name = "x"\npolicy = {model = "tiny:qwen2_audio:hidden=32,layers=2"}\ntasks = [{id = "classification/digits"}]\n'
        'stages = [{kind = "rl", steps = 1, prompts_per_step = 4}]\n',
        encoding="utf-8",
    )
    shown = ask(str(path), "--machine", "h200").stdout
    assert "1 x 30 seconds of sound per prompt" in shown and "pixels" not in shown.split("stages.0")[0]
    stage = json.loads(ask(str(path), "--machine", "h200", "--json").stdout)["stages"][0]
    named = {"update": "learning", "generate": "sampling"}[stage["memory"]["phase"]]
    assert f"stay free while {named}, which takes most" in shown and "4 x " in shown and stage["work"]["asked"] == 4
