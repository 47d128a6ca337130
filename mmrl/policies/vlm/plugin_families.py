"""Families of vision-language models that plugins bring, see `mmrl_families`."""

from __future__ import annotations

from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.specs import FamilySpec
from mmrl.registry import plugins


def plugin_family(model_type: str) -> FamilySpec | None:
    """The family of this `model_type` that a plugin brings. Raises UserError if two plugins bring it."""
    found = [spec for spec in plugins.registry().specs("families").values() if spec.model_type == model_type]
    if len(found) > 1:
        names = " and ".join(repr(spec.id) for spec in found)
        raise UserError(f"{names} are both for models of type {model_type!r}: switch one plugin off with MMRL_PLUGINS")
    return found[0] if found else None


def builder(spec: FamilySpec) -> Any:
    """The function that makes a tiny model. The import registers classes of the family's own with transformers."""
    return plugins.registry().target(spec)
