"""How a language model's attention is computed: under a dense mask, or by the blocks of a mask that hold something.

- `dense`: by transformers' own implementations, `sdpa` or `eager`.
- `blocks`: as `dense` in short rows; in long ones block by block in torch's own operations, see `by_blocks`.
- `flex`: by FlexAttention's kernels (Dong et al., Flex Attention), which torch compiles for a GPU. On a CPU, where they have no
  gradients, and if a kernel doesn't compile, `by_blocks` takes their place.
- `varlen`: within sequences, with the same bits wherever a sequence stands, for `batch_invariant`; see `sequence_attention`.

Passes whose mask is plainly causal or that feed single tokens to a cache stay with torch's fused attention, which needs no mask.
The mask is always the model's own rule, see `packed_rows`; `probe` compares each way with the model's own forward pass.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, FlexKernelOptions, flex_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mmrl.api.errors import shorten
from mmrl.policies.choices import Choice
from mmrl.policies.compiling import allow_recompilations
from mmrl.policies.vlm.block_masks import BLOCK, block_mask
from mmrl.policies.vlm.by_blocks import attention_by_blocks
from mmrl.policies.vlm.capabilities import Way
from mmrl.policies.vlm.packed_rows import additive, packed_sequences, with_packed_rows, without_empty_rows
from mmrl.policies.vlm.sequence_attention import within_sequences
from mmrl.policies.vlm.sequences import Sequences, cached_sequences
from mmrl.policies.vlm.slices import by_heads, by_tokens, share_of, slicing_team

LONG = {"cpu": 1024, "cuda": 4096}
"""Device -> no mask of more than so many tokens squared is made, unless the run file names `sdpa` or `eager`. On a CPU, rows that
are longer are faster by blocks (benchmarks/attention.py)."""
NAMES: Mapping[Way, str] = {"blocks": "mmrl_blocks", "flex": "mmrl_flex", "varlen": "mmrl_varlen"}
"""Way -> its name among transformers' implementations of attention."""
_SMALL: ContextVar[int] = ContextVar("small", default=0)
_SINGLE: ContextVar[bool] = ContextVar("single", default=False)


def ways(setting: str, device: torch.device, batch_invariant: bool = False) -> tuple[Way, ...]:
    """The ways to try, best first, for `policy.attn_implementation`; if none is exact, `dense` is left."""
    if batch_invariant:
        return ("varlen",)
    if setting not in ("auto", "flex_attention"):
        return ()
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    return ("flex", "blocks") if on_gpu or setting == "flex_attention" else ("blocks",)


def use(model: Any, way: Way) -> None:
    """Compute the attention of a model's language model in this way from now on."""
    config = model.config.get_text_config()
    register()
    config._attn_implementation = NAMES.get(way) or dense_implementation(config)


def dense_implementation(config: Any) -> str:
    """transformers' implementation under a dense mask. Its `sdpa` leaves a cap of the scores out."""
    now: str = config._attn_implementation
    if _softcap(config) is not None:
        return "eager"
    return "sdpa" if now in NAMES.values() else now


def asked(dense: str) -> str | None:
    """What transformers is asked for where a model is made: its `sdpa` isn't named, as it is its choice for all parts that have
    it, and since 5.21 it refuses a model with a part that hasn't, such as one that hears."""
    return None if dense == "sdpa" else dense


def _softcap(config: Any) -> float | None:
    found: float | None = getattr(config, "attn_logit_softcapping", None)
    return found


@functools.cache
def register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for way, name in NAMES.items():
        AttentionInterface.register(name, NOT_COMPILED)
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, functools.partial(mask, way))


def share_rows(model: Any) -> str:
    """Let ranks share the rows of a language model, see `slices`. Returns why they can't; empty if they can."""
    from transformers import AttentionInterface

    implementation = model.config.get_text_config()._attn_implementation
    if implementation not in (*NAMES.values(), "sdpa"):
        return f'its attention is computed by "{implementation}"'
    AttentionInterface.register("sdpa", NOT_COMPILED)
    return ""


