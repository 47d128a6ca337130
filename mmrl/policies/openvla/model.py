"""Checkpoints in OpenVLA's layout (Kim et al., OpenVLA: An Open-Source Vision-Language-Action Model): two vision transformers
side by side, a projector, and Llama. Weights have the names that they have in its files, so nothing is converted.

n pictures, P patches in each, D the width of a tower, W of both. The language model is transformers'; the towers reimplement
timm's `VisionTransformer` (0.9.10 to 0.9.16, which OpenVLA requires).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    GenerationMixin,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from mmrl.api.errors import UserError, shorten

TOWERS: dict[str, dict[str, Any]] = {
    "vit_large_patch14_reg4_dinov2.lvd142m": {
        **{"width": 1024, "depth": 24, "heads": 16, "inner": 4096, "patch": 14},
        **{"registers": 4, "scaled": True, "pooled": False},
    },
    "vit_so400m_patch14_siglip_224": {
        **{"width": 1152, "depth": 27, "heads": 16, "inner": 4304, "patch": 14},
        **{"registers": 0, "scaled": False, "pooled": True},
    },
}
"""timm's name of a tower -> its shape. registers: register tokens, which come with a class token; scaled: layer scale; pooled: an
attention pool at its end, which is not used. Activations are exact GELUs, also in SigLIP, where transformers has the tanh
form."""
EPSILON = 1e-6
"""Epsilon of the towers' norms."""


class OpenVLAConfig(PreTrainedConfig):
    """The fields of config.json that are read; the others are kept."""

    model_type = "openvla"
    sub_configs = {"text_config": LlamaConfig}

    text_config: Any = None
    timm_model_ids: Any = None
    image_sizes: Any = None
    use_fused_vision_backbone: Any = None
    llm_backbone_id: str = "llama2-7b-pure"
    norm_stats: Any = None
    """Data set -> statistics of its actions; see `mmrl.policies.acting.units`."""
    n_action_bins: int = 256
    pad_to_multiple_of: int = 64
    """Number of embedding rows beyond the vocabulary."""
    towers: Any = None
    """Changes of `TOWERS`, one for each tower: for models smaller than any that was published."""

    def __post_init__(self, **kwargs: Any) -> None:
        if not isinstance(self.text_config, LlamaConfig):
            given = dict(self.text_config or {})
            kind = given.pop("model_type", "llama")
            if kind != "llama":
                raise ValueError(f"its language model is {kind}, and only llama can be read")
            self.text_config = LlamaConfig(**given)
        self.timm_model_ids = list(self.timm_model_ids or TOWERS)
        self.image_sizes = list(self.image_sizes or [224] * len(self.timm_model_ids))
        self.use_fused_vision_backbone = len(self.timm_model_ids) == 2
        kwargs.setdefault("tie_word_embeddings", False)
        super().__post_init__(**kwargs)

    @property
    def shapes(self) -> list[dict[str, Any]]:
        """The shape of each tower. Raises ValueError for an unknown one."""
        if unknown := [name for name in self.timm_model_ids if name not in TOWERS]:
            raise ValueError(f"its vision tower {unknown[0]!r} can't be read: known are {', '.join(TOWERS)}")
        changes = self.towers or [{}] * len(self.timm_model_ids)
        sizes = zip(self.timm_model_ids, self.image_sizes, changes, strict=True)
        return [{**TOWERS[name], "size": size, **change} for name, size, change in sizes]

    @property
    def image_id(self) -> int:
        """The placeholder id of a picture's patch: the last row of the embeddings, which has no token."""
        return int(self.text_config.vocab_size) - 1


class Scale(nn.Module):
    """Layer scale: a factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale_factor


class Attention(nn.Module):
    """Self-attention between all tokens of a picture."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x_nPD: torch.Tensor) -> torch.Tensor:
        n, places, width = x_nPD.shape
        q, k, v = self.qkv(x_nPD).view(n, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, places, width))


class Perceptron(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(gelu(self.fc1(x)))


class Block(GradientCheckpointingLayer):
    def __init__(self, width: int, heads: int, inner: int, scaled: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPSILON)
        self.attn = Attention(width, heads)
        self.ls1 = Scale(width) if scaled else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=EPSILON)
        self.mlp = Perceptron(width, inner)
        self.ls2 = Scale(width) if scaled else nn.Identity()

    def forward(self, x_nPD: torch.Tensor) -> torch.Tensor:
        x_nPD = x_nPD + self.ls1(self.attn(self.norm1(x_nPD)))
        return x_nPD + self.ls2(self.mlp(self.norm2(x_nPD)))


