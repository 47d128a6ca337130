"""What a folder says of the policy that acts which was saved in it, and whether a policy can learn from it."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.errors import UserError
from mmrl.schema import PolicyConfig

if TYPE_CHECKING:
    from mmrl.policies.acting import ActingPolicy

SETTINGS, WEIGHTS = "acting.json", "acting.safetensors"


def settings_of(folder: Path) -> dict[str, Any]:
    """Everything that was saved beside the weights; nothing where there is no such policy."""
    path = folder / SETTINGS
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def saved_options(folder: Path) -> dict[str, Any]:
    """The options with which a policy that acts was saved in this folder; nothing where there is none."""
    return {name: value for name, value in settings_of(folder).items() if name != "model"}


def same_kind(folder: Path, kind: str) -> dict[str, Any]:
    """Those options, without the kind. Raises UserError where another kind of policy was saved."""
    found = saved_options(folder)
    if found.pop("kind", kind) != kind:
        raise UserError(f"policy.model {str(folder)!r} holds a policy of another kind than policy.kind = {kind!r}")
    return found


def check_teacher(kind: type[ActingPolicy], config: PolicyConfig, teacher: str) -> None:
    """Refuse a saved teacher that can't say how likely the policy's choices are. Loads nothing, so that what neither the run file
    nor a folder says is left to `refuse_teacher`."""
    taught = same_kind(Path(teacher), config.kind)
    parameters = inspect.signature(kind).parameters.values()
    ways = {p.name: p.default for p in parameters if p.default is not p.empty}
    ways |= same_kind(Path(config.model), config.kind) | dict(config.options)
    for name in sorted(kind.choice_settings):
        there = config.options.get(name, taught.get(name)) if name in kind.free else taught.get(name)
        if there is not None and ways.get(name) is not None and there != ways[name]:
            raise _other_choices(teacher, name, there, ways[name])


def refuse_teacher(policy: ActingPolicy, teacher: ActingPolicy, name: str) -> None:
    """The same of two policies that are loaded. name: what errors call the teacher."""
    theirs = teacher.choice_terms()
    for term, here in policy.choice_terms().items():
        if theirs.get(term) != here:
            raise _other_choices(name, term, theirs.get(term), here)


def _other_choices(teacher: str, name: str, there: Any, here: Any) -> UserError:
    return UserError(
        f"teacher {teacher!r} has {name} = {there!r:.80}, and the policy {here!r:.80}, so it can't say how likely the policy's "
        f"choices are: take one with the same {name}"
    )
