"""`mmrl score VERIFIER`: read completions from stdin, score them with one verifier, write scores to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import BinaryIO, get_args

import click

from mmrl.api.cases import case_from_json
from mmrl.api.coordinates import ImageProcessing
from mmrl.api.errors import UserError
from mmrl.api.settings import key_values
from mmrl.api.types import Case
from mmrl.judge import Isolation, local_judge
from mmrl.ui.cli.complete import ids

LONGEST_LINE = 2**28
"""Bytes of an input line, which may hold images in base64."""


@click.command
@click.argument("verifier", shell_complete=ids("verifiers"))
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the verifier, with a TOML value.")
@click.option(
    "--num-workers",
    "processes",
    type=click.IntRange(min=1, max=1024),
    default=1,
    show_default=True,
    help="Number of worker processes.",
)
@click.option(
    "--isolation",
    type=click.Choice(get_args(Isolation)),
    default="process",
    show_default=True,
    help="`strict` runs the verifier in a sandbox.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="The model that answered: a folder, hub name or tiny:FAMILY. Its coordinates and sizes hold where a line gives none.",
)
def command(verifier: str, settings: tuple[str, ...], processes: int, isolation: Isolation, model: str | None) -> None:
    """Score completions with VERIFIER: one JSON line out for each JSON line in, in the same order.

    Input: {"completion": "...", "answer": ..., "meta": {...}, "status": "finished", "images": [path or data URL, ...],
    "image_sizes": [[width, height], ...], "model_sizes": [[width, height], ...], "coordinate_format": "thousandths", "turns":
    [{"text": "..."}, ...], "outcome": {...}}; only the completion is required. docs/interop.md describes the keys.

    Output: {"value": 1.0, "parts": {}, "status": "ok", "detail": ""}; value is null and status is "failed" where the verifier
    raised an error, timed out or returned no finite number, "lost" for an episode whose environment failed.
    """
    processing = _image_processing(model)
    with local_judge({verifier: key_values(settings)}, processes, isolation=isolation) as judge:
        judge.ready()
        for lines in _batches(sys.stdin.buffer):
            cases, fault = [], None
            try:
                for number, line in lines:
                    cases.append(_case(line, f"line {number} of stdin", processing))
            except UserError as error:  # raised after the lines before it are scored
                fault = error
            if cases:
                click.echo("\n".join(json.dumps(score.as_json()) for score in judge.run(verifier, cases)))
            if fault:
                raise fault


def _batches(stream: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Yields (number, line) of the lines that have arrived, without waiting for more, so that a caller that writes one line and
    waits for its score gets it. Raises UserError for a line that is too long."""
    number, pending, held = 0, [], 0
    while data := stream.read1(2**20):  # type: ignore[attr-defined]
        pending.append(data)
        held += len(data)
        if b"\n" in data:
            *lines, rest = b"".join(pending).split(b"\n")
            yield [(number + i, line) for i, line in enumerate(lines, 1) if line.strip()]
            number, pending, held = number + len(lines), [rest], len(rest)
        if held > LONGEST_LINE:
            raise UserError(f"line {number + 1} of stdin is longer than {LONGEST_LINE:,} bytes: give images as paths")
    if (rest := b"".join(pending)).strip():
        yield [(number + 1, rest)]


def _image_processing(model: str | None) -> ImageProcessing | None:
    if model is None:
        return None
    from mmrl.policies.vlm.image_processing import image_processing_of  # imports torch

    return image_processing_of(model)


def _case(line: bytes, where: str, processing: ImageProcessing | None) -> Case:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): write one object per line") from None
    return case_from_json(row, where, processing)
