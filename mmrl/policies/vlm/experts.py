"""Mixtures of experts: which modules of a model are routers, what they choose, and passes in which the choice is given.

A router scores E experts. A token goes through the K with the highest scores, its route, and each counts by a gate that is
computed from the scores. Routing replay gives the experts, and the router computes the gates of these from its present scores, so
that a gradient reaches it as always: Ma et al., R3, arXiv 2510.11370; before it, with the learner's own earlier routes,
Zheng et al., GSPO, arXiv 2507.18071.

T tokens, M layers with experts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mmrl.policies.vlm.families import decoder_of

_LAYER = re.compile(r"layers\.(\d+)\.")
_OF_PROBABILITIES = ("Gemma4TextRouter",)
"""Classes of routers that return probabilities in place of logits."""


def has_experts(model: torch.nn.Module) -> bool:
    """Whether the layers of its language model have experts."""
    return any(name.rpartition(".")[2] == "experts" for name, _ in decoder_of(model).named_modules())


def routers_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The routers of its language model by their names in it, in the order of layers."""
    return {name: module for name, module in decoder_of(model).named_modules() if type(module).__name__.endswith("Router")}


def layers_with_experts(model: torch.nn.Module) -> list[int]:
    """The numbers of the language model's layers that have a router."""
    return [int(_LAYER.findall(name)[0]) for name in routers_of(model)]


def why_not_routed(model: Any) -> str:
    """Why nothing is known of the routes of this model, which has experts; empty if its routers are understood, as found by
    giving one of each class the experts that it likes least. Its weights are not sharded."""
    routers = routers_of(model)
    if not routers:
        return "none of its modules is known to be a router"
    layers = [found[0] for name in routers if (found := _LAYER.findall(name))]
    if len(set(layers)) < len(layers):
        return "words and pictures have experts of their own"
    width = model.config.get_text_config().hidden_size
    for router in {type(router): router for router in routers.values()}.values():
        weight = next(router.parameters())
        hidden_TH = torch.arange(3.0 * width, device=weight.device).sin().to(weight.dtype).view(3, width)
        try:
            with torch.no_grad():
                chosen_TK, logits_TE = choice(router, router(hidden_TH))
                least_TK = logits_TE.topk(chosen_TK.shape[1], largest=False).indices
                given_TK, _ = choice(router, with_experts(router, (hidden_TH,), least_TK))
        except Exception as error:  # noqa: BLE001  a router that works otherwise may fail in any way
            return f"its {type(router).__name__} fails: {type(error).__name__}"
        if not torch.equal(given_TK.sort().values, least_TK.sort().values):
            return f"its {type(router).__name__} takes other experts than it is given"
    return ""


