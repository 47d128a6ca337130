"""What `mmrl plan` reads of SmolVLA; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

from typing import Any

import torch

from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import chains
from mmrl.policies.acting.flow_noise import add_noise, with_noise
from mmrl.policies.acting.lerobot_processors import ACTION
from mmrl.policies.acting.planned import META, Planned, planned_flow
from mmrl.policies.lora import adapter_chain
from mmrl.policies.smolvla.config import picture_tokens
from mmrl.policies.smolvla.loading import open_checkpoint, skeleton
from mmrl.policies.smolvla.network import float32_where_precise
from mmrl.policies.smolvla.options import SmolVLAOptions

MARKS = 3
"""Special tokens around a picture."""


def planned_smolvla(config: PolicyConfig) -> Planned:
    own = SmolVLAOptions(**config.options)
    found = open_checkpoint(adapter_chain(config.model)[1], own.backbone, words=False)
    said, flow = found.config, chains(own, own.steps or found.config.num_steps)
    model: Any = skeleton(found, config.dense_attention)
    float32_where_precise(model, getattr(torch, config.dtype))
    with META:
        add_noise(model, flow, model.action_out_proj.in_features, said.max_action_dim, 0)
    pictures = len(own.cameras or said.cameras) or 1
    shown = pictures * (picture_tokens(said, found.backbone) + (MARKS if said.add_image_special_tokens else 0))
    side = said.resize_imgs_with_padding[0]

    def read(rows: int, text: int) -> Any:
        ids_nP = torch.empty(rows, shown + text, dtype=torch.int64, device=META)
        pixels = torch.empty(rows, pictures, 3, side, side, device=META)
        state = torch.empty(rows, said.max_state_dim, device=META)
        return model.read(ids_nP, shown, torch.ones_like(ids_nP, dtype=torch.bool), pixels, state)

    def velocity(scene: Any, x_nMCD: torch.Tensor, times_nM: torch.Tensor) -> Any:
        hidden = model.hidden(scene, x_nMCD, times_nM).float()
        return with_noise(model, model.action_out_proj(hidden), hidden)

    return planned_flow(
        chains=flow,
        ahead=said.chunk_size,
        numbers=said.max_action_dim,
        each=said.chunk_size,
        read=read,
        velocity=velocity,
        prefix=lambda text: shown + text + 1,  # the robot's state is a token
        model=model.eval(),
        width=found.backbone.text_config.hidden_size,
        chunk=own.chunk or said.n_action_steps,
        dims=own.dims or said.numbers(ACTION) or 7,
        pictures=pictures,
        pixels=side**2,
    )
