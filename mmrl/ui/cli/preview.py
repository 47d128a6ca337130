"""`mmrl preview TASK`: what the model will see, as a picture and as a page, and what the task's prompts are like."""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmrl.api.errors import UserError
from mmrl.ui.cli.complete import ids
from mmrl.ui.cli.settings import key_values

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmrl.api.tasks.marks import Mark
    from mmrl.api.types import Prompt
    from mmrl.policies.vlm.vlm import VLM
    from mmrl.ui.report.figures import Figure
    from mmrl.ui.survey import Looked, Seen, Survey, Surveyor

AT_ONCE = 8
"""Prompts that are looked at together: so many have their pictures in memory, beside those that are shown."""
LOOK_S = 20.0
"""Seconds after which no others are looked at than those that are shown."""


@click.command()
@click.argument("task", shell_complete=ids("tasks"))
@click.option(
    "-n",
    "count",
    default=8,
    show_default=True,
    type=click.IntRange(1, 200),
    help="Prompts that are shown: spread over the split, or its first ones where the task makes them one after the other.",
)
@click.option(
    "--sample",
    default=200,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help=f"Prompts that are counted and scored; fewer where they take longer than {LOOK_S:.0f} s.",
)
@click.option("--split", default="train", show_default=True, help="Split of the task.")
@click.option("--seed", default=0, show_default=True, help="Seed of the prompts.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the task, its value as in TOML.")
@click.option(
    "--model",
    help="Show pictures at the size that this model's processor gives them, and count its tokens: a folder, hub name or "
    "tiny:FAMILY.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where to write, a .png or a .html; both preview-TASK.png and preview-TASK.html by default.",
)
def command(
    task: str, count: int, sample: int, split: str, seed: int, settings: tuple[str, ...], model: str | None, out: Path | None
) -> None:
    """Show a task as the model will see it: pictures, prompts and answers on a contact sheet and a page.

    Below them, over a larger sample: how hard the prompts are, what is answered, how long they are, and what the task's verifiers
    give to the right completion, to an empty one and to a wrong one.
    """
    from mmrl.registry import plugins
    from mmrl.ui.cli.terminal import tell
    from mmrl.ui.report.figures import figures, payments
    from mmrl.ui.report.text import count as count_of
    from mmrl.ui.report.text import visible
    from mmrl.ui.survey import Surveyor

    registry = plugins.registry()
    spec = registry.get("tasks", task)
    made = registry.build_task(spec, key_values(settings))
    if split not in made.splits:
        raise UserError(f"task {task!r} has no split {split!r}: choose one of {', '.join(made.splits)}")
    name = f"preview-{task.replace('/', '-')}"
    paths = [_target(path) for path in ([out] if out else [Path(f"{name}.png"), Path(f"{name}.html")])]
    policy = _policy(model) if model else None
    made.eyes = policy.eyes if policy else made.eyes
    surveyor = Surveyor(made, spec, _reader(policy) if policy else None, policy.longest if policy else 0)
    broken: list[str] = []
    tell(f"looking at prompts of {task} ...")
    try:
        there, shown, cut = _look(surveyor, split, seed, count, sample, broken)
    finally:
        surveyor.close()
    found = surveyor.result()
    if broken and not shown:
        raise UserError(broken[0])
    if broken:
        click.echo(f"mmrl: left out {len(broken)} of {len(broken) + found.looked} prompts; the first: {broken[0]}", err=True)
    if not shown:
        raise UserError(f"task {task!r} has no prompts in split {split!r}: check its options and data")
    which = f"{len(shown)} of {there:,} prompts" if there is not None else f"the first {len(shown)} prompts"
    hurried = f", as many as {LOOK_S:.0f} s allow" if cut else ""
    looked = f"{count_of(found.looked, 'prompt')} looked at{hurried}"
    options = ", ".join([*settings, *([f"as {model} sees it"] if model else [])])
    subtitle = f"{which} of split {split}, seed {seed}" + (f"; {options}" if options else "")
    like, paid = figures(found), payments(found, spec, surveyor.verifiers)
    see = (lambda image: image.resize(made.eyes.size(image.size))) if model else None
    for path in paths:
        if path.suffix.lower() == ".html":
            text = _page(surveyor, found, task, subtitle, looked, see, shown, like, paid)
            _write(path, text.encode("utf-8", "replace"))
        else:
            _write(path, _png(surveyor, task, subtitle, see, shown, [*like, *paid], found.odd))
    click.echo(f"{', '.join(map(str, paths))}: {which} of {task}, split {split}")
    if like or paid:
        click.echo(f"{looked}:")
    for figure in [*like, *paid]:
        click.echo(f"  {figure.title}: {figure.said}")
    for one in found.odd:
        click.echo(f"  odd: {visible(one)}")


