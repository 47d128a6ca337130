"""Find out what a model can do, by a second or less of trying it on a few tokens and a blank picture or sound.

The model's own forward pass over separate rows is the truth. A packed row is accepted if its log-probabilities and its gradients
equal that, and if a fault that is made on purpose (completions that see each other) differs far more, so that equality means
something. Nothing here knows a model family by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DynamicCache

from mmrl.api.errors import shorten
from mmrl.api.types import Prompt, user_message
from mmrl.policies.vlm import attention
from mmrl.policies.vlm.capabilities import UNKNOWN, Capabilities, Head, Way
from mmrl.policies.vlm.families import Family, decoder_of
from mmrl.policies.vlm.logits import Logits, possible_heads
from mmrl.policies.vlm.packed_rows import PackedRows, packed_rows
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.prompt_rows import read_prompts
from mmrl.policies.vlm.recurrent import recurrent_kinds

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-8, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Greatest difference of a log-probability, relative to 1 and the largest log-probability, and of the gradients relative to their
norm. A number of bfloat16 has 8 bits: log-probabilities of about 10 differ by several hundredths if sums are taken in another
order."""
ROUNDING = 4.0
"""Or so many times as much as the model's own results move by a single rounding at the first layer: deep and badly conditioned
models, such as Gemma 4, enlarge it. Every layer rounds, so there are more of them than one."""
CONTRAST = 5.0
"""The planted fault differs at least so many times more than a packed row."""
LAYERS = 8
"""Of deeper models the first layers are tried, as many as it takes to have one of each kind and a layer behind it."""
COMPLETIONS, LENGTH = 3, 5
CHOSEN = ("index_topk", "index_topk_blocks")
"""How many keys, or blocks of keys, a token chooses by an index of its own: DeepSeek-V3.2's and GLM-5's, and MiniMax-M3's."""
TEXTS = ("What is it?", "Say in other words what is shown.")


@dataclass(frozen=True, slots=True)
class _Trial:
    """A prompt as the model reads it without and with given positions, and completions of random ids [G, C]."""

    counted: PromptInputs
    given: PromptInputs
    ids_GC: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Truth:
    """What the model's own forward makes of separate rows."""

    trial: _Trial
    other: _Trial
    """With a longer prompt."""
    logits: torch.Tensor
    """[G, C, V] before each token of the completions."""
    gradient: torch.Tensor
    """[P + G * C, H], at the first layer."""
    seeing: torch.Tensor
    """The logits if completions see each other: a fault on purpose."""
    seeing_gradient: torch.Tensor
    step: torch.Tensor
    """[2, V]: the logits after the first token of the first completion of `trial` and of `other`."""


class _Differs(Exception):
    """A way of running the model isn't exact; the text says how."""


def probe(family: Family, encode: Callable[[Prompt], PromptInputs], ways: Sequence[Way] = ()) -> Capabilities:
    """What the family's model can do, which the family uses from now on. encode: as `PromptProcessor.encode`. ways: to compute
    attention, best first; without one that is exact, it is computed under a dense mask."""
    config = family.model.config.get_text_config()
    kinds = recurrent_kinds(decoder_of(family.model), config.hidden_size)
    layers = tuple(dict.fromkeys(getattr(config, "layer_types", None) or ("full_attention",)))
    found = Capabilities(packs=False, recurrent=kinds, attention=layers)
    refused = "" if family.shares_prompt else "its family says that it can't share a prompt"
    if any(getattr(config, name, None) for name in CHOSEN):  # a short row has fewer keys, and would show nothing
        refused = "each token attends to some keys, of which other completions would take places"
    if refused:
        family.use(replace(found, why_not=refused))
        return family.capabilities
    for continues in (True, False) if kinds else (True,):
        try:
            with _shallow(family.model), torch.inference_mode(False), torch.enable_grad():
                found = _tried(family, replace(found, packs=True, continues=continues), encode, ways)
        except _Differs as differs:
            found = replace(found, packs=False, why_not=str(differs))
        except Exception as error:  # noqa: BLE001  a model that can't be given positions, masks or a cache may fail in any way
            found = replace(found, packs=False, why_not=f"{type(error).__name__}: {shorten(error, 120)}")
        if found.packs:
            break
    family.use(found)
    return found


