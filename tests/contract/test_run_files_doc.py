"""docs/run-files.md names every key with its type, default and meaning, and its examples are valid.

MMRL_UPDATE_DOCS=1 writes the table anew.
"""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from mmrl import config as configs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "run-files.md"
SECTIONS = [
    ("", configs.RunConfig),
    ("[policy]", configs.PolicyConfig),
    ("[[tasks]]", configs.TaskConfig),
    ('[[stages]] kind = "sft"', configs.SftStage),
    ('[[stages]] kind = "rl"', configs.RlStage),
    ("[generate]", configs.GenerateConfig),
    ("[evaluate]", configs.EvaluateConfig),
    ("[judge]", configs.JudgeConfig),
    ("[train]", configs.TrainConfig),
    ("[checkpoint]", configs.CheckpointConfig),
    ("[record]", configs.RecordConfig),
    ("[limits]", configs.LimitsConfig),
]


def table() -> str:
    lines = []
    for title, model in SECTIONS:
        lines += ["", f"### `{title}`" if title else "### Top level", "", "| key | default | meaning |", "|---|---|---|"]
        for name, field in model.model_fields.items():
            if isinstance(field.default, configs.Section) or (
                name in ("tasks", "stages", "policy", "kind") and title != "[policy]"
            ):
                continue
            default = (
                "required"
                if field.default is PydanticUndefined
                else "unset"
                if field.default is None
                else f"`{toml(field.default)}`"
            )
            lines.append(f"| `{name}` | {default} | {field.description or ''} |")
    return "\n".join([*lines, ""])


def toml(value):
    return (
        {True: "true", False: "false"}[value]
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )


def test_the_table_of_keys_is_that_of_the_schema():
    text = PAGE.read_text()
    begin, end = (re.search(rf"<!-- keys: {mark}.*-->\n?", text) for mark in ("begin", "end"))
    if os.environ.get("MMRL_UPDATE_DOCS"):
        PAGE.write_text(text[: begin.end()] + table() + text[end.start() :])
        text = PAGE.read_text()
        end = re.search(r"<!-- keys: end.*-->\n?", text)
    assert text[begin.end() : end.start()] == table()


@pytest.mark.parametrize("title, model", SECTIONS, ids=lambda v: str(v)[:20])
def test_every_key_says_what_it_does(title, model):
    sections = {"generate", "evaluate", "judge", "train", "checkpoint", "record", "limits"}
    assert [n for n, f in model.model_fields.items() if not f.description and n not in sections] == []


def test_the_examples_are_valid():
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    whole, tasks = blocks
    assert configs.parse_config(tomllib.loads(whole)).stages[0].steps == 60
    assert [t.weight for t in configs.parse_config({**tomllib.loads(whole), **tomllib.loads(tasks)}).tasks] == [3, 1]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.toml")), ids=lambda p: p.name)
def test_every_run_file_of_the_repository_is_valid(path):
    assert configs.load_config(path).name


def test_every_key_is_read_somewhere():
    """A key that nothing reads would be a setting without effect."""
    read = set()
    for path in (ROOT / "mmrl").rglob("*.py"):
        if path.name != "config.py":
            read |= {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    keys = {name for _, model in SECTIONS for name in model.model_fields}
    assert keys - read == set()
