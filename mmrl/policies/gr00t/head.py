"""The action head of GR00T N1.7 and N1.6 (NVIDIA, GR00T N1: An Open Foundation Model for Generalist Humanoid Robots, section 2):
a diffusion transformer turns noise into a chunk of actions, and reads the hidden states of a backbone. Weights have the names
that they have in the published files below `action_head.`, so nothing is converted. The layers through which a robot's numbers go
in and out are float32, whatever the dtype of the rest, so that no action is rounded to 8 bits.

n calls, P tokens that the backbone read, F their width, C actions, D numbers in each, S numbers of the state, T = 1 + C tokens of
the transformer, W their width. Embodiments are numbers below `max_num_embodiments`, each with an encoder and decoder of its own.
The layout is that of Isaac-GR00T, gr00t/model/gr00t_n1d7/gr00t_n1d7.py, gr00t_n1d6/gr00t_n1d6.py and modules/dit.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, relu, scaled_dot_product_attention, silu
from transformers.modeling_layers import GradientCheckpointingLayer

from mmrl.policies.gr00t.config import HeadConfig, TransformerConfig

LONGEST_PERIOD = 10_000.0
"""Of the sines that encode times."""
FLOAT32 = ("state_encoder", "action_encoder", "action_decoder")
"""Parts of the head whose weights stay float32."""


class EmbodimentLinear(nn.Module):
    """A linear layer for each embodiment."""

    def __init__(self, embodiments: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(embodiments, inputs, outputs))
        nn.init.normal_(self.W, std=0.02)
        self.b = nn.Parameter(torch.zeros(embodiments, outputs))

    def forward(self, x_nTI: torch.Tensor, embodiment_n: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.b[embodiment_n][:, None], x_nTI, self.W[embodiment_n])


class EmbodimentPerceptron(nn.Module):
    """Two layers with a ReLU between them, for each embodiment."""

    def __init__(self, embodiments: int, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layer1 = EmbodimentLinear(embodiments, inputs, hidden)
        self.layer2 = EmbodimentLinear(embodiments, hidden, outputs)

    def forward(self, x_nTI: torch.Tensor, embodiment_n: torch.Tensor) -> torch.Tensor:
        return self.layer2(relu(self.layer1(x_nTI, embodiment_n)), embodiment_n)


class ActionEncoder(nn.Module):
    """Noisy actions and their time -> tokens."""

    frequencies: torch.Tensor

    def __init__(self, embodiments: int, numbers: int, width: int) -> None:
        super().__init__()
        self.W1 = EmbodimentLinear(embodiments, numbers, width)
        self.W2 = EmbodimentLinear(embodiments, 2 * width, width)
        self.W3 = EmbodimentLinear(embodiments, width, width)
        half = width // 2
        exponents = -torch.arange(half) * (torch.tensor(LONGEST_PERIOD).log() / half)
        self.register_buffer("frequencies", exponents.exp(), persistent=False)

    def forward(self, x_nCD: torch.Tensor, buckets_n: torch.Tensor, embodiment_n: torch.Tensor) -> torch.Tensor:
        actions = self.W1(x_nCD, embodiment_n)
        sines, cosines = waves(buckets_n, self.frequencies)
        times = torch.cat([sines, cosines], -1).to(actions.dtype)[:, None].expand_as(actions)
        return self.W3(silu(self.W2(torch.cat([actions, times], -1), embodiment_n)), embodiment_n)


def waves(times_n: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(sines, cosines) of times, float32 [n, count]. The frequencies fall from 1 to about 1 / LONGEST_PERIOD. Each caller rounds
    them as the published code does, on the host: times go up to 1000, so that an error in the last bit of a frequency is one of
    1e-4 in an angle."""
    angles = times_n.float()[:, None] * frequencies
    return angles.sin(), angles.cos()


