"""What an update does with a mixture of experts: routes are replayed, routers are penalised or frozen, and all is measured.

T = B * S tokens of a micro-batch, M layers with experts, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from mmrl.api.errors import UserError
from mmrl.api.transfer import upload_one
from mmrl.compute.ranks import all_reduce_sum
from mmrl.config.experts import ExpertsConfig
from mmrl.policies.batches import Batch, ForwardOutputs, MicroBatch
from mmrl.policies.policy import Policy
from mmrl.policies.vlm.experts import RouterPass, count_of, has_experts, routed, routers_of, tells_logits, watched
from mmrl.policies.vlm.vlm import VLM

_Found = TypeVar("_Found")
SCALARS = ("tokens", "entropy", "changed", "changed_of", "mismatch", "mismatch_of", "aux_loss", "z_loss")
"""Sums over trained tokens, and of all but the last two also over layers."""


class Routing:
    """The routers of a stage's policy. Without experts, and for policies that don't write, it only calls the policy."""

    def __init__(self, policy: Policy, config: ExpertsConfig | None, compiled: bool = False) -> None:
        """compiled: the layers are, so that nothing is known of what their routers do. Raises UserError if the policy can't do
        what the stage's `experts` ask."""
        self.policy, self.config = policy, config or ExpertsConfig()
        self.replay = self.config.router_replay
        self.routers: dict[torch.nn.Module, int] = {}
        self.frozen: list[torch.nn.Parameter] = []
        vlm = policy if isinstance(policy, VLM) and has_experts(policy.model) else None
        if config is not None:
            self._check(vlm)
        if vlm and not vlm.unrouted and not compiled:
            self.routers = watched(policy.model)
        if self.config.freeze_router:
            self.frozen = [p for r in routers_of(policy.model).values() for p in r.parameters() if p.requires_grad]
            for p in self.frozen:
                p.requires_grad_(False)
        self.first: dict[int, torch.Tensor] = {}
        """id of a micro-batch -> int16 [M, T, K]: the experts that its tokens went through in the update's first pass over it."""
        self.keeps = False
        self.load_ME: torch.Tensor
        """float32 [M, E]: tokens of each expert in the passes since the last figures."""
        self._forget()

    def _check(self, vlm: VLM | None) -> None:
        """vlm: the policy, if it has experts."""
        if vlm is None:
            raise UserError("stages.experts is for mixtures of experts, and this model has none: leave it out")
        asked = self.config.model_dump(exclude_defaults=True, exclude={"freeze_router"})
        if asked and vlm.unrouted:
            kind = vlm.model.config.model_type
            raise UserError(
                f"stages.experts.{next(iter(asked))}: the routers of {kind} aren't understood ({vlm.unrouted}): leave it out"
            )
        if self.config.z_loss_coef and not all(map(tells_logits, routers_of(vlm.model).values())):
            raise UserError(
                f"stages.experts.z_loss_coef is of logits, and the routers of {vlm.model.config.model_type} tell probabilities "
                "alone: leave it out"
            )

    @property
    def penalises(self) -> bool:
        """Whether every trained token has a gradient by its routes."""
        return bool(self.config.aux_loss_coef or self.config.z_loss_coef)

    def release(self) -> None:
        """Unfreeze the routers at the end of the stage."""
        for p in self.frozen:
            p.requires_grad_(True)
        self.frozen = []

    # -- an update --------------------------------------------------------------------------------------------------------

    def begin(self, batches: Sequence[Batch], later: bool) -> None:
        """An update begins. later: there are several passes over some micro-batch. Raises UserError if routes are to be replayed
        and the sampler told none."""
        self.first, self.keeps = {}, later and bool(self.routers)
        self._forget()
        micro = [m for batch in batches for m in batch.micro]
        if self.keeps and self.replay == "R2" and len(batches) > 1:  # the first passes of later ones come after a step
            self._foresee([m.masked for m in micro if isinstance(m, MicroBatch) and m.masked is not None])
        if self.replay != "R3" or any(m.routes_MTK is not None for m in micro):
            return
        if any(bool((~m.sampler_logprobs_L.isnan() & ~m.off_policy_L).any()) for m in micro):
            raise UserError(
                'stages.experts.router_replay = "R3" replays the experts that the sampler chose, and it told of none: use "R2", '
                'or compute.sampler = "local"'
            )

    @torch.no_grad()
    def _foresee(self, compared: Sequence[MicroBatch]) -> None:
        """Keep the experts of tokens that the update only compares with, by the weights of before it."""
        for micro in compared:
            with routed(self._pass(micro, measured=False)) as now:
                self.policy.states(micro)
            self._keep(micro, now, measured=False)

    def end(self) -> None:
        """The update ends: what is packed next may get the ids of its micro-batches."""
        self.first = {}

    @torch.no_grad()
    def prepare(self, batch: Batch) -> None:
        """Before the passes of an optimiser step: the load of each expert over all its tokens, if the balance loss needs it."""
        if not self.config.aux_loss_coef:
            return
        load_ME = self._nothing()
        for micro in batch.micro:
            with routed(self._pass(micro)) as now:
                self.policy.states(micro)
            self._keep(micro, now)
            load_ME = load_ME + torch.stack(now.load)
        self.shares_ME = all_reduce_sum(load_ME) / max(batch.num_tokens, 1)

    def outputs(self, micro: Any, temperature: float, *, within: bool = True, **options: bool) -> ForwardOutputs:
        """`Policy.outputs`, with these experts. within: the pass belongs to the update, and is measured."""
        return self._routed(micro, lambda: self.policy.outputs(micro, temperature, **options), within)

    def mean_logprobs(self, micro: Any, temperature: float) -> torch.Tensor:
        """`Policy.mean_logprobs`, with these experts."""
        return self._routed(micro, lambda: self.policy.mean_logprobs(micro, temperature))

    def slopes(self, micro: Any, temperature: float) -> torch.Tensor:
        """`Policy.slopes`, with these experts, before an update."""
        return self._routed(micro, lambda: self.policy.slopes(micro, temperature), False)

    def beside(self, micro: Any, temperature: float) -> ForwardOutputs:
        """`Policy.outputs`, with these experts, for what the update compares a micro-batch with: nothing is measured of it."""
        return self._routed(micro, lambda: self.policy.outputs(micro, temperature), measured=False)

    def _routed(self, micro: Any, call: Callable[[], _Found], within: bool = True, measured: bool = True) -> _Found:
        if not self.routers or micro.shared is not None:
            return call()
        with routed(self._pass(micro, measured)) as now:
            found = call()
        if within:
            self._keep(micro, now, measured)
        return found

    def _pass(self, micro: Any, measured: bool = True) -> RouterPass:
        device, first = self.policy.device, self.first.get(id(micro))
        sampled = None
        if micro.routes_MTK is not None and (first is None or self.replay == "R3"):
            sampled = upload_one(micro.routes_MTK, device)
        tokens_T = torch.zeros(micro.ids_BS.numel(), device=device)
        tokens_T.index_add_(0, micro.source_L, torch.ones(len(micro.source_L), device=device))
        given = {"R2": first, "R3": sampled}.get(self.replay)
        known = sampled if first is None else first
        penalised = measured and self.penalises and torch.is_grad_enabled()
        return RouterPass(self.routers, given_MTK=given, known_MTK=known, tokens_T=tokens_T, penalised=penalised)

    def _keep(self, micro: Any, now: RouterPass, measured: bool = True) -> None:
        """Keep what a pass showed."""
        which = "changed" if id(micro) in self.first else "mismatch"
        if self.keeps and id(micro) not in self.first:
            self.first[id(micro)] = torch.stack(now.taken)
        if not measured:
            return
        self.sums[which] = self.sums[which] + now.differing
        self.sums[f"{which}_of"] = self.sums[f"{which}_of"] + now.compared
        if torch.is_grad_enabled():
            self.last = now
            self.sums["entropy"] = self.sums["entropy"] + now.entropy
            self.sums["tokens"] += len(micro.source_L) * len(self.routers)
            self.load_ME = self.load_ME + torch.stack(now.load)

    def penalty(self, batch: Batch) -> torch.Tensor | float:
        """What the routers add to the objective by the last pass over a micro-batch of this batch. Summed over all of them and
        all ranks, it is a mean over all trained tokens."""
        if not self.penalises:
            return 0.0
        of, found = max(batch.num_tokens, 1) * len(self.routers), torch.zeros((), device=self.policy.device)
        if self.config.aux_loss_coef:
            shares_ME = self.shares_ME.to(torch.float32)
            aux = (shares_ME * torch.stack(self.last.probabilities)).sum() * shares_ME.shape[1] / of
            self.sums["aux_loss"], found = self.sums["aux_loss"] + aux.detach(), found + self.config.aux_loss_coef * aux
        if self.config.z_loss_coef:
            z = torch.stack(self.last.squares).sum() / of
            self.sums["z_loss"], found = self.sums["z_loss"] + z.detach(), found + self.config.z_loss_coef * z
        return found

    # -- metrics ----------------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        """Metrics of the passes since the last call, over all ranks; none without experts."""
        if not self.routers:
            return {}
        sums = torch.stack([torch.as_tensor(self.sums[name], device=self.policy.device).double() for name in SCALARS])
        whole = all_reduce_sum(torch.cat([sums, self.load_ME.double().flatten()]))
        load_ME = whole[len(SCALARS) :].view_as(self.load_ME)
        busiest = (load_ME.amax(1) * load_ME.shape[1] / load_ME.sum(1).clamp_min(1)).mean()
        more = torch.stack([busiest, (load_ME == 0).double().mean()])
        told = dict(zip((*SCALARS, "busiest", "unused"), torch.cat([whole[: len(SCALARS)], more]).tolist(), strict=True))
        self._forget()
        found = {f"experts/{name}": told[name] / of for name in ("mismatch", "changed") if (of := told[f"{name}_of"])}
        if told["tokens"]:
            found |= {"experts/busiest": told["busiest"], "experts/unused_share": told["unused"]}
            found |= {"experts/router_entropy": told["entropy"] / told["tokens"]}
        asked = {"aux_loss": self.config.aux_loss_coef, "z_loss": self.config.z_loss_coef}
        return found | {f"experts/{name}": told[name] for name, on in asked.items() if on}

    def _forget(self) -> None:
        self.sums: dict[str, Any] = dict.fromkeys(SCALARS, 0.0)
        self.load_ME = self._nothing()

    def _nothing(self) -> torch.Tensor:
        """float32 zeros [M, E]."""
        counts = [count_of(router) for router in self.routers]
        return torch.zeros(len(counts), max(counts, default=0), device=self.policy.device)
