"""What the README says is so: its plugin works as printed, its map is the tree, its commands and links exist."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mmrl.config.load import load_config
from mmrl.registry.plugins import Registry
from mmrl.ui.cli import COMMANDS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def block(language: str, words: str) -> str:
    """The one code block of a language that holds these words."""
    (found,) = [body for lang, body in BLOCKS if lang == language and words in body]
    return found


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """The README's plugin, typed as printed and installed; (folder, environment to run in)."""
    folder = tmp_path_factory.mktemp("flags")
    (folder / "mmrl_flags").mkdir()
    (folder / "mmrl_flags" / "__init__.py").write_text(block("python", "def mmrl_tasks"))
    (folder / "mmrl_flags" / "task.py").write_text(block("python", "class Country"))
    (folder / "pyproject.toml").write_text(block("toml", "[project]"))
    (folder / "flags.toml").write_text(block("toml", "flags/country"))
    install = "-m pip install -q --no-deps --no-index --no-build-isolation --target site ."
    done = subprocess.run([sys.executable, *install.split()], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, {**os.environ, "PYTHONPATH": str(folder / "site"), "MMRL_PLUGINS": "flags"}


def mmrl(flags, *arguments: str) -> str:
    folder, env = flags
    command = [sys.executable, "-m", "mmrl", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_counts_are_those_of_the_pages():
    recipes, families = re.search(r"\[(\d+) recipes\]", TEXT), re.findall(r"(\d+) families", TEXT)
    assert recipes and int(recipes[1]) == len(list((ROOT / "configs" / "recipes").glob("*.toml")))
    verdicts = (
        (ROOT / "docs" / "models.md").read_text().partition("<!-- verdicts -->")[2].partition("<!-- end of verdicts -->")[0]
    )
    assert set(families) == {str(verdicts.count("\n| `"))}


def test_the_first_plugin_is_listed(flags):
    assert "flags/country" in {t["id"] for t in json.loads(mmrl(flags, "list", "tasks", "--json"))}


def test_the_first_plugin_keeps_the_rules(flags):
    for command in re.findall(r"^mmrl (check flags/\w+)", TEXT, re.MULTILINE):
        assert " pass" in mmrl(flags, *command.split())


@pytest.mark.slow
def test_the_first_plugin_trains(flags):
    mmrl(
        flags, "train", "flags.toml", "--set", "stages.0.steps=2", "--set", "stages.1.steps=1", "--set", "evaluate.num_prompts=8"
    )
    assert (flags[0] / "runs" / "flags" / "summary.json").is_file()


def test_its_run_file_is_valid(flags):
    assert [stage.kind for stage in load_config(flags[0] / "flags.toml").stages] == ["sft", "rl"]


def map_entries() -> list[str]:
    """Paths of the map, from their indentation; a line may name two."""
    entries, parent = [], ""
    for line in block("", "THE CORE").splitlines():
        names = re.findall(r"[\w.]+/", line.partition("  ")[0] if line[0] != " " else line.split()[0])
        parent = names[0] if line[0] != " " else parent
        entries += names if line[0] != " " else [parent + name for name in names]
    return entries


def test_the_map_is_the_tree():
    entries = map_entries()
    assert len(block("", "THE CORE").splitlines()) <= 20
    for entry in entries:
        assert (ROOT / entry).is_dir(), f"the map names {entry}, which is not there"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    core = {"/".join(path.split("/")[:2]) + "/" for path in tracked if path.startswith("mmrl/") and path.count("/") > 1}
    folders = {path.split("/")[0] + "/" for path in tracked if "/" in path and path[0] != "."}
    assert core | folders == set(entries), f"the map and the tree differ: {sorted((core | folders) ^ set(entries))}"


def test_commands_exist():
    shell = "\n".join(body for lang, body in BLOCKS if lang == "sh")
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    for target in re.findall(r"^make (\S+)", shell, re.MULTILINE) + re.findall(r"`make ([a-z-]+)`", TEXT):
        assert target in targets
    for command in re.findall(r"^mmrl ([a-z]+)", shell, re.MULTILINE) + re.findall(r"`mmrl ([a-z]+)", TEXT):
        assert command in COMMANDS


def test_it_counts_the_algorithms_right():
    (number,) = re.findall(r"\[(\d+) more algorithms\]\(docs/algorithms\.md\)", TEXT)
    assert int(number) + len(("GRPO", "PPO")) == len(Registry().specs("algorithms"))
