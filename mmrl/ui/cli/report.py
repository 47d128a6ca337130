"""`mmrl report RUN_DIR`: write the run's HTML report."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--open", "show", is_flag=True, help="Open the report in the browser.")
def command(run_dir: Path, show: bool) -> None:
    """Write RUN_DIR/report.html, of a finished or a running run, and print its path."""
    from mmrl.ui.report.report import write_report

    path = write_report(run_dir)
    click.echo(path)
    if show:
        click.launch(str(path))
