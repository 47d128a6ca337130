"""`mmrl train RUN.toml`"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from mmrl.api.errors import UserError


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
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Run on a Ray cluster: ray://HOST:PORT, auto for the one that this machine is part of, local for a fresh one.",
)
@click.option("--smoke", is_flag=True, help="Run it in seconds: tiny model, two steps a stage, few prompts.")
@click.option("--quiet", is_flag=True, help="Say only notes, the figures at the end and where the run is.")
def command(
    run_file: Path,
    overrides: tuple[str, ...],
    resume: bool,
    overwrite: bool,
    dry_run: bool,
    smoke: bool,
    cluster: str | None,
    quiet: bool,
) -> None:
    """Train a policy as a run file says.

    Writes runs/NAME: configuration, metrics, rollouts, checkpoints, summary.json and report.html.
    """
    from mmrl.compute.processes import is_rank, launch, speaks
    from mmrl.compute.progress import Unheard
    from mmrl.config import load as configs
    from mmrl.train.smoke import smoke as smaller
    from mmrl.ui.cli import terminal

    if resume and overwrite:
        raise UserError("--resume and --overwrite contradict each other: give one of them")
    if cluster == "":  # of a variable of the shell that is unset
        raise UserError("--cluster is empty: give ray://HOST:PORT, auto or local, or leave it out")
    config = configs.load_config(run_file, overrides)
    config = smaller(config) if smoke else config
    if dry_run:
        _dry_run(config)
        return
    if config.compute.learners > 1 and not cluster and not is_rank():
        from mmrl.train.resolve import resolve

        resolve(config)  # a wrong run file is refused once, and not by each of them
        if not quiet:
            terminal.tell(f"starting {config.compute.learners} learners ...")
        raise SystemExit(launch(config.compute.learners, sys.argv[1:], on_gpu=config.policy.device != "cpu"))
    if not speaks():
        terminal.quiet()
        try:
            _train(config, Unheard(), None, resume, overwrite)
        except KeyboardInterrupt:
            raise SystemExit(130) from None  # click says it with an empty line, in the midst of what the first learner shows
        return
    if not quiet:
        terminal.tell(f"starting on the cluster {cluster} ..." if cluster else f"loading {config.policy.model} ...")
    terminal.quiet()
    from mmrl.ui.report.progress import Show
    from mmrl.ui.report.report import write_report

    path = Path(config.runs) / config.name
    with Show(config.name, config.stages, path, quiet=quiet) as show:
        if smoke:
            show.note("a smoke run: a tiny model and a few steps show that it works, not that it learns")
        try:
            folder = _train(config, show, cluster, resume, overwrite or (smoke and _is_smoke(path)))
        except (KeyboardInterrupt, UserError):
            if show.under_way:
                _stopped(path, show)
            raise
    path = folder.path if folder else path
    if path.is_dir():
        _close(path, write_report(path), show)
    else:  # a terminal beside the cluster, which doesn't see its files
        show.console.print(f"\nfinished: the run is in {path} on the cluster", highlight=False, markup=False, soft_wrap=True)


def _train(config: Any, show: Any, cluster: str | None, resume: bool, overwrite: bool) -> Any:
    """The run's folder; None on a cluster, whose files may be elsewhere."""
    if cluster:
        from mmrl.compute.cluster import train_on_cluster
        from mmrl.train.on_cluster import learn
        from mmrl.ui.report.report import write_report

        return train_on_cluster(config, show, cluster, learn=learn, report=write_report, resume=resume, overwrite=overwrite)
    from mmrl.train.start import train

    return train(config, show, resume=resume, overwrite=overwrite)


def _is_smoke(path: Path) -> bool:
    """Whether the run there is no more than a smoke run, which another may replace without being asked to."""
    from mmrl.config.load import load_config

    return (path / "config.toml").is_file() and load_config(path / "config.toml").smoke


