"""The step of a `preference` stage.

The loss of a pair depends on a completion only by a weighted sum of its tokens' log-probabilities, so its gradient is that of the
likelihood, weighted by the derivative of the loss. A step measures the sums in one pass without gradients, computes these
weights, and updates by the weighted likelihood, as other stages do. So the gradient is exact, and the sides of a pair needn't be
in the same micro-batch, nor need the model share prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mmrl.algorithms.loss import negative_log_likelihood
from mmrl.algorithms.preference import PairCredit, PairSums, Settings, Term, credit, imitation, log_ratio, pair_weights
from mmrl.algorithms.presets import Algorithm
from mmrl.api.sampling import Group
from mmrl.api.types import Rollout
from mmrl.compute import ranks
from mmrl.config.preferences import PAIR_SETTINGS
from mmrl.config.sections import PreferenceStage
from mmrl.data.prompts import PromptIndex, pair_of
from mmrl.policies.batches import Credit
from mmrl.policies.kept_reference import KeptReference
from mmrl.train.metrics import rl_metrics
from mmrl.train.sampling.groups import Sampled, outcomes
from mmrl.train.sampling.interventions import refuse_interventions
from mmrl.train.sampling.sampler import Sampler, own_shard
from mmrl.train.sampling.smoke_gold import SmokeGold
from mmrl.train.sampling.smoke_spread import SmokeSpread
from mmrl.train.sampling.source import EncodedPrompt
from mmrl.train.sampling.verified import Verified
from mmrl.train.stages.base import Steps
from mmrl.train.update.learner import Learner

if TYPE_CHECKING:
    from mmrl.train.context import StageContext

DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "simpo": {"beta": 2.0, "margin": 1.0},
    "alphapo": {"beta": 2.0},
    "robust": {"label_smoothing": 0.1},
    "exo": {"label_smoothing": 1e-3},
}
"""Loss -> defaults of its own: Meng et al. tune SimPO's `beta` from 2 to 2.5 and its `margin` from 0.3 to 1.6; the others are
those that Chowdhury et al. (section 6) and Ji et al. train with."""
SHIFT = "reward_shift.json"
"""The file in a checkpoint with the sum and the number of rewards so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two completions of a prompt."""

    preferred: Rollout
    rejected: Rollout
    place: PromptIndex | None = None
    """The prompt, for a pair that is the same whenever it is drawn."""


class PreferenceSteps(Steps):
    """Learn from pairs of the tasks, or from pairs of sampled completions."""

    stage: PreferenceStage

    def __init__(self, run: StageContext, stage: PreferenceStage) -> None:
        given = stage.pairs == "task"
        super().__init__(run, stage, check=(lambda p: pair_of(run.tasks[p.task], p)) if given else None)
        self.stage, self.terms, self.sampler = stage, terms_of(stage), None
        self.seen = self.kept = (0.0, 0)  # sum and number of rewards so far; the same as a checkpoint has it
        if not given:
            smoke = run.config.smoke
            self.sampler = Sampler(run, stage, self.source, [Verified(), *([SmokeSpread(True)] if smoke else [])])
            self.sampler.add_gold = SmokeGold(run, stage) if smoke else None

    def begin(self) -> None:
        config, run = self.config, self.run
        adapters = config.policy.lora is not None and self.stage.reference != "frozen"
        self.reference = KeptReference(run.policy, adapters, self.stage.reference_decay) if self.stage.compares else None
        self.learner = Learner(
            run.policy,
            self.stage,
            weighted_likelihood(),
            temperature=config.generate.temperature if self.sampler else 1.0,
            reference=self.reference,
            train=config.train,
        )

    def __call__(self) -> dict[str, float]:
        metrics = self.step()
        self.move_reference()
        return metrics

    def step(self) -> dict[str, float]:
        """Take pairs and learn from them; return the metrics."""
        if self.sampler is None:
            pairs = self.given()
            return self.learn(pairs)
        sampled = self.sampler(self.source.upcoming(self.sampler.prompts), self.run.at.moment)
        self.run.report_failures(sampled.everything)
        refuse_interventions(sampled.rollouts, self.run.at.stage, "preference")
        pairs = [pair for group in sampled.groups if (pair := best_and_worst(group))]
        chosen = {id(r): sign for pair in pairs for r, sign in ((pair.preferred, 1.0), (pair.rejected, -1.0))}
        sides = torch.tensor([chosen.get(id(r), 0.0) for r in sampled.rollouts])
        self.record(sampled, Credit(advantages=sides))
        metrics = rl_metrics(sampled.rollouts, sampled.scores, sides) | sampled.counts | self.learn(pairs, sampled)
        self.run.clock.add(sampled.seconds)
        self.source.tell(outcomes(sampled.sampled, 0.5))
        return metrics

    # -- pairs ------------------------------------------------------------------------------------------------------------

    def given(self) -> list[Pair]:
        """The pairs of the next prompts, by their tasks."""
        taken = self.take(self.stage.prompts_per_step)
        found = ranks.gather_sharded(partial(self._given, own_shard(taken)), pair_stub)
        return [
            replace(pair, preferred=replace(pair.preferred, group=n), rejected=replace(pair.rejected, group=n))
            for n, pair in enumerate(found)
        ]

    def _given(self, taken: Mapping[int, EncodedPrompt]) -> dict[int, Pair]:
        twice = [one for one in taken.values() for _ in range(2)]
        sides = [side for one in taken.values() for side in pair_of(self.run.tasks[one.prompt.task], one.prompt)]
        rollouts = self.run.collector.demonstrate([one.prompt for one in twice], [one.inputs for one in twice], sides)
        each = zip(taken.items(), rollouts[::2], rollouts[1::2], strict=True)
        return {n: Pair(preferred=best, rejected=worst, place=one.place) for (n, one), best, worst in each}

    # -- the update -------------------------------------------------------------------------------------------------------

    def learn(self, pairs: Sequence[Pair], sampled: Sampled | None = None) -> dict[str, float]:
        """Update on pairs; return the metrics. sampled: the groups that they are of, which all are left out if there is no
        pair."""
        if not pairs:
            idle = sampled.rollouts if sampled else []
            return self.update(self.pack(idle, Credit(advantages=torch.full((len(idle),), torch.nan)))) | {
                "preference/pairs": 0.0
            }
        rollouts = [p.preferred for p in pairs] + [p.rejected for p in pairs]
        places = [(p.place, side) if p.place else None for side in (0, 1) for p in pairs]
        lengths_N = torch.tensor([max(r.num_targets(self.ratio), 1) for r in rollouts])
        shares_NT = tail_shares(lengths_N, self.stage.tail_weight)
        asked = {"logprobs", "slopes"} if self.stage.on_policy_weights else {"logprobs"}
        measured = {name: found.double().cpu() for name, found in self.measure(rollouts, frozenset(asked)).items()}
        sums = PairSums(
            logprobs_P2=_by_pair(_sums(measured["logprobs"], shares_NT)),
            reference_P2=_by_pair(self.reference_sums(rollouts, places, shares_NT)),
            lengths_P2=_by_pair(lengths_N.double()),
            kl=self.kl(mismatched(pairs)) if "kto" in self.stage.terms else 0.0,
        )
        whole_P2 = _by_pair(measured["logprobs"].sum(1))
        if self.stage.on_policy_weights:
            collisions_P2 = _by_pair(log_collisions(measured["logprobs"], measured["slopes"]).sum(1))
            sums = replace(sums, weights_P=pair_weights(whole_P2, collisions_P2, sums.lengths_P2))
        if self.stage.reward_shift:
            sums = replace(sums, shift=self.shift(sums))
        found = credit(self.terms, sums)
        nll, imitated_P2 = imitation(self.stage.nll_weight, whole_P2, sums.lengths_P2)
        weights = _by_side(found.weights_P2)
        if shares_NT is None:
            weights = weights + _by_side(imitated_P2)
        else:
            weights = weights[:, None] * shares_NT + _by_side(imitated_P2)[:, None]
        weights = weights * len(rollouts)  # the average over rollouts divides by their number
        update = self.update(self.pack(rollouts, Credit(advantages=weights.float())))
        own = ("grad_norm", "learning_rate", "loss_scale", *(() if self.stage.rates else ("entropy",)))
        kept = {k: update[k] for k in own if k in update}
        return kept | {"loss": found.loss + nll} | pair_figures(found, replace(sums, logprobs_P2=whole_P2), self.stage)

    def shift(self, sums: PairSums) -> float:
        """The mean of all rewards by `bco` so far, these pairs' included (Jung et al., BCO, section 4)."""
        settings = next(term.settings for term in self.terms if term.loss == "bco")
        rewards_P2 = log_ratio(sums, settings)
        self.seen = (self.seen[0] + rewards_P2.sum().item(), self.seen[1] + rewards_P2.numel())
        return self.seen[0] / self.seen[1]

    def reference_sums(
        self, rollouts: Sequence[Rollout], places: Sequence[tuple[PromptIndex, int] | None], shares_NT: torch.Tensor | None = None
    ) -> torch.Tensor:
        """float64 [N]: sums under the reference model. Those of a task's pair are computed when it is first drawn, and kept.
        places: (prompt, side) of each rollout of a task's pair. shares_NT: see `tail_shares`."""
        sums_N = torch.zeros(len(rollouts), dtype=torch.float64)
        if self.reference is None:
            return sums_N
        kept = self.reference.kept
        new = [n for n, place in enumerate(places) if place is None or place not in kept]
        if new:
            asked = [rollouts[n] for n in new]
            sums_N[new] = _sums(self.tokens(asked, "reference"), None if shares_NT is None else shares_NT[new])
        for n, place in enumerate(places):
            if place is not None:
                sums_N[n] = kept.setdefault(place, float(sums_N[n]))
        return sums_N

    def tokens(self, rollouts: Sequence[Rollout], name: str) -> torch.Tensor:
        """float64 [N, T] on the CPU: the log-probabilities of each rollout's tokens under the policy (`logprobs`) or the
        reference model (`reference`), 0 after its end."""
        return self.measure(rollouts, frozenset({name}))[name].double().cpu()

    def kl(self, strangers: Sequence[Rollout]) -> float:
        """An estimate of KL(policy || reference) in nats per completion, at least 0, from completions of other prompts: the mean
        of their log-ratios (Ethayarajh et al., KTO, section 4.1). 0 if there are none."""
        if not strangers:
            return 0.0
        gap_N = self.tokens(strangers, "logprobs").sum(1) - self.reference_sums(strangers, [None] * len(strangers))
        return max(gap_N.mean().item(), 0.0)

    def state(self) -> dict[str, Any]:
        return self.sampler.state() if self.sampler else super().state()

    def sleep(self) -> None:
        self.run.collector.sleep()

    def step_ended(self) -> None:
        self.kept = self.seen

    def save_beside(self, folder: Path) -> None:
        if self.stage.reward_shift:
            (folder / SHIFT).write_text(json.dumps(self.kept))

    def load_beside(self, folder: Path) -> None:
        if self.stage.reward_shift:
            total, number = json.loads((folder / SHIFT).read_text())
            self.seen = self.kept = (total, number)


