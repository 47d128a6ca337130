"""The command line. `mmrl NAME` runs the click command named `command` in `mmrl/ui/cli/NAME.py`, imported when it is used.

Bad input prints one line on stderr and exits with 2, an interrupt exits with 130; a traceback means a bug in mmrl.
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
from mmrl.api.errors import PluginError, UserError, did_you_mean, shorten
from mmrl.compute.crossing import trace_of

COMMANDS = {
    "train": "Train the policy of a run file.",
    "eval": "Evaluate a run file's policy or a run's checkpoint.",
    "mix": "Search for the best mixture of training tasks.",
    "plan": "Predict whether a run fits in memory and how long a step takes.",
    "compare": "Compare runs on the held-out prompts that all of them answered.",
    "list": "List tasks, verifiers, algorithms and all else a run file can name.",
    "plugins": "List plugins and the errors of those that fail to load.",
    "preview": "Show a task's prompts as the model will see them.",
    "score": "Score completions from stdin with a verifier.",
    "check": "Check a task, verifier or simulator with the conformance kit.",
    "new": "Create a working plugin to start from.",
    "doctor": "Check the installation: what works, what is broken, how to fix it.",
    "export": "Write a run's policy, or a task's prompts, for other programs.",
    "report": "Write a run's HTML report.",
    "simulator": "Serve this machine's simulators to learners elsewhere.",
    "board": "Show the runs of a folder live in the browser.",
}
"""Command -> its line in `mmrl --help`; kept here so that `--help` imports no command."""

EXTENSIBLE = ("export",)
"""Commands to which a plugin adds, by a group of the same name."""

RENAMED = {
    "eval": {
        "--samples": "--num-samples",
        "--shuffled": "--shuffle-frames",
        "--frames": "--sparse-frames",
        "--agree": "--sparse-agreement",
        "--videos": "--save-videos",
    },
    "plan": {"--text": "--prompt-tokens", "--pixels": "--image-pixels", "--completion": "--completion-tokens"},
    "score": {"--processes": "--num-workers"},
}
"""Command -> its options of version 0.1 -> their new names."""


class Main(click.Group):
    """The `mmrl` command group: the commands of `COMMANDS`, then those of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(self._own_of_plugins(ctx))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            return importlib.import_module(f"mmrl.ui.cli.{cmd_name}").command
        return self._from_plugins(ctx).get(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            if args[0].isidentifier() and Path(f"{args[0]}.py").is_file():
                raise UserError(
                    f"no command {args[0]!r}: {args[0]}.py is here and not loaded. Try: mmrl --plugin ./{args[0]}.py ..."
                )
            raise UserError(f"no command {args[0]!r}.{did_you_mean(args[0], self.list_commands(ctx))} `mmrl --help` lists them")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])  # not list(...): `list` is the command's module here, once it is imported
        if plugins := self._own_of_plugins(ctx):
            with formatter.section("Commands from plugins"):
                formatter.write_dl([(name, plugins[name].get_short_help_str(80)) for name in sorted(plugins)])

    def extensions(self, ctx: click.Context) -> dict[str, click.Command]:
        """Command of `EXTENSIBLE` -> the group that plugins add to it."""
        return {name: command for name, command in self._from_plugins(ctx).items() if name in EXTENSIBLE}

    def _own_of_plugins(self, ctx: click.Context) -> dict[str, click.Command]:
        return {name: command for name, command in self._from_plugins(ctx).items() if name not in EXTENSIBLE}

    def _from_plugins(self, ctx: click.Context) -> dict[str, click.Command]:
        """Command -> its click command, of all plugins. A plugin whose hook fails is reported on stderr and left out."""
        if "commands" not in ctx.meta:
            from mmrl.registry import plugins

            commands: dict[str, click.Command] = {}
            ctx.meta["commands"] = commands
            for plugin, add in plugins.registry().callers("mmrl_commands"):
                group = click.Group()
                try:
                    add(cli=group)
                except (Exception, SystemExit) as error:  # noqa: BLE001  the other commands must keep working
                    click.echo(f"mmrl: plugin {plugin!r} adds no commands: {type(error).__name__}: {shorten(error)}", err=True)
                    continue
                if odd := [name for name, made in group.commands.items() if not isinstance(made, click.Command)]:
                    click.echo(f"mmrl: plugin {plugin!r} adds no commands: {odd[0]!r} is no click.Command", err=True)
                    continue
                _add(commands, group.commands, plugin)
        return ctx.meta["commands"]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,  # type: ignore
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit: 0 on success, 1 when a check fails (`mmrl check`) or nobody reads
        the output any more, 2 on bad input, 130 on an interrupt."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        _open_streams()
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _print_warning
                code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except UserError as error:
            if isinstance(error, PluginError) and error.__cause__:
                click.echo(trace_of(error.__cause__), err=True, nl=False)
            click.echo(f"mmrl: {shorten(error)}", err=True)
            sys.exit(2)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(2)
        except click.ClickException as error:
            where = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
            click.echo(f"mmrl: {_message(error)}{where}", err=True)
            sys.exit(2)
        except click.Abort as error:
            sys.exit(130 if isinstance(error.__cause__, KeyboardInterrupt) else 1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"mmrl: {where}{error.strerror or shorten(error)}: fix that, or choose another path", err=True)
            sys.exit(2)
        except Exception as error:  # noqa: BLE001  the last resort: the log of a bug must end with one line, too
            traceback.print_exc()
            click.echo(f"mmrl: {type(error).__name__}: {shorten(error)}: a bug in mmrl; report it with the lines above", err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _message(error: click.ClickException) -> str:
    """The line for an error of click's. For an old option it names the new one, where click suggests what is spelt alike."""
    if isinstance(error, click.NoSuchOption):
        command = (error.ctx and error.ctx.info_name) or ""
        if new := RENAMED.get(command, {}).get(error.option_name):
            return f"option {error.option_name!r} is called {new!r} since mmrl 0.2: use that"
    return " ".join(error.format_message().split())


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on one line, without its file and source line."""
    with contextlib.suppress(OSError):  # a closed stderr must not end a run
        click.echo(f"mmrl: warning: {' '.join(str(message).split())}", err=True)


def _open_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr (`>&-`) ones that lead nowhere. Otherwise the next
    file that it opens takes the number, and what children print goes into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  as long as the process


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Set environment variables for one command and its child processes."""
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


def _add(commands: MutableMapping[str, click.Command], new: Mapping[str, click.Command], plugin: str, group: str = "") -> None:
    """Add a plugin's commands to `commands`. Several plugins may add commands to one group, such as `record`."""
    for name, command in new.items():
        existing = commands.get(name)
        if isinstance(existing, click.Group) and isinstance(command, click.Group):
            _add(existing.commands, command.commands, plugin, f"{group}{name} ")
        elif existing or (not group and name in COMMANDS and not (name in EXTENSIBLE and isinstance(command, click.Group))):
            click.echo(f"mmrl: plugin {plugin!r} may not add the command {group + name!r}: the name is taken", err=True)
        else:
            if isinstance(command, click.Group):
                command = copy.copy(command)
                command.commands = dict(command.commands)  # a copy: other plugins' commands must not change the plugin's group
            commands[name] = command


def _block(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    for text in values:
        if not text.startswith("no:") or text == "no:":
            raise UserError(f"-p {text}: write -p no:NAME to disable the plugin NAME")
    _extend(ctx, "MMRL_BLOCK", ",", [text.removeprefix("no:") for text in values])


def _add_files(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    _extend(ctx, "MMRL_PLUGIN_FILES", os.pathsep, [str(Path(f).absolute()) for f in values])


def _extend(ctx: click.Context, name: str, separator: str, values: list[str]) -> None:
    """Append values to a list in an environment variable, for this process and its children."""
    if values:
        before = os.environ.get(name, "")
        longer = separator.join([before, *values] if before else values)
        if ctx.resilient_parsing:  # shell completion looks names up after the context is closed
            os.environ[name] = longer
        else:
            ctx.with_resource(_environment({name: longer}))


# eager: these options must act before a plugin's command is looked up
@click.group(cls=Main, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="mmrl %(version)s")
@click.option(
    "-p", multiple=True, metavar="no:NAME", is_eager=True, expose_value=False, callback=_block, help="Disable the plugin NAME."
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
