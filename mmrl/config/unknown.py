"""What is said of a key that a section doesn't have.

It is its new name, where it belongs, what another trainer's key is called here, or the nearest of the section's keys."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from mmrl.api.errors import did_you_mean, nearest_first
from mmrl.config.foreign import called_here, section_here
from mmrl.config.renamed import RENAMED, REPLACED
from mmrl.config.sections import STAGES, PluginStage, RunConfig

MOST = 4
"""A key that more sections have is nobody's in particular, such as `name`."""


OPTIONS = {"stages.rules": ("rule", "sampling_rules"), "tasks": ("task", "tasks")}
"""Section with `options` -> whose they are, and the list in which `mmrl list` shows them."""


OptionNames = Callable[[str, str], Sequence[str]]
"""(list of `mmrl list`, id) -> names of the options; empty where they aren't known. The registry knows them, and a schema that
asked it would import plugins: the caller brings it."""


def no_names(listed: str, id: str) -> Sequence[str]:
    """The `OptionNames` of a caller that knows none."""
    return ()


def describe_unknown_key(
    path: Sequence[int | str],
    loc: Sequence[int | str],
    value: object = None,
    section_id: str = "",
    option_names: OptionNames = no_names,
) -> str:
    """One line. path: the key as it was written, by parts; loc: the same as pydantic names it, where a stage's index is followed
    by its kind. value: what it was set to. section_id: the `id` of its section; empty if it has none."""
    where = ".".join(map(str, path))
    *inside, key = (str(part) for part in path if not isinstance(part, int))
    section = ".".join(inside)
    plain = f"{section}.{key}" if section else key
    if plain in RENAMED:
        return f"key {where!r} is called {RENAMED[plain]!r} since mmrl 0.2: rename it"
    if plain in REPLACED:
        return f"key {where!r} is gone since mmrl 0.2: {REPLACED[plain]}"
    known = _known_keys(loc[:-1])
    kind = str(loc[2]) if section == "stages" else ""
    name, told = section_here(key, section, value)
    if told:
        return f"unknown key {'.'.join(map(str, [*path[:-1], name or key]))!r}: {told}"
    ours, theirs = [*_elsewhere(kind, key)], [*called_here(key, section, value)]
    # which settings there are, the algorithm says, and plugins bring others
    setting = [f"a setting of the algorithm is written settings = {{{key:.60} = ...}}"] if kind == "rl" else []
    option = list[str]()
    if section in OPTIONS and section_id:
        whose, listed = OPTIONS[section]
        written = f"an option of the {whose} is written options = {{{key:.60} = ...}}"
        options = option_names(listed, section_id)
        if key in options:
            return f"unknown key {where!r:.200}: {written}"
        names = ", ".join(nearest_first(key, options))
        option = [f"{written}, with {names}" if names else f"{written}, and `mmrl list {listed} {section_id:.100}` shows all"]
    if ours or theirs:
        longer = [name for name in known if name.startswith(f"{key}_")]
        likely = [f"{key}s", key.removesuffix("s"), *(longer if len(longer) == 1 else [])]
        meant = [f"did you mean {name!r}?" for name in likely if name != key and name in known]
        found = [*meant, *([*ours, *theirs] if isinstance(value, Mapping) else [*theirs, *ours]), *option]
        return f"unknown key {where!r:.200}: {'; '.join([*found, *(setting if ours else [])])}"
    indexed = re.fullmatch(r"(\w+)\[(\d+)\]", key)
    near = f" Did you mean '{indexed[1]}.{indexed[2]}'?" if indexed else did_you_mean(key, known)
    found = [f"d{near[2:]}", *option] if near else [*setting, *(option or [f"known keys are {', '.join(known)}"])]
    return f"unknown key {where!r:.200}: {'; '.join(found)}"


def _elsewhere(kind: str, key: str) -> Iterator[str]:
    """Where a key of ours belongs, in a sentence. kind: that of the stage in which it was written, "" elsewhere."""
    stages = [other for other, model in STAGES.items() if key in model.model_fields]
    places = []
    if kind:
        places += [name for name, model in _sections(_stage(kind), "stages") if key in model.model_fields]
        places += [f"[[stages]] of kind {' and '.join(map(repr, stages))}"] if stages else []
    elif stages:
        places += ["[[stages]]"]
    if key in RunConfig.model_fields:
        yield "it belongs to no section, so write it at the top of the file"
    others = [name for name, model in _sections(RunConfig) if key in model.model_fields]
    places += [name for name in others if "." not in name] or (others if not places else [])
    if 0 < len(places) <= MOST:
        yield f"it belongs in {' or '.join(places)}"


def _sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections within one, as their headings are written, without stages: their keys depend on their kind."""
    for name, field in model.model_fields.items():
        inner, whole = _section(field.annotation), f"{path}.{name}" if path else name
        if inner:
            yield f"[[{whole}]]" if typing.get_origin(field.annotation) is list else f"[{whole}]", inner
            yield from _sections(inner, whole)


def _known_keys(loc: Sequence[int | str]) -> list[str]:
    """The keys of the section at `loc`: a path of keys and list indices, where a stage's index is followed by its kind."""
    model: Any = RunConfig
    for part in loc:
        if not isinstance(part, int):
            model = _stage(part) if model is None else _section(model.model_fields[part].annotation)
    return list(model.model_fields)


def _stage(kind: str) -> type[BaseModel]:
    return STAGES.get(kind, PluginStage)


def _section(annotation: Any) -> Any:
    """The section in an annotation such as `list[Section]` or `Section | None`; None for stages, whose section depends on the
    kind."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = {_section(part) for part in typing.get_args(annotation)} - {None}
    return found.pop() if len(found) == 1 else None