def choice(router: Any, output: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(the chosen experts [T, K], the logits of all [T, E]) in what a router of transformers returned: (logits, gates, experts),
    or in Llama 4 (gates of all experts, logits)."""
    if len(output) == 2:
        return output[0].topk(router.top_k, dim=-1).indices, output[1]
    if not tells_logits(router):
        return output[2], output[0].clamp_min(torch.finfo(output[0].dtype).tiny).log()  # whose gradient is finite at 0
    return output[2], output[0]


def tells_logits(router: Any) -> bool:
    """Whether a router returns its logits. Otherwise `choice` gives logarithms of probabilities, which differ from the logits by
    a number."""
    return type(router).__name__ not in _OF_PROBABILITIES


def count_of(router: Any) -> int:
    """The number of experts that a router chooses from."""
    return int(getattr(router, "num_experts", 0) or router.config.num_experts)


def with_experts(router: Any, args: tuple[Any, ...], experts_TK: torch.Tensor) -> Any:
    """What a router returns if it takes these experts, int64."""
    with _Given(experts_TK, count_of(router)) as given:
        output = router.forward(*args)
    if given.times != 1:
        raise RuntimeError(f"{type(router).__name__} chose experts {given.times} times")
    return output


class _Given(TorchFunctionMode):
    """Inside, the `topk` of the scores of all experts finds the given ones, with their present scores."""

    def __init__(self, experts_TK: torch.Tensor, count: int) -> None:
        super().__init__()
        self.experts_TK, self.count, self.times = experts_TK, count, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.topk, torch.Tensor.topk):
            scores, k = args[0], args[1] if len(args) > 1 else kwargs["k"]
            if scores.ndim == 2 and (scores.shape[-1], k) == (self.count, self.experts_TK.shape[1]):  # others choose groups
                self.times += 1
                return scores.gather(-1, self.experts_TK), self.experts_TK
        return func(*args, **kwargs)


class RouterPass:
    """What routers are given and what is noted of them in the forward passes within `routed`. A layer that is computed again for
    the backward pass is given the same, and nothing of it is noted."""

    def __init__(
        self,
        routers: dict[torch.nn.Module, int],
        *,
        given_MTK: torch.Tensor | None = None,
        known_MTK: torch.Tensor | None = None,
        tokens_T: torch.Tensor | None = None,
        penalised: bool = False,
    ) -> None:
        """routers: a model's, with the number of their layer among those with experts. given_MTK: the experts to take, -1 where
        the router chooses. known_MTK: experts to compare its own choice with, -1 where they aren't known. tokens_T: float32, how
        often each token counts in the sums; without it there are none. penalised: also those that a penalty is made of."""
        self.routers, self.given_MTK, self.known_MTK = routers, given_MTK, known_MTK
        self.tokens_T, self.penalised = tokens_T, penalised
        self.open = False
        self.taken: list[torch.Tensor] = [torch.empty(0)] * len(routers)
        """int16 [T, K] of each layer: the experts that tokens went through."""
        self.load: list[torch.Tensor] = [torch.empty(0)] * len(routers)
        """float32 [E] of each layer: tokens of each expert."""
        self.probabilities: list[torch.Tensor] = [torch.empty(0)] * len(routers)
        """float32 [E] of each layer: sums of the softmax of logits over tokens, with gradient."""
        self.squares: list[torch.Tensor] = [torch.empty(0)] * len(routers)
        """float32 of each layer: the sum of log(sum(exp(logits)))^2, with gradient."""
        self.entropy: torch.Tensor | float = 0.0
        """Sum of the entropies of the softmax of logits, in nats, over tokens and layers."""
        self.differing: torch.Tensor | float = 0.0
        """Sum of the shares of a router's own choice that are not among the known experts, over tokens and layers."""
        self.compared: torch.Tensor | float = 0.0
        """Number of tokens, in all layers, whose experts are known."""

    def routed(self, router: torch.nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """What the router returns in place of this output."""
        layer = self.routers[router]
        own_TK, logits_TE = choice(router, output)
        taken_TK = own_TK
        if self.given_MTK is not None:
            given_TK = self.given_MTK[layer]
            taken_TK = given_TK.long().where(given_TK >= 0, own_TK)
            output = with_experts(router, args, taken_TK)
            logits_TE = choice(router, output)[1]
        if self.open:
            self.taken[layer] = taken_TK.to(torch.int16)
        if self.tokens_T is not None:
            self._sum(layer, own_TK, taken_TK, logits_TE.float(), self.tokens_T)
        return output

    def _sum(
        self, layer: int, own_TK: torch.Tensor, taken_TK: torch.Tensor, logits_TE: torch.Tensor, tokens_T: torch.Tensor
    ) -> None:
        if self.penalised:  # also where it isn't noted: a layer that is computed again must do the same
            probabilities = (logits_TE.softmax(-1) * tokens_T[:, None]).sum(0)
            squares = (logits_TE.logsumexp(-1).square() * tokens_T).sum()
            if self.open:
                self.probabilities[layer], self.squares[layer] = probabilities, squares
        if not self.open:
            return
        with torch.no_grad():
            load_E = torch.zeros(logits_TE.shape[1], device=logits_TE.device)
            self.load[layer] = load_E.index_add_(0, taken_TK.flatten(), tokens_T.repeat_interleave(taken_TK.shape[1]))
            logprobs_TE = logits_TE.log_softmax(-1)
            self.entropy = self.entropy - ((logprobs_TE.exp() * logprobs_TE.clamp_min(-1e4)).sum(-1) * tokens_T).sum()
            if self.known_MTK is not None:
                known_TK = self.known_MTK[layer]
                same_T = (own_TK[:, :, None] == known_TK[:, None]).any(-1).float().mean(-1)
                counted_T = tokens_T * (known_TK[:, 0] >= 0)
                self.differing = self.differing + ((1 - same_T) * counted_T).sum()
                self.compared = self.compared + counted_T.sum()


_PASS: ContextVar[RouterPass | None] = ContextVar("pass", default=None)


@contextlib.contextmanager
def routed(now: RouterPass) -> Iterator[RouterPass]:
    """Context of forward passes in which routers are given experts, or noted. Their backward pass may be outside."""
    token, now.open = _PASS.set(now), True
    try:
        yield now
    finally:
        _PASS.reset(token)
        now.open = False


def watched(model: torch.nn.Module) -> dict[torch.nn.Module, int]:
    """The routers of a model with the number of their layer; from now on `routed` reaches them. Empty without experts."""
    routers = list(routers_of(model).values())
    for router in routers:
        if _ask not in router._forward_hooks.values():
            router.register_forward_hook(_ask)
    return {router: layer for layer, router in enumerate(routers)}


def _ask(router: torch.nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    now = _PASS.get()
    return now.routed(router, args, output) if now is not None and router in now.routers else None
