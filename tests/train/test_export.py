"""`mmrl export RUN_DIR OUT`: what it writes loads elsewhere, its card says what the run found, and what fails leaves nothing."""

import errno
import json
import re
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import runs
from mmrl import Prompt, user_message
from mmrl.config.load import load_config, to_dict
from mmrl.policies.load import make_policy
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.chat_templates import read_template
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.run_folder.reader import read_run
from mmrl.run_folder.writer import RunFolder
from mmrl.train.export import export_run, opening_in
from mmrl.train.export.card import Card
from mmrl.ui.cli import main

STAGE = {"kind": "sft", "steps": 2, "batch_size": 2, "learning_rate": 0.05}


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "tiny"
    tiny.save(str(folder), "qwen2_5_vl", hidden=32, layers=1)
    return folder


@pytest.fixture(scope="module")
def made(base, tmp_path_factory):
    """Runs by name: all weights, adapters of a folder, adapters of a tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
        place = tmp_path_factory.mktemp("runs")
        lora = {"rank": 4, "target_modules": ["language"]}
        policies = {
            "whole": {"model": str(base)},
            "lora": {"model": str(base), "lora": lora},
            "tiny": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1", "lora": lora},
        }
        found = {}
        for name, policy in policies.items():
            sections = {"policy": policy, "stages": [STAGE], "evaluate": {"num_prompts": 4 if name == "whole" else 0}}
            found[name] = runs.run(runs.toy_config(place, name, **sections)).path
        return found


def cli(*args):
    return CliRunner().invoke(main, ["export", *map(str, args)])


def logits(model, processor):
    inputs = processor(text="say red", return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).logits


def policy_logits(run, processor):
    return logits(trained_policy(run).model, processor)


def trained_policy(run):
    """The policy as mmrl itself loads it from the run's checkpoint."""
    config = load_config(run / "config.toml").policy.model_copy(update={"device": "cpu"})
    return make_policy(config, device="cpu", seed=0, source=run / "checkpoints" / "step-000002" / "policy")


@pytest.mark.parametrize(
    ("name", "merge", "files"), [("whole", [], "model"), ("lora", ["--merge"], "model"), ("lora", [], "adapter_model")]
)
def test_transformers_loads_it(made, base, tmp_path, name, merge, files):
    out = tmp_path / "new" / "out"
    done = cli(made[name], out, "--checkpoint", "last", *merge)
    assert (done.exit_code, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"{out}: step 2 of {made[name]}, for {'peft' if files != 'model' else 'transformers'}\n"
    assert (out / f"{files}.safetensors").is_file() and (out / "model.safetensors").is_file() == (files == "model")
    assert tomllib.loads((out / "run.toml").read_text()) == tomllib.loads((made[name] / "config.toml").read_text())
    processor = AutoProcessor.from_pretrained(out)
    assert processor.chat_template
    model, before = (AutoModelForImageTextToText.from_pretrained(folder).eval() for folder in (out, base))
    trained = policy_logits(made[name], processor)
    torch.testing.assert_close(logits(model, processor), trained, atol=1e-5, rtol=1e-5)
    assert (logits(before, processor) - trained).abs().max() > 1e-3, "training changed something"


def test_the_run_file_names_the_chat_template_beside_it(made, tmp_path, monkeypatch):
    run = shutil.copytree(made["lora"], tmp_path / "run")
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("[policy]\n", '[policy]\nchat_template = "/gone/own.jinja"\n'))
    export_run(run, tmp_path / "out", which="last")
    monkeypatch.chdir(tmp_path / "out")
    config = load_config("run.toml")
    assert config.policy.chat_template == "chat_template.jinja" and read_template(config.policy.chat_template)
    told, now = (tomllib.loads(x) for x in (text, Path("run.toml").read_text()))
    del now["policy"]["chat_template"]
    assert now == told


