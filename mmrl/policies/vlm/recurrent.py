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

from mmrl.policies.layers import CACHES, repeated_layers
from mmrl.policies.vlm.packed_rows import Gathers, current_rows

ROUNDING = 16
"""A part mixes tokens if the others change one by more units in the last place: experts add the same numbers in another order."""


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
    otherwise the prompt is computed again for each completion, in these modules alone. Others stay as they are."""
    for mixer in model.modules():
        if isinstance(before := vars(mixer).get("forward"), partial) and before.func is _forward:
            del mixer.forward
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
    found: dict[str, bool] = {}
    for layer in repeated_layers(decoder):
        for part in layer.children():
            kind = type(part).__name__
            if kind not in found:
                found[kind] = _mixes(part, width, {}) and _mixes(part, width, {"attention_mask": "diagonal"})
    return tuple(kind for kind, mixes in found.items() if mixes)


@torch.no_grad()
def _mixes(part: torch.nn.Module, width: int, given: dict[str, Any]) -> bool:
    """Whether the last token's output depends on those before it. `diagonal` stands for a mask by which it must not."""
    weight = next(part.parameters(), None)
    if weight is None:
        return False
    S = 8
    one = torch.linspace(-1, 1, S * width, device=weight.device, dtype=weight.dtype).sin().view(1, S, width)
    other = one.clone()
    other[:, :-1] += 1
    if given:
        diagonal = torch.full((S, S), torch.finfo(weight.dtype).min, device=weight.device, dtype=weight.dtype)
        given = {"attention_mask": diagonal.fill_diagonal_(0)[None, None]}
    try:
        outputs = [part(hidden_states=x, **given) for x in (one, other)]
    except Exception:  # noqa: BLE001  it takes something else: a mask that it can't use lets it mix, other arguments make it no such part
        return bool(given)
    a, b = (o[0] if isinstance(o, tuple) else o for o in outputs)
    if not isinstance(a, torch.Tensor) or a.shape != one.shape:
        return False
    rounding = ROUNDING * torch.finfo(weight.dtype).eps * float(a.abs().max())
    return float((a[:, -1] - b[:, -1]).abs().max()) > rounding


@torch.compiler.disable
def _forward(own: Callable[..., Any], cache: str, layer: int, /, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    rows = current_rows()
    if rows is None:
        return own(hidden_states, *args, **kwargs)
    given = {k: v for k, v in kwargs.items() if k not in (*CACHES, "attention_mask")}
    run = _once_each if cache else _again_each
    return run(partial(own, **given), cache, layer, rows.gathers, hidden_states.flatten(0, 1)).view_as(hidden_states)


def _once_each(own: Callable[..., Any], cache: str, layer: int, g: Gathers, flat: torch.Tensor) -> torch.Tensor:
    """Each prompt once, then each completion from its state."""
    state, states = SharedState(), DynamicCache()
    states.layers = [state] * (layer + 1)
    found = _placed(flat, g.prompt_BP, g.real_BP, own(flat[g.prompt_BP], **{cache: states}, **_padding(g.real_BP)))
    if not len(g.owner_N):
        return found
    state.for_completions(g.owner_N)
    return _placed(found, g.completion_NC, g.valid_NC, own(flat[g.completion_NC], **{cache: states}))


def _again_each(own: Callable[..., Any], cache: str, layer: int, g: Gathers, flat: torch.Tensor) -> torch.Tensor:
    """Each prompt, and each completion behind its prompt."""
    found = _placed(flat, g.prompt_BP, g.real_BP, own(flat[g.prompt_BP], **_padding(g.real_BP)))
    if not len(g.owner_N):
        return found
    prompts = g.prompt_BP.shape[1]
    real_NS = torch.cat([g.real_BP[g.owner_N], torch.ones_like(g.valid_NC)], 1)
    both = own(flat[torch.cat([g.prompt_BP[g.owner_N], g.completion_NC], 1)], **_padding(real_NS))
    return _placed(found, g.completion_NC, g.valid_NC, both[:, prompts:])


def _padding(real: torch.Tensor) -> dict[str, torch.Tensor]:
    return {} if bool(real.all()) else {"attention_mask": real.long()}


def _placed(flat: torch.Tensor, index: torch.Tensor, real: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The flat rows with these values at their places; padding is left out."""
    return flat.index_put((index[real],), values[real])
