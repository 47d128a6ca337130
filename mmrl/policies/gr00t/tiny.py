"""A small but real GR00T: built from its config, random weights, a Qwen3-VL and a tokenizer of its own.

`tiny:gr00t` in a run file builds the default size, `tiny:gr00t:hidden=64,layers=2,chunk=16` says it in full. It has the published
embodiments, and statistics of none, so its numbers are the simulator's.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from mmrl.api.errors import UserError
from mmrl.policies.gr00t.config import FIXED, FIXED_PARTS, HeadConfig, TransformerConfig
from mmrl.policies.gr00t.network import KIND, OWN_BACKBONE, Network, Plan, dtype_of
from mmrl.policies.gr00t.processor import OWN, PUBLISHED, Files
from mmrl.policies.names import tiny_name, tiny_sizes

FAMILY = "gr00t"
SIZES = {"hidden": 64, "layers": 2, "chunk": 16}
"""Width of the Qwen3-VL and of the action head; layers of the language model and of the vision tower; predicted actions."""
PICTURE, CROP = 64, 58
"""Pixels of a picture's sides, and of its middle that is kept: 4 visual tokens."""


def parse(name: str, seed: int) -> dict[str, int]:
    """`tiny:gr00t[:key=value,...]` -> keyword arguments of `build`. Raises UserError for an unknown or invalid part."""
    if name.split(":")[1] != FAMILY:
        raise UserError(f"{name!r} is no GR00T: write tiny:{FAMILY}, or a folder or hub name of one", key="policy.model")
    _, options = tiny_sizes(name, SIZES, seed)
    hidden, layers, chunk = (options[name] for name in SIZES)
    if hidden % 32 or not 32 <= hidden <= 4096 or not 1 <= layers <= 64 or not 1 <= chunk <= 256:
        raise UserError(
            f"{name!r}: hidden must be a multiple of 32 up to 4096, layers 1 to 64, chunk 1 to 256: change them",
            key="policy.model",
        )
    return options


def full_name(name: str, seed: int) -> str:
    """`name` with everything that `parse` would add, so that it stands for the same weights whatever the seed of a run."""
    return tiny_name(FAMILY, parse(name, seed))


def plan(hidden: int, layers: int, chunk: int) -> Plan:
    """The Qwen3-VL has one layer more than is used."""
    heads = {"num_attention_heads": 4, "attention_head_dim": hidden // 4}
    head = HeadConfig(
        backbone_embedding_dim=hidden,
        input_embedding_dim=hidden,
        hidden_size=hidden,
        action_horizon=chunk,
        max_seq_len=256,
        # of four layers, the first reads the text and the third the pictures
        diffusion_model_cfg=TransformerConfig(num_layers=max(4, 2 * layers), output_dim=hidden, **heads),
        vl_self_attention_cfg=TransformerConfig(num_layers=1, **heads),
    )
    parts = {"diffusion_model_cfg": asdict(head.diffusion_model_cfg) | FIXED_PARTS}
    parts["vl_self_attention_cfg"] = {"num_layers": 1, **heads, "positional_embeddings": None}
    table = asdict(head) | FIXED | parts | {"model_type": KIND, "architectures": [KIND]}
    table |= {"model_name": OWN_BACKBONE, "select_layer": layers}
    return Plan(table=table, head=head, backbone=_backbone(hidden, layers).config)


def files(embodiment: str = OWN) -> Files:
    """embodiment: one more, of a run file that was written for a larger model."""
    settings: dict[str, Any] = {"image_target_size": [PICTURE] * 2, "image_crop_size": [CROP] * 2, "modality_configs": {}}
    settings |= {"use_percentiles": True, "use_relative_action": True}
    return Files(
        where="tiny:gr00t", settings=settings, statistics={}, numbers={**PUBLISHED, embodiment: PUBLISHED.get(embodiment, 10)}
    )


def build(
    *, hidden: int, layers: int, chunk: int, seed: int, dtype: torch.dtype = torch.float32, attention: str = "sdpa"
) -> tuple[Network, Any]:
    """A network and the processor of its Qwen3-VL. Same arguments, same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = plan(hidden, layers, chunk).network(attention)
    for name, parameter in network.named_parameters():
        parameter.data = parameter.data.to(dtype_of(name, dtype))
    return network, _backbone(hidden, layers).processor()


def _backbone(hidden: int, layers: int) -> Any:
    from mmrl.policies.vlm.tiny.qwen import qwen3_vl

    return qwen3_vl(hidden, layers + 1, ())
