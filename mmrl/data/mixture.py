"""Search the best mixture of tasks with short pilot runs.

After MoDoMoDo (Liang et al. 2025, arXiv 2505.24871): runs on a few seed mixtures, a quadratic surrogate of their held-out scores
as a function of the mixture w, a + b'w + w'Cw, and the mixture with its maximum. The shares of a mixture add up to 1, so the
intercept and the squares are combinations of the terms w_i and w_i w_j (Scheffe 1958); only these are fitted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.config.sections import LONGEST_NAME, RlStage, RunConfig

if TYPE_CHECKING:
    import numpy as np

RIDGES = (1e-8, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Candidate penalties on the squared coefficients."""
SAMPLES = 20_000
"""Mixtures at which each round of the search evaluates the surrogate."""


# -- the pilots -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """The mixture of one pilot run."""

    kind: str
    """`uniform`, `only TASK`, `without TASK` or `random`."""
    shares: tuple[float, ...]
    """Share of each task, in the order of the run file; they add up to 1."""


def seed_mixtures(labels: Sequence[str], count: int, seed: int) -> list[Mixture]:
    """The first `count` of: uniform, each task alone, each task left out, then random ones (flat Dirichlet, whole percents).

    A longer list begins with the shorter one. labels: at least two. Raises UserError if there aren't so many mixtures.
    """
    m = len(labels)
    found = [Mixture("uniform", (1 / m,) * m)]
    found += [Mixture(f"only {label}", tuple(float(i == k) for i in range(m))) for k, label in enumerate(labels)]
    if m > 2:  # with two tasks, leaving out one is the other alone
        found += [Mixture(f"without {label}", tuple(float(i != k) / (m - 1) for i in range(m))) for k, label in enumerate(labels)]
    random_ones = math.comb(99 + m, m - 1)  # ways to divide a hundred
    if count > random_ones:
        raise UserError(f"--pilots {count}: {m} tasks have only {random_ones} mixtures in whole percents: give fewer pilots")
    number = 0
    while len(found) < count:
        chance = random.Random(derive(seed, "pilot", number))
        number += 1
        drawn = [chance.expovariate(1.0) for _ in labels]
        shares = percents([d / sum(drawn) for d in drawn])
        if all(shares != other.shares for other in found):
            found.append(Mixture("random", shares))
    return found[:count]


