"""The weights of a stage as a plan counts them: which are trained, and what an optimiser keeps of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.config.parts import entry, matches, no_layer_to_adapt, part_of
from mmrl.config.sections import LoraConfig, Stage
from mmrl.config.training import EIGHT_BIT
from mmrl.train.plan.adapters import PARTS, Adapted, adapted_parts
from mmrl.train.plan.learning import ALL, Learning
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.skeletons import linear_layers

FULL = 4
"""Bytes of a float32."""
SMALL, BLOCK = 4096, 256
"""Weights with fewer numbers keep 32-bit states; numbers that share a scale: bitsandbytes' `min_8bit_size` and `blocksize`."""

ROUTER = ".mlp.gate.weight"
"""How the names of routers' weights end."""
_LAYER = re.compile(r".*?layers\.\d+\.")
AT_ONCE = 2**27
"""As in `mmrl.train.update.offload`, which isn't imported here; a test compares them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Numbers of weights in a stage."""

    whole: int
    """Weights of the model without adapters."""
    adapters: int
    moved: int
    """Weights that the stage trains."""
    matrices: int
    """Trained weights in inner matrices, which Muon optimises."""
    widest: int
    """Numbers of the largest of these."""
    factors: int
    """Numbers that Adafactor keeps for the trained weights."""
    full: int
    """Weights that are float32 in any case and trained beside adapters, too: what a policy that acts adds to the model."""
    nf4: int
    """Weights of the model that are kept in 4 bits."""
    nf4_widest: int
    """Weights of the largest matrix of these, which is made whole while it is multiplied with."""
    largest: int
    """Numbers of the largest trained weight."""
    eight_bit: int
    """Bytes that AdamW with 8-bit states keeps for the trained weights."""
    vision: bool
    """Whether parts of the vision tower or its projector are trained, so that gradients flow into it; also what is for sounds, as
    Gemma 3n looks all tokens up in it."""
    inner: bool
    """Whether anything before the head is trained, so that gradients flow into the language model."""
    plain: bool
    """Whether weights of the model itself are trained, not only adapters."""
    rank: int
    """Rank of the adapters; 0 without adapters."""
    adapted: frozenset[str]
    """Matrices of the language model's layers that have an adapter, such as `q_proj`."""
    adapted_parts: Mapping[str, Adapted]
    """All matrices with an adapter, by part and shape: see `mmrl.train.plan.adapters.PARTS`."""
    shares: Mapping[str, float]
    """Share of the weights of each part of a pass (`PARTS`) that is trained, not counting adapters: of the others only the
    gradients of inputs are computed."""
    layer: int
    """Weights of the largest layer of the language model; sharded weights are gathered layer by layer."""
    inside: int
    """Weights of all its layers."""
    learning: Learning = ALL
    """Their names, as passes without numbers ask for them."""
    penalised: bool = False
    """Whether the routers of a mixture of experts have a penalty, for which their scores are kept."""


def trained(shapes: Shapes, lora: LoraConfig | None, stage: Stage) -> Trained:
    """Count the weights, by the rules of `policy.lora` and of the stage's `parts`."""
    named, own = dict(shapes.named()), dict(shapes.own)
    whole = sum(map(math.prod, named.values()))
    added: dict[str, tuple[int, ...]] = {}
    nf4: list[int] = []
    known = lora is not None and bool(shapes.config)
    adapted, packed = (
        linear_layers(shapes.config, tuple(lora.target_modules), tuple(lora.nf4))
        if lora and known
        else (frozenset(), frozenset())
    )
    if lora:
        for name, shape in named.items():
            layer, _, kind = name.rpartition(".")
            if kind != "weight" or len(shape) != 2 or name in own or (not known and "embed" in name):
                continue
            if layer in packed if known else "lm_head" not in name and any(matches(m, layer) for m in lora.nf4):
                nf4.append(math.prod(shape))
            if layer in adapted if known else any(matches(m, layer) for m in lora.target_modules):
                added[f"{layer}.lora_A.default.weight"] = (lora.rank, shape[1])
                added[f"{layer}.lora_B.default.weight"] = (shape[0], lora.rank)
                if lora.use_dora:
                    added[f"{layer}.lora_magnitude_vector.default.weight"] = (shape[0],)
    if lora and not added and not shapes.traced:
        raise no_layer_to_adapt(lora.target_modules)
    mine = {
        n: shape
        for n, shape in ((added | own) if added else named).items()
        if not ((part := entry(stage.parts, n)) and part.freeze)
    }
    experts = getattr(stage, "experts", None)
    if experts and experts.freeze_router:
        mine = {n: shape for n, shape in mine.items() if not n.endswith(ROUTER)}
    layers: dict[str, int] = {}
    for name, shape in named.items():
        if part_of(name) == "language" and (found := _LAYER.match(name)):
            layers[found[0]] = layers.get(found[0], 0) + math.prod(shape)
    inner = [shape for n, shape in mine.items() if len(shape) == 2 and "embed" not in n and "lm_head" not in n]
    return Trained(
        adapted_parts=adapted_parts(added),
        whole=whole,
        adapters=sum(map(math.prod, added.values())),
        full=sum(map(math.prod, own.values())),
        nf4=sum(nf4),
        nf4_widest=max(nf4, default=0),
        moved=sum(map(math.prod, mine.values())),
        matrices=sum(map(math.prod, inner)),
        widest=max(map(math.prod, inner), default=0),
        factors=sum(map(_factors, mine.values())),
        largest=max(map(math.prod, mine.values()), default=0),
        eight_bit=sum(_eight_bit(n, math.prod(shape)) for n, shape in mine.items()),
        vision=any(part_of(n) in ("vision", "projector", "") for n in mine),
        inner=any(part_of(n) != "head" for n in mine),
        plain=not added,
        rank=lora.rank if lora else 0,
        learning=ALL if mine == named else Learning(lora.model_dump_json(exclude_unset=True) if lora else "", frozenset(mine)),
        adapted=frozenset(n.split(".")[-4] for n in added if ".layers." in n and part_of(n) == "language"),
        shares=_shares(named, own, mine),
        layer=max(layers.values(), default=0),
        inside=sum(layers.values()),
        penalised=bool(experts and (experts.aux_loss_coef or experts.z_loss_coef)),
    )


