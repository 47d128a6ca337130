"""`mmrl board RUNS_DIR`: show the runs of a folder live in the browser."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mmrl.api.errors import UserError, display_path, shorten

VARIABLE = "MMRL_BOARD_TOKEN"
"""Environment variable with the token."""


@click.command()
@click.argument("runs_dir", type=click.Path(path_type=Path), default="runs")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; any but this machine's own needs a token."
)
@click.option(
    "--port", default=8420, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, allow_dash=True),
    help=f"File with the secret that the printed address contains and requests must have; - for stdin. By default the "
    f"environment variable {VARIABLE}; without either, only this machine is answered.",
)
@click.option("--token", default="", hidden=True)
@click.option("--open", "show", is_flag=True, help="Open the board in the browser.")
def command(runs_dir: Path, host: str, port: int, token_file: Path | None, token: str, show: bool) -> None:
    """Show the runs below RUNS_DIR live in the browser: curves, rollouts, alarms, comparisons. Ctrl-C stops it.

    The board only reads the run folders. It keeps an index of long runs in the user's cache folder.
    """
    if token:  # everybody on this machine may read the command lines of its processes
        raise UserError(
            f"--token shows the secret in the list of processes: set {VARIABLE}, or give --token-file FILE (- for stdin)"
        )
    try:
        import starlette
        import uvicorn
    except ModuleNotFoundError as error:
        raise UserError(f'mmrl board needs {error.name}: pip install "multimodal-rl[board]"') from None
    from mmrl.ui.board.run_paths import RunPaths
    from mmrl.ui.board.serving import serve

    del starlette, uvicorn
    serve(RunPaths.of(runs_dir), host, port, _secret(token_file), show)


def _secret(file: Path | None) -> str:
    """The token in a file, else in the environment; empty without one."""
    if file is None:
        return os.environ.get(VARIABLE, "")
    try:
        with click.open_file(str(file), encoding="utf-8") as opened:
            secret = opened.read(1000).strip()
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--token-file {display_path(file)} can't be read: {shorten(error)}: give a file with the token"
        ) from None
    if not secret:
        raise UserError(f"--token-file {display_path(file)} is empty: write the token into it")
    return secret
