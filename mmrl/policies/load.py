"""Build the policy that a run file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, calling
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.saved import same_kind
from mmrl.policies.policy import Policy
from mmrl.registry import plugins
from mmrl.registry.targets import check_options


def made_policy(config: PolicyConfig, **given: Any) -> Policy:
    """A policy of this kind, with its options."""
    registry = plugins.registry()
    spec = registry.get("policies", config.kind)
    kind, options = registry.target(spec), {**spec.options, **same_kind(Path(config.model), config.kind), **config.options}
    if taken := sorted(name for name in options if name in (*given, "config", "device", "seed", "source")):
        raise UserError(f"policy.options: leave out {', '.join(taken)}: device and seed have keys of their own")
    check_options(f"policy {spec.id!r}", kind, {"config": config, **given, **options})
    with calling(f"policy {spec.id!r}"):
        policy: Policy = kind(config, **given, **options)
    return policy
