"""`mmrl export RUN_DIR OUT`: write a run's policy as a folder that other programs load. `--to NAME` is a plugin's command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mmrl.api.errors import UserError, did_you_mean


class Export(click.Command):
    """`mmrl export`. `--to NAME` anywhere on the line makes it a plugin's command, one of a group `export` that the plugin adds
    with the hook `mmrl_commands`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        args, name = _without_to(list(args))
        if name is None:
            return super().make_context(info_name, args, parent, **extra)
        forms = self.forms(parent)
        if name not in forms:
            known = f"choose one of {', '.join(sorted(forms))}" if forms else 'pip install "multimodal-rl[interop]" brings some'
            raise UserError(f"--to {name!r} is unknown: {known}.{did_you_mean(name, forms)}")
        return forms[name].make_context(f"{info_name} --to {name}", args, parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        if forms := self.forms(ctx.parent):
            with formatter.section("From plugins (--to NAME --help shows more)"):
                formatter.write_dl([(f"--to {name}", forms[name].get_short_help_str(80)) for name in sorted(forms)])

    @staticmethod
    def forms(parent: click.Context | None) -> Mapping[str, click.Command]:
        """Name -> the command of a plugin. parent: of the command `mmrl`."""
        if parent is None or not hasattr(parent.command, "extensions"):
            return {}
        added = parent.command.extensions(parent).get("export")
        return added.commands if added else {}


def _without_to(args: list[str]) -> tuple[list[str], str | None]:
    """(the line without `--to NAME`, NAME; None without it)."""
    for i, word in enumerate(args):
        if word == "--":
            break
        if word.startswith("--to="):
            return args[:i] + args[i + 1 :], word.removeprefix("--to=")
        if word == "--to":
            if i + 1 == len(args):
                raise UserError("--to needs a name: mmrl export --help lists them")
            return args[:i] + args[i + 2 :], args[i + 1]
    return args, None


@click.command(cls=Export)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--checkpoint", "which", default="best", show_default=True, help="Checkpoint of the run: best, last or a step.")
@click.option("--merge", "merged", is_flag=True, help="Work adapters into the weights, instead of writing them apart.")
@click.option("--tower", is_flag=True, help="Write the vision tower alone, as transformers loads it.")
@click.option("--hub", default="", metavar="USER/MODEL", help="Upload the folder to this repository, private if it is new.")
@click.option("--public", is_flag=True, help="Make a new repository that all can see.")
def command(run_dir: Path, out: Path, which: str, merged: bool, tower: bool, hub: str, public: bool) -> None:
    """Write the policy of a run to the new folder OUT, as transformers, vLLM, peft or LeRobot load it, with its processor,
    the run file and a model card.

    \b
    mmrl export runs/refer refer-3b --merge
    """
    if public and not hub:
        raise UserError("--public is for --hub: give both, or leave it out")
    from mmrl.ui.cli.terminal import silence_libraries, status_line

    silence_libraries()
    if tower:
        if merged or hub:
            raise UserError(f"--{'merge' if merged else 'hub'} is for the whole policy: leave it out with --tower")
        from mmrl.train.export.tower import export_tower

        alone = export_tower(run_dir, out, which=which)
        click.echo(f"{out}: the vision tower of step {alone.step} of {run_dir}, for transformers.{alone.kind}.from_pretrained")
        return
    from mmrl.train.export import export_run

    made = export_run(run_dir, out, which=which, merged=merged, hub=hub, public=public, say=status_line)
    click.echo(f"{out}: step {made.step} of {run_dir}, for {made.layout}")
    if made.url:
        click.echo(made.url)
