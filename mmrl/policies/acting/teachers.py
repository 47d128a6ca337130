"""Whether a saved teacher can score the choices of a policy that acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmrl.api.annotations import parameters_of
from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.saved_policy import check_same_kind


def check_teacher(kind: type[Any], config: PolicyConfig, teacher: str) -> None:
    """Raise UserError if a saved teacher can't score the choices of a policy of this class. Loads nothing: terms that neither the
    run file nor a folder gives are checked by `ActingPolicy.refuse_teacher`."""
    taught = check_same_kind(Path(teacher), config.kind)
    ways = {p.name: p.default for p in parameters_of(kind) if p.default is not p.empty}
    ways |= check_same_kind(Path(config.model), config.kind) | dict(config.options)
    for name in sorted(kind.choice_settings):
        there = config.options.get(name, taught.get(name)) if name in kind.free else taught.get(name)
        if there is not None and ways.get(name) is not None and there != ways[name]:
            raise other_choices(teacher, name, there, ways[name])


def other_choices(teacher: str, name: str, there: Any, here: Any) -> UserError:
    return UserError(
        f"teacher {teacher!r} has {name} = {there!r:.80}, and the policy {here!r:.80}, so it can't say how likely the policy's "
        f"choices are: take one with the same {name}"
    )
