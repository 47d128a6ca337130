"""`mmrl eval RUN.toml|RUN_DIR`"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    from mmrl.evaluation.figures import Evaluation

SHOWN = 8
"""Run folders that are named to somebody who named none."""
COLUMNS = (
    ("episode/success", "at any time"),
    ("episode/success_at_end", "at the end"),
    ("episode/steps", "steps"),
    ("episode/return", "return"),
)
"""What the table of tasks that act has beside their metric."""
WAYS = ("unsteered", "steered")
SEEN = {"entropy": "entropy, nats", "peak": "highest at token", "tokens": "tokens"}
"""What is said of steered answers and of the others -> the head of its column."""


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="RUN.toml|RUN_DIR")
@click.option("--checkpoint", "which", default="best", show_default=True, help="Of a run folder: best, last, or a step.")
@click.option("--split", help="Instead of the run file's evaluation split.")
@click.option("-n", "n", type=click.IntRange(min=1), help="Prompts per task, instead of the run file's.")
@click.option("--samples", type=click.IntRange(min=1), metavar="K", help="Answers to each prompt, for pass@K and majority@K.")
@click.option("--temperature", type=click.FloatRange(min=0), metavar="T", help="Of these answers; 0 takes the likeliest token.")
@click.option("--shuffled", is_flag=True, help="Also with the frames of videos in another order.")
@click.option("--frames", metavar="N,N,..", help="Also answers from so many frames, and from more where they differ.")
@click.option("--agree", type=click.IntRange(min=1), metavar="K", help="How many answers must be the same, for --frames.")
@click.option("--steer", is_flag=True, help="Also with answers to videos steered by their entropy (V-Reason).")
@click.option(
    "--videos", type=click.Path(path_type=Path), metavar="DIR", help="Keep the first successes and failures of tasks that act."
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one value of the run file; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, {task: figure}.")
@click.pass_context
def command(
    ctx: click.Context,
    target: Path,
    which: str,
    split: str | None,
    n: int | None,
    samples: int | None,
    temperature: float | None,
    shuffled: bool,
    frames: str | None,
    agree: int | None,
    steer: bool,
    videos: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Evaluate a run file's policy or a run's checkpoint.

    One greedy answer to each prompt, unless the run file or the options say otherwise; figures come with their 95% interval.
    """
    from mmrl.config.load import load_config
    from mmrl.ui.cli.terminal import quiet, tell

    _refuse_unknown(target)
    if videos:
        _refuse_full(videos)
    folder = target if target.is_dir() else None
    if folder is None and ctx.get_parameter_source("which") is ParameterSource.COMMANDLINE:
        raise UserError(f"--checkpoint {which} is of a run folder, and {target} is a run file: leave it out, or give runs/NAME")
    extra = [f"evaluate.split={json.dumps(split)}"] if split else []
    own = {"n": n, "temperature": temperature, "samples": samples, "agree": agree}
    extra += ["evaluate.shuffled=true"] if shuffled else []
    extra += [f"evaluate.frames=[{frames}]"] if frames else []
    extra += ["evaluate.steer=true"] if steer else []
    extra += [f"evaluate.{key}={value}" for key, value in own.items() if value is not None]
    config = load_config(target / "config.toml" if folder else target, [*overrides, *extra])
    tell(f"loading {config.policy.model} ...")
    quiet()
    from mmrl.train.start import evaluate_only

    weights, step = _weights(config.policy.model, folder, which)
    # the run file's own policy is what is evaluated where no checkpoint was better
    figures = evaluate_only(config, None if step is None else folder, str(step))
    if videos:
        _keep(videos, figures)
    if as_json:
        click.echo(json.dumps({f.task: f.as_json() for f in figures}))
        return
    click.echo(weights)
    if (settings := config.evaluate).temperature:
        click.echo(f"answers to each prompt: {settings.samples}, sampled at temperature {settings.temperature:g}")
    if len(figures) > 1 and any(f.intervals for f in figures):
        _table(figures)
    else:
        for f in figures:
            _print(f, settings.n)
            if settings.steer:
                _print_steered(f)


def _refuse_full(videos: Path) -> None:
    """UserError unless the folder can be written as one of episodes."""
    if videos.exists() and (not videos.is_dir() or any(videos.iterdir())):
        raise UserError(f"--videos {videos} is there already and not an empty folder: give another, or remove it")


def _keep(videos: Path, figures: Sequence[Evaluation]) -> None:
    """Write the videos, and say where they are."""
    from mmrl.run_folder import episodes

    rows = [{"step": None, **row} for f in figures for row in f.episodes]
    if rows:
        episodes.write(videos, rows)
        click.echo(f"{len(rows)} videos are in {videos}; {videos / episodes.ROWS} says what they show", err=True)
    else:
        click.echo("no videos: no task acts in a simulator that shows pictures", err=True)