def terms_of(stage: PreferenceStage) -> list[Term]:
    """The stage's losses, each with what is set of what it reads, else with its own defaults."""
    given = {field.name: getattr(stage, field.name) for field in fields(Settings)}
    given = {name: value for name, value in given.items() if value is not None}
    found = []
    for loss, weight in stage.terms.items():
        own = {name: value for name, value in given.items() if name in PAIR_SETTINGS[loss]}
        found.append(Term(loss=loss, weight=weight, settings=Settings(**{**DEFAULTS.get(loss, {}), **own})))
    return found


def tail_shares(lengths_N: torch.Tensor, tail_weight: float) -> torch.Tensor | None:
    """float64 [N, T]: how much each token counts, 1 as far as both sides of its pair go, and then `tail_weight` (Liu et al.,
    LD-DPO, arXiv 2409.06411); None if that is 1, too. lengths_N: of the preferred sides before the rejected ones."""
    if tail_weight == 1:
        return None
    common_N = lengths_N.reshape(2, -1).min(0).values.repeat(2)
    tail_NT = torch.arange(int(lengths_N.max())) >= common_N[:, None]
    return torch.where(tail_NT, tail_weight, 1.0).double()


def log_collisions(logprobs_NT: torch.Tensor, slopes_NT: torch.Tensor) -> torch.Tensor:
    """[N, T]: the log of the sum over the vocabulary of p^2, by which two samples are the same token; 0 after a rollout's end.

    slopes_NT: the squared norm of the gradient of the token's log-probability by the logits, which is that sum + 1 - 2 p of the
    token. The sum is at least p^2 of the token, also after rounding."""
    p_NT = logprobs_NT.exp()
    return torch.maximum(slopes_NT - 1 + 2 * p_NT, p_NT**2).log()


