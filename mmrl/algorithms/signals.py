"""Signals: the tensors from which an advantage can be computed. Each is computed when it is first used."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from mmrl.algorithms.kl import ESTIMATES
from mmrl.algorithms.perception import visual_divergence
from mmrl.algorithms.states import Numbering
from mmrl.api.errors import PluginError, is_finite
from mmrl.api.simulators.layout import Credited
from mmrl.api.types import Prompt, Rollout, Score
from mmrl.config.sections import CriticConfig, RlStage

Measure = Callable[[frozenset[str]], Mapping[str, torch.Tensor]]
"""Names among `logprobs`, `masked`, `told`, `shown`, `entropy`, `slopes`, `reference`, `teacher`, `values`, `answers` -> a float
tensor [N, T] each, 0 after a rollout's end, and `bootstrap` [N]: the critic's value of each rollout's final state, 0 without
one."""
ENVIRONMENT = "environment"
"""The part of a reward that an environment pays, among those of the verifiers."""


class Signals:
    """The signals of one step: N rollouts, T tokens of the longest one, R verifiers. The docstrings of the properties define
    them."""

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        scores: Sequence[Score],
        stage: RlStage,
        *,
        weights: Sequence[Mapping[str, float]] = (),
        kl: float = 0.0,
        measure: Measure | None = None,
        greedy: Callable[[], torch.Tensor] | None = None,
        past: Callable[[Rollout], tuple[float, float, float, float]] | None = None,
        progress: float = 0.0,
    ) -> None:
        """weights: for each rollout, verifier (or `ENVIRONMENT`) -> weight. kl: current coefficient of the KL penalty. measure:
        runs forward passes. greedy: samples greedy completions and returns their rewards. past: returns the reward history of a
        rollout's prompt. progress: share of the stage's steps that are done, from 0 at its first step to 1 at its last."""
        self._rollouts, self._scores, self._stage = rollouts, scores, stage
        self._weights, self._kl = weights, kl
        self._make, self._greedy, self._past, self._progress = measure, greedy, past, progress

    def __getitem__(self, name: str) -> torch.Tensor:
        return getattr(self, name)

    # -- per rollout ------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def rewards_N(self) -> torch.Tensor:
        """float64; the rewards of the verifiers and of the environment, minus the KL penalty if that is in the reward; NaN if the
        score failed."""
        return self._plain_rewards_N - self._penalty_NT.sum(1)

    @functools.cached_property
    def groups_N(self) -> torch.Tensor:
        """int64; rollouts with the same number answer the same prompt."""
        return torch.tensor([r.group for r in self._rollouts])

    @functools.cached_property
    def lengths_N(self) -> torch.Tensor:
        """int64; trained tokens of each rollout; for an episode in a simulator its targets, see the stage key `ratio`."""
        return torch.tensor([r.num_targets(self._stage.ratio) for r in self._rollouts])

    @functools.cached_property
    def parts_NR(self) -> torch.Tensor:
        """float64; the value of each verifier, and the reward of an environment; NaN if the task doesn't have it, and in rollouts
        whose score failed."""
        rows = []
        for rollout, score, weights in zip(self._rollouts, self._scores, self._weights, strict=True):
            parts = {} if score.failed else {**score.parts, ENVIRONMENT: rollout.environment_reward}
            rows.append([parts[name] if name in weights and name in parts else torch.nan for name in self._verifiers])
        return torch.tensor(rows, dtype=torch.float64)

    @functools.cached_property
    def weights_NR(self) -> torch.Tensor:
        """float64; the weight of each of `parts_NR` in the reward, 0 if the task doesn't have it."""
        return torch.tensor([[w.get(name, 0.0) for name in self._verifiers] for w in self._weights], dtype=torch.float64)

    @functools.cached_property
    def baselines_N(self) -> torch.Tensor:
        """float64; the reward of the greedy completion of the same prompt. Costs one more completion per prompt."""
        assert self._greedy is not None
        return self._greedy().double()

    @functools.cached_property
    def difficulty_N(self) -> torch.Tensor:
        """float64; the prompt's weight from its task, `meta["weight"]`, by default 1."""
        return torch.tensor([weight_of(r.prompt) for r in self._rollouts], dtype=torch.float64)

    @functools.cached_property
    def past_N4(self) -> torch.Tensor:
        """float64; the prompt's history before this step: visits, number of rewards, their mean, sum of their squared
        deviations."""
        assert self._past is not None
        return torch.tensor([self._past(r) for r in self._rollouts], dtype=torch.float64)

    @functools.cached_property
    def progress_N(self) -> torch.Tensor:
        """float64; how far the stage is, the same for all rollouts: from 0 at its first step to 1 at its last."""
        return torch.full((len(self._rollouts),), self._progress, dtype=torch.float64)

    @functools.cached_property
    def bootstrap_N(self) -> torch.Tensor:
        """float64; the critic's value after the last token of an episode that was truncated by turns or time, with
        `critic.bootstrap = "always"` also of one that terminated, else 0: also for an answer that was truncated at its length,
        which was scored as it is."""
        critic = self._stage.critic or CriticConfig()
        goes_on_N = torch.tensor([critic.bootstraps(r.status) for r in self._rollouts])
        return self._measured["bootstrap"].double().cpu() * goes_on_N

    # -- per token --------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def mask_NT(self) -> torch.Tensor:
        """bool; the trained tokens of each rollout."""
        return torch.arange(int(self.lengths_N.max()))[None] < self.lengths_N[:, None]

    @functools.cached_property
    def rewards_NT(self) -> torch.Tensor:
        """float64; the environment's rewards at the end of each turn (or action), the score's `steps` at the end of each turn (or
        call) and the rest of the score at the last token, minus the KL penalty of each token if that is in the reward; NaN in
        rollouts whose score failed, 0 after the end."""
        rewards_NT = torch.zeros(self.mask_NT.shape, dtype=torch.float64)
        for n, (rollout, score) in enumerate(zip(self._rollouts, self._scores, strict=True)):
            paid_L = rollout.rewards(self._stage.ratio)
            end = len(paid_L)
            rewards_NT[n, :end] = paid_L
            if end and score.value is not None:
                ends = rollout.ends(self._stage.ratio) if score.steps else ()
                for place, paid in zip(ends, score.steps, strict=True):
                    rewards_NT[n, place] += paid
                rewards_NT[n, end - 1] += score.value - math.fsum(score.steps)
            if score.failed:
                rewards_NT[n] = torch.nan
        return rewards_NT - self._penalty_NT

    @functools.cached_property
    def units_NT(self) -> torch.Tensor:
        """int64; the index of each token's unit of credit (stage key `credit`), from 0; -1 after the end."""
        return self._of_units(self._stage.credit)

    @functools.cached_property
    def turns_NT(self) -> torch.Tensor:
        """int64; the turn of each token, from 0: a call of the policy that wrote or acted; -1 after the end."""
        return self._of_units("turn")

    @functools.cached_property
    def states_NT(self) -> torch.Tensor:
        """int64; the state in which each token's turn began: those of a group that have the same number began in the same state
        (stage key `state_similarity`), and no two groups share a number; -1 after the end."""
        number = Numbering(self._stage.state_similarity)
        states_NT = torch.full(self.mask_NT.shape, -1)
        for n, rollout in enumerate(self._rollouts):
            calls_L = rollout.units(self._stage.ratio, "turn")
            numbers_T = torch.tensor([number(rollout.group, state) for state in rollout.states], dtype=torch.int64)
            states_NT[n, : len(calls_L)] = numbers_T[calls_L]
        return states_NT

    @functools.cached_property
    def values_NT(self) -> torch.Tensor:
        """float64; the critic's value of the state before each token; with `[stages.turn_critic]` before the token's turn. With
        this signal the algorithm has a critic."""
        return self._measured["values"].double().cpu()

    @functools.cached_property
    def answer_values_NT(self) -> torch.Tensor:
        """float64; the value of each token's whole turn in the state before it, by `[stages.turn_critic]`."""
        return self._measured["answers"].double().cpu()

    @functools.cached_property
    def logprobs_NT(self) -> torch.Tensor:
        """float64; log-probability of each token under the policy before the update."""
        return self._measured["logprobs"].double().cpu()

    @functools.cached_property
    def entropy_NT(self) -> torch.Tensor:
        """float64; entropy of the distribution that each token was drawn from, in nats, under the policy before the update."""
        return self._measured["entropy"].double().cpu()

    @functools.cached_property
    def slopes_NT(self) -> torch.Tensor:
        """float64; the squared norm of the gradient of each token's log-probability with respect to the logits, under the policy
        before the update: 1 - 2 p + the sum of the squared probabilities of all tokens. Costs one more forward pass."""
        return self._measured["slopes"].double().cpu()

    @functools.cached_property
    def teacher_logprobs_NT(self) -> torch.Tensor:
        """float64; log-probability of each token under the stage's teacher."""
        return self._measured["teacher"].double().cpu()

    @functools.cached_property
    def told_logprobs_NT(self) -> torch.Tensor:
        """float64; log-probability of each token under the policy before the update, had its prompt told the answer: with the
        task's hint, the whole gold completion. NaN in rollouts whose prompt has none. Costs one more forward pass."""
        return self._measured["told"].double().cpu()

    @functools.cached_property
    def shown_logprobs_NT(self) -> torch.Tensor:
        """float64; log-probability of each token under the policy before the update, had its prompt shown another completion of
        the group that succeeded (stage key `success_threshold`), the first one. NaN in rollouts whose group has no other success.
        Costs one more forward pass."""
        return self._measured["shown"].double().cpu()

    @functools.cached_property
    def perception_NT(self) -> torch.Tensor:
        """float64; how much each token depends on its prompt's images: its divergence from the policy before the update that sees
        them masked as `[stages.perception]` says, between 0 and 10; 0 after the end. Costs one more forward pass."""
        found_NT = visual_divergence(self._measured["logprobs"].double(), self._measured["masked"].double()).cpu()
        return found_NT.where(self.mask_NT, 0.0)

    # -- how they are made ------------------------------------------------------------------------------------------------

    def expect(self, names: frozenset[str]) -> None:
        """Announce the signals that will be used, so that one forward pass measures everything that they need."""
        self._expected = names

    _expected: frozenset[str] = frozenset()

    @functools.cached_property
    def _measured(self) -> Mapping[str, torch.Tensor]:
        assert self._make is not None
        return self._make(measurements(self._expected, self._penalised))

    def _of_units(self, credit: Credited) -> torch.Tensor:
        """int64 [N, T]: the index of each token's unit, from 0; -1 after the end."""
        units_NT = torch.full(self.mask_NT.shape, -1)
        for n, rollout in enumerate(self._rollouts):
            units_L = rollout.units(self._stage.ratio, credit)
            units_NT[n, : len(units_L)] = units_L
        return units_NT

    @property
    def _verifiers(self) -> list[str]:
        return sorted({name for weights in self._weights for name in weights})

    @property
    def _penalised(self) -> bool:
        return self._kl > 0 and self._stage.kl_in == "reward"

    @functools.cached_property
    def _plain_rewards_N(self) -> torch.Tensor:
        """float64; rewards of verifiers and environments, NaN if the score failed."""
        return torch.tensor(
            [
                torch.nan if s.value is None else s.value + r.environment_reward
                for s, r in zip(self._scores, self._rollouts, strict=True)
            ],
            dtype=torch.float64,
        )

    @functools.cached_property
    def _penalty_NT(self) -> torch.Tensor:
        if not self._penalised:
            return torch.zeros(1, 1, dtype=torch.float64)
        estimate = ESTIMATES[self._stage.kl_estimator]
        kl_NT = estimate(self._measured["logprobs"].double(), self._measured["reference"].double()).cpu()
        return self._kl * kl_NT.where(self.mask_NT, 0.0)