def test_the_card_has_the_evaluation_and_what_was_trained_on(made, base, tmp_path):
    done = cli(made["whole"], tmp_path / "out", "--checkpoint", "last")
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "out" / "README.md").read_text()
    rows = [json.loads(line)["eval"] for line in (made["whole"] / "metrics.jsonl").read_text().splitlines() if '"eval"' in line]
    first, last = rows[0], rows[-1]
    assert f"| toy/colour | test | accuracy | {last['value']:.3f} ({last['low']:.3f} to {last['high']:.3f}) |" in text
    assert f"{first['value']:.3f} ({first['low']:.3f} to {first['high']:.3f}) | 4 |" in text
    assert (
        "step 2" in text
        and "sft for 2 steps" in text
        and "| toy/colour | 1 | toy/letters |" in text
        and "Whoever publishes" in text
    )
    assert str(base.parent) not in text, "a card names no folder of this machine"
    data = ModelCard.load(tmp_path / "out" / "README.md").data
    assert data.license is None and data.base_model is None and data.library_name == "transformers"
    [result] = data.eval_results
    assert (result.dataset_name, result.dataset_split, result.metric_type) == ("toy/colour", "test", "accuracy")
    assert result.metric_value == pytest.approx(last["value"]) and result.metric_args["n"] == 4


def test_the_card_of_a_run_that_an_older_version_began(tmp_path):
    """Its success was called accuracy; and an interval may be unknown."""
    folder = RunFolder.create(tmp_path / "run", to_dict(config := runs.toy_config(tmp_path)), 0)
    known = {"task": "pick", "split": "test", "value": 0.25, "low": 0.125, "high": 0.5, "n": 8}
    folder.evaluation(0, "rl", {**known, "metric": "accuracy"})
    folder.evaluation(2, "rl", {**known, "metric": "success", "low": None, "high": None})
    run = read_run(folder.path)
    text = Card(run, config, 2, "transformers", "pick", "tiny:qwen2_5_vl").text()
    assert "| pick | test | success | 0.250 (interval unknown) | 0.250 (0.125 to 0.500) | 8 |" in text
    assert "type: success" in text and "n: 8" in text and "low:" not in text
    asked = "Held-out prompts, one answer to each, greedy."
    started = "Held-out starts, one episode from each, greedy."
    for kind, tag, told in (
        ("vlm", "image-text-to-text", asked),
        ("reward", "image-text-to-text", asked),  # it writes nothing, and is no robot
        ("vla", "robotics", started),
        ("gone/kind", "robotics", started),
    ):
        of_kind = config.model_copy(update={"policy": config.policy.model_copy(update={"kind": kind})})
        text = Card(run, of_kind, 2, "mmrl", "pick", "tiny:qwen2_5_vl").text()
        assert f"pipeline_tag: {tag}" in text and told in text and f" {told.split()[1].rstrip(',')} |" in text


