"""`mmrl train RUN.toml`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override one value of the run file, such as stages.1.steps=50; may be repeated.",
)
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint of the run, or begin it when there is none.")
@click.option("--overwrite", is_flag=True, help="Remove an earlier run of the same name first.")
@click.option("--dry-run", is_flag=True, help="Check the run file and everything it names, print it resolved, train nothing.")
@click.option("--smoke", is_flag=True, help="Run it in seconds: tiny model, two steps a stage, few prompts.")
def command(run_file: Path, overrides: tuple[str, ...], resume: bool, overwrite: bool, dry_run: bool, smoke: bool) -> None:
    """Train a policy as a run file says.

    Writes runs/NAME: configuration, metrics, rollouts, checkpoints, summary.json and report.html.
    """
    from mmrl import config as configs
    from mmrl.errors import UserError

    if resume and overwrite:
        raise UserError("--resume and --overwrite contradict each other: give one of them")
    config = configs.load_config(run_file, overrides)
    config = configs.smoke(config) if smoke else config
    if dry_run:
        _dry_run(config)
        return
    quiet()
    from mmrl.start import train
    from mmrl.view.progress import Show
    from mmrl.view.report import write_report

    with Show(config.name) as show:
        folder = train(config, show, resume=resume, overwrite=overwrite or smoke)
    page = write_report(folder.path)
    _close(folder.path, page, show.console)


def _dry_run(config: Any) -> None:
    import tomli_w

    from mmrl.config import as_data
    from mmrl.start import check_config

    check_config(config)
    click.echo(tomli_w.dumps(as_data(config)), nl=False)
    click.echo(f"# checked: the tasks, verifiers, algorithms and splits of {config.name!r} exist; nothing was trained", err=True)


def quiet() -> None:
    """transformers' progress bars and warnings would tear the live panel."""
    import logging
    import os

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def _close(run: Path, page: Path, console: Any) -> None:
    """What a person wants to know at the end: figures, where to look, where to go on."""
    import json

    from rich.markup import escape

    summary = json.loads((run / "summary.json").read_bytes())
    console.print()
    for task, before in summary["before"].items():
        best, last = summary["best"][task], summary["last"][task]
        for name, after in [("last", last)] if best == last else [("best", best), ("last", last)]:
            console.print(
                f"{escape(task)}  {escape(after['metric'])} {before['value']:.3f} "
                f"({before['low']:.3f} to {before['high']:.3f}) -> "
                f"[bold]{after['value']:.3f}[/] "
                f"({after['low']:.3f} to {after['high']:.3f}) {name}, n={after['n']}, 95% intervals",
                highlight=False,
                soft_wrap=True,
            )
    seconds = summary["seconds"]
    parts = ", ".join(f"{part} {seconds[part]:.0f}" for part in ("generate", "update", "judge", "process", "evaluate", "other"))
    console.print(
        f"{seconds['total']:.0f} s ({parts}); peak memory {summary['peak_memory_mb']} MB", highlight=False, soft_wrap=True
    )
    console.print(
        f"\nreport    {escape(str(page))}\nagain     mmrl eval {escape(str(run))}\n"
        "your own  mmrl new plugin NAME, then docs/plugins.md",
        highlight=False,
        soft_wrap=True,
    )