class Pool(nn.Module):
    """timm's `AttentionPoolLatent`: not used, but its weights are in the files."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.mlp = Perceptron(width, inner)


class Patches(nn.Module):
    """Patch embedding: a convolution whose stride is its kernel size, computed as a matrix product."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        n, channels, height, wide = pixels.shape
        side = self.proj.kernel_size[0]
        squares = pixels.view(n, channels, height // side, side, wide // side, side).permute(0, 2, 4, 1, 3, 5)
        return linear(squares.reshape(n, -1, channels * side * side), self.proj.weight.flatten(1), self.proj.bias)


class Tower(nn.Module):
    """A vision transformer that returns the patches after its second-to-last block, without final norm, class token and
    registers."""

    def __init__(
        self, *, width: int, depth: int, heads: int, inner: int, patch: int, registers: int, scaled: bool, pooled: bool, size: int
    ) -> None:
        super().__init__()
        self.prefix, self.width = registers + 1 if registers else 0, width
        self.patch_embed = Patches(width, patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        if registers:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
            self.reg_token = nn.Parameter(torch.zeros(1, registers, width))
        self.blocks = nn.ModuleList([Block(width, heads, inner, scaled) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        idle: list[nn.Module] = [self.blocks[-1], self.norm]
        if pooled:
            self.attn_pool = Pool(width, inner)
            idle.append(self.attn_pool)
        for part in idle:
            _untrained(part)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[n, 3, size, size] -> [n, P, D]."""
        x = self.patch_embed(pixels) + self.pos_embed
        if self.prefix:
            first = torch.cat([self.cls_token, self.reg_token], 1)
            x = torch.cat([first.expand(len(x), -1, -1), x], 1)
        for block in self.blocks[:-1]:
            x = block(x)
        return x[:, self.prefix :]


class Towers(nn.Module):
    def __init__(self, shapes: list[dict[str, Any]]) -> None:
        super().__init__()
        self.featurizer = Tower(**shapes[0])
        self.fused_featurizer = Tower(**shapes[1]) if len(shapes) > 1 else None
        self.width = sum(shape["width"] for shape in shapes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[n, 3 or 6, size, size], three channels for each tower, in its normalisation -> [n, P, W]."""
        if self.fused_featurizer is None:
            return self.featurizer(pixels)
        return torch.cat([self.featurizer(pixels[:, :3]), self.fused_featurizer(pixels[:, 3:])], 2)


class Projector(nn.Module):
    """An MLP with three layers after two towers, two layers after one."""

    def __init__(self, width: int, out: int, fused: bool) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width if fused else out)
        self.fc2 = nn.Linear(4 * width if fused else out, out)
        self.fc3 = nn.Linear(out, out) if fused else None

    def forward(self, x_nPW: torch.Tensor) -> torch.Tensor:
        x = self.fc2(gelu(self.fc1(x_nPW)))
        return x if self.fc3 is None else self.fc3(gelu(x))


class OpenVLA(PreTrainedModel, GenerationMixin):
    """Reads ids in which `image_id` stands for each patch of each picture, in their order."""

    config_class = OpenVLAConfig
    base_model_prefix = "backbone"  # there is none: names of weights are used as they are
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Block", "LlamaDecoderLayer"]

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__(config)
        shapes = config.shapes
        self.vision_backbone = Towers(shapes)
        self.projector = Projector(self.vision_backbone.width, config.text_config.hidden_size, len(shapes) > 1)
        self.language_model = LlamaForCausalLM(config.text_config)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Tower):
            for name in ("pos_embed", "cls_token", "reg_token"):
                if hasattr(module, name):
                    init.normal_(getattr(module, name), std=0.02)
        elif isinstance(module, Scale):
            init.ones_(module.scale_factor)
        elif isinstance(module, Pool):
            init.normal_(module.latent, std=0.02)

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.language_model.lm_head

    def embedded(self, ids: torch.Tensor, pixel_values: torch.Tensor | None) -> torch.Tensor:
        """[B, S, hidden]: the tokens, and in place of `image_id` the patches of all pictures [n, 3 or 6, size, size] in turn."""
        found = self.get_input_embeddings()(ids)
        if pixel_values is None:
            return found
        shown = self.projector(self.vision_backbone(pixel_values.to(found.dtype)))
        return found.masked_scatter((ids == self.config.image_id)[..., None], shown)

    def hidden(self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        """The last hidden states, [B, S, hidden]. options: of `LlamaModel`."""
        found = self.language_model.model(inputs_embeds=self.embedded(input_ids, pixel_values), **options)
        states: torch.Tensor = found.last_hidden_state
        return states

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None, **options: Any) -> Any:
        """options: of `LlamaForCausalLM`."""
        return self.language_model(inputs_embeds=self.embedded(input_ids, pixel_values), **options)


AutoConfig.register(OpenVLAConfig.model_type, OpenVLAConfig)
AutoModelForImageTextToText.register(OpenVLAConfig, OpenVLA)


def load(name: str, dtype: torch.dtype, attention: str) -> OpenVLA:
    """Load a folder or hub name. Raises UserError for weights that are missing, left over, or of another shape than in
    config.json."""
    try:
        model, found = OpenVLA.from_pretrained(
            name,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        raise UserError(f"{name!r} can't be loaded: {shorten(error, 300)}", key="policy.model") from error
    for key, there, here in sorted(found["mismatched_keys"]):
        raise UserError(
            f"{name!r}: {key} is {list(there)} in its files, and {list(here)} by its config.json: take both from one checkpoint",
            key="policy.model",
        )
    idle = {key for key, _ in model.named_buffers()}
    cure = "take a checkpoint with OpenVLA's own head and weights, its adapters merged"
    for what, keys in (("lacks", set(found["missing_keys"]) - idle), ("has", set(found["unexpected_keys"]))):
        if keys:
            beyond = "" if what == "lacks" else ", which OpenVLA's layout doesn't have"
            more = f" and {len(keys) - 1} more weights" if len(keys) > 1 else ""
            raise UserError(f"{name!r} {what} {min(keys)}{more}{beyond}: {cure}", key="policy.model")
    return model


def _untrained(part: nn.Module) -> None:
    """Turn unused weights into buffers: they are saved again, but neither trained nor adapted."""
    for module in part.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, weight.detach())