def weighted_likelihood() -> Algorithm:
    """The likelihood of rollouts, weighted by credit, and summed over tokens."""
    loss = negative_log_likelihood
    return Algorithm(id="preference", advantage=credit, needs=(), loss=loss, normalise="constant", constant=1.0)


def best_and_worst(group: Group) -> Pair | None:
    """The completions of a group with the highest and the lowest reward, the first of each; None if no two rewards differ."""
    scored = [
        (s.value + r.environment_reward, r) for r, s in zip(group.rollouts, group.scores, strict=True) if s.value is not None
    ]
    if not scored:
        return None
    (high, best), (low, worst) = max(scored, key=lambda one: one[0]), min(scored, key=lambda one: one[0])
    return Pair(preferred=best, rejected=worst) if high > low else None


def mismatched(pairs: Sequence[Pair]) -> list[Rollout]:
    """The preferred completion of each pair as an answer to the next pair's prompt, on each rank among its own pairs; stubs stand
    for those of other ranks. The only pair of a rank has no next one, and is left out on all ranks."""
    own = [n for n, pair in enumerate(pairs) if not pair.preferred.is_stub]
    following = dict(zip(own, [*own[1:], *own[:1]], strict=True)) if len(own) > 1 else {}
    answered = {n for share in ranks.all_gather_object(list(following)) for n in share}
    return [
        replace(_answering(pair.preferred, pairs[following[n]].preferred), group=following[n])
        if n in following
        else pair.preferred
        for n, pair in enumerate(pairs)
        if n in answered
    ]


