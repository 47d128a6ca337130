"""`mmrl board RUNS_DIR`: show the runs of a folder live in the browser."""

from __future__ import annotations

from pathlib import Path

import click

from mmrl.api.errors import UserError


@click.command()
@click.argument("runs_dir", type=click.Path(path_type=Path), default="runs")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; any but this machine's own needs --token."
)
@click.option(
    "--port", default=8420, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one."
)
@click.option(
    "--token", default="", envvar="MMRL_BOARD_TOKEN", help="Secret that the printed address contains and requests must have."
)
@click.option("--open", "show", is_flag=True, help="Open the board in the browser.")
def command(runs_dir: Path, host: str, port: int, token: str, show: bool) -> None:
    """Show the runs below RUNS_DIR live in the browser: curves, rollouts, alarms, comparisons. Ctrl-C stops it.

    The board only reads the run folders. It keeps an index of long runs in the user's cache folder.
    """
    try:
        import starlette
        import uvicorn
    except ModuleNotFoundError as error:
        raise UserError(f'mmrl board needs {error.name}: pip install "multimodal-rl[board]"') from None
    from mmrl.ui.board.run_paths import RunPaths
    from mmrl.ui.board.serving import serve

    del starlette, uvicorn
    serve(RunPaths.of(runs_dir), host, port, token, show)
