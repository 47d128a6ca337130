"""Every code block of every page: which test runs it, or how it is checked, or that it is an illustration.

`<!-- illustration: why -->` stands before a block that is only to be looked at. A run file is loaded by the real loader, a
command parsed by the real parser (docs_commands), a table's row read as JSON, Python run by the test that `RUN_BY` names, or by
tests/docs/test_blocks.py itself. What a page prints, a block without a language, is no code.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docs_check
import docs_commands
import docs_translations
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import RlStage, RunConfig, TaskConfig

ROOT = docs_check.ROOT
_BLOCK = re.compile(
    r"(?:<!-- illustration: (?P<why>[^>]*?) -->\n+)?^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)"
    r"^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
RUN_BY = {
    ("README.md", "python"): "tests/packaging/test_readme.py",
    ("docs/rl-options.md", "python"): "tests/docs/test_algorithms_doc.py",
    ("docs/algorithms.md", "toml"): "tests/docs/test_algorithms_doc.py",
    ("docs/rl-options.md", "toml"): "tests/docs/test_algorithms_doc.py",
    ("docs/losses.md", "toml"): "tests/docs/test_algorithms_doc.py",
    ("docs/board.md", "python"): "tests/integration/test_board_browser.py",
    ("docs/classification.md", "toml"): "tests/docs/test_classification_doc.py",
    ("docs/evaluate.md", "python"): "tests/train/test_export.py",
    ("docs/interop.md", "python"): "tests/docs/test_interop_doc.py",
    ("docs/mixtures.md", "python"): "tests/docs/test_mixtures_doc.py",
    ("docs/plugins/algorithms.md", "python"): "tests/registry/test_hooks.py",
    ("docs/run-folder.md", "python"): "tests/docs/test_run_folder_doc.py",
    ("docs/training.md", "toml"): "tests/docs/test_algorithms_doc.py",
    ("docs/vqa.md", "python"): "plugins/vqa/tests/test_doc.py",
    ("docs/your-tools.md", "python"): "plugins/interop/tests/test_your_tools_doc.py",
}
"""Page, language -> the test that runs all such blocks of it."""
START = "docs/start/"
"""Pages whose commands and files are all run, in order, by tests/docs/test_start_doc.py."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of code of a page."""

    page: str
    line: int
    language: str
    body: str
    why: str = ""
    """Why it is only an illustration."""

    @property
    def at(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def run_by(self) -> str:
        """The test that runs it, if one does."""
        if self.page.startswith(START):
            return "tests/docs/test_start_doc.py"
        return RUN_BY.get((self.page, self.language), "")


def blocks(pages: Iterable[Path] | None = None) -> list[Block]:
    """The code blocks of all pages; what a program prints is none."""
    found = []
    for path in docs_check.markdown_files() if pages is None else pages:
        if path.is_relative_to(docs_translations.FOLDER):
            continue  # the code of its original
        text = path.read_text("utf-8")
        page = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        for match in _BLOCK.finditer(text):
            if match["language"]:
                line = text.count("\n", 0, match.start("indent")) + 1
                found.append(Block(page=page, line=line, language=match["language"], body=match["body"], why=match["why"] or ""))
    return found


def plugins_of(found: Iterable[Block]) -> set[str]:
    """Names of the plugins that the pages write."""
    return {name for block in found if block.language == "python" for name in re.findall(r'\bid="([\w-]+)/', block.body)}


def faults(found: Collection[Block]) -> list[str]:
    """`file:line: what is wrong`, for blocks that can't be what their page says."""
    written = plugins_of(found)
    first: dict[str, dict[str, Any]] = {}
    wrong = []
    for block in found:
        if block.why or block.page.startswith(START):
            continue
        try:
            if block.language == "toml":
                _check_toml(block, first, written)
            elif block.language == "sh":
                lines = docs_commands.commands(block.body)
                if all(map(docs_commands.is_of_others, lines)):
                    raise UserError("nobody checks the programs of others: mark it <!-- illustration: why -->")
                for command in lines:
                    if said := docs_commands.fault(command, written):
                        raise UserError(f"{command.splitlines()[0]}: {said}")
            elif block.language == "json":
                _check_json(block.body)
            elif block.language == "python":
                compile(block.body, block.at, "exec")
            else:
                raise UserError(f"nobody checks a block in {block.language!r}: mark it <!-- illustration: why -->")
        except (UserError, ValueError, SyntaxError) as error:
            wrong.append(f"{block.at}: {' '.join(str(error).split())}")
    return wrong


def _check_toml(block: Block, first: dict[str, dict[str, Any]], written: Collection[str]) -> None:
    """A run file, or a part that is put into the page's first, or a pyproject.toml."""
    values = tomllib.loads(block.body)
    if "project" in values:
        (points,) = values["project"]["entry-points"].values()
        if not points.keys() <= set(written):
            raise UserError("its entry point is no plugin of a page")
        return
    whole = _placed(values, {**docs_commands.RUN, **first.get(block.page, {})})
    config = parse_config(whole, where="the run file")
    if {"name", "policy", "tasks", "stages"} <= values.keys():
        first.setdefault(block.page, values)
    if "tasks" in values:
        for task in config.tasks:
            docs_commands.check_id(task.id, ("tasks",), dict(task.options), written)
            for id in task.verifiers or ():
                docs_commands.check_id(id, ("verifiers",), {}, written)
    for stage in config.stages if "stages" in values else ():
        if isinstance(stage, RlStage):
            docs_commands.check_id(stage.algorithm, ("algorithms",), {}, written)


def _placed(values: Mapping[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """A run file with these values, which may be keys of a task or of a policy's options alone."""
    if values.keys() <= RunConfig.model_fields.keys():
        return whole | {k: {**whole[k], **v} if k == "policy" else v for k, v in values.items()}
    if values.keys() <= TaskConfig.model_fields.keys():
        return whole | {"tasks": [{**whole["tasks"][0], **values}]}
    if values.keys() <= RlStage.model_fields.keys():
        return whole | {"stages": [*whole["stages"][:-1], {**whole["stages"][-1], **values}]}
    return whole | values


def _check_json(body: str) -> None:
    try:
        json.loads(body)
    except ValueError:
        for line in body.splitlines():
            json.loads(line)


def share(found: Collection[Block]) -> tuple[int, int, int]:
    """How many blocks a test runs, how many are checked without being run, how many are illustrations."""
    shown = sum(bool(block.why) for block in found)
    run = sum(not block.why and (bool(block.run_by) or block.language == "python") for block in found)
    return run, len(found) - run - shown, shown
