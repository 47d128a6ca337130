"""A tool: its schema, how its arguments are checked, and what it works on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from PIL import Image

from mmrl import ImageProcessing
from mmrl.api.verifiers.tool_calls import CallError

PICTURES = 64
"""Maximum of pictures in an episode, the prompt's included."""
KINDS: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
"""Type of a JSON schema -> types in Python; a boolean is none of them."""


class Refused(CallError):
    """A call that can't be carried out. The message is for the policy."""


class Place(NamedTuple):
    """Where on one of the prompt's pictures something is."""

    picture: int
    """Number of the picture, from 0."""
    box: tuple[float, float, float, float]
    """(x1, y1, x2, y2) as shares of its width and height, 0 to 1."""

    def part(self, box: Sequence[float]) -> Place:
        """A part of it. box: as shares of this place."""
        x1, y1, x2, y2 = self.box
        wide, high = x2 - x1, y2 - y1
        return Place(self.picture, (x1 + box[0] * wide, y1 + box[1] * high, x1 + box[2] * wide, y1 + box[3] * high))


WHOLE = (0.0, 0.0, 1.0, 1.0)


class Picture(NamedTuple):
    """A picture that a call can be about."""

    image: Image.Image
    """At full resolution, RGB."""
    shown: tuple[int, int]
    """(width, height) in pixels in which the policy's processor gets it: coordinates of calls refer to it."""
    place: Place | None
    """What it shows of the prompt's pictures; None if it isn't an upright part of one."""


class Result(NamedTuple):
    """What a call gives back."""

    text: str
    pictures: tuple[Picture, ...] = ()
    looked: tuple[Place, ...] = ()
    """Where the policy looked."""


@dataclass(kw_only=True)
class Workspace:
    """What the tools of an episode work on."""

    pictures: list[Picture]
    """Those of the prompt, then those that calls gave back."""
    frames: Sequence[Image.Image] = ()
    """The frames of the prompt's clip, as many as the policy sees, at full resolution."""
    words: Sequence[tuple[str, tuple[float, float, float, float]]] = ()
    """Texts on the prompt's first picture and their boxes in pixels of it at full resolution."""
    processing: ImageProcessing = field(default_factory=ImageProcessing)
    """How the policy sees pictures and writes coordinates."""
    blank: bool = False
    """Give back grey pictures, as a probe of whether the policy uses what it sees."""

    def picture(self, number: float = 1) -> Picture:
        """The picture of a number, from 1. Raises Refused if there is none."""
        if not self.pictures:
            raise Refused("there is no picture")
        if number != int(number) or not 1 <= number <= len(self.pictures):
            raise Refused(f"there is no picture {number!r:.20}: the pictures are numbered 1 to {len(self.pictures)}")
        return self.pictures[int(number) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the policy may call."""

    name: str
    description: str
    """For the policy."""
    properties: Mapping[str, Mapping[str, Any]]
    """Name of an argument -> its JSON schema."""
    required: tuple[str, ...] = ()
    run: Callable[[Mapping[str, Any], Workspace], Result]
    """Carries out a call with checked arguments. Raises Refused."""
    waits: bool = False
    """It waits for another process."""

    @property
    def schema(self) -> dict[str, Any]:
        """The schema in OpenAI's form, as chat templates take it."""
        properties = {name: dict(one) for name, one in self.properties.items()}
        parameters = {"type": "object", "properties": properties, "required": list(self.required)}
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": parameters}}

    def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> Result:
        """Check the arguments against the schema and carry out the call. Raises Refused."""
        known = ", ".join(self.properties)
        if missing := [name for name in self.required if name not in arguments]:
            raise Refused(f"{self.name} needs {' and '.join(missing)}; its arguments are {known}")
        for name, value in arguments.items():
            if name not in self.properties:
                raise Refused(f"{self.name} has no argument {name!r:.40}; its arguments are {known}")
            check_value(f"{name} of {self.name}", value, self.properties[name])
        return self.run(arguments, workspace)


def check_value(what: str, value: Any, schema: Mapping[str, Any]) -> None:
    """Raise Refused for a value that isn't as its JSON schema says. Read are type, items, minItems, maxItems, minimum, maximum,
    maxLength and enum. what: the value's name."""
    kind = schema["type"]
    if isinstance(value, bool) or not isinstance(value, KINDS[kind]):
        raise Refused(f"{what} must be {'an' if kind[0] in 'aio' else 'a'} {kind}, not {value!r:.40}")
    if isinstance(value, list):
        least, most = schema.get("minItems", 0), schema.get("maxItems", 64)
        if not least <= len(value) <= most:
            raise Refused(f"{what} must have {least if least == most else f'{least} to {most}'} items, not {len(value)}")
        for item in value:
            check_value(f"each item of {what}", item, schema["items"])
    if isinstance(value, int | float):
        if (isinstance(value, int) and abs(value) > 2**53) or not math.isfinite(value):
            raise Refused(f"{what} is no number that can be used: {str(value)[:40]}")
        if not schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf):
            raise Refused(f"{what} must be from {schema.get('minimum')} to {schema.get('maximum')}, not {value!r:.40}")
    if isinstance(value, str) and len(value) > schema.get("maxLength", 200):
        raise Refused(f"{what} is longer than {schema.get('maxLength', 200)} characters")
    if "enum" in schema and value not in schema["enum"]:
        raise Refused(f"{what} must be one of {', '.join(schema['enum'])}, not {value!r:.40}")
