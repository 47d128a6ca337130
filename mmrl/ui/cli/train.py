"""`mmrl train RUN.toml`: train a policy, show its progress and write its report."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
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
    help="Override a value of the run file, such as stages.1.steps=50; may be repeated.",
)
@click.option("--resume", is_flag=True, help="Resume from the run's newest checkpoint; start the run if there is none.")
@click.option("--overwrite", is_flag=True, help="First remove an earlier run of the same name.")
@click.option("--dry-run", is_flag=True, help="Check the run file and everything it names and print it resolved; don't train.")
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Train on a Ray cluster: ray://HOST:PORT, auto for this machine's cluster, local for a new one.",
)
@click.option(
    "--smoke",
    is_flag=True,
    help="Train for seconds only: tiny model, two steps per stage, few prompts. The exit code is 1 if a stage shows no update.",
)
@click.option("--quiet", is_flag=True, help="Print only notes, the final figures and the path of the run.")
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
    """Train the policy of a run file.

    Writes the run folder runs/NAME: configuration, metrics, rollouts, checkpoints, summary.json and report.html.
    """
    from mmrl.compute.processes import is_main_process, is_rank, launch
    from mmrl.compute.progress import NullProgress
    from mmrl.config import load as configs
    from mmrl.train.smoke import smoke as smaller
    from mmrl.train.smoke import without_vllm
    from mmrl.ui.cli import terminal
    from mmrl.ui.cli.options import option_names

    if resume and overwrite:
        raise UserError("--resume and --overwrite contradict each other: give only one")
    if cluster == "":  # an unset shell variable
        raise UserError("--cluster is empty: give ray://HOST:PORT, auto or local, or leave it out")
    config = configs.load_config(run_file, overrides, option_names)
    no_vllm = smoke and without_vllm(config)
    config = smaller(config) if smoke else config
    if dry_run:
        _dry_run(config)
        return
    if config.compute.learners > 1 and not cluster and not is_rank():
        from mmrl.train.resolve import resolve

        resolve(config)  # a wrong run file is refused once here, not in every learner
        if not quiet:
            terminal.status_line(f"starting {config.compute.learners} learners ...")
        raise SystemExit(launch(config.compute.learners, sys.argv[1:], on_gpu=config.policy.device != "cpu"))
    if not is_main_process():
        terminal.silence_libraries()
        try:
            _train(config, NullProgress(), None, resume, overwrite)
        except KeyboardInterrupt:
            raise SystemExit(130) from None  # click would print an empty line into the first learner's panel
        return
    if not quiet:
        terminal.status_line(f"starting on the cluster {cluster} ..." if cluster else f"loading {config.policy.model} ...")
    terminal.silence_libraries()
    from mmrl.ui.report.progress import Show
    from mmrl.ui.report.report import write_report

    path = Path(config.runs_dir) / config.name
    with Show(config.name, config.stages, path, quiet=quiet) as show:
        if smoke:
            show.note("smoke run: a tiny model and a few steps test that the run works and its update runs, not that it learns")
        if no_vllm:
            show.note('vLLM is not installed, so this smoke run has compute.sampler = "local": the run itself needs vLLM')
        try:
            folder = _train(config, show, cluster, resume, overwrite or (smoke and _is_smoke(path)))
        except (KeyboardInterrupt, UserError):
            if show.under_way:
                _stopped(path, show)
            raise
    path = folder.path if folder else path
    if path.is_dir():
        _close(path, write_report(path), show)
        if smoke and _shows_no_update(path, show, config.smoke_shows):
            raise SystemExit(1)
    else:  # this machine does not see the files of the cluster
        show.console.print(f"\nfinished: the run is in {path} on the cluster", highlight=False, markup=False, soft_wrap=True)


def _train(config: Any, show: Any, cluster: str | None, resume: bool, overwrite: bool) -> Any:
    """Train and return the RunFolder; None for a cluster whose files this machine may not see."""
    if cluster:
        from mmrl.compute.cluster import train_on_cluster
        from mmrl.train.on_cluster import learn
        from mmrl.ui.report.report import write_report

        return train_on_cluster(config, show, cluster, learn=learn, report=write_report, resume=resume, overwrite=overwrite)
    from mmrl.train.start import train

    return train(config, show, resume=resume, overwrite=overwrite)


def _shows_no_update(path: Path, show: Any, shows: Sequence[str]) -> bool:
    """Say what a smoke run showed of each stage's update and of `smoke_shows`; whether a stage showed no update, in one line on
    stderr."""
    from mmrl.run_folder.reader import read_run
    from mmrl.train.smoke_shows import told, told_shown, unproved

    run = read_run(path)
    stages = (run.summary or {}).get("smoke", [])
    for line in (*told([found for found in stages if found["step"] is not None]), *told_shown(shows, run)):
        show.console.print(f"smoke     {line}", highlight=False, markup=False, soft_wrap=True)
    for line in told([found for found in stages if found["step"] is None])[:1]:
        click.echo(f"mmrl: the smoke run of {path} failed: {line}: see {path}/metrics.jsonl", err=True)
    return unproved(stages)


def _is_smoke(path: Path) -> bool:
    """Whether the run in this folder is a smoke run, which another smoke run may overwrite without --overwrite."""
    from mmrl.config.load import load_config

    return (path / "config.toml").is_file() and load_config(path / "config.toml").smoke


def _dry_run(config: Any) -> None:
    import tomli_w

    from mmrl.config.load import to_dict
    from mmrl.train.checks.run_file import check_model, check_simulators, check_trainable
    from mmrl.train.remarks import remarks
    from mmrl.train.resolve import resolve

    setup = resolve(config)
    config = setup.config
    check_trainable(setup.policy)
    check_simulators(config, setup.tasks)
    check_model(config, setup.policy)
    click.echo(tomli_w.dumps(to_dict(config)), nl=False)
    splits = dict.fromkeys(
        [*(stage.split for stage in config.stages), *([config.evaluate.split] if config.evaluate.num_prompts else [])]
    )
    for name, task in setup.tasks.items():
        reward = " + ".join(_weighted(verifier, *w) for verifier, w in setup.weights[name].items())
        counts = ", ".join(f"{len(setup.splits(name, split))} {split}" for split in splits if split in task.splits)
        click.echo(f"# {name}: {counts} prompts; reward {reward}; evaluated with {setup.metrics[name]}", err=True)
    for remark in remarks(setup):
        click.echo(f"# note: {remark}", err=True)
    path = Path(config.runs_dir) / config.name
    if path.exists():
        click.echo(f"# {path} already exists: training needs --resume, --overwrite or another name", err=True)
    click.echo("# checked: keys, ids, options and splits. Not checked: models on a hub, and images (mmrl check)", err=True)


def _weighted(verifier: str, start: float, end: float) -> str:
    if start == end:
        return verifier if start == 1 else f"{start:g} x {verifier}"
    return f"({start:g} to {end:g}) x {verifier}"


def _stopped(run: Path, show: Any) -> None:
    """Print the state of a run that ended early, and the command that resumes it."""
    from mmrl.run_folder.reader import is_run, read_run
    from mmrl.ui.report.report import write_report

    if (run / "summary.json").is_file():  # it was stopped in its last evaluation
        _close(run, write_report(run), show)
        return
    if not is_run(run) or not (steps := read_run(run).steps):
        return
    report = ""
    with contextlib.suppress(UserError):  # the cause, such as a full disk, may prevent the report as well
        report = f"\nreport    {write_report(run)}"
    kept = sorted(p.name for p in (run / "checkpoints").glob("step-*"))
    again = [a for a in sys.argv[1:] if a not in ("--overwrite", "--resume")]
    show.console.print(
        f"\nstopped after step {steps[-1]['step']} of the run; "
        f"{f'the newest checkpoint is {kept[-1]}' if kept else 'there is no checkpoint yet'}{report}\n"
        f"resume    {shlex.join(['mmrl', *again, '--resume'])}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _close(run: Path, page: Path, show: Any) -> None:
    """Print the end of a run: figures, time, memory, the report's path and the commands to go on with."""

    from rich.markup import escape

    summary, say = _summary(run), partial(show.console.print, highlight=False, soft_wrap=True)
    if show.quiet:
        _say_figures(summary, say)
        say(f"report    {escape(str(page))}")
        return
    say()
    for text in show.scrolled():  # again
        say(f"note: {text}", style="yellow", markup=False)
    _say_figures(summary, say)
    seconds = summary["seconds"]
    parts = ", ".join(f"{part} {seconds[part]:.0f}" for part in ("generate", "update", "judge", "process", "evaluate", "other"))
    say(f"{seconds['total']:.0f} s ({parts}); peak memory {summary['peak_memory_mb']} MB")
    switches = sys.argv[1 : sys.argv.index("train")] if "train" in sys.argv else []  # such as --plugin ./my_task.py
    again = shlex.join(["mmrl", *switches, "eval", str(run)])
    say(f"\nreport    {escape(str(page))}\nevaluate  {escape(again)}")
    if all(_bundled(task) for task in summary["before"]):
        say("your own  mmrl new plugin NAME, then docs/plugins.md")


