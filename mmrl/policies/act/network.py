"""The network of ACT (Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, arXiv 2304.13705, section
4 and figure 4), under the names that LeRobot gives its weights.

n rows, C actions that are predicted, D numbers in each, S and E numbers of the robot's state and of what else is known, Z numbers
of the latent, H the network's width.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout, gelu, relu

from mmrl.policies.act.config import ACTConfig
from mmrl.policies.acting.lerobot_config import ENVIRONMENT
from mmrl.policies.acting.lerobot_processors import ACTION, STATE


class Layer(nn.Module):
    """Attention to each other, for a decoder also to what the encoder found, and a perceptron. Places are added to what is
    compared, and not to what is taken (Carion et al., DETR, appendix A.3)."""

    def __init__(self, config: ACTConfig, crosses: bool) -> None:
        super().__init__()
        wide, inner = config.dim_model, config.dim_feedforward
        how: dict[str, Any] = {"dropout": config.dropout, "batch_first": True}
        self.self_attn = nn.MultiheadAttention(wide, config.n_heads, **how)
        if crosses:
            self.multihead_attn = nn.MultiheadAttention(wide, config.n_heads, **how)
            self.norm3 = nn.LayerNorm(wide)
        self.norm1, self.norm2 = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.linear1, self.linear2 = nn.Linear(wide, inner), nn.Linear(inner, wide)
        self.activation = gelu if config.feedforward_activation == "gelu" else relu
        self.before, self.dropped = config.pre_norm, config.dropout

    def forward(
        self,
        x: torch.Tensor,
        places: torch.Tensor,
        hidden: torch.Tensor | None = None,
        found: torch.Tensor | None = None,
        found_places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[n, tokens, H]. hidden: bool [n, tokens], those that none looks at. found: what a decoder reads."""
        x = self._added(self.norm1, x, lambda y: self._attended(self.self_attn, y + places, y + places, y, hidden))
        if found is None or found_places is None:
            return self._added(self.norm2, x, self._perceptron)
        keys = found + found_places
        x = self._added(self.norm2, x, lambda y: self._attended(self.multihead_attn, y + places, keys, found, None))
        return self._added(self.norm3, x, self._perceptron)

    def _added(self, norm: nn.Module, x: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor
        if self.before:
            return x + dropout(work(norm(x)), self.dropped, self.training)
        found = norm(x + dropout(work(x), self.dropped, self.training))
        return found

    def _attended(
        self, attention: nn.Module, asked: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor | None
    ) -> torch.Tensor:
        found: torch.Tensor = attention(asked, keys, values, key_padding_mask=hidden, need_weights=False)[0]
        return found

    def _perceptron(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear2(dropout(self.activation(self.linear1(x)), self.dropped, self.training))
        return found


class Layers(nn.Module):
    def __init__(self, config: ACTConfig, many: int, crosses: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, crosses) for _ in range(many))
        self.norm = nn.LayerNorm(config.dim_model) if config.pre_norm or crosses else nn.Identity()

    def forward(self, x: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        """See `Layer.forward`."""
        for layer in self.layers:
            x = layer(x, *others)
        found: torch.Tensor = self.norm(x)
        return found


class Network(nn.Module):
    """All of it. What it doesn't need by its configuration isn't there: a part for each kind of observation, and the VAE's
    encoder, which only imitation uses."""

    vae_encoder_pos_enc: torch.Tensor

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        wide, dims = config.dim_model, config.numbers(ACTION)
        robot, environment = config.numbers(STATE), config.numbers(ENVIRONMENT)
        self.chunk, self.latent, self.wide = config.chunk_size, config.latent_dim, wide
        self.has_robot, self.has_environment, self.sees = bool(robot), bool(environment), bool(config.cameras)
        if config.use_vae:
            self.vae_encoder = Layers(config, config.n_vae_encoder_layers)
            self.vae_encoder_cls_embed = nn.Embedding(1, wide)
            if robot:
                self.vae_encoder_robot_state_input_proj = nn.Linear(robot, wide)
            self.vae_encoder_action_input_proj = nn.Linear(dims, wide)
            self.vae_encoder_latent_output_proj = nn.Linear(wide, 2 * config.latent_dim)
            self.register_buffer("vae_encoder_pos_enc", _places(1 + self.has_robot + config.chunk_size, wide)[None])
        if config.cameras:
            self.backbone, channels = _resnet(config)
            self.encoder_img_feat_input_proj = nn.Conv2d(channels, wide, 1)
        self.encoder = Layers(config, config.n_encoder_layers)
        self.decoder = Layers(config, config.n_decoder_layers, crosses=True)
        if robot:
            self.encoder_robot_state_input_proj = nn.Linear(robot, wide)
        if environment:
            self.encoder_env_state_input_proj = nn.Linear(environment, wide)
        self.encoder_latent_input_proj = nn.Linear(config.latent_dim, wide)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + self.has_robot + self.has_environment, wide)
        self.decoder_pos_embed = nn.Embedding(config.chunk_size, wide)
        self.action_head = nn.Linear(wide, dims)
        for weight in chain(self.encoder.parameters(), self.decoder.parameters()):
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def told(self, robot_nS: torch.Tensor, actions_nCD: torch.Tensor, real_nC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean, logarithm of the variance) of the latent that these actions have, [n, Z] each: the VAE's encoder. real_nC: bool;
        the others are beyond an episode's end."""
        count = len(actions_nCD)
        tokens = [self.vae_encoder_cls_embed.weight.expand(count, 1, -1)]
        if self.has_robot:
            tokens.append(self.vae_encoder_robot_state_input_proj(robot_nS)[:, None])
        hidden = torch.cat([real_nC.new_zeros(count, len(tokens)), ~real_nC], 1)
        x = torch.cat([*tokens, self.vae_encoder_action_input_proj(actions_nCD)], 1)
        first = self.vae_encoder(x, self.vae_encoder_pos_enc, hidden)[:, 0]
        mean, log_variance = self.vae_encoder_latent_output_proj(first).chunk(2, -1)
        return mean, log_variance

    def foresee(
        self,
        robot_nS: torch.Tensor,
        environment_nE: torch.Tensor,
        pictures: Sequence[torch.Tensor],
        latent_nZ: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states of the actions, [n, C, H]; `action_head` makes actions of them. pictures: of each camera [n, 3, height,
        width], normalised. latent_nZ: zeros where it isn't given, as when the policy acts."""
        count = len(robot_nS)
        latent = robot_nS.new_zeros(count, self.latent) if latent_nZ is None else latent_nZ
        tokens = [self.encoder_latent_input_proj(latent)]
        if self.has_robot:
            tokens.append(self.encoder_robot_state_input_proj(robot_nS))
        if self.has_environment:
            tokens.append(self.encoder_env_state_input_proj(environment_nE))
        x, places = torch.stack(tokens, 1), self.encoder_1d_feature_pos_embed.weight
        for shown in pictures:
            features = self.backbone(shown)
            height, width = features.shape[2:]
            places = torch.cat([places, _places_of_picture(height, width, self.wide, features.device)])
            x = torch.cat([x, self.encoder_img_feat_input_proj(features).flatten(2).transpose(1, 2)], 1)
        found = self.encoder(x, places, None)
        nothing = x.new_zeros(count, self.chunk, self.wide)
        hidden: torch.Tensor = self.decoder(nothing, self.decoder_pos_embed.weight, None, found, places)
        return hidden


def _resnet(config: ACTConfig) -> tuple[nn.Module, int]:
    """(a ResNet up to its last feature map, whose batch normalisation has fixed statistics, scales and shifts; its channels)."""
    from torchvision import models
    from torchvision.ops.misc import FrozenBatchNorm2d

    strides = [False, False, config.replace_final_stride_with_dilation]
    net = getattr(models, config.vision_backbone)(
        weights=None, norm_layer=FrozenBatchNorm2d, replace_stride_with_dilation=strides
    )
    return nn.Sequential(OrderedDict(list(net.named_children())[:-2])), net.fc.in_features


def _places(many: int, width: int) -> torch.Tensor:
    """float32 [many, width]: sines and cosines in turn of each number from 0 (Vaswani et al., Attention Is All You Need, section
    3.5)."""
    return _waves(torch.arange(many, dtype=torch.float64), width).float()


def _waves(numbers: torch.Tensor, width: int) -> torch.Tensor:
    """[..., width]: sines and cosines in turn, of numbers [...]."""
    pairs = torch.arange(width, dtype=numbers.dtype, device=numbers.device) // 2
    angles = numbers[..., None] / 10_000 ** (2 * pairs / width)
    return torch.stack([angles[..., 0::2].sin(), angles[..., 1::2].cos()], -1).flatten(-2)


def _places_of_picture(height: int, width: int, wide: int, device: torch.device) -> torch.Tensor:
    """float32 [height * width, wide]: the first half says the row, the second the column, counted from 1 and scaled to 2 pi at
    the last one."""
    rows, columns = (
        torch.arange(1, side + 1, dtype=torch.float32, device=device) / (side + 1e-6) * (2 * math.pi) for side in (height, width)
    )
    first, second = (_waves(numbers, wide // 2) for numbers in (rows, columns))
    both = torch.cat([first[:, None].expand(-1, width, -1), second[None].expand(height, -1, -1)], -1)
    return both.flatten(0, 1)
