"""The kinds of values that keys have, and what all sections share."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Threshold = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Share = Annotated[float, Field(ge=0, le=1)]


def _without_nan(value: Any) -> Any:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for item in inner:
        _without_nan(item)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("nan is no number to work with: give another")
    return value


Free = Annotated[dict[str, Any], AfterValidator(_without_nan)]
"""Keyword arguments of something that a plugin brings."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