@contextlib.contextmanager
def small_blocks() -> Iterator[None]:
    """Passes inside go by blocks of a few tokens, so that short rows have several. Not for FlexAttention's kernels."""
    token = _SMALL.set(8)
    try:
        yield
    finally:
        _SMALL.reset(token)


@contextlib.contextmanager
def single_tokens() -> Iterator[None]:
    """Passes inside feed single tokens to a cache of fixed shape, whose mask is never left out: it is added to the scores as it
    is, and nothing is copied for heads that share keys."""
    token = _SINGLE.set(True)
    try:
        yield
    finally:
        _SINGLE.reset(token)


# -- masks --------------------------------------------------------------------------------------------------------------------


def mask(way: Way, **given: Any) -> torch.Tensor | BlockMask | Sequences | None:
    """A mask function of transformers: a `BlockMask` where attention goes by blocks, sequences where it goes by them, else what
    `sdpa` takes."""
    if way == "varlen":
        return packed_sequences(given) or cached_sequences(given)
    packed = with_packed_rows(given)
    given = given if packed is None else packed
    if _by_blocks(way, packed is not None, given):
        return block_mask(_SMALL.get() or BLOCK, **given)
    padding = given.get("attention_mask")
    if padding is not None and padding.device.type != "cpu":  # transformers would wait for the device to see whether it has any
        given |= dict.fromkeys(("allow_is_causal_skip", "allow_is_bidirectional_skip"), False)
    dense: torch.Tensor | None = sdpa_mask(**given)
    if dense is None:
        return None
    if packed is None and not _SINGLE.get():
        return without_empty_rows(dense, given)
    return additive(dense, given["dtype"])  # of a boolean one torch would make such a copy in every layer


def _by_blocks(way: Way, packed: bool, given: Mapping[str, Any]) -> bool:
    Q, K = given["q_length"], given["kv_length"]
    if _softcap(given["config"]) is not None:
        return True
    if not packed and (Q == 1 or _needs_no_mask(given)):
        return False
    if way == "flex" and not KERNEL.failure:
        return packed or (_SMALL.get() or BLOCK) <= Q
    long = 0 if _SMALL.get() else LONG[torch.device(given["device"]).type]
    return bool(long**2 < Q * K)


def _needs_no_mask(given: Mapping[str, Any]) -> bool:
    """Whether torch's causal or bidirectional attention does: all keys are real, and no window is shorter than the row."""
    padding, window = given.get("attention_mask"), given.get("local_size")
    real = padding is None or (padding.device.type == "cpu" and bool(padding.all()))
    if not real or (window is not None and given["kv_length"] >= window):
        return False
    causal = given.get("allow_is_causal_skip", True) and given["q_length"] == given["kv_length"]
    return bool(causal or given.get("allow_is_bidirectional_skip", False))