def _summary(run: Path) -> dict[str, Any]:
    """The summary of a finished run. Raises UserError if it lacks what a run writes."""
    import json

    path = run / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(path.read_bytes())
        whole = {"before", "best", "last", "seconds", "peak_memory_mb"} <= summary.keys()
    except (ValueError, AttributeError):
        whole = False
    if not whole:
        raise UserError(f"{path} is damaged: remove it, and --resume writes it anew from the last checkpoint")
    return summary


def _say_figures(summary: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Print each task's evaluations before and after training."""
    from rich.markup import escape

    from mmrl.run_folder.figures import interval_text

    for task, before in summary["before"].items():
        best, last = summary["best"][task], summary["last"][task]
        for name, after in [("last", last)] if best == last else [("best", best), ("last", last)]:
            say(
                f"{escape(task)}  {escape(after['metric'])} {before['value']:.3f} "
                f"({interval_text(before['low'], before['high'])}) -> "
                f"[bold]{after['value']:.3f}[/] "
                f"({interval_text(after['low'], after['high'])}) {name}, n={after['n']}, 95% intervals"
            )
            if also := {k: v for k, v in after["extra"].items() if k != "failed" and (v or k != "truncated_share")}:
                # a part of the reward keeps its name, which a person gave it
                names = {key: key if key.startswith("part/") else key.replace("_", " ") for key in also}
                bounds = {key: f" ({interval_text(*ends)})" for key, ends in (after.get("intervals") or {}).items()}
                shown = [f"{names[key]} {value:.3f}{bounds.get(key, '')}" for key, value in also.items()]
                say(f"  {escape(', '.join(shown))}")


def _bundled(task: str) -> bool:
    """Whether a task came with mmrl: only then the hint at `mmrl new plugin` is printed."""
    from mmrl.registry import plugins
    from mmrl.run_folder.machine import extras

    ours = {requirement.name for extra in extras().values() for requirement in extra}
    return any(p.dist in ours and task in p.specs.get("tasks", ()) for p in plugins.registry().plugins)
