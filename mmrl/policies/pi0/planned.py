"""What `mmrl plan` reads of pi0 and pi0.5; see `mmrl.policies.acting.planned`."""

from __future__ import annotations

from typing import Any

import torch

from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.acting.flow import chains
from mmrl.policies.acting.flow_noise import add_noise, is_noise
from mmrl.policies.acting.planned import META, Planned, in_dtype, planned_flow
from mmrl.policies.lora import adapter_chain
from mmrl.policies.pi0.lerobot_layout import published
from mmrl.policies.pi0.scene import Scene

EMPHASIS = 1.5
"""`Chains.emphasis`: pi0 was trained at times from Beta(1.5, 1) (Black et al., appendix B)."""
WORDS = 4
"""Tokens of a number of the state that is said in words: digits and a space."""


def planned_pi0(kind: Any, config: PolicyConfig) -> Planned:
    """kind: the class of the policy."""
    own = kind.options_class(**config.options)
    it = hollow(kind, config, own)
    it.chains = chains(own, own.steps, emphasis=EMPHASIS)
    settings = it.model.config
    it.numbers = settings.max_action_dim
    with META:
        add_noise(it.model, it.chains, it.model.action_out_proj.in_features, it.numbers, 0)
    said = kind.kind == "pi05" and own.state
    pictures, each = pictures_of(config, own), picture_tokens(settings)

    def prefix(text: int) -> int:
        return pictures * each + text + (WORDS * own.state if said else 0)

    def read(rows: int, text: int) -> Scene:
        pixels = blank_pictures(it, rows, pictures)
        ids_nP = torch.empty(rows, prefix(text), dtype=torch.int64, device=META)
        scene: Scene = it.encoded(blind(rows), pixels, ids_nP, torch.ones_like(ids_nP, dtype=torch.bool))
        return scene

    return planned_flow(
        chains=it.chains,
        ahead=it.ahead,
        numbers=it.numbers,
        each=it.ahead,
        state=0 if kind.kind == "pi05" else 1,
        read=read,
        velocity=it.velocity,
        prefix=prefix,
        model=it.model,
        width=it._critic_width(),
        chunk=own.chunk,
        dims=own.dims,
        pictures=pictures,
        pixels=settings.vlm_config.vision_config.image_size**2,
    )


def hollow(kind: Any, config: PolicyConfig, own: Any) -> Any:
    """A policy with nothing but its network, on the meta device."""
    it = kind.__new__(kind)
    model = kind.skeleton(config)
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    it.model = in_dtype(model, config.dtype, lambda name: is_noise(name) or any(part in name.split(".") for part in strict))
    it.device, it.state, it.chunk, it.dims = META, 0, own.chunk, own.dims
    return it


def pictures_of(config: PolicyConfig, own: Any) -> int:
    """Pictures of a call: one of each camera."""
    files = published(adapter_chain(config.model)[1])
    return len(own.cameras or (files.cameras if files else ())) or 1


def picture_tokens(settings: Any) -> int:
    """Tokens of a picture."""
    eye = settings.vlm_config.vision_config
    return int((eye.image_size // eye.patch_size) ** 2)


def blank_pictures(it: Any, rows: int, pictures: int) -> torch.Tensor:
    side = it.model.config.vlm_config.vision_config.image_size
    return torch.empty(rows, pictures, 3, side, side, dtype=it._dtype, device=META)


def blind(rows: int) -> Observation:
    """Observations of which nothing is read."""
    return Observation(images={}, state=None, instructions=[""] * rows)
