"""Gymnasium's spaces as mmrl's arrays: what an observation shows, and what the numbers of an action mean. Imports nothing of
mmrl; works with numpy 1 and 2.

A kind of space is known by its class's name, as another interpreter may have its own Gymnasium; subclasses count as their bases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

LEAST_SIDE = 16
"""Pixels of a picture's shorter side; a smaller image of numbers is state, such as MiniGrid's 7 x 7 cells."""
KINDS = ("Dict", "Tuple", "Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text")

Leaf = tuple[tuple[Any, ...], str, Any]
"""Path in an observation, kind, space."""


class Unknown(Exception):
    """A space that can't be shown or acted in; the message is its end of a line."""


class Observed:
    """What the observations of a space show."""

    def __init__(self, space: Any) -> None:
        """Raises Unknown for a part that is neither numbers, pictures nor text."""
        self.numbers: list[Leaf] = []
        self.texts: list[Leaf] = []
        self.pictures: dict[str, tuple[Any, ...]] = {}
        """Camera -> its path: the last key of it, or all of them where others end with the same."""
        found = []
        for leaf in _leaves(space):
            path, kind, part = leaf
            if kind == "Text":
                self.texts.append(leaf)
            elif kind == "Box" and is_picture(part):
                found.append(path)
            else:
                self.numbers.append(leaf)
        ends = [_name(path[-1:]) for path in found]
        for path, end in zip(found, ends, strict=True):
            self.pictures[end if ends.count(end) == 1 and end != "camera" else _name(path)] = path

    def state(self, obs: Any, numpy: Any) -> Any:
        """The numbers of an observation, float32 [S]: those of boxes, and a 1 in the place of each choice."""
        rows = [_numbers(kind, space, _at(obs, path), numpy) for path, kind, space in self.numbers]
        return numpy.concatenate([*rows, numpy.zeros(0, numpy.float32)]).astype(numpy.float32)

    def text(self, obs: Any) -> str:
        """Its texts, such as MiniGrid's mission."""
        return " ".join(str(_at(obs, path)) for path, _, _ in self.texts)

    def picture(self, obs: Any, camera: str, numpy: Any) -> Any:
        """uint8 [H, W, 3]."""
        shown = numpy.asarray(_at(obs, self.pictures[camera]))
        return numpy.repeat(shown, 3, 2) if shown.shape[2] == 1 else shown

    def everything(self, obs: Any, numpy: Any) -> bytes:
        """All that an observation says, for a digest."""
        pictures = [numpy.asarray(_at(obs, path)).tobytes() for path in self.pictures.values()]
        return b"".join([self.state(obs, numpy).tobytes(), self.text(obs).encode(), *pictures])


class Acted:
    """The numbers of an action, each -1 to 1: a number of a box is spread over its bounds, a choice has a number for each thing
    to choose, of which the largest counts, and a switch is on above 0."""

    def __init__(self, space: Any, numpy: Any) -> None:
        """Raises Unknown for a space without bounds, or of another kind."""
        self.numpy = numpy
        self.parts: list[tuple[int, Callable[[Any], Any]]] = []
        self.leaves: list[tuple[tuple[Any, ...], Callable[[Any], Any]]] = []
        """Path of each part in an action, and its numbers there."""
        self.build = self._part(space, numpy)
        self.dims = sum(dims for dims, _ in self.parts)
        self.choices = self.dims if _kind(space) == "Discrete" else 0
        """Of a single choice: the number of things to choose from."""
        self.bounds = _bounds(space) if _kind(space) == "Box" else None
        """Of a single box: its lowest numbers and its highest ones."""

    def of(self, numbers: Any) -> Any:
        """float32 [A] -> an action of the space."""
        read, start = [], 0
        for dims, made in self.parts:
            read.append(made(numbers[start : start + dims]))
            start += dims
        return self.build(iter(read))

    def numbers(self, action: Any) -> Any:
        """An action of the space -> float32 [A], each -1 to 1: the inverse of `of`. Raises Unknown for one of another shape."""
        found = [numbers(_at(action, path)) for path, numbers in self.leaves]
        if any(len(some) != dims for some, (dims, _) in zip(found, self.parts, strict=True)):
            raise Unknown(f"{sum(map(len, found))} numbers, and an action has {self.dims}")
        return self.numpy.concatenate(found).clip(-1, 1).astype(self.numpy.float32)

    def _part(self, space: Any, numpy: Any, path: tuple[Any, ...] = ()) -> Callable[[Iterator[Any]], Any]:
        """How a part of the action is put together from what its leaves read, in order."""
        kind = _kind(space)
        if kind == "Dict":
            named = {key: self._part(part, numpy, (*path, key)) for key, part in space.spaces.items()}
            return lambda read: {key: build(read) for key, build in named.items()}
        if kind == "Tuple":
            builds = [self._part(part, numpy, (*path, number)) for number, part in enumerate(space.spaces)]
            return lambda read: tuple(build(read) for build in builds)
        self.parts.append(_leaf(kind, space, numpy))
        self.leaves.append((path, lambda value: _acted(kind, space, value, numpy)))
        return next


