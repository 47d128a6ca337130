"""The config.json of a small policy of LeRobot's: its fields as a dataclass, and the features that it reads and makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_processors import ACTION, STATE

ENVIRONMENT = "observation.environment_state"
FIXED: dict[str, Any] = {"compile_model": False, "use_peft": False}
"""Fields that have one value in what can be read here; another is refused."""
MOST = 100_000
"""Largest of the sizes and numbers of a network."""
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
"""Values of `vision_backbone`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a policy reads and makes: a table of LeRobot's key -> its type and shape, for each."""

    input_features: Mapping[str, Any] = field(default_factory=dict)
    output_features: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cameras(self) -> list[str]:
        """The keys of the pictures that it was trained with, in their order."""
        return [key for key, value in self.input_features.items() if value.get("type") == "VISUAL"]

    def shape_of(self, key: str) -> tuple[int, int]:
        """Height and width of a camera's pictures, before they are resized or cropped."""
        height, width = self.input_features[key]["shape"][1:]
        return height, width

    def numbers(self, key: str) -> int:
        """Numbers of a state or of an action; 0 where config.json doesn't say."""
        shape = {**self.input_features, **self.output_features}.get(key, {}).get("shape") or [0]
        return int(shape[0])


Config = TypeVar("Config", bound=Features)


def read_fields(kind: type[Config], table: Mapping[str, Any], called: str, choices: Mapping[str, tuple[Any, ...]]) -> Config:
    """The dataclass `kind` with what a config.json says; what it doesn't say has LeRobot's default. called: the policy, as a
    person calls it. choices: field -> its values. Raises UserError for a value of another type or that can't be read here."""
    for name, value in FIXED.items():
        if table.get(name, value) != value:
            raise UserError(f"config.json: {name} = {table[name]!r:.60}, and only {value!r} can be read")
    hints, found = get_type_hints(kind), dict[str, Any]()
    for name in (one.name for one in fields(kind) if one.name in table):
        value = tuple(table[name]) if isinstance(table[name], list) else table[name]
        if name in choices and value not in choices[name]:
            raise UserError(f"config.json: {name} = {value!r:.60} is not one of {', '.join(map(str, choices[name]))}")
        if not _fits(value, str(hints[name]) if not isinstance(hints[name], type) else hints[name].__name__):
            raise UserError(f"config.json: {name} = {value!r:.60} is not what {called}'s must be")
        found[name] = value
    return kind(**found)


def _fits(value: Any, wanted: str) -> bool:
    if value is None:
        return "None" in wanted
    if wanted.startswith("tuple"):
        sides = isinstance(value, tuple) and all(type(side) is int and side > 0 for side in value)
        return sides and (len(value) == 2 or ("..." in wanted and len(value) > 0))
    if "Mapping" in wanted:
        return isinstance(value, Mapping) and all(isinstance(part, Mapping) for part in value.values())
    if wanted.startswith("float"):
        return type(value) in (int, float)
    return type(value).__name__ == wanted.split(" ")[0]


def check_positive(config: Features, *names: str) -> None:
    """Raise UserError for a number that isn't above 0, or with which no network could be computed."""
    for name in names:
        if (value := getattr(config, name)) < 1:
            raise UserError(f"config.json: {name} = {value} must be above 0")
        if value > MOST:
            raise UserError(f"config.json: {name} = {value} must be at most {MOST:,}")


def check_features(config: Features, called: str, needed: tuple[str, ...] = (STATE, ACTION)) -> None:
    """Raise UserError for observations that LeRobot's class can't have. called: see `read_fields`. needed: keys that it reads or
    makes in any case."""
    for key, value in {**config.input_features, **config.output_features}.items():
        shape, length = value.get("shape"), 3 if value.get("type") == "VISUAL" else 1
        if not isinstance(shape, list | tuple) or len(shape) != length or not all(type(n) is int and n > 0 for n in shape):
            raise UserError(f"config.json: the shape of {key} is {shape!r:.40}, and must have {length} numbers above 0")
    for key in needed:
        if not config.numbers(key):
            raise UserError(f"config.json: it has no {key}, which {called} reads or makes")
    if not config.cameras and not config.numbers(ENVIRONMENT):
        raise UserError(f"config.json: it has neither a picture nor {ENVIRONMENT}")
    for key in config.cameras:
        if (colours := config.input_features[key]["shape"][0]) != 3:
            raise UserError(f"config.json: {key} has {colours} colours, and must have 3")
