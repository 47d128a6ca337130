"""X-VLA's network: Florence-2's encoder reads the main picture and the instruction, and the other pictures pass its vision
tower alone; a transformer then looks at these, at a robot's state and at noise, and says a chunk of actions. A domain, that is a
robot with its data, has soft prompts and layers around actions of its own (Zheng et al., X-VLA, arXiv 2510.10274). It computes
what lerobot 0.6.1 does (policies/xvla/modeling_xvla.py, soft_transformer.py). The classes of Florence-2 are transformers'.

n calls, M times, C actions, D numbers in each, L tokens of the text, P tokens that actions look at, S tokens of a pass, W and H
the widths of Florence-2 and of the transformer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.bart.modeling_bart import BartEncoder
from transformers.models.florence2.modeling_florence2 import Florence2MultiModalProjector, Florence2VisionBackbone

from mmrl.policies.xvla.config import XVLAConfig
from mmrl.policies.xvla.spaces import Space, numbers_of

SLOWEST = 100
"""How many times slower the slowest of a time's waves is than the fastest, nearly."""
OF_DOMAIN = ("action_encoder", "action_decoder", "soft_prompt_hub")
"""Modules of the transformer that a domain has its own of. Adapters of X-VLA's authors are trained with these as a whole
(2toINF/X-VLA, peft_train.py)."""
PRECISE = ("action_head.action_encoder.", "action_head.action_decoder.")
"""Layers that stay float32: a robot's numbers go through them."""
PLACES = "vlm.multi_modal_projector.visual_temporal_embed.pos_idx_to_embed"
"""A table that isn't trained."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """The encoded inputs of a call: everything but the actions."""

    read_nPH: torch.Tensor
    """What all actions look at, with the soft prompts."""
    state_nS: torch.Tensor
    """float32: the robot's state as the network has it."""
    seen_nH: torch.Tensor
    """float32 [n, 2 W + numbers of a state]: what a critic reads."""


