"""What is said of keys of other trainers, whose tables are in `mmrl.config.foreign_keys`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from mmrl.config.foreign_keys import FOREIGN
from mmrl.config.foreign_lacking import WITHOUT
from mmrl.config.foreign_names import NAMED, listed, page, sentence, written_here

_SHOWN, _READ = 3, 200
"""Of a section of another trainer: keys that an error explains, and keys that are looked up for it."""


def called_here(key: str, section: str = "", value: object = None) -> Iterator[str]:
    """What to write in place of a key of other trainers, in a sentence for each meaning that they give it.

    key: the last part of its name. section: that of a run file in which it was written, without indices; empty for the top.
    value: what it was set to; a table if it is a section."""
    pages = dict[str, list[str]]()
    for trainer, keys in FOREIGN.items():
        if isinstance(value, Mapping) and any(name.startswith(f"{key}.") for name in keys):
            pages.setdefault(page(trainer), []).append(trainer)
    for where, trainers in pages.items():
        yield f"it is a section of {listed(trainers)}, and {where} says what is written in its place"
    yield from _meanings(key, section, value)


def section_here(key: str, section: str, value: object) -> tuple[str, str]:
    """What to write in place of a section of other trainers: the dotted name of its key, empty if it has several, and a sentence
    for each of the first ones, empty for a section without a key of theirs. See `called_here`."""
    leaves = dict(islice(_leaves(key, value), _READ))
    if len(leaves) == 1:
        ((name, given),) = leaves.items()
        return name, "; ".join(_meanings(name, section, given))
    found = [said for name, given in leaves.items() for said in _meanings(name, section, given, name)]
    return "", "; ".join([*found[:_SHOWN], *(["and so on"] if len(found) > _SHOWN else [])])


def _leaves(key: str, value: object) -> Iterator[tuple[str, object]]:
    """The dotted names of what a table has, and the values; nothing if it is none."""
    left = [(key, value)] if isinstance(value, Mapping) else []
    while left:
        name, inner = left.pop()
        if isinstance(inner, Mapping):
            left += [(f"{name}.{one}", given) for one, given in reversed([*inner.items()])]
        else:
            yield name, inner


def _meanings(key: str, section: str, value: object, so: str = "so") -> Iterator[str]:
    """A sentence for each meaning of a key, maybe a dotted one that trainers write with more in front. so: see `sentence`."""
    meanings, chosen = dict[str, list[str]](), dict[str, list[str]]()
    for trainer, keys in FOREIGN.items():
        found = dict.fromkeys(keys[name] for name in _names(key, keys))
        # where the name is ours too, it is simply in the wrong place
        other = [ours for ours in found if not any(one.rpartition(".")[2] == key for one in ours)]
        other = [ours for ours in other if any(one.rpartition(".")[0] == section for one in ours)] or other
        said = " or ".join(" and ".join(map(repr, ours)) for ours in other)
        named = next((names for one, names in NAMED.items() if any(one in ours for ours in other)), {})
        written = written_here(trainer, value, named)
        lacking = dict.fromkeys(WITHOUT.get(trainer, {})[name] for name in _names(key, WITHOUT.get(trainer, {})))
        if said and written == "":
            chosen.setdefault(f"is {said} here, and {value!r:.40} has no counterpart", []).append(trainer)
        elif written and written.startswith("kind =") and not any("stages.kind" in ours for ours in other):
            chosen.setdefault(f"is {written} here", []).append(trainer)  # and not in a stage of this kind
        elif said and written:
            chosen.setdefault(f"is {said} here, with {written}", []).append(trainer)
        elif said:
            meanings.setdefault(f"is {said} here", []).append(trainer)
        for why in lacking:
            meanings.setdefault(f"has no key here: {why}", []).append(trainer)
    for meaning, trainers in (chosen or meanings).items():  # whose value it is, that trainer is meant
        yield sentence(trainers, so, meaning)


def _names(key: str, keys: Collection[str]) -> list[str]:
    """The keys of a trainer that are this one, or else end with it."""
    return [key] if key in keys else [name for name in keys if name.endswith(f".{key}")]