def _answering(rollout: Rollout, other: Rollout) -> Rollout:
    return rollout.answering(other.prompt, getattr(other, "inputs", None))


def pair_stub(pair: Pair) -> Pair:
    """The pair for other ranks."""
    prompt = pair.preferred.prompt.without_media()
    return replace(pair, preferred=pair.preferred.to_stub(prompt), rejected=pair.rejected.to_stub(prompt))


def pair_figures(found: PairCredit, sums: PairSums, stage: PreferenceStage) -> dict[str, float]:
    """Metrics of pairs: rewards, how far they are apart, how often they are the right way round, and log-probabilities, which a
    reward model has none of."""
    gap_P = found.rewards_P2[:, 0] - found.rewards_P2[:, 1]
    return {
        "preference/pairs": float(len(gap_P)),
        "preference/accuracy": (gap_P > 0).double().mean().item(),
        "preference/margin": gap_P.mean().item(),
        **{f"preference/reward_{side}": mean for side, mean in _means(found.rewards_P2).items()},
        **({} if stage.rates else {f"preference/logprob_{side}": mean for side, mean in _means(sums.logprobs_P2).items()}),
        **({"preference/kl": sums.kl} if "kto" in stage.terms else {}),
        **({} if sums.weights_P is None else {"preference/weight": sums.weights_P.mean().item()}),
    }


def _means(values_P2: torch.Tensor) -> dict[str, float]:
    return dict(zip(("preferred", "rejected"), values_P2.mean(0).tolist(), strict=True))


def _sums(tokens_NT: torch.Tensor, shares_NT: torch.Tensor | None) -> torch.Tensor:
    """[N]: sums of tokens, each by its share if there are any; rows may be shorter than the shares."""
    return (tokens_NT if shares_NT is None else tokens_NT * shares_NT[:, : tokens_NT.shape[1]]).sum(1)


def _by_pair(values_N: torch.Tensor) -> torch.Tensor:
    """[N] with the preferred sides before the rejected ones -> [P, 2]."""
    return values_N.reshape(2, -1).T.contiguous()


def _by_side(values_P2: torch.Tensor) -> torch.Tensor:
    """[P, 2] -> [N], the preferred sides before the rejected ones."""
    return values_P2.T.reshape(-1)


STEPS = PreferenceSteps
