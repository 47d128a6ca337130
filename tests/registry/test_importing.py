"""Options that are of another kind than a target's annotations name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from mmrl import UserError
from mmrl.api.annotations import parameters_of, type_mismatch
from mmrl.api.errors import PluginError
from mmrl.api.specs import Bounds, PolicySpec
from mmrl.registry.importing import build_errors, check_options
from mmrl.ui.cli.options import options_of

if TYPE_CHECKING:
    from nowhere import Nothing


@dataclass
class Base:
    names: Sequence[str] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    odd: Nothing | None = None


@dataclass
class Options(Base):
    """`odd` can't be looked up; the others can."""

    text: str = ""
    flag: bool = False
    count: int | None = None
    share: float = 0.0
    way: Literal["up", "down"] | int = "up"
    turns: Literal[1, 2] = 1
    size: str | Sequence[int] = "small"
    nested: list[list[int]] | None = None
    anything: Any = None


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"text": 5}, "text = 5 must be a text"),
        ({"flag": 1}, "flag = 1 must be true or false"),
        ({"count": True}, "count = True must be a whole number"),
        ({"count": 2.0}, "count = 2.0 must be a whole number"),
        ({"share": "x"}, "share = 'x' must be a number"),
        ({"share": True}, "share = True must be a number"),
        ({"names": "abc"}, "names = 'abc' must be a list of texts"),
        ({"names": ["a", 5]}, "names = ['a', 5] must be a list of texts"),
        ({"shares": ["a"]}, "shares = ['a'] must be a table of numbers"),
        ({"shares": {"a": "b"}}, "shares = {'a': 'b'} must be a table of numbers"),
        ({"turns": True}, "turns = True must be one of 1, 2"),
        ({"size": [2, True]}, "size = [2, True] must be a text or a list of whole numbers"),
        ({"way": "left"}, "way = 'left' must be one of 'up', 'down' or a whole number"),
        ({"size": ["a"]}, "size = ['a'] must be a text or a list of whole numbers"),
        ({"nested": [5]}, "nested = [5] must be a list of lists of whole numbers"),
        ({"text": "a", "flag": 0}, "flag = 0 must be true or false"),
    ],
)
def test_what_is_of_another_kind_is_named(options, wrong):
    assert type_mismatch(Options, options) == wrong


@pytest.mark.parametrize(
    "options",
    [
        {"text": "", "flag": True, "count": 5, "share": 1, "names": ["a"], "shares": {"a": 1, "b": 0.5}, "way": "down"},
        {"count": None, "names": (), "size": [1, 2], "nested": [[1], []], "anything": object(), "odd": 5, "unknown": 5},
        {"size": "large", "way": 3, "turns": 2},
    ],
)
def test_what_fits_or_isnt_known_is_let_through(options):
    assert type_mismatch(Options, options) == ""


def test_the_annotations_of_functions_and_of_classes_with_their_own_init():
    def function(case, *, weight: float = 1.0) -> float:
        return weight

    class Own:
        text: int = 5

        def __init__(self, text: str) -> None: ...

    assert type_mismatch(function, {"weight": "x"}) == "weight = 'x' must be a number"
    assert type_mismatch(Own, {"text": 5}) == "text = 5 must be a text" and type_mismatch(Own, {"text": "a"}) == ""


def turning(num_envs, device, turns: Literal[1, 2] = 1):
    return turns


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (lambda num_envs, device, size: 0, {"size": 1}, ""),
        (
            lambda num_envs, device, size=1: 0,
            {"sise": 1},
            "sim 'a/b' has no option 'sise'. Did you mean 'size'? It accepts: size",
        ),
        (
            lambda num_envs, device, tall=1, size=1, sizes=1: 0,
            {"size_s": 1},
            "sim 'a/b' has no option 'size_s'. Did you mean 'sizes'? It accepts: sizes, size, tall",
        ),
        (lambda num_envs, device, size: 0, {}, "sim 'a/b' needs the option 'size': .*; it accepts: size"),
        (lambda num_envs, device: 0, {"device": "cpu"}, "sim 'a/b': leave out the option 'device', which mmrl gives itself"),
        (lambda num_envs: 0, {}, "sim 'a/b': its target must take the keyword argument 'device', which mmrl gives: add it"),
        (lambda **anything: 0, {"size": 1}, ""),
        (turning, {"turns": 1}, ""),
        (turning, {"turns": True}, "sim 'a/b': turns = True is not one of 1, 2"),
        (5, {}, "sim 'a/b': its target must be a class or a function with named parameters: 5 is not a callable object"),
    ],
)
def test_what_mmrl_gives_is_no_option(target, options, message):
    def check():
        check_options("sim 'a/b'", target, options, filled=("num_envs", "device"))

    if not message:
        check()
        return
    with pytest.raises(UserError, match=f"^{message.replace('?', '[?]')}$"):
        check()


