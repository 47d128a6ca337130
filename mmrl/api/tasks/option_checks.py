"""Helpers that most tasks need: prompts that are made on access, and checks of options.

A check raises UserError with one line that names the option, its value and the possible values, and suggests the closest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from mmrl.api.errors import UserError, did_you_mean
from mmrl.api.types import Prompt

__all__ = ["LazyPrompts", "check_choice", "check_integer", "check_split", "check_type", "did_you_mean", "parse_split_shares"]

T = TypeVar("T")
KINDS: Mapping[type, str] = {str: "a text", bool: "true or false", int: "a whole number", list: "a list", Mapping: "a table"}
"""Type of an option -> its name in messages."""
MOST = 1e300
"""The largest share: larger ones could add up to infinity."""


class LazyPrompts(Sequence[Prompt], Generic[T]):
    """A sequence of prompts that are made on access: one per item, always the same for the same item."""

    def __init__(self, items: Sequence[T], make: Callable[[T], Prompt], difficulty: Callable[[T], float] | None = None) -> None:
        """items: the data that prompts are made of, often numbers such as `range(2000)`. make: makes the prompt of an item;
        called on each access. difficulty: the `meta["difficulty"]` of an item's prompt, if it is known without making the prompt;
        the order `easy-first` needs it for all items."""
        self.items, self.make, self.difficulty = items, make, difficulty

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> LazyPrompts[T]: ...
    def __getitem__(self, index: int | slice) -> Prompt | LazyPrompts[T]:
        return (
            LazyPrompts(self.items[index], self.make, self.difficulty)
            if isinstance(index, slice)
            else self.make(self.items[index])
        )


def check_choice(option: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise UserError for a value that is not among the choices. Booleans are not numbers here: `true` is not the choice 1."""
    known = list(choices)
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in known):
        raise UserError(f"{option} = {value!r:.60} is unknown: {_possible(value, known)}")


def check_integer(option: str, value: Any, least: int, most: int | None = None, of: str = "") -> None:
    """Raise UserError unless the value is an integer from `least` to `most`, both included; None is no bound.

    of: the unit, such as "pixels", for the message."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise UserError(f"{option} = {value!r:.60} must be a whole number{f' of {of}' if of else ''} {bounds}")


def check_type(option: str, value: Any, kind: type, such_as: str = "") -> None:
    """Raise UserError for a value of another type. kind: one of `KINDS`. such_as: an example, written as in a run file."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{option} = {value!r:.60} must be {KINDS[kind]}{f', such as {such_as}' if such_as else ''}")


def parse_split_shares(option: str, value: Any, without: str | None = None) -> dict[str, float]:
    """Split -> share, scaled to add up to 1. value: split -> positive number. Raises UserError for anything else.

    without: a split to leave out because it has its own rows, such as "test" with a `test_path`; if no other split is left, all
    rows are "train".
    """
    check_type(option, value, Mapping, "{train = 0.9, test = 0.1}")
    shares = {str(name): share for name, share in value.items() if name != without} or ({"train": 1.0} if without else {})
    sound = all(isinstance(v, int | float) and not isinstance(v, bool) and 0 < v <= MOST for v in shares.values())
    if not shares or not sound:
        raise UserError(f"{option} = {dict(value)!r:.200} must give each split a number above 0: {{train = 0.9, test = 0.1}}")
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def check_split(split: str, splits: Iterable[str]) -> str:
    """Return the split; raises UserError if the task has no split of that name."""
    known = list(splits)
    if split not in known:
        raise UserError(f"there is no split {split!r:.60}: {_possible(split, known)}")
    return split


def _possible(value: Any, known: Sequence[Any]) -> str:
    hint = did_you_mean(str(value)[:60], map(str, known))
    return f"choose one of {', '.join(map(str, known))}{'.' if hint else ''}{hint}"
