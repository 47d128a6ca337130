"""`mmrl export --to TRAINER` and `mmrl serve`. Their imports are made on use, because `mmrl --help` imports this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mmrl.api.settings import key_values

TRAINERS = ("verl", "easyr1", "swift")
"""The keys of `mmrl_interop.export.FORMS`."""


def export_to(to: str) -> click.Command:
    """The command `mmrl export TASK FILE --to NAME` of one trainer."""

    @click.command(
        to,
        short_help="A task's prompts as a data set, scored there by mmrl's verifiers.",
        help=f"""Write TASK's prompts to FILE, a Parquet file for {to}. Its run then scores completions by mmrl's verifiers.

    \b
    mmrl export grounding/refer train.parquet --to {to} --model Qwen/Qwen2.5-VL-3B-Instruct
    """,
    )
    @click.argument("task")
    @click.argument("file", type=click.Path(path_type=Path))
    @click.option("--split", default="train", show_default=True, help="Split of the task.")
    @click.option("--seed", default=0, show_default=True, help="Seed of the prompts.")
    @click.option("-n", "n", type=click.IntRange(min=1), help="Number of prompts, the first of the split; default: all.")
    @click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the task, with its value as in TOML.")
    @click.option("--model", help="The model that is trained, whose coordinates prompts ask for: a folder or hub name.")
    @click.option("--frame", help="Numbers in which it writes coordinates: pixels, model-pixels, thousandths or unit.")
    @click.option("--max-pixels", type=click.IntRange(min=1), help="Its processor shrinks larger images.")
    @click.option("--opening", help="What its chat template writes of each answer, such as '<think>'; default: as MODEL's does.")
    @click.option("--first-turn", is_flag=True, help="Score the first answer of a task with environments.")
    @click.option("--overwrite", is_flag=True, help="Replace the file.")
    def command(task: str, file: Path, settings: tuple[str, ...], **given: Any) -> None:
        from mmrl_interop.export import export

        count, needed = export(task, file, to, key_values(settings), **given)
        click.echo(f"{file}: {count} rows of {task}, split {given['split']}, for {to}")
        click.echo(f"its run needs: {needed}")

    return command


@click.command()
@click.argument("task")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; others than loopback are open to all."
)
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the task, with its value as in TOML.")
@click.option("--model", help="The model that will answer, whose coordinates prompts ask for: a folder or hub name.")
@click.option("--frame", help="Numbers in which it writes coordinates: pixels, model-pixels, thousandths or unit.")
@click.option("--max-pixels", type=click.IntRange(min=1), help="Its processor shrinks larger images.")
@click.option("--max-turns", default=8, show_default=True, type=click.IntRange(min=1), help="Turns of an episode.")
@click.option("--sessions", default=64, show_default=True, type=click.IntRange(min=1), help="Episodes at once.")
def serve(
    task: str,
    host: str,
    port: int,
    settings: tuple[str, ...],
    model: str | None,
    frame: str | None,
    max_pixels: int | None,
    max_turns: int,
    sessions: int,
) -> None:
    """Serve TASK as an OpenEnv environment.

    Trainers play its episodes over the network.

    \b
    mmrl serve classification/digits --port 8000
    """
    import mmrl
    from mmrl_interop.openenv import app, run

    with mmrl.open_task(task, key_values(settings), model=model, frame=frame, max_pixels=max_pixels) as opened:
        run(
            app(opened, max_sessions=sessions, max_turns=max_turns),
            host,
            port,
            lambda url: click.echo(f"{task} is served at {url}"),
        )
