"""docs/from-*.md and docs/troubleshooting.md name keys, alarms, metrics and commands that exist, here and there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from mmrl.config import sections
from mmrl.config.load import load_config
from mmrl.ui.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KEYS = {f"stages.{n}" for kind in (sections.RlStage, sections.SftStage) for n in kind.model_fields}


def is_key(name: str) -> bool:
    """Whether a dotted name is a key of run files; a list's items need no number."""
    section, _, rest = name.partition(".")
    fields = sections.RunConfig.model_fields
    if section == "stages" and rest:
        return name in KEYS
    if not rest:
        return section in fields
    models = docs_models(fields[section].annotation) if section in fields else set()
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


MIGRATIONS = ("from-trl.md", "from-verl.md", "from-ms-swift.md", "from-lerobot.md")


@pytest.mark.parametrize("page", MIGRATIONS)
def test_the_ways_over_name_keys_of_run_files(page):
    found = rows(page)
    assert len(found) > 8
    for theirs, ours, _ in found:
        for name in re.findall(r"`([a-z_.0-9]+)`", ours):
            assert is_key(name), f"{page}: {theirs} -> {name}"


@pytest.mark.parametrize("page", [*MIGRATIONS, "troubleshooting.md"])
def test_the_run_files_of_the_ways_over_are_valid(page, tmp_path):
    for text in re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        tomllib.loads(text)
        (tmp_path / "run.toml").write_text(text)
        assert load_config(tmp_path / "run.toml").name


@pytest.mark.slow
def test_the_keys_of_trl_are_its():
    trl = pytest.importorskip("trl")
    import dataclasses

    known = {field.name for config in (trl.GRPOConfig, trl.ModelConfig) for field in dataclasses.fields(config)}
    named = {name for theirs, *_ in rows("from-trl.md") for name in re.findall(r"`(\w+)`", theirs)}
    assert len(named) > 40 and named - known == set()


PEERS = {
    "from-verl.md": (
        "verl",
        "import yaml, verl, pathlib\n"
        "path = pathlib.Path(verl.__file__).parent / 'trainer/config/_generated_ppo_trainer.yaml'\n"
        "def has(name, at):\n"
        "    first, _, rest = name.partition('.')\n"
        "    return isinstance(at, dict) and first in at and (not rest or has(rest, at[first]))\n"
        "tree = yaml.safe_load(path.read_text())\n"
        "unknown = [name for name in NAMES if not has(name, tree)]\n",
    ),
    "from-ms-swift.md": (
        "swift",
        "from swift.arguments import RLHFArguments\nfrom dataclasses import fields\n"
        "unknown = set(NAMES) - {field.name for field in fields(RLHFArguments)}\n",
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
    done = subprocess.run(
        [python, "-c", f"NAMES = {names!r}\n{program}assert not unknown, unknown"], capture_output=True, text=True, timeout=200
    )
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