class TimeEmbedding(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(inputs, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_2(silu(self.linear_1(x)))


class TimeEncoder(nn.Module):
    """Times -> [n, W], by which the transformer's norms are scaled and shifted."""

    WAVES = 128
    frequencies: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.timestep_embedder = TimeEmbedding(2 * self.WAVES, width)
        exponents = -math.log(LONGEST_PERIOD) * torch.arange(self.WAVES) / (self.WAVES - 1)
        self.register_buffer("frequencies", exponents.exp(), persistent=False)

    def forward(self, buckets_n: torch.Tensor) -> torch.Tensor:
        sines, cosines = waves(buckets_n, self.frequencies)
        return self.timestep_embedder(torch.cat([cosines, sines], -1).to(self.timestep_embedder.linear_1.weight.dtype))


class TimedNorm(nn.Module):
    """A layer norm without weights; the time gives its scale and shift (adaLN; Peebles and Xie, Scalable Diffusion Models with
    Transformers, section 3.2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x_nTW: torch.Tensor, time_nW: torch.Tensor) -> torch.Tensor:
        scale, shift = self.linear(silu(time_nW))[:, None].chunk(2, -1)
        return layer_norm(x_nTW, x_nTW.shape[-1:]) * (1 + scale) + shift


class Attention(nn.Module):
    """Between a transformer's own tokens, or from them to others of width `read`."""

    def __init__(self, width: int, heads: int, read: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = nn.Linear(width, width), nn.Linear(read, width), nn.Linear(read, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x_nTW: torch.Tensor, read_nPF: torch.Tensor, mask_nP: torch.Tensor | None) -> torch.Tensor:
        """mask_nP: the tokens that are read; all if None. There may be several rows of x for each row that is read, one after the
        other: their queries then share its keys and values."""
        rows = x_nTW.reshape(len(read_nPF), -1, x_nTW.shape[-1])
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self._projected(rows, read_nPF))
        mask = None if mask_nP is None else mask_nP[:, None, None]
        found: torch.Tensor = self.to_out[0](scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        return found.view_as(x_nTW)

    def _projected(self, x: torch.Tensor, read: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.to_q(x), self.to_k(read), self.to_v(read)


class Projection(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gelu(self.proj(x), approximate="tanh")


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        # the middle one stands for a dropout, which has no weights
        self.net = nn.ModuleList([Projection(width, 4 * width), nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net[2](self.net[0](x))
        return found


class Block(GradientCheckpointingLayer):
    """timed: its first norm depends on the time, and its second has no weights. read: width of the tokens that it reads; its own
    if None."""

    def __init__(self, shape: TransformerConfig, timed: bool, read: int | None = None) -> None:
        super().__init__()
        width = shape.width
        self.norm1: nn.Module = TimedNorm(width) if timed else nn.LayerNorm(width)
        self.attn1 = Attention(width, shape.num_attention_heads, read or width)
        self.norm3 = nn.LayerNorm(width, elementwise_affine=not timed)
        self.ff = Perceptron(width)

    def forward(
        self,
        x_nTW: torch.Tensor,
        time_nW: torch.Tensor | None = None,
        read_nPF: torch.Tensor | None = None,
        mask_nP: torch.Tensor | None = None,
    ) -> torch.Tensor:
        normed = self.norm1(x_nTW) if time_nW is None else self.norm1(x_nTW, time_nW)
        x_nTW = x_nTW + self.attn1(normed, normed if read_nPF is None else read_nPF, mask_nP)
        return x_nTW + self.ff(self.norm3(x_nTW))


class SelfAttention(nn.Module):
    """Blocks between the tokens of the backbone, which N1.6 doesn't have."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList([Block(shape, timed=False) for _ in range(shape.num_layers)])

    def forward(self, x_nPF: torch.Tensor, real_nP: torch.Tensor | None) -> torch.Tensor:
        for block in self.transformer_blocks:
            x_nPF = block(x_nPF, mask_nP=real_nP)
        return x_nPF


class DiffusionTransformer(nn.Module):
    """Every second block reads the backbone's tokens, by turns those of the text and those of the pictures; the others attend to
    the transformer's own."""

    def __init__(self, shape: TransformerConfig, read: int, text_every: int) -> None:
        super().__init__()
        self.text_every = text_every
        self.timestep_encoder = TimeEncoder(shape.width)
        self.transformer_blocks = nn.ModuleList(
            [Block(shape, timed=True, read=None if i % 2 else read) for i in range(shape.num_layers)]
        )
        self.proj_out_1 = nn.Linear(shape.width, 2 * shape.width)
        self.proj_out_2 = nn.Linear(shape.width, shape.output_dim)

    def forward(
        self, x_nTW: torch.Tensor, buckets_n: torch.Tensor, read_nPF: torch.Tensor, text_nP: torch.Tensor, images_nP: torch.Tensor
    ) -> torch.Tensor:
        """text_nP, images_nP: bool, the tokens of each kind; neither for padding."""
        time_nW = self.timestep_encoder(buckets_n)
        for i, block in enumerate(self.transformer_blocks):
            if i % 2:
                x_nTW = block(x_nTW, time_nW)
            else:
                x_nTW = block(x_nTW, time_nW, read_nPF, images_nP if i % (2 * self.text_every) else text_nP)
        shift, scale = self.proj_out_1(silu(time_nW))[:, None].chunk(2, -1)
        found: torch.Tensor = self.proj_out_2(layer_norm(x_nTW, x_nTW.shape[-1:], eps=1e-6) * (1 + scale) + shift)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the head reads of a call, encoded once for all steps of the flow."""

    read_nPF: torch.Tensor
    text_nP: torch.Tensor
    images_nP: torch.Tensor
    state_n1W: torch.Tensor
    embodiment_n: torch.Tensor

    def repeated(self, times: int) -> Context:
        """For `times` chunks of each call, one after the other. What is read is not copied: see `Attention.forward`."""
        state, embodiment = (own.repeat_interleave(times, 0) for own in (self.state_n1W, self.embodiment_n))
        return replace(self, state_n1W=state, embodiment_n=embodiment)


class ActionHead(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        kinds, width = config.max_num_embodiments, config.input_embedding_dim
        state = config.max_state_dim * config.state_history_length
        self.model = DiffusionTransformer(
            config.diffusion_model_cfg, config.backbone_embedding_dim, config.attend_text_every_n_blocks
        )
        self.state_encoder = EmbodimentPerceptron(kinds, state, config.hidden_size, width)
        self.action_encoder = ActionEncoder(kinds, config.max_action_dim, width)
        self.action_decoder = EmbodimentPerceptron(kinds, config.hidden_size, config.hidden_size, config.max_action_dim)
        self.vlln = nn.LayerNorm(config.backbone_embedding_dim)
        self.vl_self_attention = SelfAttention(config.vl_self_attention_cfg) if config.vl_self_attention_cfg else None
        self.position_embedding = nn.Embedding(config.max_seq_len, width)
        nn.init.normal_(self.position_embedding.weight, std=0.02)
        if config.state_dropout_prob > 0:
            self.mask_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)

    def encode(
        self,
        features_nPF: torch.Tensor,
        real_nP: torch.Tensor | None,
        images_nP: torch.Tensor,
        state_nS: torch.Tensor,
        embodiment_n: torch.Tensor,
    ) -> Context:
        """features_nPF: of `Network.features`. real_nP: bool, False for
        padding; None if there is none. images_nP: bool, True for pictures. state_nS: normalised, zeros for numbers that the robot
        doesn't have, the newest last if there are several.

        The published code lets these tokens attend to padding, so that a call's actions depend on the other calls of its batch.
        Here they don't; without padding both are the same."""
        read_nPF = self.vlln(features_nPF)
        return Context(
            read_nPF=read_nPF if self.vl_self_attention is None else self.vl_self_attention(read_nPF, real_nP),
            text_nP=~images_nP if real_nP is None else real_nP & ~images_nP,
            images_nP=images_nP if real_nP is None else real_nP & images_nP,
            state_n1W=self.state_encoder(state_nS[:, None].to(self.state_encoder.layer1.W.dtype), embodiment_n),
            embodiment_n=embodiment_n,
        )

    def hidden(self, context: Context, x_nCD: torch.Tensor, times_n: torch.Tensor) -> torch.Tensor:
        """[n, C, W]: what the transformer computes for each action. times_n: from noise at 0 to actions at 1, rounded down to
        `num_timestep_buckets` steps."""
        buckets_n = (times_n * self.config.num_timestep_buckets).long()
        actions = self.action_encoder(x_nCD, buckets_n, context.embodiment_n)
        actions = actions + self.position_embedding.weight[: actions.shape[1]]
        tokens_nTW = torch.cat([context.state_n1W, actions], 1).to(context.read_nPF.dtype)
        out = self.model(tokens_nTW, buckets_n, context.read_nPF, context.text_nP, context.images_nP)
        return out[:, 1:].to(actions.dtype)

    def velocity(self, context: Context, x_nCD: torch.Tensor, times_n: torch.Tensor) -> torch.Tensor:
        """[n, C, D]: actions minus noise. times_n: see `hidden`."""
        found: torch.Tensor = self.action_decoder(self.hidden(context, x_nCD, times_n), context.embodiment_n)
        return found

    def denoise(self, context: Context, noise_nCD: torch.Tensor) -> torch.Tensor:
        """[n, C, D]: normalised actions, by Euler steps from the noise."""
        steps, x_nCD = self.config.num_inference_timesteps, noise_nCD
        for i in range(steps):
            x_nCD = x_nCD + self.velocity(context, x_nCD, noise_nCD.new_full((len(x_nCD),), i / steps)) / steps
        return x_nCD