def _shares(named: Mapping[str, Any], own: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, float]:
    """See `Trained.shares`. Weights by name: of the model, of what a policy adds to it, and those that are trained. A tied head's
    are the embeddings'."""
    found = {}
    for name, parts in PARTS.items():
        weights = {
            n: math.prod(shape) for n, shape in named.items() if part_of(n) in parts and "embed_tokens" not in n and n not in own
        }
        if name == "head":
            weights = weights or {n: 1 for n in named if n.endswith("embed_tokens.weight")}
        found[name] = sum(size for n, size in weights.items() if n in mine) / max(1, sum(weights.values()))
    return found


def weight_bytes(weights: Trained, b: int) -> int:
    """Bytes of the model's own weights. b: of one that is neither in 4 bits nor float32 in any case. Those in 4 bits have a scale
    of one byte for each 64, and a float32 for each 256 scales."""
    return (
        b * (weights.whole - weights.nf4 - weights.full)
        + FULL * weights.full
        + weights.nf4 // 2
        + weights.nf4 // 64
        + FULL * (weights.nf4 // (64 * 256))
    )


def master_bytes(weights: Trained, b: int) -> int:
    """Bytes of float32 masters. Adapters, and what a policy that acts adds to its model, are float32 themselves."""
    return FULL * max(0, weights.moved - weights.full) if b < FULL and weights.plain else 0


def stepped_bytes(optimizer: str, weights: Trained, b: int) -> int:
    """Bytes of an offloaded optimiser that are on the device during a step: of as many weights as are stepped together."""
    everything = master_bytes(weights, b) + moments(optimizer, weights)
    return everything * min(weights.moved, max(AT_ONCE, weights.largest)) // weights.moved


def passing_bytes(optimizer: str, weights: Trained, kind: str) -> int:
    """Bytes that a step holds for a moment besides what stays. On a GPU, torch's RMSprop takes the roots of all weights' means at
    once; Adafactor and Muon go from weight to weight, and the others have a kernel that needs nothing. Muon takes three of a
    square matrix, and less of others. kind: of the machine."""
    if optimizer == "rmsprop":
        return FULL * (weights.moved if kind == "gpu" else weights.largest)
    return FULL * {"adafactor": weights.largest, "muon": 3 * weights.widest}.get(optimizer, 0)


def _factors(shape: tuple[int, ...]) -> int:
    """Numbers that torch's Adafactor keeps of a weight: a row and a column of each matrix."""
    if len(shape) == 1:
        return shape[0]
    return math.prod(shape[:-1]) + math.prod(shape[:-2]) * shape[-1]


def _eight_bit(name: str, size: int) -> int:
    """Bytes that bitsandbytes' AdamW keeps of a weight: two bytes, and two scales for each 256; in float32 for embeddings and
    small weights."""
    if size < SMALL or "embed" in name:
        return 2 * FULL * size
    return 2 * size + 2 * FULL * -(-size // BLOCK)


def moments(optimizer: str, weights: Trained) -> int:
    """Bytes that an optimiser keeps."""
    if optimizer in EIGHT_BIT:
        return weights.eight_bit
    if optimizer in ("adamw", "adam"):
        return 2 * FULL * weights.moved
    if optimizer == "muon":
        return FULL * (2 * weights.moved - weights.matrices)
    return FULL * (weights.factors if optimizer == "adafactor" else weights.moved)
