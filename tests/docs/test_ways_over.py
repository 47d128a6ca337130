"""docs/from-*.md and docs/troubleshooting.md name keys, alarms, metrics and commands that exist, here and there."""

from __future__ import annotations

import functools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from mmrl.algorithms.presets import OF_ALL, functions_of, load_algorithm, settings_of
from mmrl.config import sections
from mmrl.config.foreign import FOREIGN
from mmrl.config.foreign import page as foreign_page
from mmrl.config.load import load_config
from mmrl.registry.plugins import Registry
from mmrl.ui.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def is_key(name: str) -> bool:
    """Whether a dotted name is a key of run files; a list's items need no number."""
    section, _, rest = name.partition(".")
    fields = sections.RunConfig.model_fields
    if not rest:
        return section in fields
    kinds = {sections.RlStage, sections.SftStage}
    models = kinds if section == "stages" else docs_models(fields[section].annotation) if section in fields else set()
    *inside, last = rest.split(".")
    for part in inside:
        models = {
            inner for model in models if part in model.model_fields for inner in docs_models(model.model_fields[part].annotation)
        }
    return any(last in model.model_fields for model in models)


def docs_models(annotation: object) -> set[type[sections.Section]]:
    import typing

    if isinstance(annotation, type) and issubclass(annotation, sections.Section):
        return {annotation}
    return {model for inner in typing.get_args(annotation) for model in docs_models(inner)}


def rows(page: str, heading: str = "Keys") -> list[list[str]]:
    text = (DOCS / page).read_text()
    part = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines() if row.startswith("| `")]


DEFAULTS = ("from-trl.md", "from-verl.md", "from-ms-swift.md")
MIGRATIONS = ("from-trl.md", "from-verl.md", "from-ms-swift.md", "from-lerobot.md")


@pytest.mark.parametrize("page", MIGRATIONS)
def test_the_ways_over_name_keys_of_run_files(page):
    found = rows(page)
    assert len(found) > 8
    for theirs, ours, _ in found:
        for name in re.findall(r"`([a-z_.0-9]+)`", ours):
            assert is_key(name), f"{page}: {theirs} -> {name}"


@functools.cache
def settings() -> set[str]:
    """The settings of all algorithms."""
    specs = Registry(only=[]).specs("algorithms").values()
    return {"normalise", *OF_ALL, *(name for spec in specs for function in functions_of(spec) for name in settings_of(function))}


def place(name: str) -> str:
    """The key of a run file that has a place of `FOREIGN`: its table, for a setting or an option."""
    found = re.fullmatch(r"stages\.settings\.(\w+)|(tasks\.options)\.\w+", name)
    if not found:
        return name
    assert found[2] or found[1] in settings(), name
    return found[2] or "stages.settings"


@pytest.mark.parametrize("trainer", FOREIGN)
def test_errors_for_keys_of_others_say_what_the_ways_over_say(trainer):
    table, named = FOREIGN[trainer], set[str]()
    for theirs, ours, note in rows(foreign_page(trainer).removeprefix("docs/")):
        names = re.findall(r"`([\w.]+)", theirs)
        named.update(names)
        keys, said = re.findall(r"`([a-z_.0-9]+)`", ours), set[str]()
        for name in names:
            for one in table[name]:
                said |= {key for key in keys if f"{place(one)}.".startswith(f"{key}.")}
                assert place(one) in said or is_key(place(one)), f"{name} -> {one}"
                last = one.rpartition(".")[2]
                assert place(one) == one or f"{last}`" in note or f"{last} =" in note or name.endswith(last), f"{name} -> {one}"
        assert said == set(keys), theirs
    assert named == set(table)


@pytest.mark.parametrize("page", [*MIGRATIONS, "troubleshooting.md"])
def test_the_run_files_of_the_ways_over_are_valid(page, tmp_path):
    for text in re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        tomllib.loads(text)
        (tmp_path / "run.toml").write_text(text)
        assert load_config(tmp_path / "run.toml").name


def assigned(line: str) -> tuple[str, object]:
    """The dotted key and the value of a cell such as `stages.schedule = "linear"`."""
    key, _, value = line.strip("`").partition(" = ")
    return key, tomllib.loads(f"value = {value}")["value"]


def defaults(key: str) -> object:
    """mmrl's default of a dotted key, an algorithm's for those of `stages.settings`."""
    if key.startswith("stages.settings."):
        name = key.rpartition(".")[2]
        algorithm = load_algorithm("ppo" if name == "lam" else "grpo", {})
        if name == "normalise":
            return algorithm.normalise
        found = settings_of(algorithm.loss) | settings_of(algorithm.advantage)
        return found[name]
    section, *inside, last = key.split(".")
    model = sections.RlStage if section == "stages" else sections.RunConfig.model_fields[section].annotation
    for part in inside:
        (model,) = docs_models(model.model_fields[part].annotation)
    return model.model_fields[last].default


@pytest.mark.parametrize("page", DEFAULTS)
def test_the_other_defaults_are_ours_and_can_be_changed_to_theirs(page):
    found = rows(page, "Other defaults")
    assert len(found) > 4
    for _, _, ours, wanted in found:
        key, value = assigned(ours)
        other = assigned(f"{key} = " + wanted.strip("`"))[1]
        assert defaults(key) == value != other, f"{page}: {key}"
        section, *inside, last = key.split(".")
        if inside[:1] == ["settings"]:
            load_algorithm("ppo" if last == "lam" else "grpo", {last: other})
            continue
        table = {last: other}
        for part in reversed(inside):
            table = {part: table}
        model = sections.RlStage if section == "stages" else sections.RunConfig.model_fields[section].annotation
        model.model_validate({"kind": "rl", "steps": 1, **table} if section == "stages" else table)


