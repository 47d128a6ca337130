"""SmolVLA's network: the first layers of a SmolVLM read pictures, an instruction and the robot's state; an expert beside them
turns noise into a chunk of actions (Shukor et al., SmolVLA: A Vision-Language-Action Model for Affordable and Efficient
Robotics). It computes what lerobot 0.6.1 does (policies/smolvla/modeling_smolvla.py, smolvlm_with_expert.py) and has its names of
weights.

n calls, P tokens of the prefix, M times of a flow, C actions, D numbers in each, S tokens of a pass, L heads, K heads of keys and
values, d numbers in each, W and H the widths of the language model and of the expert.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

from mmrl.policies.smolvla.config import SmolVLAConfig, expert_width, layers_of

WAVELENGTH = 10_000.0
"""Base of the rotary embedding, whatever the language model was trained with."""
PRECISE = ("state_proj", "action_in_proj", "action_time_mlp_in", "action_time_mlp_out", "action_out_proj")
"""Layers that stay float32: a robot's numbers go through them."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """The encoded inputs of a call: everything but the actions."""

    read: list[tuple[torch.Tensor, torch.Tensor]]
    """Keys and values [n, K, P, d] that the expert attends to, for each of its layers."""
    real_nP: torch.Tensor
    """bool: False for padding."""
    seen_nH: torch.Tensor
    """[n, W]: what the language model made of the robot's state, which sees the whole prefix and no action."""


