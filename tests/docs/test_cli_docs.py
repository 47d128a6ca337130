"""docs/cli.md shows each command's help as it is. `MMRL_UPDATE_DOCS=1 pytest tests/docs/test_cli_docs.py` writes it anew."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from pathlib import Path

import click
import pytest

from mmrl.api.specs import AlgorithmSpec, TaskSpec, VerifierSpec
from mmrl.ui.cli import COMMANDS, main
from mmrl.ui.cli.options import Option

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BLOCK = re.compile(r"<!-- help: ([\w ]+) -->\n```\n(.*?)```\n", re.DOTALL)
SHOWN = {name: text for name, text in BLOCK.findall(PAGE.read_text("utf-8"))}
WRITTEN = [name for name in COMMANDS if importlib.util.find_spec(f"mmrl.ui.cli.{name}")]


def help_of(path: str) -> str:
    """What `mmrl a b --help` prints in a terminal of 100 columns."""
    context, command = None, main
    for name in path.split():
        if context is not None:
            command = command.get_command(context, name)
        context = click.Context(
            command, parent=context, info_name=name, terminal_width=100, max_content_width=100, help_option_names=["-h", "--help"]
        )
    return command.get_help(context) + "\n"


def update() -> None:
    def anew(match: re.Match[str]) -> str:
        text = help_of(match[1]) if match[1].split()[-1] in (*WRITTEN, "mmrl", "plugin") else match[2]
        return f"<!-- help: {match[1]} -->\n```\n{text}```\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_PLUGINS", "")
        PAGE.write_text(BLOCK.sub(anew, PAGE.read_text("utf-8")), "utf-8")
    SHOWN.update(BLOCK.findall(PAGE.read_text("utf-8")))


if os.environ.get("MMRL_UPDATE_DOCS"):
    update()


@pytest.mark.parametrize("command", ["mmrl", *(f"mmrl {name}" for name in WRITTEN if name != "new"), "mmrl new plugin"])
def test_the_page_shows_the_help(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGINS", "")
    assert SHOWN.get(command) == help_of(command), "run this file with MMRL_UPDATE_DOCS=1"


def test_every_command_has_a_section() -> None:
    page = PAGE.read_text("utf-8")
    for name in COMMANDS:
        assert re.search(rf"^## mmrl {name}\b", page, re.MULTILINE)


def test_the_page_names_the_keys_of_a_listed_spec() -> None:
    """Those of simulators and trackers are left to their specs."""
    section = PAGE.read_text("utf-8").partition("\n## mmrl list\n")[2].partition("\n## ")[0]
    keys = {f.name for spec in (TaskSpec, VerifierSpec, AlgorithmSpec) for f in dataclasses.fields(spec)}
    keys |= {f.name for f in dataclasses.fields(Option)} | {"kind", "plugin", "accepts", "needs"}
    assert [key for key in sorted(keys) if f"`{key}`" not in section] == []
