"""Find the shapes of a run's model: those that its config says, or those of passes that a policy says."""

from __future__ import annotations

from mmrl.config.sections import PolicyConfig
from mmrl.train.plan.configs import Found, read_shapes


def find_shapes(config: PolicyConfig, model: str = "", online: bool = True) -> Found:
    """The shapes of `policy.model`, or of `model` instead. online: allow fetching from the hub, not only from its cache.

    Raises UserError for wrong options, and if the shapes are unknown: for a policy of another kind, another family, or a hub name
    if the hub can't be reached.
    """
    name = model or config.model
    if config.kind in ("vlm", "vla"):
        return read_shapes(config, name, online)
    from mmrl.train.plan.acting_passes import passes_of  # imports torch

    shapes = passes_of(config.model_copy(update={"model": name})).shapes
    return Found(shapes=shapes, source=f"the configuration of {name}", most_pixels=0)
