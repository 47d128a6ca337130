"""`mmrl score VERIFIER`: read completions from stdin, score them with one verifier, write scores to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, get_args

import click

from mmrl.api.errors import UserError, did_you_mean
from mmrl.api.settings import key_values
from mmrl.api.types import Case, Status
from mmrl.judge import Isolation, local_judge
from mmrl.ui.cli.complete import ids

KEYS: dict[str, Any] = {"completion": str, "answer": object, "meta": dict, "images": list, "status": str}
"""Key of an input line -> type of its value."""
NAMES: dict[Any, str] = {str: "text", dict: "an object", list: "a list of paths"}


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
def command(verifier: str, settings: tuple[str, ...], processes: int, isolation: Isolation) -> None:
    """Score completions with VERIFIER: one JSON line out for each JSON line in, in the same order.

    Input: {"completion": "...", "answer": ..., "meta": {...}, "images": ["PATH", ...], "status": "finished"}; only the
    completion is required. Output: {"value": 1.0, "parts": {}, "status": "ok", "detail": ""}; value is null and status is
    "failed" where the verifier raised an error, timed out or returned no finite number.
    """
    with local_judge({verifier: key_values(settings)}, processes, isolation=isolation) as judge:
        judge.ready()
        for lines in _batches(sys.stdin.buffer):
            cases, fault = [], None
            try:
                for number, line in lines:
                    cases.append(_case(line, f"line {number} of stdin"))
            except UserError as error:  # raised after the lines before it are scored
                fault = error
            if cases:
                click.echo("\n".join(json.dumps(score.as_json()) for score in judge.run(verifier, cases)))
            if fault:
                raise fault


def _batches(stream: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Yields (number, line) of the lines that have arrived, without waiting for more, so that a caller that writes one line and
    waits for its score gets it."""
    number, pending = 0, []
    while data := stream.read1(2**20):  # type: ignore[attr-defined]
        pending.append(data)
        if b"\n" in data:
            *lines, rest = b"".join(pending).split(b"\n")
            yield [(number + i, line) for i, line in enumerate(lines, 1) if line.strip()]
            number, pending = number + len(lines), [rest]
    if (rest := b"".join(pending)).strip():
        yield [(number + 1, rest)]


def _case(line: bytes, where: str) -> Case:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): write one object per line") from None
    if not isinstance(row, dict):
        raise UserError(f'{where} is not a JSON object: write {{"completion": ..., "answer": ...}}')
    for key, value in row.items():
        if key not in KEYS:
            raise UserError(f"{where} has an unknown key {key!r}.{did_you_mean(key, KEYS)} Known keys: {', '.join(KEYS)}")
        if not isinstance(value, KEYS[key]):
            raise UserError(f"{where}: {key!r} must be {NAMES[KEYS[key]]}, found {json.dumps(value)[:60]}")
    if "completion" not in row:
        raise UserError(f"{where} has no 'completion': add it")
    status, known = row.get("status", Status.FINISHED), [s.value for s in Status]
    if status not in known:
        raise UserError(f"{where}: unknown status {status!r}.{did_you_mean(status, known)} Known: {', '.join(known)}")
    images = row.get("images", [])
    return Case(
        completion=row["completion"],
        answer=row.get("answer"),
        meta=row.get("meta", {}),
        status=Status(status),
        media=tuple(images),
        image_sizes=tuple(_size(path, where) for path in images),
    )


def _size(path: Any, where: str) -> tuple[int, int]:
    from mmrl.api.media.images import load_image

    if not isinstance(path, str):
        raise UserError(f"{where}: 'images' must be a list of paths, found {json.dumps(path)[:60]}")
    try:
        return load_image(path).size
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
