"""What the core itself brings, as a plugin like any other; its ids need no prefix."""

from __future__ import annotations

from mmrl.hookspecs import hookimpl
from mmrl.specs import AlgorithmSpec, PolicySpec


@hookimpl
def mmrl_policies() -> list[PolicySpec]:
    return [PolicySpec(id="vlm", target="mmrl.policies.vlm:VLM", summary="Any image-text-to-text model of transformers")]


@hookimpl
def mmrl_algorithms() -> list[AlgorithmSpec]:
    return [
        AlgorithmSpec(
            id="grpo",
            target="mmrl.algorithms.advantage:group_relative",
            options={"scale": "group"},
            loss="mmrl.algorithms.loss:clipped_surrogate",
            normalise="token",
            paper="Shao et al., DeepSeekMath, section 4.1",
            summary="Advantage relative to the group's mean, in units of its spread",
        )
    ]