def _with_way(
    family: Family, found: Capabilities, truth: _Truth, encode: Callable[[Prompt], PromptInputs], ways: Sequence[Way]
) -> Capabilities:
    """With the first way to compute attention in which packed rows, and prompts of several lengths, are exact."""
    why: list[str] = []
    for way in ways:
        tried = replace(found, way=way)
        try:
            if kernels := way != "blocks" and family.model.device.type == "cuda":  # their blocks are longer than the rows so far
                times = attention.BLOCK if way == "varlen" else attention.BLOCK // 2  # bits: several blocks of any kernel
                truth = _truth(family, found, encode, times=times, length=attention.BLOCK + LENGTH)
            family.use(tried)
            with contextlib.nullcontext() if kernels else attention.small_blocks():
                bound = _compare(family, truth)[2]
                fed = _stepped(family, [truth.trial, truth.other] if found.pads else [truth.trial])
            if way == "flex" and kernels and attention.KERNEL.failure:
                raise _Differs(attention.KERNEL.failure)
            _check(_gap(fed, truth.step[: len(fed)]), bound, "logits of a step with a cache")
            if way == "varlen":
                _check_bits(family, truth.trial, fed[0])
            return replace(tried, slower_because="; ".join(why))
        except _Differs as differs:
            why.append(f"{way}: {differs}")
        except Exception as error:  # noqa: BLE001  attention may have anything that the way lacks
            why.append(f"{way}: {type(error).__name__}: {shorten(error, 120)}")
    return replace(found, slower_because="; ".join(why))


def _tried(family: Family, tried: Capabilities, encode: Callable[[Prompt], PromptInputs], ways: Sequence[Way]) -> Capabilities:
    truth = _truth(family, tried, encode)
    trial = truth.trial
    tried = replace(tried, head=_head(family, trial, truth.logits), moves_on=_moves_on(family, trial))
    family.use(tried)
    gap, slope, bound = _compare(family, truth)
    _check(_gap(_stepped(family, [trial]), truth.step[:1]), bound, "logits of a step with a cache")
    pads = _gap(_stepped(family, [trial, truth.other]), truth.step) <= bound
    looks_ahead = _looks_ahead(family, trial)
    found = replace(tried, pads=pads, looks_ahead=looks_ahead, logprob_difference=gap, gradient_difference=slope)
    return _with_way(family, found, truth, encode, ways)


def _truth(
    family: Family, tried: Capabilities, encode: Callable[[Prompt], PromptInputs], times: int = 1, length: int = LENGTH
) -> _Truth:
    """times: the texts are repeated. length: of completions."""
    trial, other = (_trial(family, tried, encode, text * times, length) for text in TEXTS)
    logits, gradient = _separate(family, trial)
    seeing, seeing_gradient = _separate(family, replace(trial, ids_GC=trial.ids_GC.reshape(1, -1)))
    step = torch.cat([logits[:1, 1], _separate(family, other)[0][:1, 1]])
    return _Truth(trial, other, logits, gradient, seeing.view(logits.shape), seeing_gradient, step)


def _compare(family: Family, truth: _Truth) -> tuple[float, float, float]:
    """(greatest difference of a packed row's log-probabilities, relative difference of its gradients, their bound). Raises
    `_Differs` if they are above it."""
    ids_GC, gradient = truth.trial.ids_GC, truth.gradient
    wanted, bound = _logprobs(truth.logits, ids_GC), BOUNDS[family.model.get_input_embeddings().weight.dtype]
    found, own_gradient = _packed(family, truth.trial)
    slope, gap = _slope(own_gradient, gradient), _gap(found, wanted)
    if max(gap, slope) > bound:
        bound = max(bound, ROUNDING * _rounding(family, truth.trial, wanted, gradient))
    _check(gap, bound, "log-probabilities of a packed row")
    _check(slope, bound, "gradients of a packed row")
    fault, fault_slope = _gap(_logprobs(truth.seeing, ids_GC), wanted), _slope(truth.seeing_gradient, gradient)
    if fault < CONTRAST * gap or fault_slope < CONTRAST * slope:
        raise _Differs(
            f"completions that see each other change its log-probabilities by {fault:.1e} and its gradients by {fault_slope:.1e} "
            "alone, so that nothing shows"
        )
    return gap, slope, bound


def _check(gap: float, bound: float, what: str) -> None:
    if not gap <= bound:
        raise _Differs(f"{what} differ by {gap:.1e}")


@torch.no_grad()
def _check_bits(family: Family, trial: _Trial, fed_V: torch.Tensor) -> None:
    """fed_V: the logits after the first token of the first completion, of a prompt beside another, by a cache."""
    hidden, before_GC = _packed_hidden(family, trial)
    for what, found_V in (
        ("a packed row", family.head(hidden[before_GC])[0, 1]),
        ("a prompt that is fed alone", _stepped(family, [trial])[0]),
    ):
        if unequal := int((found_V != fed_V).sum()):
            raise _Differs(f"{unequal} of {len(fed_V)} logits of {what} have other bits than with another prompt beside it")


def _gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).abs().max() / (1 + wanted.abs().max())).item()