def enough(tasks: int) -> int:
    """The number of pilots for so many tasks: at least all non-random seed mixtures, and three more than the surrogate has
    coefficients."""
    return max(1 + tasks * (2 if tasks > 2 else 1), tasks * (tasks + 1) // 2 + 3)


def percents(shares: Sequence[float]) -> tuple[float, ...]:
    """Round shares that add up to 1 to whole percents that also do (largest remainders)."""
    floors = [int(100 * s) for s in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: floors[i] - 100 * shares[i])
    for i in by_remainder[: 100 - sum(floors)]:
        floors[i] += 1
    return tuple(f / 100 for f in floors)


def mixture_stage(config: RunConfig) -> tuple[int, list[str]]:
    """(index of the last rl stage, labels of its tasks), whose shares are searched. Raises UserError if there is no such stage,
    fewer than two tasks, or no evaluation."""
    stages = [i for i, stage in enumerate(config.stages) if isinstance(stage, RlStage)]
    if not stages:
        raise UserError(f'{config.name} has no rl stage whose mixture could be searched: add [[stages]] kind = "rl"')
    labels = list(config.weights(config.stages[stages[-1]]))
    if len(labels) < 2:
        raise UserError(
            f"a mixture needs at least two tasks with a weight, but stages.{stages[-1]} of {config.name} draws from "
            f"{', '.join(labels) or 'none'}: list more [[tasks]]"
        )
    if not config.evaluate.num_prompts:
        raise UserError("evaluate.num_prompts = 0 gives no held-out scores to compare mixtures: set evaluate.num_prompts")
    return stages[-1], labels


def pilot_config(config: RunConfig, number: int, mixture: Mixture, steps: int, runs: str) -> RunConfig:
    """The run file of a pilot, `NAME-mix-01` for number 1: its last rl stage has this mixture and so many steps; it is evaluated
    at the end."""
    at, labels = mixture_stage(config)
    data = config.model_dump(mode="json", exclude_unset=True)  # unset keys keep the algorithm's defaults
    end = f"-mix-{number:02d}"
    data |= {"name": f"{config.name[: LONGEST_NAME - len(end)]}{end}", "runs_dir": runs}
    data["stages"][at] |= {"tasks": dict(zip(labels, mixture.shares, strict=True)), "steps": steps}
    data["evaluate"] = {**data.get("evaluate", {}), "every": 0}
    return RunConfig.model_validate(data)


# -- the surrogate ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Surrogate:
    """Predicts the held-out scores of K tasks from the mixture: the pilots' mean plus a linear function of the terms."""

    mean_K: np.ndarray
    coefficients_FK: np.ndarray
    """Coefficients of the terms, see `terms`."""
    ridge_K: np.ndarray
    """The best penalty for each task."""

    def __call__(self, shares_NM: np.ndarray) -> np.ndarray:
        """float64 [N, K] predicted scores of N mixtures."""
        return self.mean_K + terms(shares_NM) @ self.coefficients_FK


def terms(shares_NM: np.ndarray) -> np.ndarray:
    """float64 [N, M (M + 1) / 2]: the shares, then 4 x the products of all pairs, so that all range from 0 to 1."""
    import numpy as np

    first, second = np.triu_indices(shares_NM.shape[1], 1)
    return np.hstack([shares_NM, 4 * shares_NM[:, first] * shares_NM[:, second]])


def fit(shares_NM: np.ndarray, scores_NK: np.ndarray) -> Surrogate:
    """Ridge regression of each task's scores, with the penalty that best predicts left-out pilots. Needs at least two pilots."""
    import numpy as np

    errors_RK = np.stack([((_left_out(shares_NM, scores_NK, r) - scores_NK) ** 2).sum(0) for r in RIDGES])
    ridge_K = np.array(RIDGES)[errors_RK.argmin(0)]
    coefficients_FK = np.stack([_ridge(shares_NM, scores_NK[:, k], ridge) for k, ridge in enumerate(ridge_K)], axis=1)
    return Surrogate(scores_NK.mean(0), coefficients_FK, ridge_K)


def leave_one_out_scores(shares_NM: np.ndarray, scores_NK: np.ndarray) -> np.ndarray:
    """float64 [N, K]: each pilot's scores, predicted by a surrogate fitted to the others, penalty included. Needs at least three
    pilots."""
    import numpy as np

    others = ~np.eye(len(shares_NM), dtype=bool)
    return np.concatenate([fit(shares_NM[o], scores_NK[o])(shares_NM[~o]) for o in others])


def _left_out(shares_NM: np.ndarray, scores_NK: np.ndarray, ridge: float) -> np.ndarray:
    import numpy as np

    predicted = []
    for o in ~np.eye(len(shares_NM), dtype=bool):
        predicted.append(scores_NK[o].mean(0) + terms(shares_NM[~o])[0] @ _ridge(shares_NM[o], scores_NK[o], ridge))
    return np.stack(predicted)


def _ridge(shares_NM: np.ndarray, scores: np.ndarray, ridge: float) -> np.ndarray:
    """Coefficients of the terms, for the scores minus their mean. scores: [N] or [N, K]."""
    import numpy as np

    terms_NF = terms(shares_NM)
    penalty = ridge * np.eye(terms_NF.shape[1])
    return np.linalg.solve(terms_NF.T @ terms_NF + penalty, terms_NF.T @ (scores - scores.mean(0)))


def best_mixture(surrogate: Surrogate, pilots_NM: np.ndarray, seed: int) -> tuple[float, ...]:
    """The mixture with the highest mean predicted score, in whole percents. Searches the pilots and a dense sample of all
    mixtures, half of it near the edges, then samples around the best in two more rounds."""
    import numpy as np

    random_numbers, m = np.random.default_rng(derive(seed, "search")), pilots_NM.shape[1]
    tried, top = pilots_NM, pilots_NM[0]
    for width in (1.0, 0.2, 0.04):
        drawn = [random_numbers.dirichlet(np.full(m, a), SAMPLES // 2) for a in (1.0, 0.3)]
        tried = np.concatenate([tried, *((1 - width) * top + width * d for d in drawn)])
        top = tried[surrogate(tried).mean(1).argmax()]
    return percents(top.tolist())


# -- the recommendation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recommendation:
    """The recommended mixture."""

    shares: tuple[float, ...]
    """Share of each task; they add up to 1."""
    value: float
    """The mean score of the mixture: predicted by the surrogate, or of the best pilot."""
    pilot: int | None
    """Index of the best pilot if it is recommended; None if the surrogate is used."""
    predicted: tuple[float, ...]
    """Each pilot's mean score, predicted from the other pilots."""
    error: float
    """Root mean square error of these predictions."""
    error_of_mean: float
    """Root mean square error of the other pilots' mean as the prediction, the baseline of `error`."""
    surrogate: Surrogate


def recommend(shares_NM: Any, scores_NK: Any, seed: int) -> Recommendation:
    """The mixture to train on, from the held-out scores of at least three pilots. It is the best pilot's if the surrogate
    predicts left-out pilots no better than the others' mean. shares_NM, scores_NK: arrays [N, M] and [N, K]."""
    import numpy as np

    shares, scores = np.asarray(shares_NM, dtype=np.float64), np.asarray(scores_NK, dtype=np.float64)
    n, means = len(scores), scores.mean(1)
    predicted = leave_one_out_scores(shares, scores).mean(1)
    error = float(np.sqrt(((predicted - means) ** 2).mean()))
    error_of_mean = float(np.sqrt((((means.sum() - means) / (n - 1) - means) ** 2).mean()))
    surrogate, top = fit(shares, scores), int(means.argmax())
    if error < error_of_mean:
        chosen, pilot_number = best_mixture(surrogate, shares, seed), None
        value = float(surrogate(np.array([chosen])).mean())
    else:
        chosen, pilot_number, value = tuple(shares[top].tolist()), top, float(means[top])
    return Recommendation(chosen, value, pilot_number, tuple(predicted.tolist()), error, error_of_mean, surrogate)
