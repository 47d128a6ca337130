"""What `mmrl plan` reads of X-VLA; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

from typing import Any

import torch

from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import chains
from mmrl.policies.acting.flow_noise import add_noise, with_noise
from mmrl.policies.acting.planned import META, Planned, planned_flow
from mmrl.policies.lora import adapter_chain
from mmrl.policies.xvla.chains import Remixing
from mmrl.policies.xvla.config import SIDE, picture_tokens
from mmrl.policies.xvla.loading import open_checkpoint, skeleton
from mmrl.policies.xvla.network import typed
from mmrl.policies.xvla.options import XVLAOptions
from mmrl.policies.xvla.sizes import sizes_of


def planned_xvla(config: PolicyConfig) -> Planned:
    asked = XVLAOptions(**config.options)
    found = open_checkpoint(adapter_chain(config.model)[1], words=False)
    said, (space, own) = found.config, sizes_of(found, asked)
    flow = chains(asked, own["steps"], Remixing, space=space)
    model: Any = skeleton(found, space, config.dense_attention)
    typed(model, getattr(torch, config.dtype))
    with META:
        add_noise(model, flow, said.hidden_size, space.size, 0)
    pictures = len(asked.cameras or said.cameras) or 1
    sides = found.sides or (said.shape_of(said.cameras[0]) if said.cameras else (SIDE, SIDE))
    views = max(said.views, pictures)
    seen = found.words + views * picture_tokens(found.florence, *sides)

    def read(rows: int, text: int) -> Any:
        ids_nL = torch.empty(rows, found.words, dtype=torch.int64, device=META)
        pixels = torch.empty(rows, pictures, 3, *sides, device=META)
        return model.read(ids_nL, pixels, views, torch.empty(rows, said.proprio, device=META), own["domain"])

    def velocity(scene: Any, x_nMCD: torch.Tensor, times_nM: torch.Tensor) -> Any:
        hidden = model.hidden(scene, x_nMCD, times_nM, own["domain"])
        return with_noise(model, model.said(hidden, own["domain"]), hidden)

    return planned_flow(
        chains=flow,
        ahead=said.chunk_size,
        numbers=space.size,
        each=seen + said.chunk_size + said.len_soft_prompts,  # each moment passes the whole transformer
        read=read,
        velocity=velocity,
        prefix=lambda text: seen,  # texts are filled up to one length
        model=model.eval(),
        width=2 * found.florence.text_config.d_model + said.proprio,
        chunk=own["chunk"],
        dims=own["dims"],
        pictures=pictures,
        pixels=sides[0] * sides[1],
    )
