"""The shapes of published Qwen2.5-VL models: their weights, bytes and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass

from mmrl.train.plan.published import PUBLISHED

CONFIGS = {size: PUBLISHED[f"Qwen/Qwen2.5-VL-{size.upper()}"] for size in ("3b", "7b", "72b")}
"""Their config.json, as in `mmrl plan`."""
WIDTH = 256
CONFIGS["narrow"] = {
    **CONFIGS["3b"],
    "text_config": {
        **CONFIGS["3b"]["text_config"],
        **{"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": 2, "num_key_value_heads": 1},
        "vocab_size": 4096,
    },
    "vision_config": {
        **CONFIGS["3b"]["vision_config"],
        **{"hidden_size": WIDTH // 2, "intermediate_size": WIDTH, "num_heads": 2, "out_hidden_size": WIDTH},
    },
}
"""The 3B's depth, for a CPU: what tiny models, with two layers, don't show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model that the formulas need."""

    layers: int
    hidden: int
    matrices: int
    """Weights of the text model's layers, which each token is multiplied with."""
    output: int
    """Weights of the output layer, which only tokens with a predicted successor go through."""
    embedding: int
    """Weights of the embedding, if it isn't tied to the output layer."""
    vision: int
    """Weights of the vision tower, which each patch is multiplied with."""
    merger: int
    """Weights of the projector, which turns four patches into one token."""
    kv: int
    """Numbers in the cache per token: keys and values of all layers."""
    vision_depth: int
    vision_hidden: int

    @property
    def weights(self) -> int:
        return self.matrices + self.output + self.embedding + self.vision + self.merger

    @property
    def bytes(self) -> int:
        """In bfloat16."""
        return 2 * self.weights

    def text_flops(self, tokens: float, context: float, scored: float) -> float:
        """Operations of a forward pass over tokens that attend to `context` tokens on average: 2 per weight, and 4 * hidden per
        layer and pair of tokens, for scores and the sum over values. scored: tokens that go through the output layer. A backward
        pass needs twice as many."""
        layers = tokens * (2 * self.matrices + 4 * self.layers * self.hidden * context)
        return layers + scored * 2 * self.output

    def vision_flops(self, patches: float, window: float = 64.0) -> float:
        """Operations of a forward pass of the vision tower. window: patches that a patch attends to, nearly always those of its
        window (8 x 8)."""
        return patches * (2 * self.vision + self.merger / 2 + 4 * self.vision_depth * self.vision_hidden * window)


def shape(size: str) -> Shape:
    """The shape of a published size."""
    config = CONFIGS[size]
    return shape_of(config["text_config"], config["vision_config"], tied=config["tie_word_embeddings"])


def shape_of(text: dict, vision: dict, tied: bool) -> Shape:
    """The shape for a Qwen2.5-VL's `text_config` and `vision_config`. Biases and norms are left out: under 0.1% of the
    weights."""
    H, F, L = text["hidden_size"], text["intermediate_size"], text["num_hidden_layers"]
    width = text.get("head_dim") or H // text["num_attention_heads"]
    query, keys = text["num_attention_heads"] * width, text["num_key_value_heads"] * width
    output = text["vocab_size"] * H
    h, f = vision["hidden_size"], vision["intermediate_size"]
    tower = vision["depth"] * (4 * h * h + 3 * h * f) + 2 * 3 * vision["patch_size"] ** 2 * h
    return Shape(
        layers=L,
        hidden=query,
        matrices=L * (2 * H * query + 2 * H * keys + 3 * H * F),
        output=output,
        embedding=0 if tied else output,
        vision=tower,
        merger=4 * h * 4 * h + 4 * h * H,
        kv=2 * L * keys,
        vision_depth=vision["depth"],
        vision_hidden=h,
    )
