"""`mmrl eval RUN.toml|RUN_DIR`"""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="RUN.toml|RUN_DIR")
@click.option("--checkpoint", "which", default="best", show_default=True, help="Of a run folder: best, last, or a step.")
@click.option("--split", help="Instead of the run file's evaluation split.")
@click.option("-n", "n", type=click.IntRange(min=1), help="Prompts per task, instead of the run file's.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one value of the run file; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, {task: figure}.")
def command(target: Path, which: str, split: str | None, n: int | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Evaluate a run file's policy or a run's checkpoint.

    Answers are greedy; accuracies come with Wilson's 95% interval.
    """
    from mmrl.cli.train import quiet
    from mmrl.config import load_config

    folder = target if target.is_dir() else None
    extra = [f'evaluate.split="{split}"'] if split else []
    extra += [f"evaluate.n={n}"] if n else []
    config = load_config(target / "config.toml" if folder else target, [*overrides, *extra])
    quiet()
    from mmrl.start import evaluate_only

    figures = evaluate_only(config, folder, which)
    if as_json:
        click.echo(json.dumps({f.task: f.as_json() for f in figures}))
        return
    for f in figures:
        click.echo(f"{f.task}  {f.split}  {f.metric} {f.value:.3f} ({f.low:.3f} to {f.high:.3f}), n={f.n}")
        for name, value in f.extra.items():
            click.echo(f"  {name} {value:.3f}")