class Attention(nn.Module):
    """The projections of Llama's attention, of which keys and values may be read from elsewhere."""

    def __init__(self, text: Any, width: int, read: int) -> None:
        super().__init__()
        size, bias = text.head_dim, text.attention_bias
        self.size = size
        self.q_proj = nn.Linear(width, text.num_attention_heads * size, bias=bias)
        self.k_proj = nn.Linear(read, text.num_key_value_heads * size, bias=bias)
        self.v_proj = nn.Linear(read, text.num_key_value_heads * size, bias=bias)
        self.o_proj = nn.Linear(text.num_attention_heads * size, width, bias=bias)

    def heads(self, projected: torch.Tensor) -> torch.Tensor:
        """[n, S, heads * d] -> [n, heads, S, d]."""
        return projected.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def read(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The language model's keys and values [n, K, P, d] -> those that an expert's layer of cross-attention attends to."""
        flat_keys, flat_values = (one.transpose(1, 2).flatten(2) for one in (keys, values))
        return self.heads(self.k_proj(flat_keys)), self.heads(self.v_proj(flat_values))


class Layer(GradientCheckpointingLayer):
    """A layer of Llama's."""

    def __init__(self, text: Any, crosses: int = 0, eager: bool = False) -> None:
        """crosses: numbers of a token's keys where they are given, 0 for self-attention. eager: without torch's kernels."""
        super().__init__()
        self.crosses, self.eager = bool(crosses), eager
        self.self_attn = Attention(text, text.hidden_size, crosses or text.hidden_size)
        self.mlp = LlamaMLP(text)
        self.input_layernorm = LlamaRMSNorm(text.hidden_size, eps=text.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(text.hidden_size, eps=text.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, place_nS: torch.Tensor, mask: torch.Tensor, *read: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """(x of the next layer [n, S, width], own keys and values [n, K, S, d], none for cross-attention). mask: bool [n, 1, S,
        seen]. read: keys and values in front of the own ones, or in their place."""
        attention, normed = self.self_attn, self.input_layernorm(x)
        queries = rotated(attention.heads(attention.q_proj(normed)), place_nS)
        own: tuple[torch.Tensor, ...] = ()
        if not self.crosses:
            own = (rotated(attention.heads(attention.k_proj(normed)), place_nS), attention.heads(attention.v_proj(normed)))
        parts = [one for one in (read, own) if one]
        keys, values = (torch.cat([part[i] for part in parts], 2) for i in (0, 1))
        x = x + attention.o_proj(attended(queries, keys, values, mask, self.eager))
        return (x + self.mlp(self.post_attention_layernorm(x)), *own)


class Network(nn.Module):
    """The whole network, with random weights."""

    def __init__(self, config: SmolVLAConfig, backbone: Any, attention: str = "sdpa") -> None:
        """backbone: a SmolVLM's configuration of transformers. attention: transformers' name; `eager` uses no kernel."""
        super().__init__()
        self.config, self.backbone = config, backbone
        text, eager = backbone.text_config, attention == "eager"
        self.layers = layers_of(config, text.num_hidden_layers)
        small = copy.deepcopy(text)
        small.hidden_size = expert_width(config, text)
        small.intermediate_size = _inner_width(small.hidden_size)
        read = text.num_key_value_heads * text.head_dim
        experts = [Layer(small, read if one.crosses else 0, eager) for one in self.layers if one.expert is not None]
        text_model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(text.vocab_size, text.hidden_size),
                "layers": nn.ModuleList([Layer(text, 0, eager) for _ in self.layers]),
                "norm": LlamaRMSNorm(text.hidden_size, eps=text.rms_norm_eps),
            }
        )
        self.vlm_with_expert = nn.ModuleDict(
            {
                "vlm": nn.ModuleDict(
                    {
                        "model": nn.ModuleDict(
                            {
                                "vision_model": SmolVLMVisionTransformer._from_config(
                                    backbone.vision_config, attn_implementation=attention
                                ),
                                "connector": SmolVLMConnector(backbone),
                                "text_model": text_model,
                            }
                        )
                    }
                ),
                "lm_expert": nn.ModuleDict(
                    {"layers": nn.ModuleList(experts), "norm": LlamaRMSNorm(small.hidden_size, eps=text.rms_norm_eps)}
                ),
            }
        )
        wide = small.hidden_size
        self.state_proj = nn.Linear(config.max_state_dim, text.hidden_size)
        self.action_in_proj = nn.Linear(config.max_action_dim, wide)
        self.action_out_proj = nn.Linear(wide, config.max_action_dim)
        self.action_time_mlp_in, self.action_time_mlp_out = nn.Linear(2 * wide, wide), nn.Linear(wide, wide)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self._expert["norm"].weight.dtype
        return found

    @property
    def _vlm(self) -> Any:
        return self.vlm_with_expert["vlm"]["model"]  # type: ignore[index]

    @property
    def _expert(self) -> Any:
        return self.vlm_with_expert["lm_expert"]

    # -- the prefix -------------------------------------------------------------------------------------------------------

    def read(
        self, ids_nP: torch.Tensor, words_at: int, real_nP: torch.Tensor, pixels: torch.Tensor, state_nD: torch.Tensor
    ) -> Scene:
        """Encode pictures, words and the robot's state.

        ids_nP: int64, placeholders of pictures and then words; the state is not among them. words_at: index of the first word.
        real_nP: bool, False for padding, wherever it is. pixels: [n, cameras, 3, side, side] in [-1, 1]. state_nD: float32,
        filled up to `max_state_dim`. The state sees everything, the rest sees all but the state."""
        model, text = self._vlm, self._vlm["text_model"]
        embeds = text["embed_tokens"](ids_nP)
        scale = math.sqrt(embeds.shape[-1])
        shown = model["connector"](self._looked(pixels.flatten(0, 1).to(self.dtype))) * scale
        embeds = torch.cat([embeds[:, :words_at], embeds[:, words_at:] * scale], 1)
        embeds = embeds.masked_scatter((ids_nP == self.backbone.image_token_id)[..., None], shown.to(embeds.dtype))
        state = self.state_proj(state_nD)[:, None].to(self.dtype)
        x, real_nP = torch.cat([embeds, state], 1), torch.cat([real_nP, torch.ones_like(real_nP[:, :1])], 1)
        size = x.shape[1]
        own_PP = torch.ones(size, size, dtype=torch.bool, device=x.device)
        own_PP[:-1, -1] = False
        mask = (own_PP & real_nP[:, None])[:, None]
        place_nP = real_nP.long().cumsum(1) - 1
        found = []
        for layer, kind in zip(text["layers"], self.layers, strict=True):
            x, keys, values = layer(x, place_nP, mask)
            if kind.expert is not None:
                expert = self._expert["layers"][kind.expert]
                found.append(expert.self_attn.read(keys, values) if kind.crosses else (keys, values))
        return Scene(read=found, real_nP=real_nP, seen_nH=text["norm"](x[:, -1]))

    def _looked(self, pixels: torch.Tensor) -> torch.Tensor:
        """[pictures, patches, width]: the vision tower's pass, part by part: as a whole it would wait for the device to know that
        all patches belong to a picture."""
        tower = self._vlm["vision_model"]
        count, sides = len(pixels), [side // tower.patch_size for side in pixels.shape[2:]]
        x = tower.embeddings(pixels, torch.ones(count, *sides, dtype=torch.bool, device=pixels.device))
        found: torch.Tensor = tower.post_layernorm(tower.encoder(inputs_embeds=x, attention_mask=None).last_hidden_state)
        return found

    # -- the expert -------------------------------------------------------------------------------------------------------

    def hidden(self, scene: Scene, x_nMCD: torch.Tensor, times_nM: torch.Tensor) -> torch.Tensor:
        """[n, M, C, H]: what the expert computes for each action, from which `action_out_proj` makes its velocity. An action
        sees the prefix, itself and those before it; the M times don't see each other, so that one pass equals M passes."""
        count, moments, ahead = x_nMCD.shape[:3]
        x = self._embedded(x_nMCD.float(), times_nM.float()).flatten(1, 2).to(self.dtype)
        moment_S = torch.arange(moments, device=x.device).repeat_interleave(ahead)
        place_S = torch.arange(ahead, device=x.device).repeat(moments)
        own_SS = (moment_S[:, None] == moment_S) & (place_S[:, None] >= place_S)
        read = scene.real_nP[:, None].expand(-1, len(place_S), -1)[:, None]
        whole = torch.cat([read, own_SS.expand(count, 1, -1, -1)], -1)
        place_nS = place_S.expand(count, -1)
        behind_nS = scene.real_nP.sum(1, keepdim=True) + place_S
        for layer, given in zip(self._expert["layers"], scene.read, strict=True):
            # looking at the prefix alone, positions begin anew
            x = layer(x, place_nS, read, *given)[0] if layer.crosses else layer(x, behind_nS, whole, *given)[0]
        found: torch.Tensor = self._expert["norm"](x)
        return found.view(count, moments, ahead, -1)

    def _embedded(self, x_nMCD: torch.Tensor, times_nM: torch.Tensor) -> torch.Tensor:
        """[n, M, C, H]: the actions and their time, mixed by two layers."""
        actions = self.action_in_proj(x_nMCD)
        times = time_embedding(times_nM, actions.shape[-1], self.config.min_period, self.config.max_period)
        both = torch.cat([actions, times[:, :, None].expand_as(actions)], -1)
        mixed: torch.Tensor = self.action_time_mlp_out(silu(self.action_time_mlp_in(both)))
        return mixed


def rotated(x: torch.Tensor, place_nS: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of the first with the second half of each head [n, heads, S, d], in float32 (Su et al., RoFormer)."""
    half = x.shape[-1] // 2
    speed = WAVELENGTH ** -(torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angle = place_nS[:, None, :, None].float() * speed
    first, second = x.float().split(half, -1)
    sin, cos = angle.sin(), angle.cos()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def attended(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, eager: bool) -> torch.Tensor:
    """[n, S, L * d] from queries [n, L, S, d], keys and values [n, K, seen, d] and a boolean mask [n, 1, S, seen]."""
    shared = queries.shape[1] // keys.shape[1]
    keys, values = (one.repeat_interleave(shared, 1) for one in (keys, values))
    if eager:
        scores = queries.float() @ keys.float().transpose(2, 3) / math.sqrt(queries.shape[-1])
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1).to(values.dtype)
        found = weights @ values
    else:
        found = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return found.transpose(1, 2).flatten(2)


def time_embedding(times: torch.Tensor, width: int, shortest: float, longest: float) -> torch.Tensor:
    """float32 [..., width]: sines, then cosines, of waves with periods from the shortest to the longest, in equal ratios."""
    share = torch.linspace(0, 1, width // 2, dtype=torch.float64, device=times.device)
    angle = times[..., None].double() * (2 * math.pi / (shortest * (longest / shortest) ** share))
    return torch.cat([angle.sin(), angle.cos()], -1).float()


def _inner_width(width: int, multiple: int = 256) -> int:
    """Width inside an expert's perceptron: 8/3 of its own, rounded up."""
    return -(-int(4 * int(2 * width / 3)) // multiple) * multiple


def float32_where_precise(network: Network, dtype: torch.dtype) -> None:
    """Give all weights this type but those of `PRECISE`."""
    for name, weight in network.named_parameters():
        weight.data = weight.data.to(torch.float32 if name.split(".")[0] in PRECISE else dtype)