def _slope(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


def _rounding(family: Family, trial: _Trial, wanted: torch.Tensor, gradient: torch.Tensor) -> float:
    """How far the model's own results move if each number that enters the first layer is rounded another way."""
    logits, slope = _separate(family, trial, nudged=True)
    return max(_gap(_logprobs(logits, trial.ids_GC), wanted), _slope(slope, gradient))


def _trial(
    family: Family, tried: Capabilities, encode: Callable[[Prompt], PromptInputs], text: str, length: int = LENGTH
) -> _Trial:
    prompt = Prompt(messages=[user_message(text, *family.samples())])
    family.use(UNKNOWN)
    counted = encode(prompt)
    family.use(tried)
    banned = set(family.banned_ids())
    allowed = torch.tensor([i for i in range(min(4096, family.action_end)) if i not in banned])
    drawn = torch.randint(len(allowed), (COMPLETIONS, length), generator=torch.Generator().manual_seed(len(text)))
    return _Trial(counted, encode(prompt), allowed[drawn].to(family.model.device))


def _separate(family: Family, trial: _Trial, nudged: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits [G, C, V], gradient at the first layer [P + G * C, H]) of the model's own forward, a completion a row, each row
    alone: some models, such as HunYuan-VL, number the pictures of all rows of a pass. nudged: see `_first_layer`."""
    P = len(trial.counted.ids)
    alone = [_alone(family, trial, ids_C, w, nudged) for ids_C, w in zip(trial.ids_GC, _weights(trial.ids_GC), strict=True)]
    logits, gradients = zip(*alone, strict=True)
    prompt = torch.stack([g[..., :P, :] for g in gradients]).sum(0)
    return torch.stack(logits), torch.cat([prompt, *(g[..., P:, :] for g in gradients)], -2)


def _alone(
    family: Family, trial: _Trial, ids_C: torch.Tensor, weights_C: torch.Tensor, nudged: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits [C, V], gradient at the first layer [P + C, H]) of one row."""
    whole, P, device = trial.counted.answered(ids_C.cpu(), family.completion_type), len(trial.counted.ids), ids_C.device
    ids = whole.ids[None].to(device)
    types = {k: v[None].to(device) for k, v in whole.token_types.items()}
    media = {k: v.to(device) for k, v in whole.media.items()}
    family.forget_positions()
    with _first_layer(family.model, nudged) as seen:
        output = family.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **family.with_media(media), **types
        )
        logits = output.logits[:, P - 1 : -1]
        (gradient,) = torch.autograd.grad((_logprobs(logits, ids_C[None]) * weights_C).sum(), seen)
    return logits[0].detach(), gradient[..., 0, :, :]


