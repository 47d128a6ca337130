"""What `mmrl plan` reads of a policy that stands on a frozen one; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.planned import META, Planned
from mmrl.policies.acting.vla_options import width_of
from mmrl.policies.load import Base, checked_options, config_beneath, errors_of_base, policy_class
from mmrl.policies.vlm.loading import skeleton
from mmrl.registry import plugins


def planned_base(base: Base, config: PolicyConfig) -> Planned:
    """That of a policy beneath another of this configuration. base: see `config_beneath`. Raises UserError if there is none, or
    if its kind doesn't say what its passes are."""
    own = config_beneath(base, config)
    spec = plugins.registry().get("policies", own.kind)
    made = policy_class(spec)
    with errors_of_base(base):
        own = own.model_copy(update={"options": checked_options(own, spec)})
        if own.kind == "vla":
            return _computed(own)
        found: Planned = made.planned(own)
    return replace(found, reads_text=made.reads_text if found.reads_text is None else found.reads_text)


def _computed(config: PolicyConfig) -> Planned:
    """That of a vision-language-action model, with the little that a policy on it asks of it."""
    given, wide = config.options, skeleton(config).config.get_text_config().hidden_size
    dims, chunk = int(given.get("dims", 7)), int(given.get("chunk", 1))
    return Planned(
        model=nn.Module(),
        width=width_of(wide, dims, str(given.get("head", "tokens")), str(given.get("decoding", "parallel"))),
        chunk=chunk,
        dims=dims,
        steps=1,
        pictures=0,
        pixels=0,
        prefix=lambda text: 0,
        tokens=lambda text, demonstrated: 1,
        act=lambda rows, text: None,
        learn=lambda rows, text, demonstrated: torch.empty(0, device=META),
        computed=config,
        noise_shape=(chunk, dims) if given.get("head") == "flow" else None,
        reads_text=True,
    )


def frozen_of(base: Planned) -> nn.ModuleList:
    """All policies beneath one that stands on this."""
    return nn.ModuleList([base.model, *([base.frozen] if base.frozen else [])])