class DomainLinear(nn.Module):
    """A linear layer for each domain."""

    def __init__(self, wide: int, out: int, domains: int) -> None:
        super().__init__()
        self.sizes = (wide, out)
        self.fc, self.bias = nn.Embedding(domains, wide * out), nn.Embedding(domains, out)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.bias.weight)

    def forward(self, x: torch.Tensor, domain: int) -> torch.Tensor:
        return x @ self.fc.weight[domain].view(*self.sizes) + self.bias.weight[domain]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, eager: bool) -> None:
        super().__init__()
        self.heads, self.eager = heads, eager
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, S, H], each token sees all."""
        queries, keys, values = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.eager:
            scores = queries.float() @ keys.float().mT / math.sqrt(queries.shape[-1])
            found = scores.softmax(-1).to(values.dtype) @ values
        else:
            found = scaled_dot_product_attention(queries, keys, values)
        projected: torch.Tensor = self.proj(found.transpose(1, 2).flatten(2))
        return projected


class Perceptron(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc2(gelu(self.fc1(x), approximate="tanh"))
        return found


class Block(GradientCheckpointingLayer):
    def __init__(self, config: XVLAConfig, eager: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, config.num_heads, eager)
        self.mlp = Perceptron(width, int(width * config.mlp_ratio))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SoftPrompted(nn.Module):
    """The transformer of actions. numbers: D. wide: W."""

    def __init__(self, config: XVLAConfig, numbers: int, wide: int, eager: bool) -> None:
        super().__init__()
        width, domains = config.hidden_size, config.num_domains
        self.hetero = config.use_hetero_proj
        self.blocks = nn.ModuleList([Block(config, eager) for _ in range(config.depth)])
        for name in ("vlm_proj", "aux_visual_proj"):
            setattr(self, name, DomainLinear(wide, width, domains) if self.hetero else nn.Linear(wide, width))
        self.pos_emb = nn.Parameter(torch.empty(1, config.max_len_seq, width).normal_(std=0.02))
        self.norm = nn.LayerNorm(width)
        self.action_encoder = DomainLinear(numbers + config.proprio + config.dim_time, width, domains)
        self.action_decoder = DomainLinear(width, numbers, domains)
        if config.len_soft_prompts > 0:
            self.soft_prompt_hub = nn.Embedding(domains, config.len_soft_prompts * width)
            nn.init.normal_(self.soft_prompt_hub.weight, std=0.02)

    def projected(self, name: str, x: torch.Tensor, domain: int) -> torch.Tensor:
        layer = getattr(self, name)
        found: torch.Tensor = layer(x, domain) if self.hetero else layer(x)
        return found


class Network(nn.Module):
    def __init__(self, config: XVLAConfig, florence: Any, space: Space, attention: str = "sdpa") -> None:
        """florence: transformers' configuration. attention: transformers' name of it."""
        super().__init__()
        vision, text = florence.vision_config, florence.text_config
        self.config, self.florence, self.space = config, florence, space
        self.vlm = nn.ModuleDict(
            {
                "vision_tower": Florence2VisionBackbone._from_config(vision, attn_implementation=attention),
                "multi_modal_projector": Florence2MultiModalProjector(florence),
                "language_model": nn.ModuleDict({"encoder": BartEncoder._from_config(text, attn_implementation=attention)}),
            }
        )
        self.action_head = SoftPrompted(config, space.size, text.d_model, attention == "eager")

    @property
    def dtype(self) -> torch.dtype:
        return self.action_head.norm.weight.dtype

    def read(self, ids_nL: torch.Tensor, pixels: torch.Tensor, views: int, state_nS: torch.Tensor, domain: int) -> Scene:
        """Encode pictures, words and the robot's state.

        ids_nL: int64, with the padding, which is seen. pixels: [n, cameras, 3, height, width], the main one first; the rest of
        `views` are zeros behind the vision tower. state_nS: float32."""
        head, encoder, there = self.action_head, self.vlm["language_model"]["encoder"], pixels.shape[1]  # type: ignore[index]
        looked = self.vlm["vision_tower"](pixels.flatten(0, 1).to(self.dtype)).last_hidden_state
        shown = self.vlm["multi_modal_projector"](looked).unflatten(0, (-1, there))
        words = encoder.embed_tokens(ids_nL)
        read = encoder(inputs_embeds=torch.cat([shown[:, 0], words], 1)).last_hidden_state
        missing = shown.new_zeros(len(shown), views - there, *shown.shape[2:])
        others = torch.cat([shown[:, 1:], missing], 1).flatten(1, 2)
        tokens = [head.projected("vlm_proj", read, domain), head.projected("aux_visual_proj", others, domain)]
        count, first = len(ids_nL), self.config.chunk_size
        size = sum(part.shape[1] for part in tokens)
        tokens = [torch.cat(tokens, 1) + head.pos_emb[:, first : first + size]]
        if self.config.len_soft_prompts > 0:
            prompts = head.soft_prompt_hub.weight[domain].view(self.config.len_soft_prompts, -1)
            tokens.append(prompts.expand(count, -1, -1))
        beside = others.float().mean(1) if others.shape[1] else torch.zeros_like(read[:, 0], dtype=torch.float32)
        state = self._known(state_nS)
        seen = torch.cat([read.float().mean(1), beside, state], -1)
        return Scene(read_nPH=torch.cat(tokens, 1), state_nS=state, seen_nH=seen)

    def hidden(self, scene: Scene, x_nMCD: torch.Tensor, times_nM: torch.Tensor, domain: int) -> torch.Tensor:
        """float32 [n, M, C, H]: what the transformer computes for each action, from which the domain's decoder makes its numbers.
        Everything sees everything, so that each time is a pass of its own."""
        count, moments, ahead = x_nMCD.shape[:3]
        waves = time_waves(times_nM.float(), self.config.dim_time)[:, :, None].expand(-1, -1, ahead, -1)
        states = scene.state_nS[:, None, None].expand(-1, moments, ahead, -1)
        x = self.action_head.action_encoder(torch.cat([self._known(x_nMCD.float()), states, waves], -1), domain)
        x = (x + self.action_head.pos_emb[0, :ahead].float()).to(self.dtype)
        x = torch.cat([x, scene.read_nPH[:, None].expand(-1, moments, -1, -1)], 2).flatten(0, 1)
        for block in self.action_head.blocks:
            x = block(x)
        found: torch.Tensor = self.action_head.norm(x[:, :ahead]).float()
        return found.unflatten(0, (count, moments))

    def said(self, hidden_nMCH: torch.Tensor, domain: int) -> torch.Tensor:
        """float32 [n, M, C, D]."""
        found: torch.Tensor = self.action_head.action_decoder(hidden_nMCH, domain)
        return found

    def _known(self, numbers: torch.Tensor) -> torch.Tensor:
        """An action or a state [..., numbers] with zeros where the network reads nothing."""
        if not self.space.hidden:
            return numbers
        unread = numbers_of(self.space, numbers.device).unread[: numbers.shape[-1]]
        return numbers.masked_fill(pad(unread, (0, numbers.shape[-1] - len(unread))), 0.0)


def time_waves(times: torch.Tensor, width: int) -> torch.Tensor:
    """float32 [..., width]: cosines, then sines, of waves that become slower in equal ratios; a zero makes an odd width full."""
    half = width // 2
    speeds = torch.exp(-math.log(SLOWEST) * torch.arange(half, dtype=torch.float32, device=times.device) / half)
    angles = times[..., None] * speeds
    found = torch.cat([angles.cos(), angles.sin()], -1)
    return torch.cat([found, torch.zeros_like(found[..., :1])], -1) if width % 2 else found


def typed(network: Network, dtype: torch.dtype) -> None:
    """Give all weights this type but those of `PRECISE`."""
    for name, weight in (*network.named_parameters(), *network.named_buffers()):
        if weight.is_floating_point():
            weight.data = weight.data.to(torch.float32 if name.startswith(PRECISE) else dtype)
