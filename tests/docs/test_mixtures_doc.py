"""docs/mixtures.md: its examples are valid, and say what the page says of them."""

import json
import re
import shlex
import tomllib
import typing
from pathlib import Path

import pytest
from PIL import Image

from mmrl.config import load as configs
from mmrl.config.sections import RlStage, SelectConfig, TaskConfig
from mmrl.data.mixture import enough
from mmrl.data.stream import DECAY, FLOOR
from mmrl.registry import plugins
from mmrl.testing.kit import check_task
from mmrl.train.resolve import resolve
from mmrl.ui.cli.mix import command

PAGE = (Path(__file__).parents[2] / "docs" / "mixtures.md").read_text("utf-8")
BLOCKS = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
WHOLE, OWN, STAGES, SELECT = BLOCKS


def test_the_examples_are_valid():
    """The first is a whole run file; the others replace a part of it."""
    first, own, stages, select = (configs.parse_config({**WHOLE, **block}) for block in BLOCKS)
    assert first.weights(first.stages[0]) == {"classification/digits": 3, "birds": 1}, "three prompts of four are digits"
    assert [(t.label, t.group_size, t.max_tokens) for t in own.tasks] == [("thinking", 16, 128), ("at once", None, 8)]
    assert own.tasks[0].prompt_template == "{text} Think first."
    assert own.tasks[0].verifiers == {"classification/answer": 1.0, "classification/format": (0.5, 0.1)}
    assert [s.order for s in stages.stages] == ["easy-first", "shuffled"]
    assert [stages.weights(s) for s in stages.stages] == [{"graded/digits": 1}, {"graded/digits": 0.3, "birds": 0.7}]
    assert (select.stages[0].select.rule, select.stages[0].select.max_prompts) == ("variance", 500)
    assert (stages.stages[1].adapt_task_weights, stages.stages[1].replay_share, stages.stages[1].replay_buffer_size) == (
        "variance",
        0.25,
        128,
    )


@pytest.fixture
def as_the_page_says(tmp_path, monkeypatch, site):
    """A folder with the page's own task in the file that it names, and pictures of birds."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert "The file `graded.py` is whole" in PAGE
    (tmp_path / "graded.py").write_text(code, "utf-8")
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "graded.py"))
    monkeypatch.setenv("MMRL_PLUGINS", "classification,graded")
    monkeypatch.chdir(tmp_path)
    for i in range(20):
        path = tmp_path / "pictures" / "birds" / ("crow", "wren")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (28, 28), (i * 10, 0, 0)).save(path)


@pytest.mark.parametrize("block", BLOCKS[:3], ids=["whole", "own", "stages"])
def test_the_examples_are_accepted(block, as_the_page_says):
    resolve(configs.parse_config({**WHOLE, **block}))


def test_the_rules_of_selection_are_those_of_the_code():
    rules, options = SelectConfig.model_fields["rule"], {name: f.default for name, f in SelectConfig.model_fields.items()}
    table = PAGE.partition("| `rule` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(typing.get_args(rules.annotation))
    assert f"{options['center']} and {options['width']} are Time-R1's" in table


def test_the_pilot_of_the_page_answers_the_split_that_is_trained_on():
    (line,) = re.findall(r"^mmrl train two\.toml (.*?)$", PAGE.replace("\\\n", " "), re.MULTILINE)
    words = shlex.split(line)
    assert words[::2] == ["--set"] * (len(words) // 2)
    pilot = configs.parse_config(WHOLE, words[1::2])
    assert (pilot.name, pilot.evaluate.split, pilot.evaluate.num_samples) == ("pilot", pilot.stages[0].split, 8)
    assert SELECT["stages"][0]["select"]["path"] == f"{pilot.runs_dir}/{pilot.name}/evaluations/step-000000.jsonl"


@pytest.mark.slow
def test_the_task_of_the_page_gives_difficulty(as_the_page_says):
    report = check_task(plugins.registry().get("tasks", "graded/digits"))
    assert report.ok, str(report)
    prompts = plugins.registry().make_task("graded/digits").prompts("train", 0)
    assert len({p.meta["difficulty"] for p in prompts}) > 100 and all("labels" in p.meta for p in prompts)


def test_the_commands_are_valid():
    lines = [line for line in re.findall(r"^mmrl mix (.*)$", PAGE, re.MULTILINE)]
    assert len(lines) == 2
    for line in lines:
        context = command.make_context("mix", shlex.split(line, comments=True), help_option_names=["-h", "--help"])
        assert context.params["run_file"] == Path("two.toml")


def test_the_numbers_are_those_of_the_code():
    assert re.search(r"Three tasks need (\d+) pilots, four (\d+), five (\d+)\.", PAGE).groups() == tuple(
        str(enough(m)) for m in (3, 4, 5)
    )
    assert f"multiplied by {FLOOR} + " in PAGE and DECAY == 0.9, "a decay of 0.9 is a mean over about ten"


@pytest.mark.parametrize(
    "key",
    [
        "order",
        "adapt_task_weights",
        "replay_share",
        "replay_buffer_size",
        "prompt_template",
        "group_size",
        "max_tokens",
        "weight",
        "name",
    ],
)
def test_the_keys_of_the_page_exist(key):
    known = RlStage.model_fields | TaskConfig.model_fields
    assert key in known and re.search(rf"\b{key}\b", PAGE)


def test_the_page_names_every_key_of_mix_json(tmp_path):
    from mmrl.data.mixture import mixture_stage, pilot_config, recommend, seed_mixtures
    from mmrl.ui.cli.mix import _as_json

    config = configs.parse_config(WHOLE)
    at, labels = mixture_stage(config)
    mixtures = seed_mixtures(labels, 3, 0)
    figures = [{"birds": {"metric": "accuracy", "value": v, "low": v, "high": v, "n": 1}} for v in (0.1, 0.2, 0.3)]
    found = recommend([m.shares for m in mixtures], [[0.1], [0.2], [0.3]], 0)
    runs = [pilot_config(config, i, m, 5, "runs") for i, m in enumerate(mixtures)]
    data = _as_json(config, at, 5, 0, runs, mixtures, labels, figures, found)
    json.dumps(data)
    told = PAGE[PAGE.index("`mix.json` beside them") :]
    keys = [*data, *data["pilots"][0], *data["pilots"][0]["tasks"]["birds"], *data["surrogate"], *data["recommended"]]
    assert [key for key in keys if f"`{key}`" not in told] == []
