"""`mmrl preview TASK`: what the model will see, as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mmrl.cli.complete import ids
from mmrl.cli.settings import key_values
from mmrl.errors import NoGold, UserError

if TYPE_CHECKING:
    from mmrl.interfaces import Task
    from mmrl.marks import Mark
    from mmrl.types import Eyes, Prompt


@click.command()
@click.argument("task", shell_complete=ids("tasks"))
@click.option(
    "-n",
    "count",
    default=8,
    show_default=True,
    type=click.IntRange(1, 200),
    help="Prompts: spread over the split, or its first ones where the task makes them one after the other.",
)
@click.option("--split", default="train", show_default=True, help="Split of the task.")
@click.option("--seed", default=0, show_default=True, help="Seed of the prompts.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the task, its value as in TOML.")
@click.option(
    "--model", help="Show pictures at the size that this model's processor gives them: a folder, hub name or tiny:FAMILY."
)
@click.option("--out", metavar="FILE.png", type=click.Path(path_type=Path), help="Where to write; preview-TASK.png by default.")
def command(task: str, count: int, split: str, seed: int, settings: tuple[str, ...], model: str | None, out: Path | None) -> None:
    """Write a contact sheet of a task: pictures, prompts and answers, as the model will see them."""
    from mmrl import plugins
    from mmrl.testing.sample import take
    from mmrl.view.contact_sheet import contact_sheet

    made = plugins.registry().make_task(task, key_values(settings))
    if split not in made.splits:
        raise UserError(f"task {task!r} has no split {split!r}: choose one of {', '.join(made.splits)}")
    path = _target(out or Path(f"preview-{task.replace('/', '-')}.png"))
    made.eyes = _eyes(model) if model else made.eyes
    broken: list[str] = []
    prompts = take(made, split, count, seed, broken)
    if made.simulation is not None:
        from mmrl.collect.starts import starts

        prompts = starts(made, prompts)
    prompts, marks = _usable(made, prompts, broken)
    if broken and not prompts:
        raise UserError(broken[0])
    if broken:
        click.echo(f"mmrl: left out {len(broken)} of {len(broken) + len(prompts)} prompts; the first: {broken[0]}", err=True)
    if not prompts:
        raise UserError(f"task {task!r} has no prompts in split {split!r}: check its options and data")
    every = made.prompts(split, seed)
    shown = f"{len(prompts)} of {len(every):,} prompts" if isinstance(every, Sized) else f"the first {len(prompts)} prompts"
    options = ", ".join([*settings, *([f"as {model} sees it"] if model else [])])
    sheet = contact_sheet(
        prompts,
        task,
        f"{shown} of split {split}, seed {seed}" + (f"; {options}" if options else ""),
        (lambda image: image.resize(made.eyes.size(image.size))) if model else None,
        marks,
    )
    aside = path.with_name(f".{path.name}.part")
    try:
        sheet.save(aside, "PNG")
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"can't write {path}: {error.strerror or error}") from None
    click.echo(f"{path}: {shown} of {task}, split {split}")


def _usable(task: Task, prompts: Sequence[Prompt], broken: list[str]) -> tuple[list[Prompt], list[Sequence[Mark]]]:
    """(the prompts with what is to be written, the marks of each), of those whose pictures and videos open. broken: gets why the
    others don't."""
    from mmrl.clips import glimpse
    from mmrl.media import load_image
    from mmrl.targets import PluginError

    usable = []
    for prompt in prompts:
        try:
            known, marks = _with_gold(task, prompt)
            for video in known.videos:
                glimpse(video)
            for image in known.images:
                load_image(image)
        except PluginError:
            raise
        except UserError as error:
            broken.append(str(error))
        else:
            usable.append((known, marks))
    return [known for known, _ in usable], [marks for _, marks in usable]


def _with_gold(task: Task, prompt: Prompt) -> tuple[Prompt, Sequence[Mark]]:
    """(the prompt with what the model is to write for its answer, and the picture that this draws, if it draws one, behind its
    own; the marks that belong to it). Without an answer where the task has no gold completion."""
    from mmrl.types import replace

    if task.simulation is not None:  # it is to act, and not to write
        return prompt, task.marks(prompt, "")
    try:
        gold = task.gold(prompt)
    except NoGold:
        return replace(prompt, answer=None), task.marks(prompt, "")
    drawn, told = task.shows(prompt, gold), replace(prompt, answer=gold)
    if drawn is not None:
        picture = {"role": "assistant", "content": [{"type": "image", "image": drawn}]}
        told = replace(told, messages=[*prompt.messages, picture])
    return told, task.marks(prompt, gold)


def _eyes(model: str) -> Eyes:
    """How a model sees pictures."""
    from mmrl.cli.terminal import quiet, tell

    tell(f"loading {model} ...")
    quiet()
    from mmrl.policies.vlm import VLM
    from mmrl.schema import PolicyConfig

    return VLM(PolicyConfig(model=model)).eyes


def _target(path: Path) -> Path:
    if path.suffix.lower() != ".png":
        raise UserError(f"--out {path} must end in .png")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: the folder {path.parent} does not exist: make it first")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a file in it")
    return path