# -- attention ----------------------------------------------------------------------------------------------------------------


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask | Sequences | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers; see `transformers.integrations.sdpa_attention`. Of rows that a team shares, it is
    given a slice of the tokens; see `slices`."""
    options = {"dropout": dropout, "scaling": scaling, "softcap": softcap, **given}
    team = slicing_team()
    if team is None:
        return _attended(module, query, key, value, attention_mask, **options)
    query, key, value = by_heads(team, query, key, value)
    output, _ = _attended(share_of(module, query, key), query, key, value, attention_mask, **options)
    return by_tokens(team, output), None


def _attended(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask | Sequences | None,
    *,
    dropout: float,
    scaling: float | None,
    softcap: float | None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Attention within whole rows."""
    if isinstance(attention_mask, torch.Tensor) and _keys_are_shared(query, key, attention_mask, dropout, given):
        return by_shared_keys(query, key, value, attention_mask, scaling), None
    if isinstance(attention_mask, torch.Tensor | None):
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **given
        )
        return found
    strange = [name for name in ("s_aux", "position_bias", "cache") if given.get(name) is not None]
    if strange := [*strange, *(["dropout"] if dropout else [])]:
        raise NotImplementedError(f"attention by blocks has no {', '.join(strange)}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not isinstance(attention_mask, BlockMask):
        if softcap is not None:
            raise NotImplementedError("attention within sequences has no cap of scores")
        return within_sequences(query, key, value, attention_mask, scale), None
    output = KERNEL(query, key, value, attention_mask, scale, softcap)
    return output.transpose(1, 2).contiguous(), None


def _keys_are_shared(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor, dropout: float, given: Mapping[str, Any]
) -> bool:
    """Whether `by_shared_keys` computes this. On a CPU it is for `single_tokens` alone: other passes keep their bits."""
    if query.shape[2] != 1 or query.shape[1] == key.shape[1] or mask.shape[1] != 1:
        return False
    plain = not dropout and not any(given.get(name) is not None for name in ("s_aux", "position_bias", "cache"))
    return plain and (_SINGLE.get() or query.device.type != "cpu")


def by_shared_keys(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """Attention [N, 1, H, D] of one token a row, query [N, H, 1, D], whose H heads share K heads of keys and values [N, K, S, D]
    (Ainslie et al., GQA, section 2.2) under a mask [N, 1, 1, S]. Heads that share keys are queries beside each other, which
    see the same: torch's kernels that take a mask would need a copy of the keys and values for each head."""
    N, H, _, D = query.shape
    shared = query.reshape(N, key.shape[1], H // key.shape[1], D)
    found = torch.nn.functional.scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=scale)
    return found.reshape(N, 1, H, value.shape[-1])


NOT_COMPILED = torch.compiler.disable(attention)
"""For compiled layers, which stop before it and go on behind it: masks of blocks, teams and Flex Attention's own compiled kernels
aren't what torch could trace for all sizes at once."""


class Kernel:
    """FlexAttention's kernels, and what takes their place."""

    def __init__(self) -> None:
        self.failure = ""
        """Why they can't be used, once that is known."""

    @functools.cached_property
    def compiled(self) -> Callable[..., torch.Tensor]:
        # with graph breaks allowed, torch would fall back in silence to scores of all pairs of tokens
        found: Callable[..., torch.Tensor] = torch.compile(flex_attention, fullgraph=True)
        return found

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: BlockMask, scale: float, softcap: float | None
    ) -> torch.Tensor:
        choice = Choice(self.usable(query))
        if choice.faster:
            try:
                return self._flex(query, key, value, blocks, scale, softcap)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # torch, Triton or the C compiler may fail in any way
                if choice.repeated:
                    raise
                choice.failed()
                self.failure = f"{type(error).__name__}: {shorten(error, 200)}"
                warnings.warn(
                    f"FlexAttention's kernel can't be used: attention is as exact without it, but slower ({self.failure})",
                    stacklevel=2,
                )
        return attention_by_blocks(query, key, value, blocks, scale, softcap)

    def usable(self, query: torch.Tensor) -> bool:
        return query.device.type == "cuda" and not self.failure

    def _flex(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: BlockMask, scale: float, softcap: float | None
    ) -> torch.Tensor:
        allow_recompilations()
        # the kernel for short queries has bounds of its own, and would be one more to check
        options = {"BACKEND": "TRITON"} if "BACKEND" in FlexKernelOptions.__annotations__ else {"FORCE_USE_FLEX_ATTENTION": True}
        return self.compiled(
            query,
            key,
            value,
            score_mod=None if softcap is None else _capped(softcap),
            block_mask=blocks,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
            kernel_options=options,
        )


def _capped(softcap: float) -> Callable[..., torch.Tensor]:
    def capped(score: torch.Tensor, b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


KERNEL = Kernel()