def test_what_a_target_refuses_itself_comes_first():
    def built(options, raises=None):
        with build_errors("task 'a/b'", Options, options):
            if raises:
                raise raises

    built({"text": "a"})
    with pytest.raises(UserError, match="text is to be said"):
        built({"text": 5}, UserError("text is to be said"))
    for raises in (None, TypeError("int is no str")):
        with pytest.raises(UserError, match=r"^task 'a/b': text = 5 must be a text$") as found:
            built({"text": 5}, raises)
        assert not isinstance(found.value, PluginError)
    with pytest.raises(PluginError, match=r"task 'a/b', made with {'text': 'a'}, raised TypeError: of its own making"):
        built({"text": "a"}, TypeError("of its own making"))


Share = Annotated[float, Bounds(low=0, high=1)]


@dataclass(frozen=True, kw_only=True)
class Declared:
    share: Share = 0.5
    """What is taken."""
    widths: Sequence[Annotated[int, Bounds(low=1)]] = (8,)
    limit: Annotated[float, Bounds(above=0, high=9)] | None = None
    way: Literal["up", "down"] = "up"


class Target:
    """share: of the class itself, and of another type."""

    options_class = Declared
    share: str = ""

    def __init__(self, config, *, device="cpu", own: Annotated[int, Bounds(high=3)] = 1, **options: Any) -> None: ...


class Narrow(Target):
    def __init__(self, config, *, device="cpu", share: str = "") -> None: ...


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        *(({"share": value}, "") for value in (0, 1, 0.5)),
        *(({"share": value}, f"share = {value} must be a number from 0 to 1") for value in (-0.1, 1.1, float("nan"), True)),
        ({"share": "a"}, "share = 'a' must be a number from 0 to 1"),
        ({"widths": [1, 0]}, "widths = [1, 0] must be a list of whole numbers of at least 1"),
        ({"widths": [1, 2.0]}, "widths = [1, 2.0] must be a list of whole numbers of at least 1"),
        ({"widths": []}, ""),
        ({"limit": 0}, "limit = 0 must be a number above 0 and at most 9"),
        ({"limit": 10}, "limit = 10 must be a number above 0 and at most 9"),
        *(({"limit": value}, "") for value in (None, 9, 0.1)),
        ({"own": 4}, "own = 4 must be a whole number of at most 3"),
        ({"way": "dwon"}, "way = 'dwon' must be one of 'up', 'down'. Did you mean 'down'?"),
        ({"way": 3}, "way = 3 must be one of 'up', 'down'"),
    ],
)
def test_ranges_are_read_from_annotations(options, wrong):
    assert type_mismatch(Target, options) == wrong


def test_declared_options_stand_for_any_keyword_arguments_alone():
    assert [p.name for p in parameters_of(Target)] == ["config", "device", "own", "share", "widths", "limit", "way"]
    assert [p.name for p in parameters_of(Narrow)] == ["config", "device", "share"]
    assert type_mismatch(Narrow, {"share": "a", "limit": 10}) == "", "it takes no declared options"
    with pytest.raises(UserError, match=r"^policy 'a/b' has no option 'shrae'\. Did you mean 'share'\?"):
        check_options("policy 'a/b'", Target, {"shrae": 1}, skip=1, filled=("device",))


def test_declared_options_are_described():
    shown = {o.name: o for o in options_of("policies", PolicySpec(id="a/b", target="a:b"), Target)}
    assert (shown["share"].type, shown["share"].default) == ("number from 0 to 1", 0.5)
    assert shown["widths"].type == "list of whole numbers of at least 1" and shown["own"].type == "whole number of at most 3"
    assert "device" not in shown and "config" not in shown


@pytest.mark.parametrize(
    ("bounds", "text", "inside", "outside"),
    [
        (Bounds(low=0, high=1), "from 0 to 1", (0, 1), (-1e-9, 1.1)),
        (Bounds(low=2), "at least 2", (2, float("inf")), (1.9,)),
        (Bounds(high=2), "at most 2", (2, -5), (2.1,)),
        (Bounds(above=1, off=0), "above 1, or 0 to switch it off", (0, 1.1), (1, -1)),
        (Bounds(above=0, high=3), "above 0 and at most 3", (3,), (0, 3.1, float("nan"))),
    ],
)
def test_bounds_hold_what_they_say(bounds, text, inside, outside):
    assert str(bounds) == text
    assert all(map(bounds.allows, inside)) and not any(map(bounds.allows, outside))
