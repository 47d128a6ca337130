"""The name and shape of every weight of a model, from its config.

They are computed for the Qwen-VL families without importing or building a model, and read off a model without weights for others;
tests compare every name and shape with transformers' models. Widths: h hidden, m inner width of an MLP, q and k widths of queries
and of keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.vlm.thinkers import thinker_settings
from mmrl.train.plan.seen import Pictures, Seen
from mmrl.train.plan.skeletons import listed, whole

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v_moe", "qwen3_5", "qwen3_5_moe")
ALIKE = {"qwen2_5_omni_thinker": "qwen2_5_vl", "qwen3_omni_moe_thinker": "qwen3_vl_moe"}
"""`model_type` -> the family whose tower and language model it has. Its tower for sounds is counted among the weights alone."""
COUNTED = ("qwen3_5", "qwen3_5_moe")
"""Those with layers of which passes are counted, see `mmrl.train.plan.layers`. So are those of other families, and their
pictures: `PASSES` of `mmrl.train.plan.configs`."""
LISTED = ("glm4v_moe", *COUNTED, *ALIKE)
"""Those whose weights are read off a model without weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The MLPs of a layer of the language model of which each token goes through some."""

    count: int
    chosen: int
    """Experts of a token, besides the shared ones."""
    inner: int
    """Inner width of an expert."""
    shared: int = 0
    """Inner width of the MLP that all tokens go through besides; 0 without it."""
    precise: bool = False
    """Whether the router reads float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The language model."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether the head shares the embeddings' weights."""
    longest: int
    """Maximal number of positions."""
    norms: bool = False
    """Whether queries and keys are normalised."""
    turned: float = 1.0
    """Share of a head that rotary embeddings turn."""
    experts: Experts | None = None
    where: frozenset[int] = frozenset()
    """Numbers of the layers with experts; the others have one MLP."""
    linear: int = 0
    """Number of layers with linear attention, which have a state in the place of a cache."""
    state: int = 0
    """Numbers of the state of one of them, for a sequence."""
    cached: int = -1
    """Numbers of keys and values of a token in all layers, where counted; -1: as many as heads have."""
    shared: int = -1
    """Numbers of a token that all layers are given besides, where counted; -1: cosines and sines of a head."""
    copies: int = 1
    """Copies of a token's states that go from layer to layer, such as Gemma 3n's."""
    capped: bool = False
    """Whether scores of attention have a cap: it goes by blocks unless a dense mask is asked for, and then keeps them."""
    bounded: bool = False
    """Whether logits have a bound, whose hyperbolic tangent is kept."""
    masks: int = 1
    """Masks of all pairs of tokens: of windows another than of full attention."""

    @property
    def sparse(self) -> int:
        """Number of layers with experts."""
        return len(self.where)

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def k(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """The vision tower with its projector to the language model's width."""

    layers: int
    hidden: int
    inner: int
    heads: int
    out: int
    patch: int
    """Side of a patch in pixels."""
    frames: int
    """Frames of a video per patch; an image is repeated so many times."""
    merge: int
    """Side of a token in patches."""
    window: int
    """Side in pixels of the window of windowed attention; 0 without it."""
    full_layers: int
    """Number of layers with full attention."""
    taps: int = 0
    """Number of layers whose states also go to the language model (DeepStack)."""
    places: int = 0
    """Rows of the table of position embeddings."""
    context: int = 0
    """Inner width of the MLP behind GLM's merged patches; 0 where the merger is an MLP itself."""

    @property
    def values(self) -> int:
        """Input values per patch."""
        return 3 * self.frames * self.patch**2

    @property
    def merged(self) -> int:
        """Width of the concatenated patches of a token."""
        return self.hidden * self.merge**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The shapes of a model."""

    family: str
    text: Text
    vision: Vision
    listed: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Every weight's name and shape, of a family whose are not computed here."""
    own: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Those of what a policy that acts adds to the model: a head, a projector of the state."""
    traced: bool = False
    """What it computes is counted by passes without numbers, see `mmrl.train.plan.acting_passes`, not from these sizes."""
    reads_text: bool = True
    """False of a policy without a language model."""
    config: str = ""
    """Content of the config.json, of which a model is made that tells more than sizes do; empty where transformers can't."""
    pictures: Pictures | None = None
    """Of a family whose pictures are counted."""
    hears: bool = False
    """It sees nothing, and the sounds that it hears are counted in the place of pictures."""
    seen: Seen | None = None
    """One of them, of the size that is planned for: the tower's sizes are its, and not those of `vision`."""

    def named(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every weight's name and shape, as in transformers and in its order; without a tied head."""
        if self.listed:
            yield from self.listed
        else:
            yield from _vision(self)
            yield from _text(self)
        yield from self.own

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for _, shape in self.named())

    def seeing(self, pixels: int) -> Shapes:
        """With pictures of so many pixels, or 0 for none."""
        return self if self.pictures is None or not pixels else replace(self, seen=self.pictures.seen(pixels))

    def tokens_of(self, pixels: int) -> int:
        """Tokens of an image of so many pixels, at least one."""
        if self.pictures:
            return self.pictures.seen(pixels).tokens
        return max(1, round(pixels / (self.vision.patch * self.vision.merge) ** 2))

    def patches_of(self, pixels: int) -> int:
        if self.pictures:
            return self.pictures.seen(pixels).patches
        return self.tokens_of(pixels) * self.vision.merge**2

    @property
    def counted(self) -> bool:
        """Whether passes of the language model's layers are counted; the other sizes of `text` are of full attention."""
        return self.family in COUNTED or self.pictures is not None

    @property
    def pixel_bytes(self) -> float:
        """Bytes of a patch's pixels, in float32."""
        return self.seen.pixels if self.seen else 4 * self.vision.values

    @property
    def vectors(self) -> float:
        """Tokens of a patch."""
        return self.seen.tokens / self.seen.patches if self.seen else 1 / self.vision.merge**2

    @property
    def gated(self) -> bool:
        """Whether the tower's MLPs have three matrices, like the language model's."""
        return self.family in ("qwen2_5_vl", "glm4v_moe")

    @property
    def window_patches(self) -> int:
        """Patches per window in the layers with windowed attention; 0 without them."""
        return (self.vision.window // self.vision.patch) ** 2


def is_computed(config: Mapping[str, Any]) -> bool:
    """Whether `shapes_of` knows the family of the content of a config.json."""
    kind = str(thinker_settings(config).get("model_type", ""))
    return kind in FAMILIES or kind in ALIKE


def shapes_of(config: Mapping[str, Any], what: str) -> Shapes:
    """The shapes of the content of a config.json, or of the thinker in it. Raises UserError if the model is of another family or
    the config lacks a size. what: the model's name in the error."""
    config = thinker_settings(config)
    kind = str(config.get("model_type", ""))
    family = ALIKE.get(kind, kind)
    if family not in FAMILIES:
        raise UserError(
            f"{what} is a {kind or 'model without a model_type'}, which mmrl plan can't count: it counts "
            f"{', '.join((*FAMILIES, *ALIKE))}"
        )
    try:
        known = whole(config) if kind in LISTED else config
        text = {**known, **(known.get("text_config") or {})}  # older files have the text model's keys at the top
        vision = dict(known.get("vision_config") or {})
        found = Shapes(family=family, text=_text_of(family, text, known), vision=_vision_of(family, vision, text["hidden_size"]))
        return replace(found, config=json.dumps(config), listed=listed(config) if kind in LISTED else ())
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise UserError(f"{what}: its config.json has no usable {str(error).strip(chr(39)):.60}: use a complete one") from error


def _text_of(family: str, text: Mapping[str, Any], config: Mapping[str, Any]) -> Text:
    heads = int(text["num_attention_heads"])
    tied = config.get("tie_word_embeddings")
    layers, experts = int(text["num_hidden_layers"]), _experts_of(family, text)
    where = frozenset(_sparse(family, text) if experts else ())
    linear = list(text.get("layer_types") or ()).count("linear_attention")
    return Text(
        layers=layers,
        hidden=int(text["hidden_size"]),
        inner=int(text["intermediate_size"] if experts is None or len(where) < layers else text.get("intermediate_size") or 0),
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or int(text["hidden_size"]) // heads),
        vocabulary=int(text["vocab_size"]),
        tied=bool(text.get("tie_word_embeddings") if tied is None else tied),
        longest=int(text.get("max_position_embeddings") or 32768),
        norms=family in ("qwen3_vl", "qwen3_vl_moe"),
        turned=float((text.get("rope_parameters") or {}).get("partial_rotary_factor", 1.0)),
        experts=experts,
        where=where,
        linear=linear,
        state=_state_of(text) if linear else 0,
    )


def _state_of(text: Mapping[str, Any]) -> int:
    """Of a gated delta net: a matrix of each head, and the last inputs of a convolution."""
    keys, values = (int(text[f"linear_{kind}_head_dim"]) for kind in ("key", "value"))
    heads, wide = int(text["linear_num_value_heads"]), 2 * keys * int(text["linear_num_key_heads"])
    return heads * keys * values + (wide + heads * values) * int(text["linear_conv_kernel_dim"])


def _experts_of(family: str, text: Mapping[str, Any]) -> Experts | None:
    if family == "qwen3_vl_moe":
        count = text["num_experts"] if "num_experts" in text else text["num_local_experts"]
        return Experts(count=int(count), chosen=int(text["num_experts_per_tok"]), inner=int(text["moe_intermediate_size"]))
    if family == "qwen3_5_moe":
        return Experts(
            count=int(text["num_experts"]),
            chosen=int(text["num_experts_per_tok"]),
            inner=int(text["moe_intermediate_size"]),
            shared=int(text["shared_expert_intermediate_size"]),
        )
    if family == "glm4v_moe":
        inner = int(text["moe_intermediate_size"])
        return Experts(
            count=int(text["n_routed_experts"]),
            chosen=int(text["num_experts_per_tok"]),
            inner=inner,
            shared=inner * int(text["n_shared_experts"]),
            precise=True,
        )
    return None


def _sparse(family: str, text: Mapping[str, Any]) -> Sequence[int]:
    """Numbers of the layers that have experts."""
    layers = range(int(text["num_hidden_layers"]))
    if family == "glm4v_moe":
        return layers[int(text["first_k_dense_replace"]) :]
    every, dense = int(text.get("decoder_sparse_step") or 1), text.get("mlp_only_layers") or ()
    return [i for i in layers if i not in dense and (i + 1) % every == 0]


def _vision_of(family: str, vision: Mapping[str, Any], hidden: int) -> Vision:
    later, glm = family in ("qwen3_vl", "qwen3_vl_moe", *COUNTED), family == "glm4v_moe"
    layers = int(vision.get("depth", 27 if later else 32))
    full = vision.get("fullatt_block_indexes", (7, 15, 23, 31)) if family == "qwen2_5_vl" else range(layers)
    if family == "qwen2_vl":  # its `hidden_size` is the width of the tower's output
        width = int(vision.get("embed_dim", 1280))
        inner, out = int(width * vision.get("mlp_ratio", 4)), int(vision.get("hidden_size", hidden))
    else:
        width = int(vision["hidden_size"])
        inner, out = int(vision.get("intermediate_size", 3420)), int(vision.get("out_hidden_size", hidden))
    return Vision(
        layers=layers,
        hidden=width,
        inner=out if glm else inner,
        heads=int(vision.get("num_heads", 16)),
        out=out,
        patch=int(vision.get("patch_size") or vision.get("spatial_patch_size") or (16 if later else 14)),
        frames=int(vision.get("temporal_patch_size", 2)),
        merge=int(vision.get("spatial_merge_size", 2)),
        window=int(vision.get("window_size", 112)) if family == "qwen2_5_vl" else 0,
        full_layers=sum(0 <= i < layers for i in full),
        taps=len(vision.get("deepstack_visual_indexes", (8, 16, 24))) if later and family not in COUNTED else 0,
        places=int(vision.get("num_position_embeddings", 2304)) if later else 0,
        context=inner if glm else 0,
    )


# -- names and shapes -------------------------------------------------------------------------------------------------------


def _linear(name: str, out: int, into: int, bias: bool = True) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, into)
    if bias:
        yield f"{name}.bias", (out,)


def _norm(name: str, width: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (width,)
    if bias:
        yield f"{name}.bias", (width,)


def _vision(shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    v, later, at = shapes.vision, shapes.text.norms, "model.visual"
    layer_norm = not shapes.gated
    yield f"{at}.patch_embed.proj.weight", (v.hidden, 3, v.frames, v.patch, v.patch)
    if later:
        yield f"{at}.patch_embed.proj.bias", (v.hidden,)
        yield f"{at}.pos_embed.weight", (v.places, v.hidden)
    for i in range(v.layers):
        block = f"{at}.blocks.{i}"
        yield from _norm(f"{block}.norm1", v.hidden, layer_norm)
        yield from _norm(f"{block}.norm2", v.hidden, layer_norm)
        yield from _linear(f"{block}.attn.qkv", 3 * v.hidden, v.hidden)
        yield from _linear(f"{block}.attn.proj", v.hidden, v.hidden)
        if shapes.gated:
            yield from _linear(f"{block}.mlp.gate_proj", v.inner, v.hidden)
            yield from _linear(f"{block}.mlp.up_proj", v.inner, v.hidden)
            yield from _linear(f"{block}.mlp.down_proj", v.hidden, v.inner)
        else:
            first, second = ("linear_fc1", "linear_fc2") if later else ("fc1", "fc2")
            yield from _linear(f"{block}.mlp.{first}", v.inner, v.hidden)
            yield from _linear(f"{block}.mlp.{second}", v.hidden, v.inner)
    norm, first, second = ("norm", "linear_fc1", "linear_fc2") if later else ("ln_q", "mlp.0", "mlp.2")
    mergers = [(f"{at}.merger", v.hidden), *((f"{at}.deepstack_merger_list.{i}", v.merged) for i in range(v.taps))]
    for merger, width in mergers:
        yield from _norm(f"{merger}.{norm}", width, layer_norm)
        yield from _linear(f"{merger}.{first}", v.merged, v.merged)
        yield from _linear(f"{merger}.{second}", v.out, v.merged)


def _text(shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    t, at = shapes.text, "model.language_model"
    older = not shapes.text.norms  # biases in attention and no norms of queries and keys
    experts, sparse = t.experts, t.where
    yield f"{at}.embed_tokens.weight", (t.vocabulary, t.hidden)
    for i in range(t.layers):
        layer = f"{at}.layers.{i}"
        for name, width in (("q", t.q), ("k", t.k), ("v", t.k)):
            yield from _linear(f"{layer}.self_attn.{name}_proj", width, t.hidden, older)
        yield from _linear(f"{layer}.self_attn.o_proj", t.hidden, t.q, False)
        if not older:
            yield f"{layer}.self_attn.q_norm.weight", (t.head_dim,)
            yield f"{layer}.self_attn.k_norm.weight", (t.head_dim,)
        if experts and i in sparse:
            yield f"{layer}.mlp.experts.gate_up_proj", (experts.count, 2 * experts.inner, t.hidden)
            yield f"{layer}.mlp.experts.down_proj", (experts.count, t.hidden, experts.inner)
            yield f"{layer}.mlp.gate.weight", (experts.count, t.hidden)
        else:
            for name, out, into in (("gate", t.inner, t.hidden), ("up", t.inner, t.hidden), ("down", t.hidden, t.inner)):
                yield from _linear(f"{layer}.mlp.{name}_proj", out, into, False)
        yield f"{layer}.input_layernorm.weight", (t.hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (t.hidden,)
    yield f"{at}.norm.weight", (t.hidden,)
    if not t.tied:
        yield "lm_head.weight", (t.vocabulary, t.hidden)
