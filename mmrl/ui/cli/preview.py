"""`mmrl preview TASK`: a contact sheet and a page of prompts as the model sees them, with statistics of a larger sample."""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmrl.api.errors import UserError, check_writing
from mmrl.api.settings import key_values
from mmrl.ui.cli.complete import ids

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmrl.api.interfaces import Task
    from mmrl.api.tasks.overlays import Overlay
    from mmrl.api.types import Prompt
    from mmrl.policies.endpoint import EndpointPolicy
    from mmrl.policies.vlm.vlm import VLM
    from mmrl.ui.policy_answers import PolicyAnswers
    from mmrl.ui.report.survey_charts import Figure
    from mmrl.ui.task_statistics import EncodedView, SampledPrompt, TaskStatistics, TaskStatisticsCollector

AT_ONCE = 8
"""Prompts surveyed in one batch; their media are in memory together, in addition to those of the shown prompts."""
LOOK_S = 20.0
"""Time limit in seconds for surveying prompts that are not shown."""


@click.command()
@click.argument("task", shell_complete=ids("tasks"))
@click.option(
    "-n",
    "count",
    default=8,
    show_default=True,
    type=click.IntRange(1, 200),
    help="Prompts to show: spread evenly over the split, or the first ones of a task that generates prompts in sequence.",
)
@click.option(
    "--sample",
    default=200,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help=f"Prompts to count and score; fewer when that takes longer than {LOOK_S:.0f} s.",
)
@click.option("--split", default="train", show_default=True, help="Split of the task.")
@click.option("--seed", default=0, show_default=True, help="Seed of the prompts.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the task, with a TOML value.")
@click.option(
    "--model", help="Resize images as this model's processor does, and count its tokens: a folder, hub name or tiny:FAMILY."
)
@click.option(
    "--policy",
    "answering",
    metavar="RUN.toml",
    type=click.Path(path_type=Path),
    help="A run file whose policy sees and answers the shown prompts, such as a model behind an endpoint.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Output file, .png or .html; default: both preview-TASK.png and preview-TASK.html.",
)
def command(
    task: str,
    count: int,
    sample: int,
    split: str,
    seed: int,
    settings: tuple[str, ...],
    model: str | None,
    answering: Path | None,
    out: Path | None,
) -> None:
    """Show a task's prompts as the model will see them: images, text and answers on a contact sheet and a page.

    Below the prompts stand statistics of a larger sample: difficulty, answers, lengths, and the scores that the task's verifiers
    give to a gold, an empty and a wrong completion.
    """
    from mmrl.registry import plugins
    from mmrl.ui.cli.terminal import status_line
    from mmrl.ui.report.survey_charts import figures, payments
    from mmrl.ui.report.text import count as count_of
    from mmrl.ui.report.text import visible
    from mmrl.ui.task_statistics import TaskStatisticsCollector

    registry = plugins.registry()
    spec = registry.get("tasks", task)
    made = registry.build_task(spec, key_values(settings))
    if own := made.scored_by:
        spec = replace(spec, verifiers={own: 1.0}, metric=own)
    if split not in made.splits:
        raise UserError(f"task {task!r} has no split {split!r}: choose one of {', '.join(made.splits)}")
    name = f"preview-{task.replace('/', '-')}"
    paths = [_target(path) for path in ([out] if out else [Path(f"{name}.png"), Path(f"{name}.html")])]
    if model and answering:
        raise UserError("--policy sees prompts as its own model does: leave out --model")
    answers = _answers(answering, task, made) if answering else None
    policy = answers.policy if answers else _policy(model) if model else None
    made.image_processing = policy.image_processing if policy else made.image_processing
    surveyor = TaskStatisticsCollector(made, spec, _reader(policy) if policy else None, policy.longest if policy else 0)
    broken: list[str] = []
    status_line(f"surveying prompts of {task} ...")
    try:
        total, shown, cut = _look(surveyor, split, seed, count, sample, broken)
        if answers and shown:
            status_line(f"{answers.config.policy.model} answers {count_of(len(shown), 'prompt')} ...")
            surveyor.add_answers(shown, answers.answer(made, [looked.prompt for looked in shown]))
    finally:
        surveyor.close()
    survey = surveyor.result()
    if broken and not shown:
        raise UserError(broken[0])
    if broken:
        click.echo(f"mmrl: left out {len(broken)} of {len(broken) + survey.looked} prompts; the first: {broken[0]}", err=True)
    if not shown:
        raise UserError(f"task {task!r} has no prompts in split {split!r}: check its options and data")
    which = f"{len(shown)} of {total:,} prompts" if total is not None else f"the first {len(shown)} prompts"
    limited = f" (stopped after {LOOK_S:.0f} s)" if cut else ""
    sampled = f"Sample of {count_of(survey.looked, 'prompt')}{limited}"
    reader = answers.config.policy.model if answers else model
    options = ", ".join([*settings, *([f"as {reader} sees it"] if reader else [])])
    subtitle = f"{which} of split {split}, seed {seed}" + (f"; {options}" if options else "")
    statistics, scores = figures(survey), payments(survey, spec, surveyor.verifiers)
    see = (lambda image: image.resize(made.image_processing.model_size(image.size))) if reader else None
    for path in paths:
        if path.suffix.lower() == ".html":
            text = _page(surveyor, survey, task, subtitle, sampled, see, shown, statistics, scores)
            _write(path, text.encode("utf-8", "replace"))
        else:
            _write(path, _png(surveyor, task, subtitle, see, shown, [*statistics, *scores], survey.odd))
    click.echo(f"{', '.join(map(str, paths))}: {which} of {task}, split {split}")
    if statistics or scores:
        click.echo(f"{sampled}:")
    for figure in [*statistics, *scores]:
        click.echo(f"  {figure.title}: {figure.said}")
    for warning in survey.odd:
        click.echo(f"  warning: {visible(warning)}")


