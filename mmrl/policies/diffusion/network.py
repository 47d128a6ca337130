"""The networks of a Diffusion Policy (Chi et al., Diffusion Policy: Visuomotor Policy Learning via Action Diffusion, section 3),
under the names that LeRobot gives their weights: an encoder of pictures and a one-dimensional U-Net over time.

n rows, C actions that the network predicts, D numbers in each, F numbers of the condition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import interpolate

from mmrl.policies.diffusion.config import DiffusionConfig


class Keypoints(nn.Module):
    """The mean place of each feature, weighted by a softmax over the picture (Finn et al., Deep Spatial Autoencoders, section
    IV.A)."""

    pos_grid: torch.Tensor

    def __init__(self, channels: int, height: int, width: int, many: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(channels, many, 1)
        y, x = torch.meshgrid(_ends(height), _ends(width), indexing="ij")
        self.register_buffer("pos_grid", torch.stack([x, y], -1).flatten(0, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[n, channels, height, width] -> [n, 2 * many]."""
        return (self.nets(features).flatten(2).softmax(-1) @ self.pos_grid).flatten(1)


def _ends(many: int) -> torch.Tensor:
    return torch.linspace(-1, 1, many, dtype=torch.float64).float()


class PictureEncoder(nn.Module):
    """A ResNet without its pool, and what `Keypoints` makes of it."""

    def __init__(self, config: DiffusionConfig) -> None:
        from torchvision import models

        super().__init__()
        self.resized, self.cropped = config.resize_shape, config.crop
        net = getattr(models, config.vision_backbone)(weights=None)
        self.backbone = nn.Sequential(*list(net.children())[:-2])
        if config.use_group_norm:
            for name, module in list(self.backbone.named_modules()):
                if isinstance(module, nn.BatchNorm2d):
                    owner, _, leaf = name.rpartition(".")
                    group = nn.GroupNorm(module.num_features // 16, module.num_features)
                    setattr(self.backbone.get_submodule(owner), leaf, group)
        height, width = config.crop or config.resize_shape or config.picture_shape
        many = config.spatial_softmax_num_keypoints
        self.pool = Keypoints(net.fc.in_features, math.ceil(height / 32), math.ceil(width / 32), many)
        self.out = nn.Linear(2 * many, 2 * many)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """float32 [n, 3, H, W], normalised -> [n, 2 * keypoints]."""
        if self.resized is not None and pictures.shape[2:] != self.resized:
            pictures = interpolate(pictures, self.resized, mode="bilinear", antialias=True, align_corners=False)
        if self.cropped is not None:
            pictures = _middle(pictures, *self.cropped)
        return self.out(self.pool(self.backbone(pictures))).relu()


def _middle(pictures: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """A picture's middle, as torchvision's `center_crop` takes it."""
    top, left = (round((have - want) / 2) for have, want in zip(pictures.shape[2:], (height, width), strict=True))
    return pictures[:, :, top : top + height, left : left + width]


class Waves(nn.Module):
    """Sines and cosines of a time (Vaswani et al., Attention Is All You Need, section 3.5)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rates = width // 2

    def forward(self, times_n: torch.Tensor) -> torch.Tensor:
        """[n] -> [n, width]."""
        rates = torch.exp(torch.arange(self.rates, device=times_n.device) * (-math.log(10_000) / (self.rates - 1)))
        angles = times_n[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], -1)


class Block(nn.Module):
    """Convolution over time, normalisation, Mish."""

    def __init__(self, width: int, out: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv1d(width, out, kernel, padding=kernel // 2), nn.GroupNorm(groups, out), nn.Mish())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.block(x)
        return found


class ConditionedBlock(nn.Module):
    """Two blocks around what the condition shifts and scales (Perez et al., FiLM), with a residual connection."""

    def __init__(self, width: int, out: int, condition: int, config: DiffusionConfig) -> None:
        super().__init__()
        self.scales, sizes = config.use_film_scale_modulation, (config.kernel_size, config.n_groups)
        self.conv1, self.conv2 = Block(width, out, *sizes), Block(out, out, *sizes)
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(condition, out * 2 if self.scales else out))
        self.residual_conv = nn.Conv1d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """[n, width, time] -> [n, out, time]."""
        told = self.cond_encoder(condition)[..., None]
        inner = self.conv1(x)
        if self.scales:
            scale, shift = told.chunk(2, 1)
            inner = scale * inner + shift
        else:
            inner = inner + told
        found: torch.Tensor = self.conv2(inner) + self.residual_conv(x)
        return found


class Unet(nn.Module):
    """Noised actions, their time and the condition -> what is predicted."""

    def __init__(self, config: DiffusionConfig, condition: int) -> None:
        super().__init__()
        wide = config.diffusion_step_embed_dim
        self.diffusion_step_encoder = nn.Sequential(Waves(wide), nn.Linear(wide, 4 * wide), nn.Mish(), nn.Linear(4 * wide, wide))
        sizes, dims = list(config.down_dims), config.numbers("action")

        def pair(width: int, out: int, last: nn.Module) -> nn.ModuleList:
            first, second = (ConditionedBlock(each, out, wide + condition, config) for each in (width, out))
            return nn.ModuleList([first, second, last])

        steps, deepest = list(pairwise([dims, *sizes])), sizes[-1]
        self.down_modules = nn.ModuleList(
            pair(width, out, nn.Conv1d(out, out, 3, 2, 1) if i + 1 < len(steps) else nn.Identity())
            for i, (width, out) in enumerate(steps)
        )
        self.mid_modules = nn.ModuleList(ConditionedBlock(deepest, deepest, wide + condition, config) for _ in range(2))
        # LeRobot asks whether a step is the last of the encoder's, which none of the decoder's is
        self.up_modules = nn.ModuleList(
            pair(2 * out, width, nn.ConvTranspose1d(width, width, 4, 2, 1) if i + 1 < len(steps) else nn.Identity())
            for i, (width, out) in enumerate(reversed(steps[1:]))
        )
        self.final_conv = nn.Sequential(
            Block(sizes[0], sizes[0], config.kernel_size, config.n_groups), nn.Conv1d(sizes[0], dims, 1)
        )

    def forward(self, x_nCD: torch.Tensor, times_n: torch.Tensor, condition_nF: torch.Tensor) -> torch.Tensor:
        """[n, C, D]. times_n: int64."""
        told = torch.cat([self.diffusion_step_encoder(times_n), condition_nF], -1)
        x, passed = x_nCD.transpose(1, 2), list[torch.Tensor]()
        downwards: Any = self.down_modules
        for first, second, shrink in downwards:
            x = second(first(x, told), told)
            passed.append(x)
            x = shrink(x)
        for block in self.mid_modules:
            x = block(x, told)
        upwards: Any = self.up_modules
        for first, second, grow in upwards:
            x = grow(second(first(torch.cat([x, passed.pop()], 1), told), told))
        found: torch.Tensor = self.final_conv(x)
        return found.transpose(1, 2)


class Network(nn.Module):
    """Both networks."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        cameras, condition = config.cameras, config.numbers("observation.state") + config.numbers("observation.environment_state")
        self.diffusion = nn.ModuleDict()
        if cameras:
            each = config.use_separate_rgb_encoder_per_camera
            encoders = [PictureEncoder(config) for _ in (cameras if each else cameras[:1])]
            self.diffusion["rgb_encoder"] = nn.ModuleList(encoders) if each else encoders[0]
            condition += 2 * config.spatial_softmax_num_keypoints * len(cameras)
        self.width = condition * config.n_obs_steps
        """F."""
        self.diffusion["unet"] = Unet(config, self.width)

    def condition(self, robot_nOS: torch.Tensor, pictures: Sequence[torch.Tensor], environment_nOE: torch.Tensor) -> torch.Tensor:
        """float32 [n, F], of O moments, the present one last. robot_nOS: the robot's state. pictures: for each camera [n, O, 3,
        H, W], normalised. environment_nOE: what else is known of the state."""
        known = [robot_nOS]
        for i, shown in enumerate(pictures):
            eyes = self.diffusion["rgb_encoder"]
            eye = eyes[i] if isinstance(eyes, nn.ModuleList) else eyes
            known.append(eye(shown.flatten(0, 1)).unflatten(0, shown.shape[:2]))
        return torch.cat([*known, environment_nOE], -1).flatten(1)

    def predict(self, condition_nF: torch.Tensor, x_nMCD: torch.Tensor, times_nM: torch.Tensor) -> torch.Tensor:
        """See `denoising.Prediction`."""
        moments = x_nMCD.shape[1]
        told = condition_nF.repeat_interleave(moments, 0)
        found: torch.Tensor = self.diffusion["unet"](x_nMCD.flatten(0, 1), times_nM.flatten(), told)
        return found.unflatten(0, (-1, moments))
