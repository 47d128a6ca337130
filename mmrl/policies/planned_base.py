"""What `mmrl plan` reads of a policy that stands on a frozen one; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.planned import Planned
from mmrl.policies.acting.saved_policy import SETTINGS, read_settings
from mmrl.policies.load import checked_options, policy_class
from mmrl.registry import plugins


def planned_base(folder: Path, config: PolicyConfig) -> Planned:
    """That of a policy which was saved in a folder, beneath another of this configuration. Raises UserError if there is none, or
    if its kind doesn't say what its passes are."""
    kind = str(read_settings(folder).get("kind", ""))
    if not kind:
        raise UserError(f"policy.options.base {str(folder)!r} has no {SETTINGS}: give a folder with a policy that acts")
    if kind == "vla":  # whose numbers are computed, and not counted by passes
        raise UserError(f"policy.options.base {str(folder)!r} is of kind 'vla': mmrl plan can't count one beneath another policy")
    own = config.model_copy(update={"kind": kind, "model": str(folder), "lora": None, "options": {}})
    spec = plugins.registry().get("policies", kind)
    made = policy_class(spec)
    found: Planned = made.planned(own.model_copy(update={"options": checked_options(own, spec)}))
    return replace(found, reads_text=made.reads_text if found.reads_text is None else found.reads_text)


def frozen_of(base: Planned) -> nn.ModuleList:
    """All policies beneath one that stands on this."""
    return nn.ModuleList([base.model, *([base.frozen] if base.frozen else [])])
