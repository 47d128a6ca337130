"""pi0.5's network (Physical Intelligence, pi0.5: a Vision-Language-Action Model with Open-World Generalization): that of pi0,
whose action expert reads the time of the flow in its norms and has no token for the robot's state. transformers has none.

n calls, M times of a flow, T tokens, H the expert's width. The names of weights are those of transformers' pi0 where both have
them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu
from transformers import PI0Config
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto import AutoModel
from transformers.models.gemma.modeling_gemma import GemmaAttention, GemmaMLP, GemmaPreTrainedModel, GemmaRotaryEmbedding
from transformers.models.pi0.modeling_pi0 import PI0Model, PI0PreTrainedModel

from mmrl.policies.layers import cache_argument
from mmrl.policies.pi0.waves import Waves


class PI05Config(PI0Config):  # type: ignore[misc]
    model_type = "pi05"


class AdaptiveNorm(nn.Module):
    """Root mean square norm whose scale and shift are functions of a condition, with a gate for what is computed from it (Peebles
    and Xie, Scalable Diffusion Models with Transformers, section 3.2: adaLN; openpi, `gemma.RMSNorm`)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(width, 3 * width)

    def forward(self, x_nTH: torch.Tensor, condition_nMH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(normed, gate), both [n, T, H] and of x's type. The T tokens are those of M conditions, T / M of each in a row."""
        wide = x_nTH.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        found = self.dense(condition_nMH.to(self.dense.weight.dtype)).float()
        each = found.repeat_interleave(x_nTH.shape[1] // condition_nMH.shape[1], 1)
        scale, shift, gate = each.chunk(3, -1)
        return (normed * (1 + scale) + shift).to(x_nTH.dtype), gate.to(x_nTH.dtype)


class AdaptiveLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """A layer of Gemma with adaptive norms and gated residuals."""

    def __init__(self, config: Any, place: int) -> None:
        super().__init__()
        self.self_attn = GemmaAttention(config, place)
        self.mlp = GemmaMLP(config)
        self.input_layernorm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor, condition_nMH: torch.Tensor, **attention: Any) -> torch.Tensor:
        normed, gate = self.input_layernorm(hidden, condition_nMH)
        hidden = hidden + gate * self.self_attn(normed, **attention)[0]
        normed, gate = self.post_attention_layernorm(hidden, condition_nMH)
        return hidden + gate * self.mlp(normed)


class AdaptiveExpert(GemmaPreTrainedModel):  # type: ignore[misc]
    """The action expert. It has no embeddings: what it reads are actions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList([AdaptiveLayer(config, place) for place in range(config.num_hidden_layers)])
        self.norm = AdaptiveNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = GemmaRotaryEmbedding(config=config)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Norms that change with the time from the start: training sets them to 0 instead, and then no gradient of the first
        step reaches attention."""
        super()._init_weights(module)
        if isinstance(module, AdaptiveNorm):
            bound = module.dense.in_features**-0.5
            init.uniform_(module.dense.weight, -bound, bound)
            init.uniform_(module.dense.bias, -bound, bound)

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        condition_nMH: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """[n, T, H]. attention_mask: [n, 1, T, P + T] as the attention wants it."""
        hidden = inputs_embeds
        rotation = self.rotary_emb(hidden, position_ids=position_ids)
        given = {cache_argument(self.layers[0].self_attn): cache}  # type: ignore[arg-type]
        for layer in self.layers:
            hidden = layer(
                hidden,
                condition_nMH,
                attention_mask=attention_mask,
                position_ids=position_ids,
                position_embeddings=rotation,
                **given,
            )
        normed: torch.Tensor = self.norm(hidden, condition_nMH)[0]
        return normed


class ActionTime(nn.Module):
    """Actions and times of a flow, as the expert reads them."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.dit_config.hidden_size
        self.waves = Waves(config)
        self.action_in_proj = nn.Linear(config.max_action_dim, width)
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def condition(self, times_nM: torch.Tensor) -> torch.Tensor:
        """[n, M, H]."""
        found: torch.Tensor = silu(self.time_mlp_out(silu(self.time_mlp_in(self.waves(times_nM)))))
        return found


class PI05Model(PI0Model):  # type: ignore[misc]
    config: PI05Config

    def __init__(self, config: Any) -> None:
        PI0PreTrainedModel.__init__(self, config)  # not PI0Model's, which would allocate pi0's expert
        self.dit = AdaptiveExpert(config.dit_config)
        self.vlm = AutoModel.from_config(config.vlm_config)
        self.post_init()


class PI05(PI0PreTrainedModel):  # type: ignore[misc]
    """The weights of pi0.5. `mmrl.policies.pi0.pi05.Pi05` computes with them."""

    config: PI05Config
    _keep_in_fp32_modules_strict = ("embed_action_time", "action_out_proj", "dense")
    """The first and last layers and the norms' conditions, as in openpi."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = PI05Model(config)
        self.embed_action_time = ActionTime(config)
        self.action_out_proj = nn.Linear(config.dit_config.hidden_size, config.max_action_dim)
        self.post_init()