def _packed(family: Family, trial: _Trial) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities [G, C], gradient at the first layer [P + G * C, H]) of one row with the prompt and all completions."""
    with _first_layer(family.model) as seen:
        hidden, before_GC = _packed_hidden(family, trial)
        logprobs = _logprobs(family.head(hidden[before_GC]), trial.ids_GC)
        (gradient,) = torch.autograd.grad((logprobs * _weights(trial.ids_GC)).sum(), seen)
    return logprobs.detach(), gradient[..., 0, :, :]


def _packed_hidden(family: Family, trial: _Trial) -> tuple[torch.Tensor, torch.Tensor]:
    """(hidden states [P + G * C, H], index [G, C] of the token before each of the completions')."""
    inputs, (G, C), device = trial.given, trial.ids_GC.shape, trial.ids_GC.device
    P = len(inputs.ids)
    assert inputs.positions is not None
    segment = torch.cat([torch.zeros(P, dtype=torch.long), torch.arange(1, G + 1).repeat_interleave(C)])[None].to(device)
    later = (torch.arange(C).repeat(G) + inputs.next_position).expand(len(inputs.positions), -1)
    positions = torch.cat([inputs.positions, later], 1)[:, None].to(device)
    whole = inputs.answered(trial.ids_GC.flatten().cpu(), family.completion_type)
    media = {k: v.to(device) for k, v in whole.media.items()} | {k: v[None].to(device) for k, v in whole.token_types.items()}
    ids = whole.ids[None].to(device)
    rows = PackedRows(segment, type(family.model.config.get_text_config()))
    with packed_rows(rows):
        hidden = family.packed(rows, ids, positions, media)[0]
    before_GC = P + torch.arange(G * C, device=device).view(G, C) - 1
    before_GC[:, 0] = P - 1
    return hidden, before_GC


def _logprobs(logits_GCV: torch.Tensor, ids_GC: torch.Tensor) -> torch.Tensor:
    return logits_GCV.float().log_softmax(-1).gather(-1, ids_GC[..., None])[..., 0]


def _weights(ids_GC: torch.Tensor) -> torch.Tensor:
    """Weights of the tokens' log-probabilities in a loss."""
    return torch.linspace(-1, 1.5, ids_GC.numel(), device=ids_GC.device).view(ids_GC.shape)


@torch.no_grad()
def _head(family: Family, trial: _Trial, wanted: torch.Tensor) -> Head:
    """What follows the output embeddings."""
    hidden, before_GC = _packed_hidden(family, trial)
    gaps: dict[Head, float] = {}
    for name in possible_heads(family.model):
        gaps[name] = _gap(Logits.of(family.model, name)(hidden[before_GC])[..., : wanted.shape[-1]], wanted)
    return min(gaps, key=lambda name: gaps[name])


@torch.no_grad()
def _stepped(family: Family, trials: Sequence[_Trial]) -> torch.Tensor:
    """The logits [n, V] after the first completion's first token of each trial, by a cache; prompts are padded on the left."""
    device, inputs = trials[0].ids_GC.device, [t.given for t in trials]
    assert inputs[0].positions is not None
    cache = DynamicCache(config=family.model.config)
    _, mask = read_prompts(family, inputs, device, cache)
    place = torch.tensor([i.next_position for i in inputs], device=device).expand(len(inputs[0].positions), -1)[..., None]
    token = torch.stack([t.ids_GC[0, :1] for t in trials])
    return family.step(token, None if mask is None else torch.cat([mask, torch.ones_like(token)], 1), place, {}, cache)


def _moves_on(family: Family, trial: _Trial) -> bool:
    """Whether a token in front of the prompt moves all its positions on by one. HunYuan-VL numbers its pictures, and places the
    tokens of each by its rows and columns alone."""
    types = trial.counted.token_types.get("mm_token_type_ids")
    if not family.has_axes or types is None or trial.given.positions is None:
        return True
    encoded = {**family.with_media(trial.counted.media), "mm_token_type_ids": torch.cat([types[:1], types])[None]}
    later = family.positions(torch.cat([trial.given.ids[:1], trial.given.ids]), encoded)
    return later is not None and bool((later[:, 1:] == trial.given.positions + 1).all())


def _looks_ahead(family: Family, trial: _Trial) -> bool:
    """Whether a picture's first token sees those that follow, or a prompt's does in a model whose pictures have no tokens."""
    ids = trial.given.ids
    shown = ids[torch.isin(ids, torch.tensor(family.banned_ids()))]
    first = int((ids == shown.mode().values).long().argmax()) if len(shown) else 0
    with _first_layer(family.model) as seen:
        hidden, _ = _packed_hidden(family, trial)
        (gradient,) = torch.autograd.grad(hidden[first].sum(), seen)
    return bool(gradient[..., first + 1 :, :].any())


@contextlib.contextmanager
def _first_layer(model: Any, nudged: bool = False) -> Iterator[list[torch.Tensor]]:
    """The hidden states that enter the decoder's first layer in the pass inside, as a leaf whose gradient can be asked for:
    [B, S, H], or several such (Gemma 3n). nudged: each of them is changed by as much as one rounding."""
    seen: list[torch.Tensor] = []

    def leaf(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = args[0] if args else kwargs["hidden_states"]
        start = hidden.detach()
        if nudged:
            signs = torch.arange(start.numel(), device=start.device).double().mul(0.7).sin().sign().view_as(start)
            start = start * (1 + torch.finfo(start.dtype).eps * signs).to(start.dtype)
        seen.append(start.requires_grad_())
        return ((seen[0], *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": seen[0]})

    hook = decoder_of(model).layers[0].register_forward_pre_hook(leaf, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


@contextlib.contextmanager
def _shallow(model: Any) -> Iterator[None]:
    """Run the first layers alone, one of each kind at least, if there are many. Models whose layers take keys of
    earlier ones, or inputs of their own from an embedding for all of them (Gemma 3n, Gemma 4), are run whole."""
    decoder = decoder_of(model)
    config, layers = decoder.config, decoder.layers
    whole, dense = config.num_hidden_layers, getattr(config, "first_k_dense_replace", None) or 0
    kinds = [getattr(config, name, None) or () for name in ("layer_types", "mlp_layer_types")]
    try:
        if whole > LAYERS and not any(
            getattr(config, name, None) for name in ("num_kv_shared_layers", "hidden_size_per_layer_input")
        ):
            needed = max([2, dense, *(types.index(kind) for types in kinds for kind in types)]) + 2
            config.num_hidden_layers = min(needed, whole)  # caches have so many layers
            decoder.layers = layers[: config.num_hidden_layers]  # not all models look at the number
        yield
    finally:
        config.num_hidden_layers, decoder.layers = whole, layers
