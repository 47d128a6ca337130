"""Whether a command of a page could be run: its options, ids, settings and files, by the real parsers, without running it."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.parser import _OptionParser as Parser

import docs_blocks
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config, parse_value
from mmrl.registry import plugins
from mmrl.registry.importing import check_options
from mmrl.ui.cli import export, main

ROOT = Path(__file__).resolve().parents[2]
LOOP = re.compile(r"^(for \w+ in .*; do|done)$")
ASSIGNED = re.compile(r"^(?:\w+=(?:\$\([^)]*\)|\S*) +)+")
OTHERS = ("git", "cd", "cat", "mkdir", "cp", "vllm", "swift", "lerobot-eval", "inspect", "vf-validate", "ray", "ssh", "eval")
"""Programs of others: what stands in their lines is theirs."""
RUN: dict[str, Any] = {
    "name": "x",
    "policy": {"model": "tiny:qwen2_5_vl"},
    "tasks": [{"id": "classification/digits"}],
    "stages": [{"kind": "sft", "steps": 1}, {"kind": "rl", "steps": 1}],
}
"""What a part of a run file is put into."""
KINDS = {"preview": ("tasks",), "check": ("tasks", "verifiers", "simulators"), "score": ("verifiers",), "serve": ("tasks",)}
"""Command -> what its first argument is the id of."""


def fault(command: str, of_pages: Collection[str] = ()) -> str:
    """Why a command can't be run, or ''; `of_pages` are the names of plugins that pages write."""
    line = ASSIGNED.sub("", command.strip().replace("\\\n", " ")).removesuffix(" |").removesuffix(" | source")
    line = re.sub(r"\$\w+", "1", line)  # a loop counts
    if LOOP.match(line):
        return ""
    if line.startswith("echo ") and " | mmrl " not in line:
        return ""
    if found := re.search(r"(?:^torchrun .* -m |\| |^)(mmrl(?: .*)?)$", line, re.DOTALL):
        return _of_mmrl(shlex.split(found[1])[1:], of_pages)
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        wrong = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"the Makefile has no target {wrong[0]}" if wrong else ""
    if words[:2] == ["pip", "install"]:
        return _of_pip(words[2:], of_pages)
    return "" if is_of_others(line) else f"nobody checks the program {words[0]}"


def is_of_others(command: str) -> bool:
    """Whether a command runs a program that mmrl knows nothing of."""
    words = ASSIGNED.sub("", command).split()
    return words[0] in OTHERS or (words[:2] == ["python", "-m"] and not words[2].startswith("mmrl"))


def _of_pip(words: Sequence[str], of_pages: Collection[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for word in words:
        name, _, extras = word.rstrip("]").partition("[")
        if wrong := [extra for extra in filter(None, extras.split(",")) if extra not in project["optional-dependencies"]]:
            return f"there is no extra {wrong[0]!r}"
        ours = name.removeprefix("multimodal-rl-")
        if ours not in (name, *of_pages) and not any((ROOT / at / ours).is_dir() for at in ("plugins", "sims")):
            return f"there is no distribution {name}"
        if "/" in name and not (ROOT / name).exists():
            return f"there is no folder {name}"
    return ""


def _of_mmrl(words: list[str], of_pages: Collection[str]) -> str:
    context = click.Context(main, info_name="mmrl", **main.context_settings)
    command: click.Command = main
    while isinstance(command, click.Group):
        try:
            options, words, order = _parsed(command, context, words)
        except click.UsageError as error:
            return error.format_message()
        if not words:
            return ""
        name, words = words[0], words[1:]
        inner = command.get_command(context, name)
        if isinstance(inner, export.Export) and "--to" in words:
            at = words.index("--to")
            inner, words = inner.forms(context).get(words[at + 1]), [*words[:at], *words[at + 2 :]]
        if inner is None:
            return "there is no such command"
        command = inner
        context = click.Context(command, parent=context, info_name=name)
    try:
        options, left, order = _parsed(command, context, words)
        values = _values(command, context, options, left, order)
        _check_values(context.info_name or "", values, of_pages)
    except click.UsageError as error:
        return error.format_message()
    except UserError as error:
        return str(error)
    return ""


def _parsed(command: click.Command, context: click.Context, words: list[str]) -> tuple[dict[str, Any], list[str], Any]:
    """Options as they were written, refused where the command has no such option."""
    parser: Parser = command.make_parser(context)
    parser.allow_interspersed_args = not isinstance(command, click.Group)
    return parser.parse_args(args=words)


def _values(
    command: click.Command, context: click.Context, options: dict[str, Any], left: list[str], order: Any
) -> dict[str, Any]:
    """Options and arguments as values; a file need not be there, since the reader has it."""
    if left:
        raise click.UsageError(f"one argument too many: {left[0]}")
    values = {}
    for parameter in command.get_params(context):
        given = options.get(parameter.name or "")
        if "UNSET" in repr(given) or given in (None, ()):
            if parameter.required:
                raise click.UsageError(f"{parameter.name} is missing")
            continue
        files = isinstance(parameter.type, click.Path | click.File)
        values[parameter.name or ""] = given if files else parameter.type_cast_value(context, given)
    return values


def _check_values(command: str, values: dict[str, Any], of_pages: Collection[str]) -> None:
    settings = [*values.get("settings", ()), *values.get("overrides", ())]
    id = next((values[name] for name in ("id", "task", "verifier") if name in values), None)
    kinds = (values["kind"],) if command == "list" and "kind" in values else KINDS.get(command, ())
    if id and "/" in id and kinds and not Path(id).suffix:
        check_id(id, kinds, {name: parse_value(value) for name, _, value in (text.partition("=") for text in settings)}, of_pages)
    elif settings and command in ("train", "eval", "mix", "plan"):
        first, second = RUN["stages"]
        alone = any(text.startswith("stages.0.algorithm=") for text in settings)
        parse_config({**RUN, "stages": [second] if alone else [first, second]}, settings)


@cache
def _registry() -> plugins.Registry:
    return plugins.registry()


def check_id(id: str, kinds: Sequence[str], options: dict[str, Any], of_pages: Collection[str]) -> None:
    """Raise UserError if there is no such id, or if it doesn't take one of the options."""
    if id.partition("/")[0] in of_pages:
        return
    known = [kind for kind in kinds if id in _registry().specs(kind)] or [kinds[0]]
    spec = _registry().get(known[0], id)
    if known[0] not in ("tasks", "simulators") or not options:
        return
    target = _registry().target(spec)
    try:
        check_options(f"{known[0].removesuffix('s')} {id!r}", target, {**spec.options, **options})
    except UserError as error:
        if "has no option" in str(error) or "is not one of" in str(error):
            raise


def commands(body: str) -> list[str]:
    """The commands of a block, those inside a loop too."""
    return [command.strip() for command in docs_blocks.commands(body)]
