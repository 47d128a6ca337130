"""Checks of `[stages.experts]`, before anything is loaded."""

from __future__ import annotations

from typing import Any

from mmrl.api.errors import UserError
from mmrl.config.experts import ExpertsConfig
from mmrl.config.sections import RlStage, RunConfig, SftStage


def check_experts(config: RunConfig, acts: bool) -> None:
    """Refuse stages whose `experts` have no effect, or need what the run doesn't have. acts: the policy acts in simulators."""
    for number, stage in enumerate(config.stages):
        if not isinstance(stage, RlStage | SftStage) or stage.experts is None:
            continue
        experts = stage.experts
        where, kind = f"stages.{number}.experts", config.policy.kind
        asked = experts.model_dump(exclude_defaults=True)
        if not asked:
            raise UserError(f"{where} changes nothing: give router_replay, freeze_router, aux_loss_coef or z_loss_coef")
        if acts:
            raise UserError(f"{where} is for mixtures of experts that write, and policy.kind = {kind!r} acts: leave it out")
        if experts.freeze_router and config.policy.lora:
            raise UserError(f"{where}.freeze_router: policy.lora trains adapters alone, and routers get none: leave it out")
        others = [key for key in asked if key != "freeze_router"]
        if others and config.train.compile:
            raise UserError(f"{where}.{others[0]} looks into layers, which train.compile turns into fewer kernels: drop one")
        if others and config.compute.sequence_parallel > 1:
            raise UserError(f"{where}.{others[0]}: compute.sequence_parallel divides the tokens of a row: drop one")
        _check_replay(config, where, stage, experts)


def _check_replay(config: RunConfig, where: str, stage: RlStage | SftStage, experts: ExpertsConfig) -> None:
    if not isinstance(stage, RlStage):
        if experts.compare_sampler or experts.router_replay != "disabled":
            key = "compare_sampler" if experts.compare_sampler else "router_replay"
            raise UserError(f"{where}.{key} is for an rl stage, and this one samples nothing: leave it out")
        return
    if experts.asks_sampler and config.compute.sampler == "vllm" and config.compute.model_runner == "v1":
        key = 'router_replay = "R3"' if experts.router_replay == "R3" else "compare_sampler"
        raise UserError(
            f"{where}.{key}: vLLM tells which experts it chose only with Model Runner V2: leave out compute.model_runner"
        )
    if experts.router_replay == "R2" and stage.epochs == stage.minibatches == 1:
        raise UserError(
            f'{where}.router_replay = "R2" has nothing to replay, as epochs and minibatches are 1: raise one, or use "R3"'
        )


def check_mixture(config: RunConfig, model: Any) -> None:
    """Refuse `[stages.experts]` for a model without experts. model: without weights."""
    from mmrl.policies.vlm.experts import has_experts

    for number, stage in enumerate(config.stages):
        if getattr(stage, "experts", None) and not has_experts(model):
            kind = model.config.model_type
            raise UserError(f"stages.{number}.experts is for mixtures of experts, and a {kind} model has none: leave it out")
