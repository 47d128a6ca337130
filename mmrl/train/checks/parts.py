"""Check that the model has the parts that a run file names, on a model without weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from typing import Any

from mmrl.api.errors import UserError
from mmrl.config.parts import entry, matches, part_of
from mmrl.config.sections import PARTS, PolicyConfig, RlStage, RunConfig
from mmrl.train.checks.experts import check_mixture


def check_parts(
    config: RunConfig,
    critics: Collection[int] = (),
    build: Callable[[PolicyConfig], Any] | None = None,
    beside: Callable[[PolicyConfig], Sequence[str]] = lambda _: (),
) -> None:
    """Refuse patterns of `policy.lora` and `stages.N.parts` that match nothing, stages that train nothing, and `stages.N.experts`
    of a model that has none.

    critics: indices of the stages with a value function. build: makes the model from its configuration, without weights; if it
    returns None, it is a vision-language model. beside: names the weights that the policy has besides that model's. Both are
    called only if there are such keys.
    """
    lora = config.policy.lora
    if lora is None and not any(stage.parts or getattr(stage, "experts", None) for stage in config.stages):
        return
    from mmrl.policies.lora import makes_ids, quantised_layers, refuse_parts_without_layers, target_modules
    from mmrl.policies.vlm.loading import skeleton

    model = build(config.policy) if build else None
    model = skeleton(config.policy) if model is None else model
    check_mixture(config, model)
    names = [name for name, _ in model.named_parameters()]
    tied = not any(part_of(name) == "head" for name in names)
    if lora:
        refuse_parts_without_layers(model, lora.target_modules)
        layers = target_modules(model, ["*"])
        for pattern in lora.target_modules:
            if not any(matches(pattern, name) for name in layers):
                raise UserError(f"policy.lora.target_modules: {_nothing(pattern, layers, 'linear layers', tied)}")
        quantised = quantised_layers(model, ["*"])
        for pattern in lora.nf4:
            if not any(matches(pattern, name) for name in quantised):
                raise UserError(f"policy.lora.nf4: {_nothing(pattern, quantised, 'linear layers but the head', tied)}")
        added = ("A", "B", "magnitude_vector") if lora.use_dora else ("A", "B")
        names = [f"{layer}.lora_{x}.default.weight" for layer in target_modules(model, lora.target_modules) for x in added]
    of_policy = beside(config.policy)
    names += of_policy
    for i, stage in enumerate(config.stages):
        if not stage.parts:
            continue
        hidden = stage.critic.hidden_sizes if isinstance(stage, RlStage) and stage.critic else []
        own = [f"value.{2 * k}.{x}" for k in range(len(hidden) + 1) for x in ("weight", "bias")] if i in critics else []
        if isinstance(stage, RlStage) and stage.critic and stage.critic.backbone == "separate":
            own += [f"critic.{name}" for name in names]
        held = [entry(stage.parts, name) for name in (*names, *own)]
        for part in stage.parts:
            if of := [name for name, one in zip((*names, *own), held, strict=True) if part is one]:
                if not part.freeze and all(map(makes_ids, of)):
                    raise UserError(
                        f"stages.{i}.parts match {part.match!r} has only weights that make ids of pictures or sounds, such as "
                        f"{of[0]}: no gradient flows through ids, so leave it out"
                    )
                continue
            if any(matches(part.match, name) for name in (*names, *own)):
                raise UserError(
                    f"stages.{i}.parts match {part.match!r} has no effect, as earlier entries match the same: move it up"
                )
            if part.match == "value":
                raise UserError(f'stages.{i}.parts match "value" matches nothing, as the stage has no critic: leave it out')
            trained = f"adapters{' and own weights' if of_policy else ''}, which are all that policy.lora trains"
            what = trained if lora else "weights"
            raise UserError(f"stages.{i}.parts: {_nothing(part.match, names, what, tied)}")
        taught = [part for name, part in zip(names, held, strict=False) if not makes_ids(name)]
        if all(part is not None and part.freeze for part in taught):
            raise UserError(f"stages.{i}.parts leaves nothing to train: freeze less")


def _nothing(pattern: str, names: Sequence[str], what: str, tied: bool) -> str:
    """The message about a pattern that matches none of these names: the likely reason, and patterns that match."""
    if pattern == "head" and tied:
        return '"head" matches nothing, as this model\'s head is tied to its embeddings, which are in "language": leave it out'
    there = [part for part in PARTS if any(part_of(name) == part for name in names)]
    steps = sorted({step for name in names for step in name.split(".") if not step.isdigit()})
    strange = [step for step in re.split(r"[.*?\[\]]+", pattern) if step and not step.isdigit() and step not in steps]
    near = get_close_matches(strange[0], [*there, *steps], 1) if strange else []
    examples = [next(name for name in names if part_of(name) == part) for part in there]
    return (
        f"{pattern!r} matches none of the {len(names)} {what}: {f'did you mean {near[0]!r}? ' if near else ''}"
        f"use {', '.join(there)} or a pattern of names such as {', '.join(examples)}"
    )