def _look(
    surveyor: TaskStatisticsCollector, split: str, seed: int, count: int, sample: int, broken: list[str]
) -> tuple[int | None, list[SampledPrompt], bool]:
    """(number of prompts in the split, None if unknown; the prompts to show; whether the time limit left out others). The others
    are surveyed in random order, so that the time limit leaves a fair sample."""
    from mmrl.api.errors import plugin_errors
    from mmrl.testing.sample import evenly, is_sequence

    task, start = surveyor.task, time.monotonic()
    with plugin_errors(f"task {surveyor.spec.id!r}: prompts({split!r}, {seed})"):
        rows: Any = task.prompts(split, seed)
        total = len(rows) if isinstance(rows, Sized) else None
        rows = rows if is_sequence(rows) else iter(rows)
    first, others = [*range(count)], [*range(max(0, sample - count))]
    if is_sequence(rows):
        surveyor.grade(rows)
        first = evenly(len(rows), count)
        others = sorted({*evenly(len(rows), sample)} - {*first})
        random.Random(0).shuffle(others)
        del others[max(0, sample - len(first)) :]
    shown: list[SampledPrompt] = []
    seen = 0
    prompts = _made(rows, first if task.simulation else [*first, *others], surveyor.spec.id, broken)
    while batch := list(islice(prompts, AT_ONCE)):
        if seen >= len(first) and time.monotonic() - start > LOOK_S:
            return total, shown, True
        seen += len(batch)
        if task.simulation is not None:
            from mmrl.rollout.simulators.initial import initial_observations

            batch = initial_observations(task, batch)
        surveyed = surveyor.look(batch, broken)
        shown += surveyed[: count - len(shown)]
    return total, shown, False


def _made(rows: Any, places: Iterable[int], task: str, broken: list[str]) -> Iterator[Prompt]:
    from mmrl.api.errors import plugin_errors
    from mmrl.data.prompts import checked_prompt
    from mmrl.testing.sample import rows_at

    with plugin_errors(f"task {task!r}: its prompts"):
        for number, prompt in enumerate(rows_at(rows, places, broken)):
            yield checked_prompt(prompt, number, task)


def _drawn(surveyor: TaskStatisticsCollector, looked: SampledPrompt, completion: str) -> tuple[Any, Sequence[Overlay]]:
    """(image that the completion draws, or None; marks of the completion and of the gold answer)."""
    from mmrl.api.errors import plugin_errors

    with plugin_errors(f"task {surveyor.spec.id!r}: draw_completion()"):
        picture = surveyor.task.draw_completion(looked.prompt, completion) if completion else None
    return picture, surveyor.marks(looked.prompt, completion)


