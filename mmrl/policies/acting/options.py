"""Checks of the options of policies that act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl.api.errors import UserError

NONE = "none"
"""Value of `statistics`: don't use those that come with the model."""


def check_integer(name: str, value: Any, least: int, most: int) -> None:
    """Raise UserError unless `value` is a whole number from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise UserError(f"policy.options.{name} = {value!r:.60} must be a whole number from {least} to {most}")


def check_number(name: str, value: Any, low: float, high: float, closed: bool = False) -> None:
    """Raise UserError unless `value` is a number above `low`, or `low` itself if `closed`, and at most `high`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (value == low and not closed):
        range_ = f"from {low:g} to {high:g}" if closed else f"above {low:g} and at most {high:g}"
        raise UserError(f"policy.options.{name} = {value!r:.60} must be a number {range_}")


def check_range(name: str, value: Any, low: float, high: float) -> None:
    """Raise UserError unless `value` is a list of two numbers in ascending order, above `low` and at most `high`."""
    numbers = [one for one in value if isinstance(one, int | float) and not isinstance(one, bool)] if _is_pair(value) else []
    if len(numbers) != 2 or not low < numbers[0] <= numbers[1] <= high:
        raise UserError(
            f"policy.options.{name} = {value!r:.60} must be two numbers, the smaller first, above {low:g} and at most {high:g}"
        )


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2


def check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise UserError(f"policy.options.{name} = {value!r:.60} must be a text")


def check_texts(name: str, value: Any) -> None:
    """Raise UserError unless `value` is a list of texts; a single text would be read as a list of letters."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise UserError(f"policy.options.{name} = {value!r:.60} must be a list of texts")


def check_prompt(value: Any) -> None:
    """Raise UserError for a prompt without {instruction}."""
    check_text("prompt", value)
    if "{instruction}" not in value:
        raise UserError(f"policy.options.prompt = {value!r} must contain {{instruction}}, which the task's instruction replaces")


def check_crop(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.1 <= value <= 1:
        raise UserError(f"policy.options.crop = {value!r:.60} must be a share of the area from 0.1 to 1")


def check_sizes(kind: str, chunk: tuple[int, int], dims: tuple[int, int], state: tuple[int, int]) -> None:
    """Raise UserError for a size that the network can't have. Each is what was asked for and the most that there is. kind: of the
    network, for the message."""
    for name, (value, most), what in (
        ("chunk", chunk, "actions are predicted"),
        ("dims", dims, "numbers an action has at most"),
        ("state", state, "numbers a state has at most"),
    ):
        if value > most:
            raise UserError(f"policy.options.{name} = {value} is too many for this {kind}: {most} {what}")
