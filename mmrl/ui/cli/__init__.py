"""The command line. A command is the click command named `command` in `mmrl/cli/<name>.py`, imported when it is used.

Bad input is answered with one line on stderr and exit code 2; an interrupt with 130; a traceback is a bug.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import click

from mmrl import __version__
from mmrl.api.errors import PluginError, UserError, one_line, suggest
from mmrl.compute.crossing import trace_of

COMMANDS = {
    "train": "Train a policy as a run file says.",
    "eval": "Evaluate a run file's policy or a run's checkpoint.",
    "mix": "Find the mixture of tasks to train on.",
    "plan": "Predict whether a run fits, and how long a step takes.",
    "compare": "Compare runs on the held-out prompts that all of them answered.",
    "list": "List what a run file can name, such as tasks and algorithms.",
    "plugins": "List plugins, and why one does not load.",
    "preview": "Show what the model will see of a task.",
    "score": "Score completions from stdin with a verifier.",
    "check": "Check a task or a verifier against the conformance kit.",
    "new": "Start a plugin that works.",
    "doctor": "Say what is installed, what is broken and how to mend it.",
    "report": "Write a run's HTML report.",
    "board": "Show the runs of a folder in the browser, live.",
}
"""Name -> help, so that `mmrl --help` imports no command."""


class Main(click.Group):
    """The group: its own commands from the table, then those of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(self._from_plugins(ctx))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            return importlib.import_module(f"mmrl.ui.cli.{cmd_name}").command
        return self._from_plugins(ctx).get(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise UserError(f"no command {args[0]!r}.{suggest(args[0], self.list_commands(ctx))} `mmrl --help` lists all")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])  # `list` is the command's module here, once it is imported
        if plugins := self._from_plugins(ctx):
            with formatter.section("Commands from plugins"):
                formatter.write_dl([(name, plugins[name].get_short_help_str(80)) for name in sorted(plugins)])

    def _from_plugins(self, ctx: click.Context) -> dict[str, click.Command]:
        """The plugins' commands; a plugin whose hook fails is reported and left out."""
        if "commands" not in ctx.meta:
            from mmrl.registry import plugins

            found: dict[str, click.Command] = {}
            ctx.meta["commands"] = found
            for plugin, add in plugins.registry().callers("mmrl_commands"):
                own = click.Group()
                try:
                    add(cli=own)
                except (Exception, SystemExit) as error:  # noqa: BLE001  the other commands must live
                    click.echo(f"mmrl: plugin {plugin!r} adds no commands: {type(error).__name__}: {one_line(error)}", err=True)
                    continue
                _add(found, own.commands, plugin)
        return ctx.meta["commands"]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,  # type: ignore
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit: 0 done, 1 the answer is no (`mmrl check`), 2 bad input, 130 interrupted."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _tell
                code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except UserError as error:
            if isinstance(error, PluginError) and error.__cause__:
                click.echo(trace_of(error.__cause__), err=True, nl=False)
            click.echo(f"mmrl: {one_line(error)}", err=True)
            sys.exit(2)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(2)
        except click.ClickException as error:
            where = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
            click.echo(f"mmrl: {' '.join(error.format_message().split())}{where}", err=True)
            sys.exit(2)
        except click.Abort as error:
            sys.exit(130 if isinstance(error.__cause__, KeyboardInterrupt) else 1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"mmrl: {where}{error.strerror or one_line(error)}: mend that, or choose another place", err=True)
            sys.exit(2)
        except Exception as error:  # noqa: BLE001  the last resort: whoever reads the log still finds the line
            traceback.print_exc()
            click.echo(
                f"mmrl: {type(error).__name__}: {one_line(error)}: a fault of mmrl; report it with the lines above", err=True
            )
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _tell(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning for people: the line of source that gave it says nothing to them."""
    click.echo(f"mmrl: warning: {' '.join(str(message).split())}", err=True)


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Environment variables for the time of one command and its child processes."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _add(commands: MutableMapping[str, click.Command], own: Mapping[str, click.Command], plugin: str, group: str = "") -> None:
    """Take in a plugin's commands. A group that plugins share, such as `record`, has the commands of all of them."""
    for name, command in own.items():
        there = commands.get(name)
        if isinstance(there, click.Group) and isinstance(command, click.Group):
            _add(there.commands, command.commands, plugin, f"{group}{name} ")
        elif there or (not group and name in COMMANDS):
            click.echo(f"mmrl: plugin {plugin!r} may not add the command {group + name!r}: there is one already", err=True)
        else:
            if isinstance(command, click.Group):
                command = copy.copy(command)
                command.commands = dict(command.commands)  # the plugin's own stays as it is
            commands[name] = command


def _block(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    for text in values:
        if not text.startswith("no:") or text == "no:":
            raise UserError(f"-p {text}: write -p no:NAME to switch the plugin NAME off")
    _extend(ctx, "MMRL_BLOCK", ",", [text.removeprefix("no:") for text in values])


def _add_files(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    _extend(ctx, "MMRL_PLUGIN_FILES", os.pathsep, [str(Path(f).absolute()) for f in values])


def _extend(ctx: click.Context, name: str, separator: str, values: list[str]) -> None:
    """Lengthen a list in the environment, where this process and its children read it."""
    if values:
        before = os.environ.get(name, "")
        longer = separator.join([before, *values] if before else values)
        if ctx.resilient_parsing:  # the shell asks for completions, which are looked up when the context is closed already
            os.environ[name] = longer
        else:
            ctx.with_resource(_environment({name: longer}))


# eager: the switches act before a plugin's command is looked up
@click.group(cls=Main, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="mmrl %(version)s")
@click.option(
    "-p", multiple=True, metavar="no:NAME", is_eager=True, expose_value=False, callback=_block, help="Switch the plugin NAME off."
)
@click.option(
    "--plugin",
    multiple=True,
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_add_files,
    help="Load a local file as a plugin.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Train vision-language and vision-language-action models by reinforcement learning."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
