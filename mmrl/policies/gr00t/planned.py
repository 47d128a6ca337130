"""What `mmrl plan` reads of GR00T; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import chains
from mmrl.policies.acting.flow_noise import add_noise, with_noise
from mmrl.policies.acting.planned import META, Planned, in_dtype, planned_flow
from mmrl.policies.gr00t.config import N1_6
from mmrl.policies.gr00t.eagle import MERGE
from mmrl.policies.gr00t.loading import prepare, skeleton
from mmrl.policies.gr00t.network import dtype_of
from mmrl.policies.gr00t.options import Gr00tOptions
from mmrl.policies.lora import adapter_chain

MARKS, CHAT = 2, 8
"""Special tokens around a picture, and of the chat template around all."""
EAGLE_MARKS, EAGLE_CHAT = 6, 20
"""The same of N1.6, whose pictures are numbered in words."""


def planned_gr00t(config: PolicyConfig) -> Planned:
    own, name = Gr00tOptions(**config.options), adapter_chain(config.model)[1]
    found = prepare(name, Path(config.model), own)
    sizes, flow = found.plan.head, chains(own, own.steps)
    model: Any = in_dtype(skeleton(name), config.dtype, lambda weight: dtype_of(weight, torch.bfloat16) == torch.float32)
    with META:
        add_noise(model, flow, sizes.hidden_size, sizes.max_action_dim, 0)
    eye, eagle = found.plan.backbone.vision_config, found.plan.version is N1_6
    high, wide = found.plan.framing(found.files.settings)(torch.zeros(1, 3, 256, 256, dtype=torch.uint8)).shape[2:]
    merge = MERGE if eagle else eye.spatial_merge_size
    rows_of, columns = (round(side / (eye.patch_size * merge)) for side in (high, wide))
    pictures = (len(own.cameras or found.embodiment.cameras) or 1) * found.embodiment.frames
    each, patches = rows_of * columns, rows_of * columns * merge**2

    def prefix(text: int) -> int:
        return pictures * (each + (EAGLE_MARKS if eagle else MARKS)) + (EAGLE_CHAT if eagle else CHAT) + text

    def read_by_eagle(rows: int, text: int) -> torch.Tensor:
        """The pass of `EagleNetwork.features`."""
        backbone = model.backbone
        shown = torch.empty(rows, pictures * patches, 3 * eye.patch_size**2, device=META)
        seen = backbone.look(shown, [(rows_of * merge, columns * merge)] * pictures)
        ids_nP = torch.empty(rows, prefix(text), dtype=torch.int64, device=META)
        embeds = backbone.language_model.embed_tokens(ids_nP)
        embeds = embeds.masked_scatter(torch.ones_like(ids_nP, dtype=torch.bool)[..., None], seen.to(embeds.dtype))
        return _through_layers(model, embeds, torch.empty_like(ids_nP), normed=True)

    def features(rows: int, text: int) -> torch.Tensor:
        """The pass of `Network.features`, part by part: how the Qwen3-VL itself finds places depends on numbers."""
        see, language = model.backbone.visual, model.backbone.language_model
        values = 3 * eye.temporal_patch_size * eye.patch_size**2
        x = see.patch_embed(torch.empty(rows * pictures * patches, values, device=META))
        x = x + torch.empty_like(x)  # places in the picture
        turn = torch.empty(len(x), x.shape[-1] // eye.num_heads, device=META)
        ends = torch.arange(rows * pictures + 1, dtype=torch.int32) * patches  # its numbers say where a picture ends
        for number, block in enumerate(see.blocks):
            x = block(x, cu_seqlens=ends, max_seqlen=patches, position_embeddings=(turn, turn))
            if number in see.deepstack_visual_indexes:
                see.deepstack_merger_list[see.deepstack_visual_indexes.index(number)](x)
        ids_nP = torch.empty(rows, prefix(text), dtype=torch.int64, device=META)
        shown_nP1 = torch.ones_like(ids_nP, dtype=torch.bool)[..., None]
        embeds = language.embed_tokens(ids_nP)
        x = embeds.masked_scatter(shown_nP1, see.merger(x).to(embeds.dtype))
        return _through_layers(model, x, torch.empty(3, *ids_nP.shape, dtype=torch.int64, device=META), normed=False)

    def read(rows: int, text: int) -> Any:
        found_nPF = (read_by_eagle if eagle else features)(rows, text)
        images_nP = torch.ones(found_nPF.shape[:2], dtype=torch.bool, device=META)
        state = torch.empty(rows, sizes.max_state_dim, device=META)
        robot = torch.zeros(rows, dtype=torch.int64, device=META)
        return model.action_head.encode(found_nPF, None, images_nP, state, robot)

    def velocity(context: Any, x_nMCD: torch.Tensor, times_nM: torch.Tensor) -> Any:
        again, head = context.repeated(times_nM.shape[1]), model.action_head
        hidden = head.hidden(again, x_nMCD.flatten(0, 1), times_nM.flatten())
        moved = head.action_decoder(hidden, again.embodiment_n).float()
        return with_noise(model, moved.view_as(x_nMCD), hidden.unflatten(0, x_nMCD.shape[:2]))

    return planned_flow(
        chains=flow,
        ahead=sizes.action_horizon,
        numbers=sizes.max_action_dim,
        each=1 + sizes.action_horizon,
        read=read,
        velocity=velocity,
        prefix=prefix,
        model=model,
        width=sizes.backbone_embedding_dim + sizes.input_embedding_dim,
        chunk=own.chunk,
        dims=own.dims,
        pictures=pictures,
        pixels=high * wide,
    )


def _through_layers(model: Any, x_nPH: torch.Tensor, places: torch.Tensor, *, normed: bool) -> torch.Tensor:
    """Tokens through the layers of the backbone's language model. normed: through its final norm, too."""
    language = model.backbone.language_model
    turns = language.rotary_emb(x_nPH, places)
    mask = torch.ones(len(x_nPH), 1, x_nPH.shape[1], x_nPH.shape[1], dtype=torch.bool, device=META)
    for layer in language.layers:
        x_nPH = layer(x_nPH, attention_mask=mask, position_embeddings=turns)
    found: torch.Tensor = language.norm(x_nPH) if normed else x_nPH
    return found