def _png(
    surveyor: TaskStatisticsCollector,
    task: str,
    subtitle: str,
    see: Callable[[Image], Image] | None,
    shown: Sequence[SampledPrompt],
    facts: Sequence[Figure],
    odd: Sequence[str],
) -> bytes:
    """The contact sheet as PNG. A prompt's answer is its gold completion, and below it the policy's, if there is one; the image
    that the last of them draws follows the prompt's own."""
    from dataclasses import replace

    from mmrl.ui.report.contact_sheet import contact_sheet

    prompts: list[Prompt] = []
    marks: list[Sequence[Overlay]] = []
    for looked in shown:
        answered = next((tried.completion for tried in looked.tried if tried.source == "answer"), None)
        picture, of_prompt = _drawn(surveyor, looked, (looked.gold or "") if answered is None else answered)
        drawn = [] if picture is None else [{"role": "assistant", "content": [{"type": "image", "image": picture}]}]
        lines = [] if looked.gold is None else [looked.gold]
        lines += [] if answered is None else [f"answered: {answered}"]
        answer = "\n".join(lines) if lines else None
        prompts.append(replace(looked.prompt, answer=answer, messages=[*looked.prompt.messages, *drawn]))
        marks.append(of_prompt)
    contact_sheet(prompts, task, subtitle, see, marks, facts, odd).save(out := io.BytesIO(), "PNG")
    return out.getvalue()


def _page(
    surveyor: TaskStatisticsCollector,
    survey: TaskStatistics,
    task: str,
    subtitle: str,
    sampled: str,
    see: Callable[[Image], Image] | None,
    shown: Sequence[SampledPrompt],
    statistics: Sequence[Figure],
    scores: Sequence[Figure],
) -> str:
    from mmrl.ui.report.preview_page import page

    hint = (
        "Mean score of gold, empty and wrong completions (gold for another prompt). A pale bar spans the lowest to the highest "
        "score."
        if surveyor.task.simulation is None
        else "Score of an episode that succeeds at once and of one that fails."
    )
    sections = [("Statistics of the prompts", f"{sampled}.", statistics), ("Scores of the verifiers", hint, scores)]
    return page(task, subtitle, shown, lambda looked, text: _drawn(surveyor, looked, text), sections, survey.odd, see)


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.part")
    try:
        aside.write_bytes(data)
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"can't write {path}: {error.strerror or error}: {check_writing(error.errno)}") from None


def _policy(model: str) -> VLM:
    from mmrl.ui.cli.terminal import silence_libraries, status_line

    status_line(f"loading {model} ...")
    silence_libraries()
    from mmrl.config.sections import PolicyConfig
    from mmrl.policies.vlm.vlm import VLM

    return VLM(PolicyConfig(model=model))


def _answers(run_file: Path, name: str, task: Task) -> PolicyAnswers:
    from mmrl.ui.cli.terminal import silence_libraries, status_line

    if task.simulation is not None:
        raise UserError(f"task {name!r} acts in a simulator: --policy is for tasks that are answered with text; see mmrl eval")
    status_line(f"loading the policy of {run_file} ...")
    silence_libraries()
    from mmrl.ui.policy_answers import PolicyAnswers

    return PolicyAnswers(run_file)


def _reader(policy: VLM | EndpointPolicy) -> Callable[[Prompt], EncodedView]:
    """A function that encodes a prompt with the policy and keeps only its sizes and token counts."""
    from mmrl.ui.task_statistics import EncodedView

    def read(prompt: Prompt) -> EncodedView:
        inputs = policy.encode(prompt)
        return EncodedView(
            image_sizes=inputs.image_sizes,
            model_sizes=inputs.model_sizes,
            frame=inputs.coordinate_format,
            tokens=len(inputs.ids),
            pictured=sum(token in policy.banned for token in inputs.ids.tolist()),
        )

    return read


def _target(path: Path) -> Path:
    if path.suffix.lower() not in (".png", ".html"):
        raise UserError(f"--out {path} must end in .png or .html")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: the folder {path.parent} does not exist: create it first")
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name a file in it")
    return path