def _look(
    surveyor: Surveyor, split: str, seed: int, count: int, sample: int, broken: list[str]
) -> tuple[int | None, list[Looked], bool]:
    """(how many prompts the split has, None where nobody knows; those that are shown; whether time left out others). These are
    looked at in no order, so that it leaves out none of a kind."""
    from mmrl.api.errors import calling
    from mmrl.testing.sample import evenly, is_sequence

    task, start = surveyor.task, time.monotonic()
    with calling(f"task {surveyor.spec.id!r}: prompts({split!r}, {seed})"):
        rows: Any = task.prompts(split, seed)
    there = len(rows) if isinstance(rows, Sized) else None
    first, others = [*range(count)], [*range(max(0, sample - count))]
    if is_sequence(rows):
        surveyor.grade(rows)
        first = evenly(len(rows), count)
        others = sorted({*evenly(len(rows), sample)} - {*first})
        random.Random(0).shuffle(others)
        del others[max(0, sample - len(first)) :]
    else:
        rows = iter(rows)
    shown: list[Looked] = []
    seen = 0
    prompts = _made(rows, first if task.simulation else [*first, *others], surveyor.spec.id, broken)
    while some := list(islice(prompts, AT_ONCE)):
        if seen >= len(first) and time.monotonic() - start > LOOK_S:
            return there, shown, True
        seen += len(some)
        if task.simulation is not None:
            from mmrl.rollout.simulators.starts import starts

            some = starts(task, some)
        known = surveyor.look(some, broken)
        shown += known[: count - len(shown)]
    return there, shown, False


def _made(rows: Any, places: Iterable[int], task: str, broken: list[str]) -> Iterator[Prompt]:
    from mmrl.api.errors import calling
    from mmrl.api.types import replace
    from mmrl.testing.sample import rows_at

    with calling(f"task {task!r}: its prompts"):
        for prompt in rows_at(rows, places, broken):
            yield replace(prompt, task=task)


def _drawn(surveyor: Surveyor, one: Looked, completion: str) -> tuple[Any, Sequence[Mark]]:
    """(the picture that a completion draws, if it draws one; the marks of it and of what is true)."""
    from mmrl.api.errors import calling

    with calling(f"task {surveyor.spec.id!r}: shows()"):
        picture = surveyor.task.shows(one.prompt, completion) if completion else None
    return picture, surveyor.marks(one.prompt, completion)


def _png(
    surveyor: Surveyor,
    task: str,
    subtitle: str,
    see: Callable[[Image], Image] | None,
    shown: Sequence[Looked],
    facts: Sequence[Figure],
    odd: Sequence[str],
) -> bytes:
    """The contact sheet. Each prompt has what is to be written for its answer, and the picture that this draws behind its own."""
    from mmrl.api.types import replace
    from mmrl.ui.report.contact_sheet import contact_sheet

    prompts: list[Prompt] = []
    marks: list[Sequence[Mark]] = []
    for one in shown:
        picture, own = _drawn(surveyor, one, one.gold or "")
        drawn = [] if picture is None else [{"role": "assistant", "content": [{"type": "image", "image": picture}]}]
        prompts.append(replace(one.prompt, answer=one.gold, messages=[*one.prompt.messages, *drawn]))
        marks.append(own)
    contact_sheet(prompts, task, subtitle, see, marks, facts, odd).save(out := io.BytesIO(), "PNG")
    return out.getvalue()


def _page(
    surveyor: Surveyor,
    found: Survey,
    task: str,
    subtitle: str,
    looked: str,
    see: Callable[[Image], Image] | None,
    shown: Sequence[Looked],
    like: Sequence[Figure],
    paid: Sequence[Figure],
) -> str:
    from mmrl.ui.report.preview_page import page

    tried = (
        "The mean for right completions, for empty ones and for wrong ones, which are right for other prompts. A pale bar "
        "reaches from the least value to the largest."
        if surveyor.task.simulation is None
        else "To an episode that succeeds at once, and to one that reaches nothing."
    )
    sections = [("What the prompts are like", f"{looked}.", like), ("What the verifiers give", tried, paid)]
    return page(task, subtitle, shown, lambda one, completion: _drawn(surveyor, one, completion), sections, found.odd, see)


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.part")
    try:
        aside.write_bytes(data)
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"can't write {path}: {error.strerror or error}") from None


def _policy(model: str) -> VLM:
    from mmrl.ui.cli.terminal import quiet, tell

    tell(f"loading {model} ...")
    quiet()
    from mmrl.config.sections import PolicyConfig
    from mmrl.policies.vlm.vlm import VLM

    return VLM(PolicyConfig(model=model))


def _reader(policy: VLM) -> Callable[[Prompt], Seen]:
    """How the policy reads a prompt, its pictures let go."""
    from mmrl.ui.survey import Seen

    def read(prompt: Prompt) -> Seen:
        inputs = policy.encode(prompt)
        return Seen(
            image_sizes=inputs.image_sizes,
            model_sizes=inputs.model_sizes,
            frame=inputs.frame,
            tokens=len(inputs.ids),
            pictured=sum(token in policy.banned for token in inputs.ids.tolist()),
        )

    return read


def _target(path: Path) -> Path:
    if path.suffix.lower() not in (".png", ".html"):
        raise UserError(f"--out {path} must end in .png or .html")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: the folder {path.parent} does not exist: make it first")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a file in it")
    return path