def _bounds(space: Any) -> tuple[list[float], list[float]]:
    return tuple(end.reshape(-1).astype("float64").tolist() for end in (space.low, space.high))  # type: ignore[return-value]


def is_picture(space: Any) -> bool:
    """Whether a Box holds pictures, [H, W, 3] or [H, W, 1] of bytes."""
    shape = space.shape
    return str(space.dtype) == "uint8" and len(shape) == 3 and shape[2] in (1, 3) and min(shape[:2]) >= LEAST_SIDE


def _leaf(kind: str, space: Any, numpy: Any) -> tuple[int, Callable[[Any], Any]]:
    """(numbers of a part of an action, what they mean)."""
    if kind == "Box" and numpy.isfinite(space.low).all() and numpy.isfinite(space.high).all():
        low, high = space.low.astype("float64"), space.high.astype("float64")

        def spread(numbers: Any) -> Any:
            value = low + (numbers.astype("float64").reshape(low.shape) + 1) / 2 * (high - low)
            return (value if space.dtype.kind == "f" else numpy.rint(value)).astype(space.dtype)

        return int(low.size), spread
    if kind == "Discrete":
        return int(space.n), lambda numbers: int(space.start) + int(numbers.argmax())
    if kind == "MultiDiscrete":
        counts = [int(n) for n in space.nvec.reshape(-1)]
        ends = numpy.cumsum(counts).tolist()
        start = numpy.zeros_like(space.nvec) if getattr(space, "start", None) is None else space.start
        return (
            sum(counts),
            lambda numbers: (
                numpy.array([numbers[end - n : end].argmax() for n, end in zip(counts, ends, strict=True)], space.dtype).reshape(
                    space.nvec.shape
                )
                + start
            ),
        )
    if kind == "MultiBinary":
        return int(numpy.prod(space.shape)), lambda numbers: (numbers > 0).astype(space.dtype).reshape(space.shape)
    raise Unknown(f"{space}, which has no bounds" if kind == "Box" else f"{space}")


def _acted(kind: str, space: Any, value: Any, numpy: Any) -> Any:
    """The numbers of a part of an action: the inverse of what `_leaf` reads."""
    if kind == "Box":
        low, high = space.low.reshape(-1).astype("float64"), space.high.reshape(-1).astype("float64")
        numbers = numpy.asarray(value, "float64").reshape(-1)
        return (numbers - low) / numpy.where(high > low, high - low, 1) * 2 - 1 if len(numbers) == len(low) else numbers
    if kind == "MultiBinary":
        return numpy.asarray(value, "float64").reshape(-1) * 2 - 1
    return _numbers(kind, space, value, numpy) * 2 - 1


def _numbers(kind: str, space: Any, value: Any, numpy: Any) -> Any:
    if kind == "Discrete":
        return numpy.eye(int(space.n), dtype=numpy.float32)[int(value) - int(space.start)]
    if kind == "MultiDiscrete":
        start = numpy.zeros_like(space.nvec) if getattr(space, "start", None) is None else space.start
        chosen = (numpy.asarray(value) - start).reshape(-1)
        rows = [numpy.eye(int(n), dtype=numpy.float32)[int(c)] for n, c in zip(space.nvec.reshape(-1), chosen, strict=True)]
        return numpy.concatenate(rows)
    return numpy.asarray(value, numpy.float32).reshape(-1)


def _leaves(space: Any, path: tuple[Any, ...] = ()) -> Iterator[Leaf]:
    """The parts of an observation space, those of a dictionary in the order of their keys."""
    kind = _kind(space)
    if kind == "Dict":
        for key in sorted(space.spaces):
            yield from _leaves(space.spaces[key], (*path, key))
    elif kind == "Tuple":
        for number, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, number))
    elif kind:
        yield path, kind, space
    else:
        raise Unknown(f"{_name(path) + ': ' if path else ''}{space}")


def _kind(space: Any) -> str:
    """The one of KINDS that a space is of; empty for others."""
    if getattr(getattr(space, "dtype", None), "kind", "") == "U":  # MiniGrid's missions
        return "Text"
    return next((base.__name__ for base in type(space).__mro__ if base.__name__ in KINDS), "")


def _at(obs: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        obs = obs[key]
    return obs


def _name(path: tuple[Any, ...]) -> str:
    return "-".join(map(str, path)) or "observation"
