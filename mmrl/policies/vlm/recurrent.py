"""Layers with a recurrent or convolution state (Gated DeltaNet, Mamba, short convolutions) in rows that share a prompt.

No mask can keep the completions of such a row apart. So the prompt runs once, its state is copied for each completion, and the
gradients of all completions flow back through the one state. The rest of the model sees the packed row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionLayer

from mmrl.policies.vlm.packed_rows import Gathers, current_rows

CACHES = ("cache_params", "past_key_values", "past_key_value", "cache")
"""Names of the argument by which transformers' layers take a cache."""


class SharedState(LinearAttentionLayer):
    """The state after a prompt, with gradient: transformers' own writes in place."""

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> torch.Tensor:
        width = conv_kernel_size or self.conv_kernel_size[state_idx] or conv_states.shape[-1]
        before = self.conv_states[state_idx]
        if before is None:
            full = torch.nn.functional.pad(conv_states, (max(0, width - conv_states.shape[-1]), 0))
        else:
            full = torch.cat([before, conv_states], -1)
        self.conv_states[state_idx], self.conv_kernel_size[state_idx] = full[..., -width:], width
        self.is_conv_states_initialized[state_idx] = self.has_previous_state[state_idx] = True
        self.dtype, self.device = full.dtype, full.device
        return full

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        self.is_recurrent_states_initialized[state_idx] = self.has_previous_state[state_idx] = True
        self.dtype, self.device = recurrent_states.dtype, recurrent_states.device
        return recurrent_states

    def for_completions(self, owner_N: torch.Tensor) -> None:
        """Copy each prompt's state for its completions."""
        for states in (self.conv_states, self.recurrent_states):
            for i, state in states.items():
                if state is not None:
                    states[i] = state.index_select(0, owner_N)


def share_states(model: torch.nn.Module, kinds: Collection[str], continues: bool) -> None:
    """Make the modules of these classes right in packed rows. continues: they can go on from a state with several tokens;
    otherwise the prompt is computed again for each completion, in these modules alone."""
    for mixer in model.modules():
        if type(mixer).__name__ not in kinds:
            continue
        own = type(mixer).forward.__get__(mixer)
        parameters = inspect.signature(own).parameters
        cache = next((name for name in CACHES if name in parameters), "") if continues else ""
        mixer.forward = partial(_forward, own, cache, getattr(mixer, "layer_idx", 0))  # type: ignore[method-assign]


def recurrent_kinds(decoder: torch.nn.Module, width: int) -> tuple[str, ...]:
    """Classes of those parts of a decoder's layers that mix tokens whatever the attention mask says, found by calling them.

    width: of the hidden states. A part that can't be called with hidden states alone, such as attention that needs rotary
    embeddings, isn't one of them.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    found: dict[str, bool] = {}
    for layer in decoder.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            for part in layer.children():
                kind = type(part).__name__
                if kind not in found:
                    found[kind] = _mixes(part, width, {}) and _mixes(part, width, {"attention_mask": "diagonal"})
    return tuple(kind for kind, mixes in found.items() if mixes)


@torch.no_grad()
def _mixes(part: torch.nn.Module, width: int, given: dict[str, Any]) -> bool:
    """Whether the last token's output depends on the first token. `diagonal` stands for a mask by which it must not."""
    weight = next(part.parameters(), None)
    if weight is None:
        return False
    S = 8
    one = torch.linspace(-1, 1, S * width, device=weight.device, dtype=weight.dtype).sin().view(1, S, width)
    other = one.clone()
    other[:, 0] += 1
    if given:
        diagonal = torch.full((S, S), torch.finfo(weight.dtype).min, device=weight.device, dtype=weight.dtype)
        given = {"attention_mask": diagonal.fill_diagonal_(0)[None, None]}
    try:
        outputs = [part(hidden_states=x, **given) for x in (one, other)]
    except Exception:  # it takes something else: a mask that it can't use lets it mix, other arguments make it no such part
        return bool(given)
    a, b = (o[0] if isinstance(o, tuple) else o for o in outputs)
    return isinstance(a, torch.Tensor) and a.shape == one.shape and not torch.equal(a[:, -1], b[:, -1])


def _forward(own: Callable[..., Any], cache: str, layer: int, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    rows = current_rows()
    if rows is None:
        return own(hidden_states, *args, **kwargs)
    given = {k: v for k, v in kwargs.items() if k not in (*CACHES, "attention_mask")}
    gathers, flat = rows.gathers, hidden_states.flatten(0, 1)
    padding = {} if gathers.whole else {"attention_mask": gathers.real_BP.long()}
    if not cache:
        return _unrolled(own, gathers, hidden_states, given)
    found = torch.zeros_like(flat)
    state = SharedState()
    states = DynamicCache()
    states.layers = [state] * (layer + 1)
    prompt = own(flat[gathers.prompt_BP], **{cache: states}, **padding, **given)
    found = found.index_put((gathers.prompt_BP[gathers.real_BP],), prompt[gathers.real_BP])
    if len(gathers.owner_N):
        state.for_completions(gathers.owner_N)
        completion = own(flat[gathers.completion_NC], **{cache: states}, **given)
        found = found.index_put((gathers.completion_NC[gathers.valid_NC],), completion[gathers.valid_NC])
    return found.view_as(hidden_states)


def _unrolled(own: Callable[..., Any], gathers: Gathers, hidden_states: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    flat, P = hidden_states.flatten(0, 1), gathers.prompt_BP.shape[1]
    found = torch.zeros_like(flat)
    if not len(gathers.owner_N) or len(gathers.owner_N.unique()) < len(gathers.prompt_BP):
        padding = {} if gathers.whole else {"attention_mask": gathers.real_BP.long()}
        prompt = own(flat[gathers.prompt_BP], **padding, **given)
        found = found.index_put((gathers.prompt_BP[gathers.real_BP],), prompt[gathers.real_BP])
    if len(gathers.owner_N):
        index_NS = torch.cat([gathers.prompt_BP[gathers.owner_N], gathers.completion_NC], 1)
        real_NS = torch.cat([gathers.real_BP[gathers.owner_N], torch.ones_like(gathers.valid_NC)], 1)
        both = own(flat[index_NS], **({} if gathers.whole else {"attention_mask": real_NS.long()}), **given)
        first_N = torch.ones_like(gathers.owner_N, dtype=torch.bool)
        first_N[1:] = gathers.owner_N[1:] != gathers.owner_N[:-1]
        kept = torch.cat([gathers.real_BP[gathers.owner_N] & first_N[:, None], gathers.valid_NC], 1)
        found = found.index_put((index_NS[kept],), both[kept])
    return found.view_as(hidden_states)
