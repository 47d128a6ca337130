"""What `mmrl plan` reads of an ACT; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from mmrl.config.sections import PolicyConfig
from mmrl.policies.act.network import Network
from mmrl.policies.acting.heads import Normal
from mmrl.policies.acting.lerobot_config import ENVIRONMENT
from mmrl.policies.acting.lerobot_processors import ACTION, STATE
from mmrl.policies.acting.planned import META, Planned


def planned_act(kind: Any, config: PolicyConfig) -> Planned:
    """kind: the class of the policy."""
    asked = kind.options_class(**config.options)
    said: Any = kind.opened(config.model, asked).config
    dims = said.numbers(ACTION)
    with META:
        network = Network(said)
        model = nn.ModuleDict({"act": network, "head": Normal(0, dims)}).eval()

    def foreseen(rows: int, demonstrated: bool) -> torch.Tensor:
        robot, environment = (torch.empty(rows, said.numbers(key), device=META) for key in (STATE, ENVIRONMENT))
        shown = [torch.empty(rows, 3, *said.shape_of(key), device=META) for key in said.cameras]
        latent = None
        if demonstrated and said.use_vae:
            actions = torch.empty(rows, said.chunk_size, dims, device=META)
            mean, log_variance = network.told(robot, actions, torch.ones(rows, said.chunk_size, dtype=torch.bool, device=META))
            latent = mean + log_variance.exp()
        found: torch.Tensor = network.action_head(network.foresee(robot, environment, shown, latent))
        return found

    return Planned(
        model=model,
        width=said.dim_model,
        chunk=asked.chunk or said.n_action_steps,
        dims=dims,
        steps=1,
        pictures=len(said.cameras),
        pixels=math.prod(said.shape_of(said.cameras[0])) if said.cameras else 0,
        prefix=lambda text: said.tokens(vae=False) - said.chunk_size,
        tokens=lambda text, demonstrated: said.tokens(vae=demonstrated),
        act=lambda rows, text: foreseen(rows, False),
        learn=lambda rows, text, demonstrated: foreseen(rows, demonstrated),
    )
