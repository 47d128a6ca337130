"""The weight of an entropy bonus that adapts, against what TRL 1.16's trainer makes of the same entropies."""

import json
from pathlib import Path

import pytest

from mmrl.algorithms.entropy import adapted_bonus, bonus_counts

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "corrections.jsonl").read_text().splitlines()]
BONUS = [row for row in ROWS if "entropies" in row]


@pytest.mark.parametrize("row", BONUS, ids=lambda row: row["name"])
def test_weights_are_theirs(row):
    """Row by row: the entropy of each optimiser step, the weight that the step's loss had, and the one that is kept."""
    weight, last, rule = row["first"], None, row["keys"]
    for entropy, used, kept in zip(row["entropies"], row["used"], row["kept"], strict=True):
        assert (weight if bonus_counts(last, rule["target"]) else 0.0) == pytest.approx(used, abs=1e-6)
        weight, last = adapted_bonus(weight, entropy, **rule), entropy
        assert weight == pytest.approx(kept, abs=1e-9)


def test_the_rows_reach_both_bounds_and_both_sides():
    assert len(BONUS) == 4
    for row in BONUS:
        assert {row["keys"]["least"], row["keys"]["most"]} <= set(row["kept"]) and 0.0 in row["used"] and max(row["used"]) > 0