def _refuse_unknown(target: Path) -> None:
    """UserError when there is neither a run file nor a run folder; it names the run folders that are near."""
    from mmrl.api.errors import suggest
    from mmrl.run_folder.reader import is_run

    if target.is_file() or (target / "config.toml").is_file() or (target.suffix == ".toml" and not target.is_dir()):
        return
    places = {target if target.is_dir() else target.parent, Path("runs")}
    runs = sorted(str(folder) for place in places if place.is_dir() for folder in place.iterdir() if is_run(folder))
    more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
    hint = f"There are {', '.join(runs[:SHOWN])}{more}" if runs else "Check the path; `mmrl train` makes run folders"
    what = "not a run folder: its config.toml does not exist" if target.is_dir() else "neither a run file nor a run folder"
    raise UserError(f"{target} is {what}.{suggest(str(target), runs)} {hint}")


def _weights(model: str, folder: Path | None, which: str) -> tuple[str, int | None]:
    """Which weights are evaluated, in words, and the step of their checkpoint; None when they are the run file's own."""
    from mmrl.run_folder.reader import step_of
    from mmrl.run_folder.writer import RunFolder
    from mmrl.train.resume import find_checkpoint, newest_state

    if folder is None:
        return f"{model}, as the run file names it", None
    run = RunFolder.open(folder)
    state = newest_state(run) if which == "best" else {}
    found = find_checkpoint(run, which, state)
    if found is None:
        what = "the weights that the run began with"
        later = "" if state["evaluated_step"] == state["step"] else f"; step {state['step']} was not evaluated: --checkpoint last"
        return f"{folder}, best checkpoint: no evaluation was better than that of {what}, {model}{later}", None
    step = step_of(found)
    return f"{folder}, {'' if which.isdigit() else which + ' '}checkpoint: step {step}", step


def _print(figure: Evaluation, asked: int) -> None:
    """A task's figure, and what else is known of it: a line each, but pass@1, pass@2 ... on one."""
    click.echo(
        f"{figure.task}  {figure.split}  {figure.metric} {figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f}), n={figure.n}"
    )
    there = len(figure.items) or figure.n + round(figure.extra["failed"])
    if figure.left_out:
        click.echo(f"  {len(figure.left_out)} more can't be used; the first: {figure.left_out[0]}")
        there += len(figure.left_out)
    if asked > there:
        click.echo(f"  {asked} prompts were asked for, and the split has {there}")
    if several := [f"{name} {value:.3f}" for name, value in figure.extra.items() if "@" in name]:
        click.echo("  " + "  ".join(several))
    for name, value in figure.extra.items():
        if name == "blank":
            click.echo(f"  blank {value:.3f} (with every picture blanked)")
        elif "@" not in name and name.split("/")[0] not in WAYS and (value or name != "failed") and name != "left_out":
            click.echo(f"  {name} {value:.3f}{_interval(figure, name)}")


def _print_steered(figure: Evaluation) -> None:
    """The steered answers and the others side by side."""
    from mmrl.ui.cli.table import print_table

    extra = figure.extra
    if "steered" not in extra:
        click.echo("  not steered: no prompt shows a video")
        return
    values = (
        f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})",
        f"{extra['steered']:.3f}{_interval(figure, 'steered')}",
    )
    rows = [[way, value, *(f"{extra[f'{way}/{name}']:.3f}" for name in SEEN)] for way, value in zip(WAYS, values, strict=True)]
    print_table("all answers, and what was seen of those to videos", ["", figure.metric, *SEEN.values()], rows)
    if "steered/gain" in extra:
        click.echo(f"  steered less unsteered {extra['steered/gain']:+.3f}{_interval(figure, 'steered/gain')}")


def _interval(figure: Evaluation, name: str) -> str:
    """The bounds of one of the extras, where they are known."""
    return " ({:.3f} to {:.3f})".format(*figure.intervals[name]) if name in figure.intervals else ""


def _table(figures: Sequence[Evaluation]) -> None:
    """Tasks that act, a row each."""
    from mmrl.ui.cli.table import escape, print_table

    metrics = list(dict.fromkeys(f.metric for f in figures))
    one, value = len(metrics) == 1, metrics[0] if len(metrics) == 1 else "value"
    shown = [(key, title) for key, title in COLUMNS if any(key in f.extra for f in figures)]
    if all(f.extra.get(shown[0][0]) == f.value for f in figures):  # as is usual
        value = f"{value}, {shown.pop(0)[1]}"
    failed = any(f.extra.get("failed") for f in figures)
    columns = ["task", *([] if one else ["metric"]), value, *(title for _, title in shown)]
    rows = []
    for f in figures:
        cells = [escape(f.task), *([] if one else [escape(f.metric)]), f"{f.value:.3f} ({f.low:.3f} to {f.high:.3f})"]
        cells += ["" if key not in f.extra else f"{f.extra[key]:.3f}{_interval(f, key)}" for key, _ in shown]
        rows.append([*cells, str(f.n), *([f"{f.extra.get('failed', 0):.0f}"] if failed else [])])
    splits = ", ".join(dict.fromkeys(f.split for f in figures))
    way = f"temperature {figures[0].temperature:g}" if figures[0].temperature else "greedy"
    title = f"{splits}, {way}, 95% intervals in brackets; --json has every figure"
    print_table(title, [*columns, "n", *(["failed"] if failed else [])], rows)