@pytest.mark.parametrize("name", ["whole", "lora"])
def test_the_lines_of_the_card_ask_it(made, tmp_path, monkeypatch, capsys, name):
    """They print what mmrl samples greedily at the run's longest completion. docs/evaluate.md has the same lines."""
    export_run(made[name], tmp_path / "out", which="last")
    text = (tmp_path / "out" / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    page = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
    assert code.replace('"out"', '"refer-3b"').replace("max_new_tokens=6", "max_new_tokens=256") in page
    question, picture = "What is in the picture?", Image.new("RGB", (56, 56), (210, 20, 20))
    policy = trained_policy(made[name])
    prompt = policy.encode(Prompt(id="a", messages=[user_message(question, picture)], answer=None))
    [[expected]] = LocalGenerator(policy).generate([prompt], 1, SamplingParams(max_tokens=6, temperature=0.0))
    picture.save(tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert question in code and capsys.readouterr().out == policy.decode(expected.token_ids) + "\n"


def test_the_lines_of_the_card_print_what_the_chat_template_opens(base, tmp_path):
    """They printed the thoughts as if the answer began with them."""
    folder = shutil.copytree(base, tmp_path / "thinker")
    file = folder / "chat_template.jinja"
    head = "assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}"
    file.write_text(file.read_text().replace("assistant\n{% endif %}", head))
    config = runs.toy_config(tmp_path)
    run = read_run(RunFolder.create(tmp_path / "run", to_dict(config), 0).path)
    for switched, opening in (({}, "<think>\n"), ({"enable_thinking": False}, "")):
        one = config.model_copy(update={"policy": config.policy.model_copy(update={"chat_template_kwargs": switched})})
        assert opening_in(folder, one) == opening
        text = Card(run, one, 2, "transformers", "pick", "tiny:qwen2_5_vl", opening=opening).text()
        written = 'print("<think>\\n" + processor.decode(' if opening else "print(processor.decode("
        assert written in text
    assert opening_in(base, config) == "" == opening_in(tmp_path, config)


@pytest.mark.parametrize(("first", "title"), [(0, "before training"), (1, "after step 1")])
def test_the_card_has_the_first_evaluation_beside_the_last_one(made, tmp_path, first, title):
    """A run that begins with an sft stage and goes on with rl is first evaluated between them."""
    run = shutil.copytree(made["whole"], tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "eval" in row and row["step"] == 0:
            row["step"], row["eval"]["value"] = first, 0.123
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = (run / "config.toml").read_text().replace("[policy]\n", "[policy]\nmax_pixels = 3136\n")
    told = "[policy.chat_template_kwargs]\n"
    assert told in config
    (run / "config.toml").write_text(config.replace(told, f"{told}enable_thinking = false\n"))
    export_run(run, tmp_path / "out", which="last")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "trained on pictures of at most 3,136 pixels" in text
    assert "    add_generation_prompt=True,\n    enable_thinking=False,\n" in text
    assert f"| value (95% interval) | {title} | prompts |" in text and len(re.findall(r"\) \| 0\.123 \(.*\) \| 4 \|", text)) == 1


@pytest.mark.parametrize(("name", "terms"), [("whole", "`tiny` and of the data"), ("tiny", "the data")])
def test_the_terms_of_a_licence_are_those_of_a_base_that_has_some(made, tmp_path, name, terms):
    export_run(made[name], tmp_path / "out", which="last", merged=name == "tiny")
    assert f"within the terms of {terms} that it was trained on." in (tmp_path / "out" / "README.md").read_text()


def test_a_card_of_weights_that_were_not_evaluated_says_so(made, tmp_path):
    assert cli(made["lora"], tmp_path / "out", "--checkpoint", "2", "--merge").exit_code == 0
    assert "did not evaluate the weights of step 2" in (tmp_path / "out" / "README.md").read_text()


def test_a_base_from_the_hub_is_named(made, tmp_path):
    run = shutil.copytree(made["lora"], tmp_path / "run")
    for path in (run / "config.toml", run / "checkpoints" / "step-000002" / "policy" / "adapter_config.json"):
        text = path.read_text()
        own = json.loads(text)["base_model_name_or_path"] if path.suffix == ".json" else tomllib.loads(text)["policy"]["model"]
        path.write_text(text.replace(own, "Qwen/Qwen2.5-VL-3B-Instruct"))
    assert cli(run, tmp_path / "out", "--checkpoint", "last").exit_code == 0
    data = ModelCard.load(tmp_path / "out" / "README.md").data
    assert (data.base_model, data.library_name) == ("Qwen/Qwen2.5-VL-3B-Instruct", "peft")


class Api:
    """huggingface_hub's client, of which a call fails."""

    calls: list = []
    fails: dict = {}

    def create_repo(self, name, **options):
        self.calls.append(("create", name, options))
        self._do("create")
        return f"https://hub/{name}"

    def upload_folder(self, **options):
        self.calls.append(("upload", options["repo_id"], sorted(p.name for p in Path(options["folder_path"]).iterdir())))
        self._do("upload")

    def _do(self, call):
        if error := self.fails.get(call):
            raise error


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    Api.calls, Api.fails = [], {}
    return Api


def refusal(status):
    return HfHubHTTPError("no", response=SimpleNamespace(status_code=status, headers={}, request=None))


def test_it_is_uploaded_after_it_was_written(made, tmp_path, hub):
    done = cli(made["whole"], tmp_path / "out", "--checkpoint", "last", "--hub", "someone/toy")
    assert (done.exit_code, done.stdout.splitlines()[1:]) == (0, ["https://hub/someone/toy"]), done.stderr
    assert [call[:2] for call in hub.calls] == [("create", "someone/toy"), ("upload", "someone/toy")]
    assert hub.calls[0][2] == {"private": True, "exist_ok": True}
    assert {"README.md", "model.safetensors", "run.toml", "config.json"} <= set(hub.calls[1][2])
    assert 'from_pretrained("someone/toy")' in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("no", [], "no is no run: there is no such folder: give a run folder, such as runs/demo; a task is exported with --to"),
        ("empty", [], "empty is no run: it has no config.toml"),
        ("bare", [], "bare has no checkpoint yet: wait for the first one"),
        ("whole", ["--checkpoint", "7"], "whole has no checkpoint '7': give best, last or one of 2"),
        ("tiny", ["--checkpoint", "last"], "policy: its adapters belong to tiny:qwen2_5_vl"),
        ("lora", ["--checkpoint", "last", "--hub", "a/b"], "a folder of this machine: give --merge for --hub"),
        ("gone", ["--checkpoint", "last"], "it has no weights: there is neither model.safetensors"),
        ("whole", ["--public"], "--public is for --hub: give both, or leave it out"),
        ("whole", ["--checkpoint", "last", "--hub", "a/b/c"], "--hub 'a/b/c' is no name of a repository"),
        ("whole", ["--to"], "--to needs a name"),
        ("whole", ["--to", "moon"], "--to 'moon' is unknown: choose one of easyr1, swift, verl."),
    ],
)
def test_what_can_not_be_exported_is_one_line_and_no_folder(made, tmp_path, name, args, message):
    (tmp_path / "empty").mkdir()
    if name == "bare":
        shutil.copytree(made["whole"], tmp_path / name, ignore=shutil.ignore_patterns("step-*"))
    if name == "gone":
        shutil.copytree(made["whole"], tmp_path / name, ignore=shutil.ignore_patterns("model.safetensors"))
    done = cli(made.get(name, tmp_path / name), tmp_path / "out", *args)
    assert (done.exit_code, done.stdout) == (2, "") and done.stderr.count("\n") == 1 and message in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_weights_that_were_never_better_are_not_exported(made, tmp_path):
    run = shutil.copytree(made["whole"], tmp_path / "run")
    state = run / "checkpoints" / "step-000002" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"best_step": 0}))
    done = cli(run, tmp_path / "out")
    assert done.exit_code == 2 and "no checkpoint was better than the initial weights" in done.stderr


