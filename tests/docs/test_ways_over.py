"""docs/from-*.md and docs/troubleshooting.md name keys, alarms, metrics and commands that exist, here and there."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from mmrl.algorithms.presets import OF_ALL, functions_of, load_algorithm, settings_of
from mmrl.config import sections
from mmrl.config.foreign_keys import FOREIGN
from mmrl.config.foreign_lacking import WITHOUT
from mmrl.config.foreign_names import NAMES, POLICIES, plain
from mmrl.config.foreign_names import page as foreign_page
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
    kinds = {sections.RlStage, sections.SftStage, sections.PreferenceStage}
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
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    part = found[1] if found else ""
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines() if row.startswith("| `")]


DEFAULTS = ("from-trl.md", "from-verl.md", "from-ms-swift.md")
MIGRATIONS = ("from-trl.md", "from-verl.md", "from-ms-swift.md", "from-lerobot.md", "from-rlinf.md")
KEYS = {"EasyR1": "Keys of EasyR1"}
"""Trainer -> the heading of the table of its keys, if another than `Keys`."""


def page_of(trainer: str) -> str:
    return foreign_page(trainer).removeprefix("docs/")


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
    for theirs, ours, note in rows(page_of(trainer), KEYS.get(trainer, "Keys")):
        names = re.findall(r"`([\w.]+)", theirs)
        keys, said = re.findall(r"`([a-z_.0-9]+)`", ours), set[str]()
        named.update(names if keys else ())
        for name in names if keys else ():
            for one in table[name]:
                said |= {key for key in keys if f"{place(one)}.".startswith(f"{key}.")}
                assert place(one) in said or is_key(place(one)), f"{name} -> {one}"
                last = one.rpartition(".")[2]
                assert place(one) == one or f"{last}`" in note or f"{last} =" in note or name.endswith(last), f"{name} -> {one}"
        assert said == set(keys), theirs
    assert named == set(table)


@pytest.mark.parametrize("trainer", FOREIGN)
def test_errors_for_keys_that_are_missing_here_give_the_reason_of_the_ways_over(trainer):
    said = {
        name: cells[-1]
        for cells in (*rows(page_of(trainer), KEYS.get(trainer, "Keys")), *rows(page_of(trainer), "Keys without a counterpart"))
        for name in re.findall(r"`([\w.]+)", cells[0])
        if not any(cells[1:-1])
    }
    known = WITHOUT.get(trainer, {})
    assert said.keys() == known.keys() and {name for name, why in known.items() if not said[name].startswith(why)} == set()


NAMED = {"TRL": ("Losses", "Trainers"), "verl": ("Estimators and losses",), "EasyR1": ("Estimators and losses",)}
NAMED |= {"ms-swift": ("Losses",), "RLinf": ("Names",), "Stable-Baselines3": ("From Stable-Baselines3",)}
"""Trainer -> the headings of the tables of its names."""


def flat(table: dict[str, object]) -> list[str]:
    """The keys and values of an inline table, as its text has them; of an algorithm the id alone."""
    inner = [part for name, one in table.items() if isinstance(one, dict) and one for part in flat(one)]
    plain_ones = {name: one for name, one in table.items() if not (isinstance(one, dict) and one)}
    return inner + [f"{name} = {json.dumps(one)}" if name != "algorithm" else str(one) for name, one in plain_ones.items()]


@pytest.mark.parametrize("trainer", NAMES)
def test_errors_for_names_of_others_say_what_the_ways_over_say(trainer):
    found = {
        plain(name): ours
        for heading in NAMED[trainer]
        for theirs, ours, *_ in rows(page_of(trainer), heading)
        for name in re.findall(r"`(?:\w+[ =]+)?\"?([\w+-]+)\"?`", theirs)
    }
    for name, written in NAMES[trainer].items():
        assert plain(name) in found, name
        for part in flat(tomllib.loads(f"stage = {{{written}}}")["stage"]) if written else ["no counterpart"]:
            assert part in found[plain(name)], f"{name}: {part}"


@pytest.mark.parametrize("trainer", POLICIES)
def test_errors_for_kinds_of_policies_of_others_say_what_the_ways_over_say(trainer):
    found = {
        name: ours for theirs, ours in rows(page_of(trainer), "Kinds of policies") for name in re.findall(r"`(\w+)`", theirs)
    }
    known = Registry().specs("policies")
    for name, written in POLICIES[trainer].items():
        assert all(f"`{part}`" in found[name] for part in re.findall(r'policy\.\w+ = "[^"]+"', written)), name
        assert written or found[name] == "no counterpart", name
        assert name not in known and set(re.findall(r'kind = "([^"]+)"', written)) <= set(known), name
    same = {name for name, ours in found.items() if ours == "the same"}
    assert same <= set(known) and set(found) - same == set(POLICIES[trainer])


def test_what_is_written_in_place_of_names_of_others_is_valid():
    for written in {ours for names in NAMES.values() for ours in names.values() if ours}:
        given = {"steps": 1, **tomllib.loads(f"stage = {{{written}}}")["stage"]}
        kind = given.setdefault("kind", "rl")
        stage = sections.STAGES[kind].model_validate(given | ({"teacher": "m"} if kind == "distill" else {}))
        if isinstance(stage, sections.RlStage):
            load_algorithm(stage.algorithm, stage.settings)


def test_names_with_one_meaning_here_and_elsewhere_are_left_to_the_registry():
    ids = {plain(id) for id in Registry(only=[]).specs("algorithms")}
    for names in NAMES.values():
        for name, written in names.items():
            made = re.fullmatch(r'algorithm = "([^"]+)"', written)
            assert plain(name) not in ids or not made or plain(made[1]) != plain(name) or name.endswith("Trainer"), name


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

    configs = (
        trl.GRPOConfig,
        trl.DPOConfig,
        trl.SFTConfig,
        pytest.importorskip("trl.experimental.cpo").CPOConfig,
        trl.ModelConfig,
    )
    known = {field.name for config in configs for field in dataclasses.fields(config)}
    named = {name for theirs, *_ in rows("from-trl.md") for name in re.findall(r"`(\w+)`", theirs)}
    assert len(named) > 40 and named - known == set()
    own = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    own -= {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    page = (DOCS / "from-trl.md").read_text()
    assert {name for name in own if f"`{name}`" not in page} == set(), "mapped, or said to have no counterpart"


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "package"), [("TRL", "trl"), ("Stable-Baselines3", "stable_baselines3")])
def test_the_names_of_others_are_theirs(trainer, package):
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"{package} is not installed")
    (folder,) = found.submodule_search_locations
    text = "".join(file.read_text(encoding="utf-8") for file in Path(folder).rglob("*.py"))
    assert {name for name in NAMES[trainer] if not re.search(rf"\bclass {name}\(|[\"']{name}[\"']", text)} == set()


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
        "unknown = {name.partition('.')[0] for name in NAMES} - {field.name for field in fields(TrainPipelineConfig)}\n",
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
