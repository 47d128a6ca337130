"""The value types of keys, and the base class of all sections."""

from __future__ import annotations

import math
import os
import re
from types import NoneType, UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

SMALLEST, LARGEST, MOST = 1e-30, 1e30, 2**31 - 1
"""Outside of these bounds, float32 numbers or their products, or int32 counts, over- or underflow."""


def _ordinary(value: float) -> float:
    if value and not SMALLEST <= abs(value) <= LARGEST and abs(value) != math.inf:
        raise ValueError(f"must be no smaller than {SMALLEST:g} and no larger than {LARGEST:g}")
    return value


Real = Annotated[float, AfterValidator(_ordinary)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Rate = Annotated[Real, Field(gt=0)]
Weight = Annotated[Real, Field(ge=0)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=True), AfterValidator(_ordinary)]
Threshold = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Share = Annotated[float, Field(ge=0, le=1)]


DEEPEST = 50
"""Levels of tables within the options of a plugin's object. Thousands would end its writing in a RecursionError."""


def _without_nan(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise ValueError(f"tables are nested deeper than {DEEPEST} levels: shorten the key")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for item in inner:
        _without_nan(item, depth + 1)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("nan is not allowed: give a number")
    return value


_BOUND = re.compile(r"[^\s<>!]([^<>!]*[^\s<>!])? (<|>|!=) -?\d+(\.\d+)?")


def is_bound(text: str) -> bool:
    """Whether a text is a `Bound`."""
    return _BOUND.fullmatch(text) is not None


def _checked_bound(text: str) -> str:
    if not is_bound(text):
        raise ValueError("must be the name of a figure, then <, > or !=, and a number, such as 'votes/agreement > 0.3'")
    return text


Bound = Annotated[str, AfterValidator(_checked_bound)]
"""The name of a figure and what it is said to be."""


def _from_home(text: str) -> str:
    whole = os.path.expanduser(text) if text.startswith("~") else text
    if whole.startswith("~"):
        raise ValueError("begins with ~, which stands for no user's folder here: write the whole path")
    return whole


Place = Annotated[str, AfterValidator(_from_home)]
"""A path, in which ~ is the user's folder as in a shell, or a name that is none, such as a hub's."""


def _given(text: str) -> str:
    if not text.strip():  # Python takes no path for the current folder
        raise ValueError("it is empty: give a path or a name")
    return text


Source = Annotated[Place, AfterValidator(_given)]
"""A `Place` where a model or a file is read, which can't be left empty."""
Free = Annotated[dict[str, Any], AfterValidator(lambda value: _without_nan(value))]
"""Keyword arguments of a plugin's object."""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    def at_most(self, **limits: int) -> Self:
        """A copy in which these numbers are at most their limits."""
        return self.model_copy(update={key: min(getattr(self, key), limit) for key, limit in limits.items()})

    @field_validator("*", mode="before")
    @classmethod
    def _no_other_types(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what pydantic would turn into the type that is wanted: booleans for numbers, also within lists and tables, texts
        for numbers and booleans, and numbers for booleans."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        ways = {*_ways(annotation)} - {NoneType}
        number = "it should be a whole number" if ways == {int} else "it should be a number"
        if _has_switch(value, annotation):
            raise ValueError(number if isinstance(value, bool) else "it should be of numbers")
        if ways <= {int, float} and isinstance(value, str):
            raise ValueError(number)
        if ways == {bool} and isinstance(value, int | float | str) and not isinstance(value, bool):
            raise ValueError("it should be true or false")
        return value


def _has_switch(value: Any, annotation: Any) -> bool:
    """Whether a value is a boolean, or a list or table that has one, where the annotation wants a number."""
    ways = _ways(annotation)
    if isinstance(value, bool):
        return bool({int, float} & set(ways)) and bool not in ways
    if isinstance(value, list | tuple):
        lists = [get_args(way) for way in ways if get_origin(way) in (list, tuple)]
        return any(_has_switch(item, inner[at % len(inner)]) for inner in lists for at, item in enumerate(value))
    if isinstance(value, dict):
        tables = [get_args(way)[1] for way in ways if get_origin(way) is dict]
        return any(_has_switch(item, inner) for inner in tables for item in value.values())
    return False


def _ways(annotation: Any) -> list[Any]:
    """The types that an annotation names, without the conditions on them."""
    if get_origin(annotation) is Annotated:
        return _ways(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [way for one in get_args(annotation) for way in _ways(one)]
    return [annotation]