def same(theirs: object, said: str) -> bool:
    """Whether a default of another program, maybe an enumeration's member, is what a cell says."""
    return str(getattr(theirs, "value", theirs)) == said.strip("`")


@pytest.mark.slow
def test_the_run_file_from_trl_is_the_script():
    """The script's batch, and TRL's defaults that it leaves, in the run file's own words."""
    trl = pytest.importorskip("trl")
    text = (DOCS / "from-trl.md").read_text()
    script = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    made: dict[str, object] = {"GRPOConfig": functools.partial(trl.GRPOConfig, bf16=False)}  # which needs a GPU
    exec("\n".join(line for line in script.splitlines() if line.startswith(("batch", "config"))), made)
    config = made["config"]
    stage = sections.RlStage.model_validate(tomllib.loads(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])["stages"][0])
    completions = config.per_device_train_batch_size * config.gradient_accumulation_steps
    assert stage.prompts_per_step * stage.group_size == completions and stage.group_size == config.num_generations
    assert stage.minibatches == config.steps_per_generation / config.gradient_accumulation_steps == 1
    assert (stage.steps, stage.learning_rate, stage.kl_coef) == (config.max_steps, config.learning_rate, config.beta)
    assert stage.kl_bias_correction == config.use_bias_correction_kl and same(config.lr_scheduler_type, stage.schedule)
    assert config.loss_type == "dapo" and stage.settings == {"normalise": "token"}


@pytest.mark.slow
def test_the_defaults_of_trl_are_its():
    trl = pytest.importorskip("trl")
    import dataclasses

    known = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
    for theirs, said, *_ in rows("from-trl.md", "Other defaults"):
        assert same(known[theirs.strip("`")], said), theirs


@pytest.mark.slow
def test_the_keys_of_trl_are_its():
    trl, transformers = pytest.importorskip("trl"), pytest.importorskip("transformers")
    import dataclasses

    known = {field.name for config in (trl.GRPOConfig, trl.ModelConfig) for field in dataclasses.fields(config)}
    named = {name for theirs, *_ in rows("from-trl.md") for name in re.findall(r"`(\w+)`", theirs)}
    assert len(named) > 40 and named - known == set()
    own = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    own -= {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    page = (DOCS / "from-trl.md").read_text()
    assert {name for name in own if f"`{name}`" not in page} == set(), "mapped, or said to have no counterpart"


PEERS = {
    "from-verl.md": (
        "verl",
        "import yaml, verl, pathlib\n"
        "path = pathlib.Path(verl.__file__).parent / 'trainer/config/_generated_ppo_trainer.yaml'\n"
        "def has(name, at):\n"
        "    first, _, rest = name.partition('.')\n"
        "    return isinstance(at, dict) and first in at and (not rest or has(rest, at[first]))\n"
        "tree = yaml.safe_load(path.read_text())\n"
        "unknown = [name for name in NAMES if not has(name, tree)]\n"
        "def default(name, at=tree):\n"
        "    first, _, rest = name.partition('.')\n"
        "    return default(rest, at[first]) if rest else at[first]\n",
    ),
    "from-ms-swift.md": (
        "swift",
        "from swift.arguments import RLHFArguments\nfrom dataclasses import fields\n"
        "known = {field.name: field.default for field in fields(RLHFArguments)}\n"
        "unknown, default = set(NAMES) - set(known), known.get\n",
    ),
    "from-lerobot.md": (
        "lerobot",
        "from lerobot.configs.train import TrainPipelineConfig\nfrom dataclasses import fields\n"
        "unknown = set(NAMES) - {field.name for field in fields(TrainPipelineConfig)}\n",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PEERS)
def test_the_keys_of_others_are_theirs(page):
    peer, program = PEERS[page]
    python = ROOT / ".peers" / peer / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{peer} is not installed in {python.parents[1]}: make peers")
    names = sorted({name for theirs, *_ in rows(page) for name in re.findall(r"`([\w.]+)`", theirs)})
    said = {theirs.strip("`"): value.strip("`") for theirs, value, *_ in rows(page, "Other defaults")} if page in DEFAULTS else {}
    program += "assert not unknown, unknown\n"
    if said:
        program += f"wrong = {{n: default(n) for n, d in {said!r}.items() if str(default(n)) != d}}\nassert not wrong, wrong\n"
    done = subprocess.run([python, "-c", f"NAMES = {names!r}\n{program}"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-1500:]


def test_symptoms_lead_to_alarms_metrics_keys_and_commands_that_exist():
    text = (DOCS / "troubleshooting.md").read_text()
    alarms = {name for said in re.findall(r"[Aa]larms? ((?:`\w+`(?: and )?)+)", text) for name in re.findall(r"`(\w+)`", said)}
    assert alarms == set(sections.LimitsConfig.model_fields) - {"alarms"}, "each alarm has its symptom"
    metrics = (DOCS / "run-folder.md").read_text()
    for name in re.findall(r"metric `([^`]+)`", text) + re.findall(r"`(time/\w+)`", text):
        assert f"| `{name}` |" in metrics, name
    for name in re.findall(r"`([a-z]+\.[a-z_]+)`", text) + re.findall(r"^\| `([a-z]+\.[a-z_]+)", text, re.MULTILINE):
        assert is_key(name) or name.endswith((".jsonl", ".toml")), name
    for command in re.findall(r"`mmrl ([a-z]+)", text):
        assert command in COMMANDS
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert {"The reward stays flat", "All rewards of a group are equal", "Out of memory", "It hangs"} <= set(headings)
