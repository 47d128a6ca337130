"""A small but real GR00T: built from its config, random weights, a backbone and a tokenizer of its own.

`tiny:gr00t` in a run file builds an N1.7 of the default size, `tiny:gr00t_n1d6` an N1.6; `tiny:gr00t:hidden=64,layers=2,chunk=16`
says it in full. It has the published embodiments, and statistics of none, so its numbers are the simulator's.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from mmrl.policies.gr00t.backbone import Network
from mmrl.policies.gr00t.config import FIXED, FIXED_PARTS, N1_6, N1_7, HeadConfig, TransformerConfig, Version
from mmrl.policies.gr00t.eagle import sized
from mmrl.policies.gr00t.eagle_reading import ADDED, PICTURE
from mmrl.policies.gr00t.network import OWN_BACKBONE, Plan, dtype_of
from mmrl.policies.gr00t.processor import OWN, Files
from mmrl.policies.names import Size, TinyNames

SIZES = {"hidden": Size(64, 32, 4096, step=32), "layers": Size(2, 1, 64), "chunk": Size(16, 1, 256)}
"""Width of the backbone and of the action head; layers of the language model and of the vision tower; predicted actions."""
NAMES = {
    "gr00t": TinyNames(family="gr00t", called="GR00T", sizes=SIZES, others="tiny:gr00t_n1d6, a folder or hub name of one"),
    "gr00t_n1d6": TinyNames(family="gr00t_n1d6", called="GR00T N1.6", sizes=SIZES),
}
PICTURE_SIDE, CROP = 64, 58
"""Pixels of a picture's sides, and of its middle that is kept: 4 visual tokens."""
PATCH = 14
"""Pixels of a side of N1.6's patches: its picture is made 56 pixels high and wide."""


def _names(name: str) -> TinyNames:
    return NAMES.get(name.split(":")[1], NAMES["gr00t"])


def version_of(name: str) -> Version:
    return N1_6 if _names(name).family == "gr00t_n1d6" else N1_7


def parse(name: str, seed: int) -> dict[str, int]:
    """See `TinyNames.parse`."""
    return _names(name).parse(name, seed)


def full_name(name: str, seed: int) -> str:
    """See `TinyNames.full_name`."""
    return _names(name).full_name(name, seed)


def plan(name: str) -> Plan:
    """The backbone has one layer more than is used."""
    version, sizes = version_of(name), parse(name, 0)
    hidden, layers = sizes["hidden"], sizes["layers"]
    heads = {"num_attention_heads": 4, "attention_head_dim": hidden // 4}
    head = HeadConfig(
        backbone_embedding_dim=hidden,
        input_embedding_dim=hidden,
        hidden_size=hidden,
        action_horizon=sizes["chunk"],
        max_seq_len=256,
        # of four layers, the first reads the text and the third the pictures
        diffusion_model_cfg=TransformerConfig(num_layers=max(4, 2 * layers), output_dim=hidden, **heads),
        vl_self_attention_cfg=TransformerConfig(num_layers=1, **heads) if version is N1_7 else None,
    )
    parts: dict[str, Any] = {"diffusion_model_cfg": asdict(head.diffusion_model_cfg) | FIXED_PARTS}
    if version is N1_7:
        parts["vl_self_attention_cfg"] = {"num_layers": 1, **heads, "positional_embeddings": None}
    table = asdict(head) | FIXED | parts | {"model_type": version.kind, "architectures": [version.kind]}
    table |= {"model_name": OWN_BACKBONE, "select_layer": layers}
    backbone = _eagle(hidden, layers) if version is N1_6 else _qwen(hidden, layers).config
    return Plan(table=table, head=head, backbone=backbone)


def files(version: Version, embodiment: str = OWN) -> Files:
    """embodiment: one more, of a run file that was written for a larger model."""
    settings: dict[str, Any] = {"image_target_size": [PICTURE_SIDE] * 2, "image_crop_size": [CROP] * 2, "modality_configs": {}}
    settings |= {"use_percentiles": True, "use_relative_action": True}
    known = version.embodiments
    numbers = {**known, embodiment: known.get(embodiment, known[OWN])}
    return Files(where="tiny:gr00t", settings=settings, statistics={}, numbers=numbers, version=version)


def build(name: str, seed: int, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> tuple[Network, Any]:
    """(a network, the processor of its Qwen3-VL or N1.6's tokenizer). Same name and seed, same weights."""
    sizes = parse(name, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sizes["seed"])
        network = plan(name).network(attention)
    for weight, parameter in network.named_parameters():
        parameter.data = parameter.data.to(dtype_of(weight, dtype))
    if version_of(name) is N1_6:
        return network, _tokenizer()
    return network, _qwen(sizes["hidden"], sizes["layers"]).processor()


def _qwen(hidden: int, layers: int) -> Any:
    from mmrl.policies.vlm.tiny.qwen import qwen3_vl

    return qwen3_vl(hidden, layers + 1, ())


def _eagle(hidden: int, layers: int) -> Any:
    from mmrl.policies.vlm.tiny.checkpoint import text
    from mmrl.policies.vlm.tiny.tokens import rows

    words = _tokenizer()
    language = text("qwen3", words, hidden, layers + 1) | {"head_dim": hidden // 4, "vocab_size": rows(words)}
    eye = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers, "num_attention_heads": 4}
    return sized(language, eye | {"num_patches": 16, "patch_size": PATCH}, words.convert_tokens_to_ids(PICTURE))


def _tokenizer() -> Any:
    from mmrl.policies.vlm.tiny.tokens import make_tokenizer

    return make_tokenizer(special=ADDED)