MEASURED = {
    **{"values_NT": "values", "bootstrap_N": "values", "answer_values_NT": "answers"},
    **{"logprobs_NT": "logprobs", "entropy_NT": "entropy", "teacher_logprobs_NT": "teacher"},
    **{"perception_NT": "masked", "told_logprobs_NT": "told", "slopes_NT": "slopes"},
    **{"shown_logprobs_NT": "shown"},
}
"""Signal -> the measurement of a forward pass that it needs."""


def measurements(signals: Collection[str], penalised: bool) -> frozenset[str]:
    """The names of `Measure` that these signals need. penalised: the KL penalty is in the reward."""
    wanted = {measured for name, measured in MEASURED.items() if name in signals}
    wanted |= {"logprobs"} if "masked" in wanted else set()
    return frozenset(wanted | ({"logprobs", "reference"} if penalised else set()))


SIGNALS: dict[str, str] = {
    name: " ".join((inspect.getdoc(found) or "").split())
    for name, found in vars(Signals).items()
    if isinstance(found, functools.cached_property) and not name.startswith("_")
}
"""Name of each signal -> its definition."""


def weight_of(prompt: Prompt) -> float:
    """`meta["weight"]` of a prompt, by default 1. Raises PluginError if that is no finite number."""
    weight = prompt.meta.get("weight", 1.0)
    if not is_finite(weight):
        raise PluginError(f'task {prompt.task!r}: prompt {prompt.id!r} has meta["weight"] = {weight!r:.60}, not a finite number')
    return float(weight)