def _dry_run(config: Any) -> None:
    import tomli_w

    from mmrl.config.load import as_data
    from mmrl.train.checks.run_file import check_model
    from mmrl.train.remarks import remarks
    from mmrl.train.resolve import resolve

    setup = resolve(config)
    config = setup.config
    check_model(config, setup.policy)
    click.echo(tomli_w.dumps(as_data(config)), nl=False)
    splits = dict.fromkeys([*(stage.split for stage in config.stages), *([config.evaluate.split] if config.evaluate.n else [])])
    for name in setup.tasks:
        reward = " + ".join(_weighted(verifier, *w) for verifier, w in setup.weights[name].items())
        counts = ", ".join(f"{len(setup.splits(name, split))} {split}" for split in splits)
        click.echo(f"# {name}: {counts} prompts; reward {reward}; evaluated with {setup.metrics[name]}", err=True)
    for remark in remarks(setup):
        click.echo(f"# note: {remark}", err=True)
    path = Path(config.runs) / config.name
    if path.exists():
        click.echo(f"# {path} is there already: training needs --resume, --overwrite or another name", err=True)
    click.echo("# checked: keys, ids, options and splits. Not looked at: models on a hub, and pictures (mmrl check)", err=True)


def _weighted(verifier: str, start: float, end: float) -> str:
    if start == end:
        return verifier if start == 1 else f"{start:g} x {verifier}"
    return f"({start:g} to {end:g}) x {verifier}"


def _stopped(run: Path, show: Any) -> None:
    """What is left of a run that ended early, and how to go on."""
    from mmrl.run_folder.reader import is_run, read_run
    from mmrl.ui.report.report import write_report

    if (run / "summary.json").is_file():  # its last evaluation was under way
        _close(run, write_report(run), show)
        return
    if not is_run(run) or not (steps := read_run(run).steps):
        return
    report = ""
    with contextlib.suppress(UserError):  # what ended the run, such as a full disk, may be in the way here too
        report = f"\nreport    {write_report(run)}"
    kept = sorted(p.name for p in (run / "checkpoints").glob("step-*"))
    again = [a for a in sys.argv[1:] if a not in ("--overwrite", "--resume")]
    show.console.print(
        f"\nstopped after step {steps[-1]['step']} of the run; "
        f"{f'the newest checkpoint is {kept[-1]}' if kept else 'there is no checkpoint yet'}{report}\n"
        f"go on     {shlex.join(['mmrl', *again, '--resume'])}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _close(run: Path, page: Path, show: Any) -> None:
    """What a person wants to know at the end: figures, where to look, where to go on."""
    import json

    from rich.markup import escape

    summary, say = json.loads((run / "summary.json").read_bytes()), partial(show.console.print, highlight=False, soft_wrap=True)
    if show.quiet:
        _say_figures(summary, say)
        say(f"report    {escape(str(page))}")
        return
    say()
    for text in show.notes:  # said when it happened, and long scrolled away
        say(f"note: {text}", style="yellow", markup=False)
    _say_figures(summary, say)
    seconds = summary["seconds"]
    parts = ", ".join(f"{part} {seconds[part]:.0f}" for part in ("generate", "update", "judge", "process", "evaluate", "other"))
    say(f"{seconds['total']:.0f} s ({parts}); peak memory {summary['peak_memory_mb']} MB")
    switches = sys.argv[1 : sys.argv.index("train")] if "train" in sys.argv else []  # such as --plugin ./my_task.py
    again = shlex.join(["mmrl", *switches, "eval", str(run)])
    say(f"\nreport    {escape(str(page))}\nagain     {escape(again)}")
    if all(_bundled(task) for task in summary["before"]):
        say("your own  mmrl new plugin NAME, then docs/plugins.md")


def _say_figures(summary: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Each task's evaluations, before and after."""
    from rich.markup import escape

    for task, before in summary["before"].items():
        best, last = summary["best"][task], summary["last"][task]
        for name, after in [("last", last)] if best == last else [("best", best), ("last", last)]:
            say(
                f"{escape(task)}  {escape(after['metric'])} {before['value']:.3f} "
                f"({before['low']:.3f} to {before['high']:.3f}) -> "
                f"[bold]{after['value']:.3f}[/] "
                f"({after['low']:.3f} to {after['high']:.3f}) {name}, n={after['n']}, 95% intervals"
            )
            if also := {k: v for k, v in after["extra"].items() if k != "failed" and (v or k != "truncated_share")}:
                figures = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in also.items())
                say(f"  {escape(figures)}")


def _bundled(task: str) -> bool:
    """Whether a task came with mmrl; who trains on another knows how plugins are made."""
    from mmrl.registry import plugins

    return any(p.dist == "mmrl" and task in p.specs.get("tasks", ()) for p in plugins.registry().plugins)
