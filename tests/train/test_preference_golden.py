"""The losses and the weights of tokens of a preference step are those of TRL's and ms-swift's own trainers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmrl.config.preferences import PAIR_SETTINGS, PreferenceStage
from mmrl.train.stages.preference import Pair, PreferenceSteps, log_collisions, terms_of

GOLDEN = Path(__file__).parents[1] / "golden" / "preference.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
TRL = [row for row in ROWS if row["name"].startswith("trl-")]
SWIFT = [row for row in ROWS if row["name"].startswith("swift-")]
BCO = [row for row in ROWS if row["name"].startswith("bco-")]


def table(row: dict[str, Any], key: str) -> torch.Tensor:
    return torch.tensor(row[key], dtype=torch.float64)


class Steps(PreferenceSteps):
    """Steps on the tokens of a row of the file, without a model: what is measured is the row's, and the credit is kept."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.stage = PreferenceStage(kind="preference", steps=1, **keys)
        self.terms, self.seen = terms_of(self.stage), (0.0, 0)
        self.reference = SimpleNamespace(kept={}) if self.stage.compares else None  # type: ignore[assignment]

    def paid(self, row: dict[str, Any]) -> tuple[float, torch.Tensor]:
        """The loss, and its derivative by the log-probability of each token, [N, T]."""
        self.row = row
        rollouts = [SimpleNamespace(num_targets=lambda ratio, n=n: n) for n in row["lengths"]]
        half = len(rollouts) // 2
        pairs = [Pair(preferred=rollouts[n], rejected=rollouts[half + n]) for n in range(half)]  # type: ignore[arg-type]
        found = self.learn(pairs)
        advantages = self.credit.advantages.double() / len(rollouts)
        spread = advantages if advantages.ndim == 2 else advantages[:, None]
        there = torch.arange(5) < torch.tensor(row["lengths"])[:, None]
        width = max(row["lengths"])
        return found["loss"], -torch.nn.functional.pad(spread.expand(-1, width), (0, 5 - width)) * there

    def measure(self, rollouts: Any, names: frozenset[str]) -> Any:
        width, p = max(self.row["lengths"]), table(self.row, "logprobs").exp()
        known = {k: table(self.row, k) for k in ("logprobs", "reference")}
        known["slopes"] = (table(self.row, "squares") + 1 - 2 * p).where(known["logprobs"] != 0, 0.0)
        return {name: known[name][:, :width] for name in names}

    def pack(self, rollouts: Any, credit: Any, **_: Any) -> Any:
        self.credit = credit

    def update(self, batches: Any, **_: Any) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("row", TRL, ids=lambda row: row["name"])
def test_a_step_on_pairs_is_trl_s(row: dict[str, Any]) -> None:
    """Float32 in TRL for the alpha-divergence alone."""
    near = 1e-5 if row["keys"].get("divergence") == "alpha" else 1e-7
    loss, slopes = Steps(row["keys"]).paid(row)
    assert loss == pytest.approx(row["loss"], rel=near)
    assert torch.allclose(slopes, table(row, "slopes"), rtol=near, atol=3e-7)


def test_the_shift_of_rewards_is_ms_swift_s() -> None:
    """Over three steps: the mean of all rewards so far, these included."""
    steps = Steps(SWIFT[0]["keys"])
    for row in SWIFT:
        loss, slopes = steps.paid(row)
        assert loss == pytest.approx(row["loss"], rel=1e-6)
        assert torch.allclose(slopes, table(row, "slopes"), rtol=1e-5, atol=3e-7)
    assert loss != pytest.approx(Steps({"loss": "bco", "beta": 0.3}).paid(row)[0], rel=1e-3)


def test_a_step_of_trl_s_bco_trainer_is_half_of_one_with_the_shift_of_rewards() -> None:
    """TRL 0.24, over three steps: its mean is over completions, and that of mmrl over pairs of them."""
    steps = Steps(BCO[0]["keys"])
    assert len(BCO) == 3
    for row in BCO:
        loss, slopes = steps.paid(row)
        assert loss / 2 == pytest.approx(row["loss"], rel=1e-6)
        assert torch.allclose(slopes / 2, table(row, "slopes"), rtol=1e-5, atol=3e-7)


def test_the_rows_have_every_loss_that_trl_has() -> None:
    seen = {loss for row in TRL for loss in (row["keys"].get("losses") or {row["keys"]["loss"]: 1})}
    assert seen == set(PAIR_SETTINGS) - {"kto", "bradley-terry"}  # tests/algorithms/test_preference.py runs TRL's KTO itself


def test_the_chance_of_the_same_token_is_that_of_the_logits() -> None:
    """From the slope of the log-probability by the logits, also where rounding takes all but the token's own share."""
    logits = torch.tensor([[2.0, 0.0, -1.0], [40.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    (slopes,) = torch.autograd.grad(logprobs[:, 0].sum(), logits)
    found = log_collisions(logprobs[:, 0].detach(), slopes.square().sum(1))
    assert torch.allclose(found.exp(), logprobs.exp().square().sum(1).detach(), rtol=1e-12)
    assert log_collisions(torch.tensor([0.0]), torch.tensor([0.0])).tolist() == [0.0]
    assert log_collisions(torch.tensor([-12.0]), torch.tensor([1.0])).tolist() == [pytest.approx(-11.3, abs=0.1)]
