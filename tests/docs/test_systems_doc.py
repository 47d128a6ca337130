"""docs/systems.md: each row has a word and what goes with it, and names what is there; every recipe stands in one row."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from mmrl.config.compute import ComputeConfig
from mmrl.config.policy import LoraConfig
from mmrl.config.sections import GenerateConfig, TaskConfig
from mmrl.config.stages import CriticConfig, CurriculumConfig, EntropyConfig, ImitationConfig, ReweightConfig, RlStage, SftStage
from mmrl.registry import plugins

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "systems.md").read_text("utf-8")
WORDS = ("whole", "in part", "not yet", "not possible here")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| .*\|$", PAGE, re.MULTILINE)]
ROWS = [row for row in ROWS if row[1] != "here"]
RECIPES = {path.stem for path in (ROOT / "configs" / "recipes").glob("*.toml")}
KEYS = {key for kind in (RlStage, SftStage, GenerateConfig, TaskConfig, ComputeConfig, LoraConfig) for key in kind.model_fields}


def named(row):
    return re.findall("`([^`]+)`", row[2])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_has_one_word_and_what_goes_with_it(row):
    name, word, _, missing = row
    assert word in WORDS, f"{name}: {word!r} is none of {', '.join(WORDS)}"
    assert bool(named(row)) == (word in ("whole", "in part")), "what runs is named, and nothing else is"
    assert word != "whole" or not missing, "whole, and something is missing"
    assert word not in ("in part", "not possible here") or missing, "say what is missing, or why"


def test_what_a_row_names_is_there():
    kinds = [plugins.registry().specs(kind) for kind in ("algorithms", "verifiers", "tasks")]
    for row in ROWS:
        for name in named(row):
            key, _, value = name.partition(" = ")
            there = name in RECIPES or any(name in specs for specs in kinds) or (value and key in KEYS)
            assert there, f"{row[0]}: {name} is no recipe, no algorithm, verifier or task and no key of a run file"
            if value and key not in ("imitation", "critic", "entropy_control", "curriculum", "reweight"):
                kind = next(k for k in (RlStage, SftStage, GenerateConfig, ComputeConfig, LoraConfig) if key in k.model_fields)
                of_stage = {RlStage: {"kind": "rl", "steps": 1}, SftStage: {"kind": "sft", "steps": 1}}
                kind(**of_stage.get(kind, {}), **{key: tomllib.loads(f"x = {value}")["x"]})
    (
        [ImitationConfig(rule=rule) for rule in ("sasr", "hpt", "relift")],
        ImitationConfig(uncertainty_weighting=True),
        CriticConfig(bins=51),
        EntropyConfig(target=0.5),
        CurriculumConfig(width=1000),
        ReweightConfig(window=10),
    )


def test_every_recipe_stands_in_one_row():
    found = Counter(name for row in ROWS for name in named(row) if name in RECIPES)
    assert found == Counter(dict.fromkeys(RECIPES, 1))


def test_no_system_stands_there_twice():
    names = Counter(name.strip() for row in ROWS for name in re.sub(r"\(.*?\)", "", row[0]).split(","))
    assert len(ROWS) >= 71 and max(names.values()) == 1, names.most_common(3)