@pytest.mark.parametrize("there", ["file", "full"])
def test_what_is_there_stays(made, tmp_path, there):
    out = tmp_path / "out"
    if there == "full":
        out.mkdir()
        (out / "mine").write_text("x")
    else:
        out.write_text("x")
    done = cli(made["whole"], out, "--checkpoint", "last")
    assert (done.exit_code, done.stderr) == (2, f"mmrl: {out} exists: name a new folder\n")
    assert (out / "mine" if there == "full" else out).read_text() == "x"


@pytest.mark.parametrize(
    ("call", "error", "message", "kept"),
    [
        ("create", refusal(403), "--hub a/b: the hub lets you not write there (403): take a name of your own", False),
        ("create", refusal(401), "--hub a/b: the hub doesn't know you (401): log in with hf auth login, or set HF_TOKEN", False),
        ("upload", refusal(500), "is complete, and could not be uploaded: no: hf upload a/b", True),
    ],
)
def test_a_hub_that_refuses(made, tmp_path, hub, call, error, message, kept):
    hub.fails[call] = error
    done = cli(made["whole"], tmp_path / "out", "--checkpoint", "last", "--hub", "a/b")
    assert done.exit_code == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert (tmp_path / "out" / "README.md").is_file() == kept


def test_a_full_disk_leaves_nothing(made, tmp_path, monkeypatch):
    def full(source, target, **options):
        Path(target, "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    done = cli(made["whole"], tmp_path / "out", "--checkpoint", "last")
    assert done.exit_code == 2 and not (tmp_path / "out").exists()
    assert done.stderr == f"mmrl: {tmp_path / 'out'} could not be written: No space left on device: free some space\n"


def test_a_run_that_began_with_another_names_its_model(made, base, tmp_path):
    model = made["whole"] / "checkpoints" / "step-000002" / "policy"
    sections = {"policy": {"model": str(model)}, "stages": [{**STAGE, "steps": 1}], "evaluate": {"num_prompts": 0}}
    later = runs.run(runs.toy_config(tmp_path / "runs", "later", **sections)).path
    export_run(later, tmp_path / "out", which="last")
    assert f"`{base.name}`, trained with" in (tmp_path / "out" / "README.md").read_text()
