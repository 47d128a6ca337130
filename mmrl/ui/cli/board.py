"""`mmrl board RUNS_DIR`: the runs of a folder in the browser, live."""

from __future__ import annotations

from pathlib import Path

import click

from mmrl.api.errors import UserError


@click.command()
@click.argument("runs_dir", type=click.Path(path_type=Path), default="runs")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; one that others reach needs --token.")
@click.option("--port", default=8420, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--token", default="", envvar="MMRL_BOARD_TOKEN", help="What a browser must bring, in the address that is printed.")
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
def command(runs_dir: Path, host: str, port: int, token: str, show: bool) -> None:
    """Show the runs below RUNS_DIR in the browser, as they go: curves, rollouts, alarms, comparisons. Ctrl-C ends it.

    It only reads the run folders. What it has to remember of long runs it keeps among the user's caches.
    """
    try:
        import starlette
        import uvicorn
    except ModuleNotFoundError as error:
        raise UserError(f'mmrl board needs {error.name}: pip install "multimodal-rl[board]"') from None
    from mmrl.ui.board.places import Places
    from mmrl.ui.board.serving import serve

    del starlette, uvicorn
    serve(Places.of(runs_dir), host, port, token, show)
