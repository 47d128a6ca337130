"""Options of a target: names, types, defaults and meanings, read from its signature and docstrings."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from mmrl.api.annotations import describe_hint, hints_of, options_class, parameters_of
from mmrl.api.errors import UserError
from mmrl.api.specs import AlgorithmSpec, Spec
from mmrl.registry.importing import FILLED

SKIP = {"verifiers": 1, "policies": 1, "families": 2, "stages": 2, "alarms": 1}
"""Kind -> number of leading positional parameters that the engine fills, such as a verifier's case. All positional
parameters of an algorithm are signals: see `settings_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A keyword argument that a run file may set."""

    name: str
    type: str
    """The annotation; empty without one."""
    default: Any
    """The spec's default, else the target's; None without one."""
    required: bool
    meaning: str
    """Its text in the docstring; empty without one."""


def options_of(kind: str, spec: Spec, target: Callable[..., Any]) -> list[Option]:
    """The options of a target, required ones first; empty for a target without a signature."""
    try:
        skip = 0 if getattr(spec, "model", False) else SKIP.get(kind, 0)  # all parameters of a model verifier are options
        parameters, hints = parameters_of(target)[skip:], hints_of(target)
    except (TypeError, ValueError):
        return []
    filled = () if getattr(spec, "screens", False) else FILLED.get(kind, ())
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in filled]
    meanings = _meanings(target, [p.name for p in named])
    options = [
        Option(
            name=p.name,
            type=_type(p, hints.get(p.name)),
            default=spec.options.get(p.name, _default(options_class(target) or target, p)),
            required=p.default is p.empty and p.name not in spec.options,
            meaning=meanings.get(p.name, ""),
        )
        for p in named
    ]
    return sorted(options, key=lambda option: not option.required)


def option_names(kind: str, id: str) -> list[str]:
    """The names of the options of an id, as `mmrl list KIND ID` shows them; empty if there is no such id or its plugin is broken:
    the run file's own error comes first."""
    from mmrl.registry.plugins import registry

    try:
        spec = registry().get(kind, id)
        return [option.name for option in options_of(kind, spec, registry().target(spec))]
    except UserError:
        return []


def settings_of(spec: AlgorithmSpec, advantage: Callable[..., Any], loss: Callable[..., Any]) -> list[Option]:
    """The keys that `stages.settings` accepts for an algorithm: keyword-only parameters of its advantage and of its loss, and the
    loss normalisation. A name that both functions have is listed once and passed to both."""
    settings: dict[str, Option] = {}
    for function in (advantage, loss):
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        meanings, hints = _meanings(function, [p.name for p in parameters]), hints_of(function)
        for p in parameters:
            settings.setdefault(
                p.name,
                Option(
                    name=p.name,
                    type=_type(p, Annotated[hints[p.name], spec.bounds[p.name]] if p.name in spec.bounds else hints.get(p.name)),
                    default=spec.options.get(p.name, _default(function, p)),
                    required=p.default is p.empty and p.name not in spec.options,
                    meaning=meanings.get(p.name, ""),
                ),
            )
    meanings, own = _under_attributes(AlgorithmSpec), inspect.signature(AlgorithmSpec).parameters
    hints = hints_of(AlgorithmSpec)
    for name in ("normalise", "constant"):
        settings[name] = Option(
            name=name,
            type=_type(own[name], hints[name]),
            default=spec.options.get(name, getattr(spec, name)),
            required=False,
            meaning=_flow(meanings.get(name, "")),
        )
    from mmrl.algorithms.presets import OF_ALL  # imports torch

    for (name, meaning), kind, own_value in zip(OF_ALL.items(), ("text", "number from 0 to 1"), (spec.id, 1.0), strict=True):
        settings[name] = Option(name=name, type=kind, default=own_value, required=False, meaning=meaning)
    return sorted(settings.values(), key=lambda option: not option.required)


def signals_of(advantage: Callable[..., Any]) -> dict[str, str]:
    """Signal -> meaning, of the signals that an advantage takes, in its order; "" for an unknown signal."""
    from mmrl.algorithms import presets, signals  # imports torch

    return {name: signals.SIGNALS.get(name, "") for name in presets.signals_of(advantage)}


def first_line(target: Any) -> str:
    """The first line of a target's own docstring; empty without one."""
    text = target.__doc__ or ""  # a class does not inherit `__doc__`
    made_by_dataclass = text.startswith(f"{getattr(target, '__name__', '')}(")
    return "" if made_by_dataclass else inspect.cleandoc(text).partition("\n")[0]


def _type(parameter: inspect.Parameter, hint: Any = None) -> str:
    """An annotation to display: in words, but choices and types that have none as they are written. hint: the type that it
    stands for, if it is known."""
    annotation = parameter.annotation
    if "Literal[" not in str(hint) and (words := describe_hint(hint)):
        return words.removeprefix("a ")
    if isinstance(annotation, str):
        return annotation
    return "" if annotation is parameter.empty else inspect.formatannotation(annotation).replace("collections.abc.", "")


def _default(target: Any, parameter: inspect.Parameter) -> Any:
    field = getattr(target, "__dataclass_fields__", {}).get(parameter.name)
    if field and callable(field.default_factory):
        return field.default_factory()
    return None if parameter.default is parameter.empty else parameter.default


def _meanings(target: Any, names: Iterable[str]) -> dict[str, str]:
    """Option -> its meaning: the text under the attribute of a class, or after `name: ` in a docstring."""
    classes = target.__mro__[::-1] if inspect.isclass(target) else ()
    if declared := options_class(target):
        classes = (*classes, *declared.__mro__[::-1])
    meanings: dict[str, str] = {}
    for cls in classes:  # a class overrides its bases
        meanings |= _under_attributes(cls)
    word = "|".join(map(re.escape, names)) or "(?!)"
    begin = r"(?:[.;]\s+|\n\s*|^)`?"
    # a meaning ends where the next option's begins, at a line such as "Returns" or "Known limits: ", or at an empty line
    end = rf"(?:{begin}(?:{word})`?:\s|\n\s*(?:Returns?|Raises)\b|\n\s*[A-Z][\w ,]*: |\n\s*\n|$)"
    for text in [target.__doc__, target.__init__.__doc__] if inspect.isclass(target) else [target.__doc__]:
        meanings |= dict(re.findall(rf"{begin}({word})`?:\s(.+?)(?={end})", text or "", re.DOTALL))
    return {name: _flow(text) for name, text in meanings.items()}


@functools.cache  # of a base class, too, whose file would be read for each of its subclasses
def _under_attributes(cls: type) -> dict[str, str]:
    """Attribute -> the string literal under it in the class's source."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):  # made at run time, or without source
        return {}
    return {
        attribute.target.id: inspect.cleandoc(text.value.value)
        for attribute, text in itertools.pairwise(getattr(node, "body", ()))
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _flow(text: str) -> str:
    """The text without line breaks, except those between the items of a list."""
    return "\n- ".join(" ".join(part.split()) for part in re.split(r"\n\s*- ", text)).removesuffix(".")
