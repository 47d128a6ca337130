"""The held-out accuracy of a reward model: how often it rates the preferred side of a pair higher."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Prompt, Score
from mmrl.compute import ranks
from mmrl.data.prompts import pair_of
from mmrl.evaluation.answers import Answering, Evaluated
from mmrl.evaluation.evaluator import Evaluator
from mmrl.evaluation.held_out import EvaluationPrompt
from mmrl.evaluation.results import Evaluation, PromptResult, figure_of
from mmrl.judge import Judge
from mmrl.policies.policy import Policy
from mmrl.policies.reward_model import RewardModel
from mmrl.policies.shard import unsharded
from mmrl.rollout.collector import Collector

PAIRS = VerifierSpec(id="pairs", target="", summary="the preferred side of a pair is rated higher")
"""Stands for a verifier in the figures of pairs. A tie counts half, and the share stays an accuracy."""


class PairEvaluator(Answering):
    """Evaluates a reward model on the pairs of held-out prompts. A pair counts 1 if its preferred side is rated higher, 0.5 if
    both are rated the same."""

    def __init__(self, setup: Evaluated, collector: Collector, judge: Judge, policy: RewardModel) -> None:
        super().__init__(setup, collector, judge)
        self.policy = policy
        self.heldout.encode = self._encode

    def __call__(self, label: str) -> tuple[Evaluation, list[Score]]:
        """One task's figure, and no scores."""
        entry, settings = self.setup.entries[label], self.config.evaluate
        known, items, margins = len(self.heldout.left_out.get(label, ())), list[PromptResult](), list[float]()
        with unsharded(self.policy.root):  # ranks differ in how many sides they rate
            for batch in self.heldout.batches(entry, self.collector.batch_size, lambda prompt: prompt, strict=False):
                rated: list[tuple[float, float]] = ranks.gather_sharded(partial(self._rate, batch))
                for one, (high, low) in zip(batch, rated, strict=True):
                    value = 1.0 if high > low else 0.5 if high == low else 0.0
                    said = f"{high:.4g} for the preferred side, {low:.4g} for the other"
                    item = PromptResult(id=one.posed.id, value=value, values=(value,), answers=("",), completion=said)
                    items.append(replace(item, set=one.set))
                    margins.append(high - low)
        if not items:
            raise UserError(f"evaluation of {label!r}: none of its held-out prompts has a pair that can be used")
        left_out = [*self.heldout.left_out.get(label, {}).values()]
        extra = {"margin": statistics.fmean(margins)} | ({"left_out": float(len(left_out))} if left_out else {})
        return replace(figure_of(label, settings.split, PAIRS, items, extra), left_out=tuple(left_out[known:])), []

    def _encode(self, prompts: Sequence[Prompt]) -> list[Any]:
        """The policy's inputs. Raises UserError for a prompt without a pair, which is then left out."""
        for prompt in prompts:
            pair_of(self.tasks[prompt.task], prompt)
        return self.collector.encode(prompts)

    def _rate(self, batch: Sequence[EvaluationPrompt]) -> dict[int, tuple[float, float]]:
        found: dict[int, tuple[float, float]] = {}
        for number, one in enumerate(batch):
            if one.mine:
                preferred, rejected = pair_of(self.tasks[one.posed.task], one.posed)
                high, low = self.policy.rate(one.read, [preferred, rejected])
                found[number] = high, low
        return found


def evaluator_of(
    setup: Evaluated,
    collector: Collector,
    judge: Judge,
    policy: Policy,
    shown: Callable[[Prompt], Prompt] = lambda prompt: prompt,
) -> Evaluator | PairEvaluator:
    """The evaluator of a policy: by pairs for a reward model, else by its answers. shown: see `Answering`."""
    if isinstance(policy, RewardModel):
        return PairEvaluator(setup, collector, judge, policy)
    return Evaluator(setup, collector, judge, shown)
